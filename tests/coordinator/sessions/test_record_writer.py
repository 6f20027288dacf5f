"""What a record names is let go once a newer record is on the disk, and soon after, however slow that is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.sessions import events as ev
from coordinator.sessions.manifest import Manifest, SessionRecord
from coordinator.sessions.record_writer import DUE_MAX, PAUSE_S_MAX, REFUSED_S, RecordWriter
from mesh.simulation.loop import VirtualLoop
from wire.errors import NotDurable

RECORD = SessionRecord(Manifest(()), {}, {})


class Disk:
    """One that takes `takes_s` for a record, with what a writer did and when."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.refuses = takes_s, False
        self.written_s: list[float] = []
        self.done_s: dict[int, float] = {}  # by the number of the copy
        loop, tasks = asyncio.get_running_loop(), set[Any]()

        def spawn(work: Any) -> asyncio.Task[None]:
            task: asyncio.Task[None] = loop.create_task(work)
            tasks.add(task)
            return task

        def act(action: Any) -> None:
            self.done_s[action.copy] = loop.time()

        self.writer = RecordWriter(self._write, lambda: RECORD, act, spawn, loop.time)

    async def _write(self, record: SessionRecord) -> None:
        await asyncio.sleep(self.takes_s)
        if self.refuses:
            raise NotDurable("full")
        self.written_s.append(asyncio.get_running_loop().time())

    def release(self, copies: range, about: int) -> None:
        self.writer.perform([ev.ReleaseCopy(copy, "a") for copy in copies], about)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def told() -> None:
        await story()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(told())


def test_a_copy_is_released_once_a_record_without_it_is_written() -> None:
    async def story() -> None:
        disk = Disk(0.01)
        disk.release(range(1), 1)
        assert not disk.done_s
        await asyncio.sleep(1.0)
        assert disk.done_s[0] == disk.written_s[0]
        disk.release(range(1, 2), 1)  # of which nothing is to be written
        assert 1 in disk.done_s

    run(story)


def test_what_waits_for_a_slow_disk_waits_for_no_more_than_the_next_record() -> None:
    async def story() -> None:
        disk = Disk(10.0)
        disk.release(range(1), 1)
        await asyncio.sleep(10.5)
        disk.release(range(1, 2), 2)
        await asyncio.sleep(30.0)
        assert disk.done_s[1] <= disk.written_s[0] + PAUSE_S_MAX + 10.1

    run(story)


def test_what_came_after_a_record_was_begun_never_goes_with_it() -> None:
    """Also where so much waited that it was done at once."""

    async def story() -> None:
        disk = Disk(10.0)
        disk.release(range(DUE_MAX + 1), 1)
        await asyncio.sleep(1.0)
        disk.release(range(DUE_MAX + 1, DUE_MAX + 9), 2)
        assert DUE_MAX in disk.done_s and DUE_MAX + 1 not in disk.done_s
        await asyncio.sleep(40.0)
        assert disk.done_s[DUE_MAX + 1] == disk.written_s[1]

    run(story)


def test_copies_are_released_after_a_while_where_the_disk_refuses() -> None:
    async def story() -> None:
        disk = Disk(0.01)
        disk.refuses = True
        disk.release(range(1), 1)
        await asyncio.sleep(REFUSED_S - 1.0)
        assert not disk.done_s
        await asyncio.sleep(3.0)
        assert 0 in disk.done_s and not disk.written_s
        disk.refuses = False
        await asyncio.sleep(2.0)
        assert disk.written_s, "it is written once there is room"

    run(story)
