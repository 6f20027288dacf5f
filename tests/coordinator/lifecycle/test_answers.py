"""What is large is put together by a thread, and whoever waits hears of it whatever becomes of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.lifecycle.answers import Made, give
from mesh.simulation.loop import VirtualLoop
from wire.errors import MeshError, OutOfMemory
from wire.limits import MIB
from wire.system.tasks import Tasks

LARGE = 2 * MIB


def given(prepare: Callable[[], Made[Any]], tasks: Tasks) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    give(tasks, future, "putting it together", prepare)
    return future


async def test_what_is_large_is_made_by_a_thread_and_what_is_small_at_once() -> None:
    tasks = Tasks()
    small = given(lambda: (8, threading.current_thread), tasks)
    assert small.done() and small.result() is threading.main_thread()
    assert await given(lambda: (LARGE, threading.current_thread), tasks) is not threading.main_thread()


async def test_what_cannot_be_made_is_an_error() -> None:
    def full() -> None:
        raise MemoryError

    def unknown() -> Made[None]:
        raise KeyError("address")

    for size_bytes in (8, LARGE):
        with pytest.raises(OutOfMemory):
            await given(lambda size_bytes=size_bytes: (size_bytes, full), Tasks())  # type: ignore[misc]
    with pytest.raises(MeshError):
        await given(unknown, Tasks())


async def test_who_waits_as_all_ends_waits_no_more() -> None:
    for passes in (0, 1, 3):  # before the task begins, and later
        tasks, go_on = Tasks(), threading.Event()
        future = given(lambda go_on=go_on: (LARGE, lambda: go_on.wait(20)), tasks)  # type: ignore[misc]
        for _ in range(passes):
            await asyncio.sleep(0)
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        go_on.set()


def test_who_waits_no_more_is_not_told() -> None:
    async def main() -> None:
        tasks, loop = Tasks(), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.thread_s = lambda: 1.0
        future = given(lambda: (LARGE, lambda: 1), tasks)
        await asyncio.sleep(0.5)
        future.cancel()
        await asyncio.sleep(1)
        assert future.cancelled() and not tasks

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
