"""A session with a name outlives the program that opened it: kill -9 and SIGSTOP of programs and the coordinator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from support.processes.commands import run
from support.processes.stopped_programs import ANSWER_S, PROGRAM, Program, program, trained_alone
from test_durable_sessions import Served, served

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")


def trains(site: Served, how: str) -> AbstractContextManager[Program]:
    return program(site.env, "buddy", f"127.0.0.1:{site.port}", "run7", how)


def attached(running: Program, at_least: int) -> Program:
    """A program that attached, and what was done by then."""
    assert running.process.stdout is not None
    word, steps = running.process.stdout.readline().split()
    assert word == "attached" and int(steps) >= at_least, "a step that was answered is lost"
    running.said = list(trained_alone(int(steps))[0])
    return running


def failure(site: Served, how: str) -> str:
    """What a program says that cannot attach."""
    command = [sys.executable, str(PROGRAM), "buddy", f"127.0.0.1:{site.port}", "run7", how]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=site.env, timeout=ANSWER_S
    )
    assert done.returncode != 0
    return done.stderr


def test_programs_that_die_or_stand_still_are_followed_by_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(served(tmp_path))
        first = stack.enter_context(trains(site, "open"))
        for _ in range(7):
            first.read()
        first.process.kill()
        first.process.wait()
        second = attached(stack.enter_context(trains(site, "attach")), len(first.said))
        for _ in range(4):
            second.read()
        os.kill(second.process.pid, signal.SIGSTOP)
        assert "SessionTaken" in failure(site, "attach"), "it is still there"
        third = attached(stack.enter_context(trains(site, "take")), len(second.said))
        third.read()
        os.kill(second.process.pid, signal.SIGCONT)
        assert second.process.wait(ANSWER_S) != 0, "it is told that another program has the session"
        third.read()
        third.process.kill()
        third.process.wait()
        for number in (signal.SIGKILL, signal.SIGTERM):
            site.coordinator.stop(number)
            site.start()
        last = attached(stack.enter_context(trains(site, "attach")), len(third.said))
        where = ("--coordinator", f"127.0.0.1:{site.port}")
        shown = run("coord", "sessions", *where, env=site.env, cwd=tmp_path)
        assert "run7" in shown.stdout and "one" in shown.stdout, shown
        last.read()
        last.end()
        with trains(site, "open") as other:  # its name is free again
            other.read()
        done = run("coord", "sessions", "end", "run7", *where, env=site.env, cwd=tmp_path)
        assert done.returncode == 0, done
        assert "no session 'run7' of yours" in failure(site, "attach")


@pytest.mark.long
def test_a_program_that_stands_still_for_longer_than_its_link_lasts_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(served(tmp_path))
        running = stack.enter_context(trains(site, "open"))
        for _ in range(5):
            running.read()
        os.kill(running.process.pid, signal.SIGSTOP)
        time.sleep(130.0)  # the link ends after 90 s of silence, an unnamed session 60 s later
        os.kill(running.process.pid, signal.SIGCONT)
        running.read_on()
        running.end()
        assert running.process.returncode == 0
