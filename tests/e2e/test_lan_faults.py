"""A mesh on a network whose cables are slow, pulled or silent one way: right answers, and workers that come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.lan.lan_caller import LanCaller
from support.lan.lan_mesh import LanMesh, LoggedProcess, until
from support.lan.namespaces import Host, Lan, needs_namespaces, needs_rate_limit

pytestmark = needs_namespaces
HEALTHY, DEAD = "healthy", "dead"
BOTH = {"desk": HEALTHY, "attic": HEALTHY}
WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Home:
    mesh: LanMesh
    desk: Host
    attic: Host
    caller: LanCaller
    workers: tuple[LoggedProcess, ...]

    def lost(self) -> int:
        """How often a worker lost its coordinator."""
        return sum("link to coordinator" in line for worker in self.workers for line in worker.lines())

    def settled(self) -> None:
        """Both workers are there again and get work."""
        deadline_s = time.monotonic() + WITHIN_S
        nodes, called = self.mesh.nodes(), self.caller.call()
        while nodes != BOTH or set(called.workers) != set(BOTH):
            assert time.monotonic() < deadline_s, (nodes, called)
            nodes, called = self.mesh.nodes(), self.caller.call()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A coordinator, two workers and a program, on three hosts; every test leaves it settled."""
    folder = tmp_path_factory.mktemp("home")
    with Lan(3) as lan:
        mesh = LanMesh(lan.hosts[0], folder, "--node-timeout", "6")
        workers = tuple(mesh.worker(host, name) for host, name in zip(lan.hosts[1:], ("desk", "attic"), strict=True))
        until(lambda: mesh.nodes() == BOTH, WITHIN_S)
        made = Home(mesh, lan.hosts[1], lan.hosts[2], LanCaller(mesh, folder), workers)
        made.settled()
        yield made


@needs_rate_limit
def test_a_slow_cable_costs_time_and_nothing_else(home: Home) -> None:
    home.desk.limit_rate(20_000_000)  # and stays so
    lost = home.lost()
    for strategy in ("pipeline", "auto", "pipeline"):
        called = home.caller.call(strategy)
        assert called.right, called
    until(lambda: home.mesh.nodes() == BOTH, WITHIN_S)
    assert home.lost() == lost


def test_a_worker_whose_cable_is_pulled_is_missed_and_works_again_once_it_is_back(home: Home) -> None:
    home.attic.unplug()
    called = home.caller.call()
    assert called.right and called.workers == ("desk",), called
    until(lambda: home.mesh.nodes() == {"desk": HEALTHY, "attic": DEAD})
    home.attic.plug()
    home.settled()


@pytest.mark.long
@pytest.mark.parametrize("way", ["to the coordinator", "from the coordinator"])
def test_silence_one_way_between_worker_and_coordinator_takes_the_worker_out(home: Home, way: str) -> None:
    ends = (home.attic, home.mesh.host)
    loser, other = ends if way == "to the coordinator" else ends[::-1]
    loser.lose_what_goes_to(other)
    called = home.caller.call()
    assert called.right and called.workers == ("desk",), called
    loser.reach(other)
    home.settled()


@pytest.mark.long
def test_two_workers_that_do_not_hear_each_other_work_by_way_of_the_coordinator(home: Home) -> None:
    home.desk.lose_what_goes_to(home.attic)
    lost = home.lost()
    for _ in range(3):
        called = home.caller.call()
        assert called.right, called
    until(lambda: home.mesh.nodes() == BOTH, WITHIN_S)
    assert home.lost() == lost, "a pair that cannot talk is no reason to lose a worker"
    home.desk.reach(home.attic)
    home.settled()


@pytest.mark.parametrize("moves", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_worker_may_move_to_another_address(home: Home, moves: int) -> None:
    for number in range(moves):
        home.attic.change_address(f"10.77.0.{100 + number}")
        assert home.caller.call().right
        home.settled()
