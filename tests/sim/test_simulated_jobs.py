"""Promises of a simulated coordinator that dies at any step of its disk, by seed: none is forgotten, none kept twice.

`PYTHONHASHSEED=0 python tests/sim/test_simulated_jobs.py COUNT [FIRST]` runs that many seeds and reports.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.by_seed import ranges
from support.simulated.simulated import ALONE_S, Job
from support.simulated.simulated_jobs import Client, DurableCluster, simulate_durable, submission

from coordinator.jobs import job_service
from wire.errors import NodeLost
from wire.protocol.messages import AskJobs, AwaitJob, CancelJob, Done, JobAccepted, JobResult, Jobs
from wire.protocol.reports import RelayReport


@pytest.mark.parametrize("seeds", ranges(3, 500), ids=str)
def test_what_was_accepted_is_answered_once_whatever_happens(seeds: range) -> None:
    for seed in seeds:
        transcript, lives = simulate_durable(2 + seed % 3, seed)
        assert lives > 1 and f"begins life {lives}" in transcript


def test_the_log_of_a_job_says_what_was_relayed() -> None:
    async def scenario(cluster: DurableCluster) -> None:
        for one, other in (("sim-0", "sim-1"), ("sim-1", "sim-0")):
            cluster.block(one, other)
        await asyncio.sleep(90)  # until that is found out
        client = Client(cluster, "ann")
        await client.ask(submission("job", Job.chain("pipeline"), detach=True), JobAccepted)
        answer = await client.ask(AwaitJob("job"), JobResult)
        (job,) = (await client.ask(AskJobs("job"), Jobs)).jobs
        wanted = [f"relayed {RelayReport(**each)}" for each in json.loads(answer.report)["relayed"]]
        assert wanted and [line.partition(" ")[2] for line in job.log if "relayed" in line] == wanted
        await client.endpoint.close()

    simulate_durable(2, 0, scenario)


def test_what_cannot_be_done_after_a_job_is_kept_costs_it_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is given back by a thread now and then, and the system may have none left."""
    refused = []

    async def to_thread(work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if work is job_service.give_back:
            refused.append(work)
            raise RuntimeError("can't start new thread")
        return await in_thread(work, *args, **named)

    in_thread = asyncio.to_thread
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(job_service.JobService, "_give_back_every", 1)

    async def scenario(cluster: DurableCluster) -> None:
        cluster.mortal = False
        client = Client(cluster, "ann")
        await client.ask(submission("job", Job.chain("single"), detach=True), JobAccepted)
        right = await client.ask(AwaitJob("job"), JobResult)
        await asyncio.sleep(12)  # what could not be kept would be tried again
        cluster.crash()
        await asyncio.sleep(30)
        kept = await client.ask(AwaitJob("job"), JobResult)
        assert right.outputs and kept.outputs == right.outputs and refused
        await client.endpoint.close()

    simulate_durable(2, 0, scenario)


def test_a_job_that_needs_no_client_waits_for_a_worker_as_long_as_it_takes() -> None:
    """Through a restart, and through the deaths of all workers while it runs; an attached one is told at once."""
    waits = "for a worker: none is connected"

    async def scenario(cluster: DurableCluster) -> None:
        async def state_of(name: str) -> tuple[str, str]:
            (job,) = (await client.ask(AskJobs(name), Jobs)).jobs
            return job.state, job.waits

        client, job, loop = Client(cluster, "ann"), Job.of(5, "auto"), asyncio.get_running_loop()
        for name in cluster.names:
            cluster.kill(name)
        await asyncio.sleep(1)
        for name in ("one", "two"):
            await client.ask(submission(name, job, detach=True), JobAccepted)
            client.jobs[name] = job
        began_s = loop.time()
        await client.ask(submission("attached", job, detach=False), JobAccepted)
        with pytest.raises(NodeLost, match="no worker is left, and none joined for 5 s"):
            await client.ask(AwaitJob("attached"), JobResult)
        assert loop.time() - began_s == pytest.approx(ALONE_S, abs=0.5)
        await asyncio.sleep(600)
        assert await state_of("one") == ("queued", waits)
        cluster.crash()
        await asyncio.sleep(600)
        assert cluster.lives == 2 and await state_of("one") == await state_of("two") == ("queued", waits)
        await client.ask(CancelJob("two"), Done)
        assert (await state_of("two"))[0] == "cancelled"
        cluster.devices[0].slower = 1000.0
        cluster.start("sim-0")
        await until_true(lambda: cluster.busy() == {"sim-0": 1})
        assert await state_of("one") == ("running", "")
        cluster.kill("sim-0")
        await asyncio.sleep(600)
        assert await state_of("one") == ("running", waits)
        await client.ask(submission("three", job, detach=True), JobAccepted)
        client.jobs["three"] = job
        assert await state_of("three") == ("queued", waits)
        cluster.devices[0].slower = 1.0
        cluster.start("sim-0")
        await client.check("one")
        await client.check("three")
        (told,) = (await client.ask(AskJobs("one"), Jobs)).jobs
        said = [line.partition(" ")[2] for line in told.log]
        assert said.count("waiting " + waits) == 2 and said[-1] == "done"
        await client.endpoint.close()

    simulate_durable(1, 0, scenario, mortal=False)


async def until_true(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s, total = time.monotonic(), 0
    for seed in range(first, first + count):
        total += simulate_durable(2 + seed % 3, seed)[1]
    print(f"{count} seeds from {first}, {total} lives, {time.monotonic() - began_s:.0f} s", flush=True)
