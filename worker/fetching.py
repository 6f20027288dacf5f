"""Fetching: the daemon's part that gets content, from its own store or over a link, as `fetches.py` decides.

It does not know which plans wait for it, nor whom to ask next; it says what came of every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from wire.endpoint import Endpoint
from wire.errors import BlobCorrupt, MeshError, NodeLost
from wire.exchange import BlobExchange
from wire.link import Link
from wire.messages import INLINE_BYTES_MAX

from . import events as ev
from .blobs import BlobStore

FETCH_S_MIN = 10.0  # a holder that is alive answers within a round trip; this is for one that is not
FETCH_BYTES_PER_S_MIN = 5_000_000  # slower than this and another holder is tried


class Fetching:
    """`owner` is the coordinator's node id, who is meant by the holder ""; `feed` takes what came of an attempt, and
    `dial` links to a node."""

    def __init__(
        self,
        endpoint: Endpoint,
        store: BlobStore,
        exchange: BlobExchange,
        owner: Callable[[], str],
        feed: Callable[[ev.Event], None],
        dial: Callable[[str, Sequence[str]], Awaitable[Link]],
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._exchange = exchange
        self._owner = owner
        self._feed = feed
        self._dial = dial
        self._attempts: dict[int, asyncio.Task[None]] = {}

    def begin(self, action: ev.Fetch) -> None:
        """Fetch; answered by BlobFound or BlobNotFound."""
        task = asyncio.get_running_loop().create_task(self._fetch(action))
        self._attempts[action.attempt] = task
        task.add_done_callback(lambda _: self._attempts.pop(action.attempt, None))

    def abandon(self, action: ev.AbandonFetch) -> None:
        task = self._attempts.get(action.attempt)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._attempts.values():
            task.cancel()

    async def _fetch(self, action: ev.Fetch) -> None:
        try:
            source = await self._obtain(action)
        except MeshError as error:
            self._feed(ev.BlobNotFound(action.attempt, error))
        else:
            self._feed(ev.BlobFound(action.attempt, source, not action.holder))

    async def _obtain(self, action: ev.Fetch) -> str:
        """Where the content came from."""
        if action.holder == self._endpoint.identity.node_id:
            found = await self._store.find(action.blob, action.size_bytes)
            if found is None:
                raise BlobCorrupt("not in the own store")
            if action.keep:
                self._store.keep(action.blob)
            return found
        node = action.holder or self._owner()
        time_s = FETCH_S_MIN + action.size_bytes / FETCH_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(time_s):
                link = self._endpoint.links.get(node)
                if link is None and action.addresses:
                    link = await self._dial(node, action.addresses)
                if link is None:
                    raise NodeLost("no link to this holder", node=node)
                data = await self._exchange.fetch(link, action.blob, action.size_bytes)
        except TimeoutError:
            raise NodeLost(f"the holder did not send the blob within {time_s:.0f} s", node=node) from None
        await self._store.put(action.blob, data, action.keep)
        return "shared" if link.same_host and action.size_bytes > INLINE_BYTES_MAX else "socket"
