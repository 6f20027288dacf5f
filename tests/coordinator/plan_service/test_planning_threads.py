"""Plans that take long are made by threads of their own."""

from __future__ import annotations

import asyncio
import threading

from coordinator.plan_service.plan_service import planned_in_thread

HANGS_S = 120.0
THREADS_MAX = 36  # of asyncio.to_thread, on any machine


async def test_plans_that_take_long_hold_up_nothing_but_each_other() -> None:
    """A client that has many large graphs planned at once: jobs of others are still written, and content hashed."""
    over = threading.Event()
    planning = [asyncio.ensure_future(planned_in_thread(over.wait, HANGS_S)) for _ in range(THREADS_MAX)]
    try:
        async with asyncio.timeout(HANGS_S):
            for _ in range(3):
                assert await asyncio.to_thread(sum, (1, 2)) == 3
        assert not any(each.done() for each in planning)
    finally:
        over.set()
    assert all(await asyncio.gather(*planning))
