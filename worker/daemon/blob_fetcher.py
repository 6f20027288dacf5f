"""Blob fetcher: gets content by its address, from the own store or from another node, within a time limit.  It keeps
in the store what the machine wants there.

Which node is asked, and which plans wait, is decided in `worker/state/blob_requests.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from wire.deadlines import FETCH
from wire.errors import BlobCorrupt, NodeLost
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.protocol.messages import COORDINATOR_NODE, INLINE_BYTES_MAX, FetchBlob, Message
from wire.system.tasks import Tasks
from wire.transfer.content_exchange import BlobExchange

from ..state import events as ev
from .blob_store import BlobStore
from .link_handler import Answer
from .machine_shell import Performers


class RemoteBlobs:
    """The content of other nodes.  `owner` returns the node id of the coordinator, which COORDINATOR_NODE stands for;
    `dial` links to a node."""

    def __init__(
        self,
        endpoint: Endpoint,
        exchange: BlobExchange,
        owner: Callable[[], str],
        dial: Callable[[str, Sequence[str]], Awaitable[Link]],
    ) -> None:
        self._endpoint = endpoint
        self.exchange = exchange
        self._owner = owner
        self._dial = dial

    async def fetch(
        self, holder: str, blob: bytes, size_bytes: int, addresses: Sequence[str]
    ) -> tuple[memoryview, bool]:
        """The content, and whether it came through shared memory.  MeshError if it did not come."""
        node = self._owner() if holder == COORDINATOR_NODE else holder
        time_s = FETCH.of(size_bytes)
        try:
            async with asyncio.timeout(time_s):
                link = self._endpoint.links.get(node)
                if link is None and addresses:
                    link = await self._dial(node, addresses)
                if link is None:
                    raise NodeLost("no link to this holder", node=node)
                data = await self.exchange.fetch(link, blob, size_bytes)
        except TimeoutError:
            raise NodeLost(f"the holder did not send the blob within {time_s:.0f} s", node=node) from None
        return data, link.same_host and size_bytes > INLINE_BYTES_MAX


class BlobFetcher:
    """The fetcher performs Fetch for the node `node_id`, with its own content in `store`.  `feed` takes replies."""

    def __init__(self, node_id: str, store: BlobStore, remote: RemoteBlobs, feed: Callable[[ev.Event], None]) -> None:
        self._node_id = node_id
        self._store = store
        self._remote = remote
        self._feed = feed
        self._tasks = Tasks()
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._arriving: dict[bytes, asyncio.Task[None]] = {}  # by its address

    def performers(self) -> Performers:
        return {
            ev.Fetch: self.begin,
            ev.AbandonFetch: self.abandon,
            ev.PinBlobs: lambda action: self._store.pin(action.blobs),
            ev.UnpinBlobs: lambda action: self._store.unpin(action.blobs),
            ev.DiscardBlobs: lambda action: self._store.discard(action.blobs),
        }

    def requests(self) -> dict[type[Message], Answer]:
        return {FetchBlob: self._give}

    async def _give(self, link: Link, body: FetchBlob) -> Message:
        """The content.  If it is on its way here it is waited for: workers that get the same weights at once have them
        from each other, and the coordinator sends them once.  Of two workers only the one of the greater id waits for
        the other, so that no ring of workers that all lost it waits for itself.  Each attempt to fetch it has a
        deadline (FETCH), and so has the request of the node that asks."""
        waits = link.peer.role != "worker" or link.peer.node_id > self._node_id
        while waits and (arriving := self._arriving.get(body.blob)) is not None and not arriving.done():
            await asyncio.wait([arriving])
        await self._store.find(body.blob)
        return await self._remote.exchange.serve(link, body)

    def begin(self, action: ev.Fetch) -> None:
        """Fetch content; answered by BlobFound or BlobNotFound."""
        task = self._tasks.run(
            "fetching content", self._fetch(action), lambda error: self._feed(ev.BlobNotFound(action.attempt, error))
        )
        self._attempts[action.attempt] = task
        self._arriving[action.blob] = task
        task.add_done_callback(lambda _: self._ended(action))

    def _ended(self, action: ev.Fetch) -> None:
        task = self._attempts.pop(action.attempt)
        if self._arriving.get(action.blob) is task:  # no other holder was asked since
            del self._arriving[action.blob]

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
        """Put the content into the store.  Returns the source, as BlobFound names it."""
        if action.holder == self._node_id:
            source = await self._store.find(action.blob, action.size_bytes)
            if source is None:
                raise BlobCorrupt("not in the own store")
            if action.keep:
                self._store.keep(action.blob)
            return source
        data, through_memory = await self._remote.fetch(action.holder, action.blob, action.size_bytes, action.addresses)
        await self._store.put(action.blob, data, action.keep)
        return "shared" if through_memory else "socket"
