"""What is done in threads of a simulation takes as long as it is told to, and can be given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mesh.simulation.loop import VirtualLoop


def simulate(scenario: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await scenario(loop)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_a_thread_takes_its_time_and_gives_its_result_or_its_error() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        assert await asyncio.to_thread(lambda: 1) == 1 and loop.time() == 0
        loop.thread_s = lambda: 2.0
        assert await asyncio.to_thread(lambda: 3) == 3 and loop.time() == pytest.approx(2)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        assert loop.time() == pytest.approx(4)

    simulate(scenario)


def test_a_thread_that_nobody_waits_for_any_more_tells_nobody() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        loop.thread_s, done = lambda: 2.0, list[int]()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.to_thread(done.append, 1)
        await asyncio.sleep(5)
        assert done == [1] and loop.time() == pytest.approx(6)

    simulate(scenario)
