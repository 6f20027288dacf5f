"""A large simulated mesh with workers coming and going: invariants hold, jobs are answered, nobody is lost.

`PYTHONHASHSEED=0 python tests/sim/test_simulated_crowd.py NODES HOURS [SEED]` runs one and reports.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections import Counter

import pytest
from support.simulated.simulated import Job, simulate

from coordinator.plan_service.planner_client import InProcessPlanner
from coordinator.planning.plan_codec import AnyQuestion
from mesh.simulation.cluster import Cluster

CHURN_PER_S = 0.05 / 60  # of all workers; each is away for a while
AWAY_S = (0.5, 30.0)
JOB_EVERY_S = 20.0
PLANNING_S = 0.5  # of a plan made ahead


class Unhurried(InProcessPlanner):
    """Plans ahead in a process at the lowest priority: it takes its time, and what is asked for meanwhile ends it."""

    async def answer(self, question: AnyQuestion) -> bytes | None:
        await asyncio.sleep(PLANNING_S)
        return await InProcessPlanner.answer(self, question)


async def crowd_run(cluster: Cluster, seconds: float) -> Counter[str]:
    """Churn and jobs for so many virtual seconds; how often what happened."""
    rng = random.Random(cluster.seed)
    seen: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    returning: set[asyncio.Task[None]] = set()
    cluster.coordinator.watchers.append(lambda event: seen.update([event.kind]))

    async def away(name: str, silent: bool) -> None:
        if silent:
            cluster.silence(name)
        else:
            cluster.kill(name)
        await asyncio.sleep(rng.uniform(*AWAY_S))
        if silent:
            cluster.reconnect(name)
        else:
            cluster.start(name)

    async def churn() -> None:
        while loop.time() < end_s:
            await asyncio.sleep(rng.expovariate(CHURN_PER_S * len(cluster.names)))
            name = rng.choice(cluster.names)
            if name in cluster.alive and not any(task.get_name() == name for task in returning):
                seen["away"] += 1
                task = asyncio.create_task(away(name, rng.random() < 0.3), name=name)
                returning.add(task)
                task.add_done_callback(returning.discard)

    async def ask() -> None:
        while loop.time() < end_s:
            job = Job.of(rng.randrange(1 << 30), rng.choice(("auto", "single", "pipeline")))
            assert await job.ask(cluster), "there are always workers"
            seen["answered"] += 1
            await asyncio.sleep(rng.uniform(0, 2 * JOB_EVERY_S))

    await asyncio.gather(churn(), ask())
    await asyncio.gather(*returning)
    await asyncio.sleep(10)
    states = Counter(view.state for view in cluster.coordinator.nodes())
    assert states == {"healthy": len(cluster.names)}, states
    assert cluster.coordinator.idle
    assert not any(cluster.busy().values())
    seen["events"], seen["frames"] = cluster.checker.events, cluster.network.frames
    return seen


@pytest.mark.parametrize(
    ("nodes", "seconds"), [(24, 50.0), pytest.param(300, 600.0, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_a_crowd_comes_and_goes(nodes: int, seconds: float) -> None:
    seen: list[Counter[str]] = []

    async def run(cluster: Cluster) -> None:
        seen.append(await crowd_run(cluster, seconds))

    simulate(run, nodes, seed=1, answerer=Unhurried())
    assert seen[0]["answered"] and seen[0]["away"] and seen[0]["dead"]


if __name__ == "__main__":
    count, hours = int(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1

    async def tell(cluster: Cluster) -> None:
        while True:
            await asyncio.sleep(60)
            now_s, events = asyncio.get_running_loop().time(), cluster.checker.events
            print(f"{now_s / 60:.0f} min: {events} events, {time.process_time():.0f} s of a core", flush=True)

    async def main(cluster: Cluster) -> None:
        telling = asyncio.create_task(tell(cluster))
        print(dict(await crowd_run(cluster, hours * 3600)), flush=True)
        telling.cancel()

    gc.set_threshold(200_000, 50, 50)  # most objects here live for long: looking at a million again takes most of a run
    began_s = time.monotonic()
    simulate(main, count, seed=seed, answerer=Unhurried())
    took_s = time.monotonic() - began_s
    print(f"{count} nodes for {hours:g} h from seed {seed}: every invariant held, {took_s:.0f} s", flush=True)
