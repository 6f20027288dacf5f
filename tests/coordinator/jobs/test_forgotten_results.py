"""Results that are made ready while their job is forgotten are nobody's: another job may have its id by then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.jobs.job_service import JobService
from coordinator.jobs.job_table import Free, Job, JobTable
from wire.errors import InputError
from wire.protocol.messages import AwaitJob, JobResult, NamedValue

LINK = cast(Any, SimpleNamespace(peer=SimpleNamespace(node_id="client", role="client")))


def done(table: JobTable, content: str) -> Job:
    job = table.submit(Job("nightly", "", "client", True, 0.0, content))
    job.accepted = True
    job.state = job.final = "done"
    return job


def value(name: str) -> NamedValue:
    return NamedValue(name, "f32", (1,), bytes(4))


@pytest.mark.parametrize("again", [False, True])
async def test_a_job_does_not_have_the_results_of_a_forgotten_one_of_its_id(again: bool) -> None:
    table, read = JobTable(), asyncio.Event()
    service = cast(Any, JobService.__new__(JobService))
    service._table, service._acted, service._loop = table, lambda *args: None, asyncio.get_running_loop()
    service._publishing, service._published, service._held, service._recent = asyncio.Lock(), {}, {}, {}
    service._waiting = {}

    async def publish(job: Job) -> tuple[NamedValue, ...]:
        await read.wait()
        return (value(job.content),)

    service._publish = publish
    first = done(table, "first")
    asking = asyncio.create_task(service._await(LINK, AwaitJob("nightly")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    table._jobs.pop(first.key)
    table._going.pop(first.key)
    service._free(Free(first))
    if again:
        done(table, "second")
    read.set()
    with pytest.raises(InputError):
        await asking
    assert not service._published
    if again:
        answer = await service._await(LINK, AwaitJob("nightly"))
        assert isinstance(answer, JobResult) and [each.name for each in answer.outputs] == ["second"]
