"""Time goes on for jobs while the journal is written: their limits hold, and those end whose clients went."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from coordinator.jobs.job_service import JobService
from wire.system.tasks import Tasks


async def test_a_disk_or_a_standby_that_takes_long_for_the_list_of_workers_holds_up_no_job() -> None:
    """A standby that was stopped takes half a minute for each entry, until the voters leave it out."""
    saved, written = list[list[str]](), asyncio.Event()

    async def save(job: str, kind: str, fields: dict[str, Any]) -> None:
        saved.append([row["node_id"] for row in fields["workers"]])
        await written.wait()

    ticks: list[float] = []
    service = cast(Any, JobService.__new__(JobService))
    service._table = SimpleNamespace(
        next_deadline=lambda: None, tick=lambda now: ticks.append(now) or [], workers=lambda *args: []
    )
    service._loop, service._now = asyncio.get_running_loop(), asyncio.get_running_loop().time
    service._wake, service._tasks, service._keeping = asyncio.Event(), Tasks(), None
    service._workers_before, service._workers_kept = frozenset(), []
    service._coordinator, service._store = SimpleNamespace(no_worker_reason=""), SimpleNamespace(save=save)
    workers = [SimpleNamespace(node_id="a", addresses=("a:1",))]
    service._workers = lambda: list(workers)
    watching = asyncio.create_task(service._watch_time())
    async with asyncio.timeout(120):
        while len(ticks) < 3:
            service._wake.set()
            await asyncio.sleep(0.01)
        workers.append(SimpleNamespace(node_id="b", addresses=("b:1",)))
        written.set()
        while len(saved) < 2:
            await asyncio.sleep(0.01)
    assert saved == [["a"], ["a", "b"]], "those that came meanwhile are kept, too"
    watching.cancel()
