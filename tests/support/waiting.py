"""Waiting on a loop, real or simulated, until something is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], within_s: float) -> float:
    """How many seconds it took; TimeoutError where it took longer than `within_s`."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)
    return loop.time() - began_s


async def latest(over_s: float) -> float:
    """Wait for so long; by how many seconds this loop was woken too late, at worst.  What others think of a process
    that answers late says nothing about them."""
    loop, worst_s = asyncio.get_running_loop(), 0.0
    end_s = loop.time() + over_s
    while (now_s := loop.time()) < end_s:
        await asyncio.sleep(0.01)
        worst_s = max(worst_s, loop.time() - now_s - 0.01)
    return worst_s
