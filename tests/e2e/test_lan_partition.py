"""A host that is cut off from all others in silence, both ways: noticed in time, healed, and nothing lost.

`python tests/e2e/test_lan_partition.py` prints how long it takes, over more rounds and without the tests' patience.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.lan.lan_caller import LanCaller
from support.lan.lan_mesh import LanMesh, until
from support.lan.lan_watcher import LanWatcher
from support.lan.namespaces import Host, Lan, needs_namespaces

pytestmark = needs_namespaces
HEALTHY, SUSPECT, DEAD = "healthy", "suspect", "dead"
BOTH = {"desk": HEALTHY, "attic": HEALTHY}
SUSPECT_S_MAX, DEAD_S_MAX = 0.6, 1.5  # of the lan preset
WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Home:
    mesh: LanMesh
    attic: Host
    caller: LanCaller
    watcher: LanWatcher

    def settled(self) -> None:
        """Both workers are there again and get work."""
        until(lambda: self.mesh.nodes() == BOTH and set(self.caller.call().workers) == set(BOTH), WITHIN_S)


@contextmanager
def home(folder: Path) -> Iterator[Home]:
    with Lan(3) as lan:
        mesh = LanMesh(lan.hosts[0], folder, "--preset", "lan")
        for host, name in zip(lan.hosts[1:], ("desk", "attic"), strict=True):
            mesh.worker(host, name)
        until(lambda: mesh.nodes() == BOTH, WITHIN_S)
        made = Home(mesh, lan.hosts[2], LanCaller(mesh, folder), LanWatcher(mesh, folder))
        made.settled()
        yield made


def worker_cut_off(there: Home) -> tuple[float, float]:
    """Seconds until a worker that is cut off is Suspect and Dead; a call is made before, meanwhile and after."""
    there.caller.begin()
    began_s = time.monotonic()
    there.attic.cut_off()
    called = there.caller.end()
    assert called.right, called
    times = [there.watcher.first("attic", state, began_s) - began_s for state in (SUSPECT, DEAD)]
    meanwhile = there.caller.call()
    assert meanwhile.right and meanwhile.workers == ("desk",), meanwhile
    there.attic.rejoin()
    there.settled()
    return times[0], times[1]


@pytest.mark.long  # it measures
def test_a_worker_that_is_cut_off_is_dead_in_time_and_works_again_once_it_is_back(tmp_path: Path) -> None:
    with home(tmp_path) as there:
        rounds = [worker_cut_off(there) for _ in range(5)]
    suspect_s, dead_s = (sorted(each) for each in zip(*rounds, strict=True))
    assert suspect_s[2] <= SUSPECT_S_MAX and dead_s[2] <= DEAD_S_MAX, rounds  # others work on this machine, too
    assert dead_s[-1] <= 2 * DEAD_S_MAX, rounds


@pytest.mark.long
@pytest.mark.parametrize("cut_s", [1.0, 4.0, 8.0])
def test_a_coordinator_that_is_cut_off_goes_on_with_everything_once_it_is_back(tmp_path: Path, cut_s: float) -> None:
    """Its program is on the same host.  A call waits 5 s for a worker, and then says that there is none."""
    with home(tmp_path) as there:
        there.caller.begin()
        there.mesh.host.cut_off()
        time.sleep(cut_s)
        there.mesh.host.rejoin()
        called = there.caller.end()
        assert called.right or (cut_s > 5.0 and called.error.startswith("no worker is left")), called
        there.settled()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, home(Path(folder)) as there:
        rounds = [worker_cut_off(there) for _ in range(20)]
    for name, each in zip(("suspect", "dead"), zip(*rounds, strict=True), strict=True):
        each = sorted(each)
        print(f"{name}: median {each[len(each) // 2]:.3f} s, most {each[-1]:.3f} s of {len(each)}")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]) if "--test" in sys.argv else main())
