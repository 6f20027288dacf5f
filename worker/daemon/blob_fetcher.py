"""Blob fetcher: the daemon's part that gets content, from its own store or over a link, as
`worker/state/blob_requests.py` decides.

It does not know which plans wait for it, nor whom to ask next; it says what came of every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.errors import BlobCorrupt
from wire.system.tasks import Tasks

from ..state import events as ev
from .blob_sources import Holders
from .blob_store import BlobStore


class Fetching:
    """`node_id` is the own one, whose content is in `store`; `feed` takes what came of an attempt."""

    def __init__(self, node_id: str, store: BlobStore, holders: Holders, feed: Callable[[ev.Event], None]) -> None:
        self._node_id = node_id
        self._store = store
        self._holders = holders
        self._feed = feed
        self._tasks = Tasks()
        self._attempts: dict[int, asyncio.Task[None]] = {}

    def begin(self, action: ev.Fetch) -> None:
        """Fetch; answered by BlobFound or BlobNotFound."""
        task = self._tasks.run(
            "fetching content", self._fetch(action), lambda error: self._feed(ev.BlobNotFound(action.attempt, error))
        )
        self._attempts[action.attempt] = task
        task.add_done_callback(lambda _: self._attempts.pop(action.attempt, None))

    def abandon(self, action: ev.AbandonFetch) -> None:
        task = self._attempts.get(action.attempt)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        self._tasks.cancel()

    async def _fetch(self, action: ev.Fetch) -> None:
        source = await self._obtain(action)
        self._feed(ev.BlobFound(action.attempt, source, not action.holder))

    async def _obtain(self, action: ev.Fetch) -> str:
        """Where the content came from."""
        if action.holder == self._node_id:
            found = await self._store.find(action.blob, action.size_bytes)
            if found is None:
                raise BlobCorrupt("not in the own store")
            if action.keep:
                self._store.keep(action.blob)
            return found
        data, through_memory = await self._holders.fetch(
            action.holder, action.blob, action.size_bytes, action.addresses
        )
        await self._store.put(action.blob, data, action.keep)
        return "shared" if through_memory else "socket"
