"""Parent watch: a worker's daemon ends when its parent closes its stdin, or dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial

from ..config import WorkerConfig

PARENT_CHECK_S = 0.5

Leave = Callable[[str], None]


async def watch_parent(loop: asyncio.AbstractEventLoop, config: WorkerConfig, leave: Leave) -> None:
    """Leave when the parent does, as far as the settings say that this matters."""
    if config.exit_with_stdin:
        at_end = partial(leave, "its parent closed stdin")
        await loop.connect_read_pipe(lambda: _EndOfInput(at_end), sys.stdin)
    if config.parent_pid:
        _check_parent(loop, config.parent_pid, leave)


def _check_parent(loop: asyncio.AbstractEventLoop, parent: int, leave: Leave) -> None:
    if os.getppid() != parent:
        leave("its parent is gone")
    else:
        loop.call_later(PARENT_CHECK_S, _check_parent, loop, parent, leave)


class _EndOfInput(asyncio.Protocol):
    """A reader that calls back when stdin ends; what stdin says does not matter."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end()
