"""A large simulated mesh: what a worker's joining, beats and death cost its coordinator does not grow with the others.

`PYTHONPATH=tests:. python tests/sim/test_large_mesh.py [WORKERS]` runs one and says what each phase took.  Links
between workers are not measured here: real bytes between all of them would be most of what the simulation takes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from support.simulated.crowd import CallCounter, Clock, never_probe
from support.simulated.simulated import Job, simulate

from coordinator.workers.link_prober import LinkProber
from mesh.simulation.cluster import Cluster

KILLED, SILENCED = 4, 3
ROUNDS = 5


def large_mesh(workers: int, tell: Callable[[str], None]) -> Counter[str]:
    """Workers join, beat, compute, die and come back; the events that the coordinator told of."""
    seen = Counter[str]()

    async def run(cluster: Cluster) -> None:
        coordinator = cluster.coordinator
        coordinator.watchers.append(lambda event: seen.update([event.kind]))
        tell("all joined")
        await asyncio.sleep(2.0)
        tell("settled for 2 s")
        with Clock() as clock:
            await asyncio.sleep(ROUNDS * coordinator.config.health.beat_s)
        tell(f"{ROUNDS} heartbeats of all, of which the coordinator took {clock.cpu_s / ROUNDS * 1e3:.2f} ms each")
        for strategy in ("auto", "pipeline"):
            assert await Job.chain(strategy).ask(cluster)
            tell(f"a call by {strategy}")
        killed, silenced = cluster.names[:KILLED], cluster.names[KILLED : KILLED + SILENCED]
        for name in killed:
            cluster.kill(name)
        for name in silenced:
            cluster.silence(name)
        await asyncio.sleep(3.0)
        assert seen["dead"] == KILLED + SILENCED
        tell(f"{seen['dead']} workers died")
        for name in killed:
            cluster.start(name)
        for name in silenced:
            cluster.reconnect(name)
        await asyncio.sleep(12.0)
        assert Counter(view.state for view in coordinator.nodes()) == {"healthy": workers}
        assert await Job.chain("auto").ask(cluster)
        tell("they are back, and a call")

    with patch.object(LinkProber, "run", never_probe):
        simulate(run, workers, plan_ahead=False)
    return seen


@pytest.mark.parametrize("workers", [30, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_large_mesh_joins_computes_and_loses_workers(workers: int) -> None:
    seen = large_mesh(workers, lambda text: None)
    assert seen["healthy"] + seen["joined"] >= KILLED + SILENCED


@pytest.mark.parametrize("many", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_a_worker_that_joins_costs_the_same_in_a_crowd(many: int) -> None:
    few, crowd = calls_of_joins(20), calls_of_joins(many)
    assert few > 50, "joins were counted"
    assert crowd <= 1.2 * few


def calls_of_joins(workers: int) -> float:
    """Calls of the coordinator's functions for each worker, until all have joined."""
    counter = CallCounter()

    async def run(cluster: Cluster) -> None:
        counter.stop()

    with patch.object(LinkProber, "run", never_probe):
        counter.start()
        try:
            simulate(run, workers, plan_ahead=False)
        finally:
            counter.stop()
    return counter.calls / workers


if __name__ == "__main__":
    gc.set_threshold(200_000, 50, 50)  # most objects here live for long: looking at a million again takes most of a run
    latest_s = time.process_time()

    def tell_here(text: str) -> None:
        global latest_s
        now_s, pages = time.process_time(), int(Path("/proc/self/statm").read_text().split()[1])
        print(f"{now_s - latest_s:8.2f} s of a core, {pages * 4 >> 10:6} MiB: {text}", flush=True)
        latest_s = now_s

    print(dict(large_mesh(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, tell_here)))
