"""SIGSTOP of a program that trains, calls or generates, and of the coordinator daemon that does it for it: no step is
lost, no bit changes.

Its workers are processes of their own and go on.  Each stop is at a random moment of the same run.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.by_seed import asked
from support.processes.commands import Daemon, daemon, environment, node_states, wait_for
from support.processes.fault_proxy import FaultProxy
from support.processes.stopped_caller import ASK
from support.processes.stopped_programs import Program, caller, program

from wire.addresses import parse_address

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
KINDS = ("buddy", "coded", "coded 1 of 3", "checkpoint", "none")
STOPS_S = (1.0, 3.0, 10.0, 60.0)
STOPPED = ("program", "client", "daemon")  # one that coordinates, one that has a daemon do it, and that daemon


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
    assert len(running.said) >= 5 + len(stops_s), "a step after each stop"


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
