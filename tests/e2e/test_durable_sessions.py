"""A session outlives its coordinator: kill -9 of `mesh-coord serve` and a new start lose no step, and tell none twice.

python tests/e2e/test_durable_sessions.py KILLS        so many kills at random moments, over all kinds of copies
"""

from __future__ import annotations

import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.processes import site as sites
from support.processes.commands import STATE_HOME, Daemon, environment, node_states, run, wait_for
from support.processes.durable import free_port
from support.processes.small_disk import fill, small_disk
from support.processes.stopped_programs import Program, program

NAMES = ("one", "two", "three")
KINDS = ("buddy", "coded", "checkpoint", "none")


class Logged:
    """What a log says by now."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __contains__(self, text: str) -> bool:
        return text in self._file.read_text()


class Served:
    """A coordinator on a port that is killed and started anew, with workers that stay."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.port = folder, free_port()
        self.env = environment(folder, MESH_NAME="durable-sessions")
        self.coordinator: Daemon
        self._stack = stack.enter_context(ExitStack())
        self.start()
        self.workers = stack.enter_context(sites.working(folder, self.env, f"127.0.0.1:{self.port}", NAMES))
        wait_for(lambda: node_states(self.coordinator) == dict.fromkeys(NAMES, "healthy"))

    def start(self) -> None:
        self.coordinator = self._stack.enter_context(sites.serving(self.folder, self.env, port=self.port))

    def fail_to_start(self) -> None:
        """Start it while something else has its port."""
        with socket.socket(socket.AF_INET6) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("::", self.port))
            other.listen()
            failed = run(*sites.SERVE, "--port", str(self.port), env=self.env)
        assert failed.returncode != 0 and str(self.port) in failed.stderr

    def restart(self, running: Program, number: int = signal.SIGKILL) -> float:
        """Kill it, start it again, and return after how many seconds from its being ready the program gets on."""
        self.coordinator.stop(number)
        self.start()
        ready_s = time.monotonic()
        return running.read_on(ready_s) - ready_s


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(folder, stack)


def test_a_session_goes_on_after_its_coordinator_was_killed(tmp_path: Path) -> None:
    with served(tmp_path) as site, program(site.env, "buddy", f"127.0.0.1:{site.port}") as running:
        for steps, number in ((2, signal.SIGKILL), (9, signal.SIGTERM)):
            for _ in range(steps):
                running.read()
            site.restart(running, number)
        site.coordinator.stop(signal.SIGKILL)
        site.fail_to_start()  # which ends no session
        site.start()
        running.read_on(time.monotonic())
        running.end()
    assert "1 session of before, to be taken up" in Logged(tmp_path / "coordinator.log")


def test_a_worker_that_dies_with_its_coordinator_costs_nothing_where_others_have_its_state(tmp_path: Path) -> None:
    with served(tmp_path) as site, program(site.env, "buddy", f"127.0.0.1:{site.port}") as running:
        for _ in range(12):
            running.read()
        site.workers["two"].stop(signal.SIGKILL)
        site.restart(running)
        running.end()
        assert len(running.said) > 12


def test_while_the_disk_of_its_journal_is_full_a_session_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / STATE_HOME, "6m"))
        site = stack.enter_context(served(tmp_path))
        running = stack.enter_context(program(site.env, "buddy", f"127.0.0.1:{site.port}"))
        running.read()
        fill(disk / "filler")
        logged = Logged(tmp_path / "coordinator.log")
        while "until its state can be written down" not in logged:
            running.read()
        (disk / "filler").unlink()
        while "is written down again" not in logged:
            running.read()
        before = len(running.said)
        site.restart(running)
        running.end()
        assert len(running.said) > before


def many(kills: int, seed: int) -> list[float]:
    """Kill it so often, at random moments of a session of each kind of copies in turn; how long each recovery took."""
    chance, recoveries = random.Random(seed), list[float]()
    while len(recoveries) < kills:
        copies = KINDS[len(recoveries) // 10 % len(KINDS)]
        with ExitStack() as stack:
            site = stack.enter_context(served(Path(stack.enter_context(TemporaryDirectory()))))
            running = stack.enter_context(program(site.env, copies, f"127.0.0.1:{site.port}"))
            running.read()  # it has its session: a program that finds no coordinator as it begins ends
            for _ in range(10):
                for _ in range(chance.randrange(12)):
                    running.read()
                time.sleep(chance.uniform(0.0, 0.1))
                recoveries.append(site.restart(running))
            running.end()
        median_s, most_s = statistics.median(recoveries[-10:]), max(recoveries[-10:])
        print(f"{len(recoveries)} kills, {copies}: continues after {median_s:.2f}, at most {most_s:.2f} s", flush=True)
    return recoveries


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_session_survives_a_hundred_kills(seed: int) -> None:
    assert len(many(100, seed)) == 100


if __name__ == "__main__":
    many(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
