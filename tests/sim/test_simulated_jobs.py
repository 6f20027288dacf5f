"""Promises of a simulated coordinator that dies at any step of its disk, by seed: none is forgotten, none kept twice.

`PYTHONHASHSEED=0 python tests/sim/test_simulated_jobs.py COUNT [FIRST]` runs that many seeds and reports.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pytest
from support.simulated import Job
from support.simulated_jobs import Client, DurableCluster, simulate_durable, submission

from wire.messages import AskJobs, AwaitJob, JobAccepted, JobResult, Jobs
from wire.reports import RelayReport


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 500), marks=pytest.mark.long)], ids=str)
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
        await client.ask(submission("job", Job.of(5, "pipeline"), detach=True), JobAccepted)
        answer = await client.ask(AwaitJob("job"), JobResult)
        (job,) = (await client.ask(AskJobs("job"), Jobs)).jobs
        wanted = [f"relayed {RelayReport(**each)}" for each in json.loads(answer.report)["relayed"]]
        assert wanted and [line.partition(" ")[2] for line in job.log if "relayed" in line] == wanted
        await client.endpoint.close()

    simulate_durable(2, 0, scenario)


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began_s, total = time.monotonic(), 0
    for seed in range(first, first + count):
        total += simulate_durable(2 + seed % 3, seed)[1]
    print(f"{count} seeds from {first}, {total} lives, {time.monotonic() - began_s:.0f} s", flush=True)
