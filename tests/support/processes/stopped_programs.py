"""Programs that train, call or generate in processes of their own, and a check of all they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import islice
from pathlib import Path

from support.cases.training import batch, first_state, train
from support.processes.stopped_caller import ASK
from support.processes.stopped_program import digest

from mesh import Mesh

PROGRAM = Path(__file__).parent / "stopped_program.py"
CALLER = Path(__file__).parent / "stopped_caller.py"
ANSWER_S = 120.0  # for a line of the program, whatever else the machine does
Undisturbed = Callable[[int], tuple[list[str], str]]  # what so many steps say, and the digest of the state after them


class Program:
    """The program as it runs, and what it said: the number of each step or answer, what came, and when."""

    def __init__(self, process: subprocess.Popen[str], undisturbed: Undisturbed) -> None:
        self.process = process
        self.said: list[str] = []
        self.longest_s = 0.0  # from a SIGCONT to the next step
        self._undisturbed = undisturbed

    def read(self) -> float:
        """One more step; when it was told."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert len(line) == 3, f"it said {line} and not what a step gave"
        assert int(line[0]) == len(self.said), "steps are told in order, once"
        self.said.append(line[1])
        return float(line[2])

    def stop(self, pid: int, seconds: float) -> None:
        """Stop a process for so long, and see that the program goes on."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        woke_s = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        self.longest_s = max(self.longest_s, self.read_on(woke_s) - woke_s)

    def read_on(self, since_s: float | None = None) -> float:
        """All steps until one that was done later than that, or than now; when it was told."""
        since_s, before = time.monotonic() if since_s is None else since_s, len(self.said)
        while (told_s := self.read()) <= since_s:
            assert len(self.said) < before + 10_000
        return told_s

    def end(self) -> None:
        """Have it end, and compare all it did with a run that nobody stopped."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        state = ""
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "state":
                state = words[1]
            else:
                self.said.append(words[1])
        assert (self.said, state) == self._undisturbed(len(self.said))
        assert self.process.wait(ANSWER_S) == 0


@cache
def trained_alone(steps: int) -> tuple[list[str], str]:
    with Mesh.builder().build() as mesh, mesh.session(train, first_state(), *batch(0), mode="off") as session:
        losses = [float(session.step(*batch(step)).result()).hex() for step in range(steps)]
        return losses, digest(session.state())


def answered_alone(what: str, answers: int) -> tuple[list[str], str]:
    with Mesh.builder().build() as mesh:
        return list(islice(ASK[what](mesh, "off"), answers)), ""


@contextmanager
def started(undisturbed: Undisturbed, env: Mapping[str, str], file: Path, *arguments: str) -> Iterator[Program]:
    command, pipe = [sys.executable, str(file), *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as made:
        try:
            yield Program(made, undisturbed)
        finally:
            if made.poll() is None:
                os.kill(made.pid, signal.SIGCONT)
                made.kill()


def program(env: Mapping[str, str], *arguments: str) -> AbstractContextManager[Program]:
    """One that trains."""
    return started(trained_alone, env, PROGRAM, *arguments)


def caller(what: str, env: Mapping[str, str], address: str) -> AbstractContextManager[Program]:
    """One that calls, or generates texts."""
    return started(partial(answered_alone, what), env, CALLER, what, address)
