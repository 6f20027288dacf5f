"""Deferred updates: what is recorded of workers and plans after a call, at a time when no caller waits for it.

A program may make the same short call again and again, and whatever runs between an answer and the next call makes each
of them longer.  So an update is deferred until the next call was sent, and a worker computes, or for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.bounds import DEFERRED_UPDATES
from wire.system.tasks import isolated

SOON_S = 0.02  # until they run if no call follows


class DeferredUpdates:
    """The updates that have not run yet, in order.  Made on the event loop."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, update: Callable[[], object]) -> None:
        """Defer an update; if many wait, all run now."""
        self._waiting.append(update)
        if len(self._waiting) >= DEFERRED_UPDATES.most:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(SOON_S, self._late)

    def flush(self) -> None:
        """Run all updates that wait."""
        waiting, self._waiting = self._waiting, []
        for update in waiting:
            with isolated("recording what a worker did"):
                update()

    def _late(self) -> None:
        self._timer = None
        self.flush()
