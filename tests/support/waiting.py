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
