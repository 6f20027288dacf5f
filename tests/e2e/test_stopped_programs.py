"""SIGSTOP of a program that trains, calls or generates, and of the coordinator daemon that does it for it: no step is
lost, no bit changes.

Its workers are processes of their own and go on.  Each stop is at a random moment of the same run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.by_seed import asked
from support.cases.training import batch, first_state, train
from support.processes.commands import Daemon, daemon, environment, node_states, wait_for
from support.processes.fault_proxy import FaultProxy
from support.processes.stopped_caller import ASK
from support.processes.stopped_program import digest

from mesh import Mesh
from wire.addresses import parse_address

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
PROCESSES = Path(__file__).parent.parent / "support" / "processes"
ANSWER_S = 120.0  # for a line of the program, whatever else the machine does
KINDS = ("buddy", "coded", "coded 1 of 3", "checkpoint", "none")
STOPS_S = (1.0, 3.0, 10.0, 60.0)
Undisturbed = Callable[[int], tuple[list[str], str]]  # what so many steps say, and the digest of the state after them
STOPPED = ("program", "client", "daemon")  # one that coordinates, one that has a daemon do it, and that daemon


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
def started(undisturbed: Undisturbed, env: Mapping[str, str], file: str, *arguments: str) -> Iterator[Program]:
    command, pipe = [sys.executable, str(PROCESSES / file), *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as made:
        try:
            yield Program(made, undisturbed)
        finally:
            if made.poll() is None:
                os.kill(made.pid, signal.SIGCONT)
                made.kill()


def program(env: Mapping[str, str], *arguments: str) -> AbstractContextManager[Program]:
    """One that trains."""
    return started(trained_alone, env, "stopped_program.py", *arguments)


def caller(what: str, env: Mapping[str, str], address: str) -> AbstractContextManager[Program]:
    """One that calls, or generates texts."""
    return started(partial(answered_alone, what), env, "stopped_caller.py", what, address)


def stopped(running: Program, pid: int, stops_s: tuple[float, ...], seed: int = 0) -> None:
    """Have a program train while a process is stopped at random moments; all it did is right."""
    chance = random.Random(seed)
    for _ in range(5):
        running.read()
    for seconds in stops_s:
        for _ in range(chance.randrange(3)):
            running.read()
        time.sleep(chance.uniform(0.0, 0.05))
        running.stop(pid, seconds)
    running.end()


def test_a_program_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    with program(environment(tmp_path), "buddy") as running:
        stopped(running, running.process.pid, (3.0,))


@contextmanager
def served(folder: Path) -> Iterator[tuple[Daemon, dict[str, str]]]:
    """A coordinator daemon with three workers, and the environment of its clients."""
    env = environment(folder, MESH_NAME="stopped")
    with ExitStack() as stack:
        log = folder / "coordinator.log"
        coordinator = stack.enter_context(daemon("coord", "serve", "--port", "0", "--no-mdns", env=env, log=log))
        for name in ("one", "two", "three"):
            options = ("--port", "0", "--no-mdns", "--device", "cpu", "--name", name, "--peer", coordinator.address)
            stack.enter_context(daemon("worker", *options, env=env, log=folder / f"{name}.log"))
        wait_for(lambda: list(node_states(coordinator).values()) == ["healthy"] * 3)
        yield coordinator, env


def trained(stopped_one: str, copies: str, stops_s: tuple[float, ...], seed: int, folder: Path) -> int:
    """A program with one kind of copies while one process is stopped; how many steps it did.  It prints the longest
    wait for the next step."""
    folder.mkdir()
    with ExitStack() as stack:
        if stopped_one == "program":
            running = stack.enter_context(program(environment(folder), copies))
            pid = running.process.pid
        else:
            coordinator, env = stack.enter_context(served(folder))
            running = stack.enter_context(program(env, copies, coordinator.address))
            pid = (running if stopped_one == "client" else coordinator).process.pid
        stopped(running, pid, stops_s, seed)
        print(f"{stopped_one}, {copies}: {len(stops_s)} stops, the next step at most {running.longest_s:.2f} s later")
        return len(running.said)


def round_of(stopped_one: str, moments: tuple[int, ...], seed: int, folder: Path) -> list[int]:
    """The steps of programs with all kinds of copies, side by side: one that is stopped needs no processor."""
    stops_s = tuple(seconds for seconds, count in zip(STOPS_S, moments, strict=True) for _ in range(count))
    with ThreadPoolExecutor(len(KINDS)) as pool:
        running = [
            pool.submit(trained, stopped_one, copies, stops_s, seed, folder / f"{stopped_one} {number}")
            for number, copies in enumerate(KINDS)
        ]
        return [one.result() for one in running]


@pytest.mark.long
@pytest.mark.parametrize("stopped_one", STOPPED)
def test_programs_that_are_stopped_at_many_moments_go_on_where_they_were(stopped_one: str, tmp_path: Path) -> None:
    moments = (10, 10, 3, 2)
    assert min(round_of(stopped_one, moments, 0, tmp_path)) > sum(moments), "a step after each stop"


@pytest.mark.parametrize("what", sorted(ASK))
def test_calls_and_texts_go_on_where_they_were_when_the_client_or_the_daemon_was_stopped(
    what: str, tmp_path: Path
) -> None:
    assert len(asking(what, (3.0,), 1, tmp_path)) == 2


@pytest.mark.long
@pytest.mark.parametrize("what", sorted(ASK))
def test_calls_and_texts_are_right_whatever_is_stopped_at_many_moments(what: str, tmp_path: Path) -> None:
    longest = asking(what, STOPS_S[:2] * 8 + STOPS_S * 2, 0, tmp_path)
    print(f"{what}: the next answer at most {longest} s later")
    assert len(longest) == 2


def asking(what: str, stops_s: tuple[float, ...], seed: int, folder: Path) -> list[float]:
    """A caller whose process is stopped, and then one whose daemon is; the longest wait of each for an answer."""
    with served(folder) as (coordinator, env):
        longest = []
        for daemon_too in (False, True):
            with caller(what, env, coordinator.address) as running:
                stopped(running, (coordinator if daemon_too else running).process.pid, stops_s, seed)
                longest.append(round(running.longest_s, 2))
        return longest


def test_a_link_of_a_client_that_breaks_again_and_again_costs_its_session_nothing(tmp_path: Path) -> None:
    """By a reset and by an end, in the middle of steps; in between the daemon is out of reach for a second."""
    with ExitStack() as stack:
        coordinator, env = stack.enter_context(served(tmp_path))
        proxy = stack.enter_context(FaultProxy(parse_address(coordinator.address)))
        running = stack.enter_context(program(env, "checkpoint", proxy.address))
        chance = random.Random(1)
        for number in range(8):
            for _ in range(chance.randrange(1, 4)):
                running.read()
            time.sleep(chance.uniform(0.0, 0.05))
            if number % 4 == 3:
                proxy.change(refused=True)
            proxy.end(("rst", "fin")[number % 2])
            if number % 4 == 3:
                time.sleep(1.0)
                proxy.change(refused=False)
            running.read_on()
        assert len(proxy.connections) > 2 * 8, "every link has two connections"
        running.end()


if __name__ == "__main__":
    count, first, _ = asked()
    with TemporaryDirectory() as name:
        for stopped_one in STOPPED:
            round_of(stopped_one, (count,) * len(STOPS_S), first, Path(name))
