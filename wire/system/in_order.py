"""Work in the order in which it was asked for, each piece to its end.

What is written to a disk by threads has to be: an event loop does not wait for the disk, what is written later follows
from what was written before, and half of it may be there.  It does not know what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .tasks import Tasks, unheard

T = TypeVar("T")


class InOrder:
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._tasks = Tasks()

    def begin(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Do `work()` once all that was asked for before is done; `what` is what it does, for people.  An exception
        that is no MeshError comes as the one that it means."""
        return self._tasks.run(what, self._do(work), unheard)

    async def do(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do as `begin` does, and return what comes of it.  It is done all the same if nobody waits for it any more."""
        return await asyncio.shield(self.begin(what, work))

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._turns:
            return await work()
