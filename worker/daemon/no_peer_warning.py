"""A worker that nobody wants says so, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("graph_mesh.worker")


async def tell_if_alone(alone_s: float, owned: Callable[[], bool], text: Callable[[float], str]) -> None:
    """Warn with `text(waited_s)` after so long without an owner, and again only after there was one; never returns."""
    loop = asyncio.get_running_loop()
    since_s, told = loop.time(), False
    while True:
        await asyncio.sleep(alone_s / 10)
        waited_s = loop.time() - since_s
        if owned():
            since_s, told = loop.time(), False
        elif not told and waited_s >= alone_s:
            told = True
            log.warning("%s", text(waited_s))
