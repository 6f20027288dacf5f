"""Combining: the daemon's part that makes a check of several contents, or one of these again of a check and the others.

Sums are taken term by term as the contents come, so that one of them is held at a time.  Which contents, and by which
factors, the coordinator says; it alone may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wire.codec import hash_bytes
from wire.coding.octets import add
from wire.endpoint import Endpoint
from wire.errors import BlobCorrupt, BlobMissing, MeshError, NodeLost, OutOfMemory, ProtocolError
from wire.exchange import BlobExchange, off_loop
from wire.link import Link
from wire.messages import INLINE_BYTES_MAX, Combine, Combined, Term

from .blobs import BlobStore
from .fetching import FETCH_BYTES_PER_S_MIN, FETCH_S_MIN


class Combining:
    """`owner` is the coordinator's node id, who is meant by the holder ""; `dial` links to a node."""

    def __init__(
        self,
        endpoint: Endpoint,
        store: BlobStore,
        exchange: BlobExchange,
        owner: Callable[[], str],
        dial: Callable[[str, Sequence[str]], Awaitable[Link]],
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._exchange = exchange
        self._owner = owner
        self._dial = dial
        self._turn = asyncio.Lock()  # one sum at a time: each holds its bytes and those of a content

    async def answer(self, asker: str, asked: Combine) -> Combined:
        """The sum that was asked for, among our blobs; BlobMissing, BlobCorrupt where it is not what it has to be, or
        BlobError where there is no room."""
        if asker != self._owner():
            raise ProtocolError("only the coordinator of a worker may have it combine")
        if asked.size_bytes > max(term.size_bytes for term in asked.terms):
            raise ProtocolError(f"a sum of {asked.size_bytes} bytes is longer than all that it is of")
        if asked.blob is not None and await self._store.find(asked.blob, asked.size_bytes) is not None:
            return Combined(asked.blob, 0, 0)
        async with self._turn:
            try:
                total = np.zeros(asked.size_bytes, np.uint8)
            except MemoryError:
                raise OutOfMemory(f"{asked.size_bytes} bytes do not fit into memory") from None
            moved = {True: 0, False: 0}
            for term in asked.terms:
                moved_here, through_memory = await self._add(total, term, asked)
                moved[through_memory] += moved_here
            data = total.data
            blob = await off_loop(data.nbytes, hash_bytes, data)
            if asked.blob not in (None, blob):
                raise BlobCorrupt("what was made of a check and the others is not what was lost")
            await self._store.put(blob, data, asked.keep)
        return Combined(blob, moved[False], moved[True])

    async def _add(self, total: NDArray[np.uint8], term: Term, asked: Combine) -> tuple[int, bool]:
        """Add a term; how many bytes came from elsewhere, and whether through shared memory."""
        here = await self._store.find(term.blob, term.size_bytes)
        if here is not None:
            data = self._store.view(term.blob)
            if data is not None:
                await off_loop(term.size_bytes, add, total, term.factor, data)
                return 0, False
        error: MeshError = BlobMissing(f"nobody holds blob {term.blob.hex()[:16]}, which others are to be made of")
        for holder in term.holders:
            try:
                link, data = await self._fetched(holder, term, asked)
            except MeshError as failure:
                error = failure
                continue
            await off_loop(term.size_bytes, add, total, term.factor, data)
            return term.size_bytes, link.same_host and term.size_bytes > INLINE_BYTES_MAX
        raise BlobMissing(f"no holder sent blob {term.blob.hex()[:16]}", cause=str(error))

    async def _fetched(self, holder: str, term: Term, asked: Combine) -> tuple[Link, memoryview]:
        node = holder or self._owner()
        time_s = FETCH_S_MIN + term.size_bytes / FETCH_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(time_s):
                link = self._endpoint.links.get(node)
                if link is None:
                    link = await self._dial(node, asked.peers.get(holder, ()))
                return link, await self._exchange.fetch(link, term.blob, term.size_bytes)
        except TimeoutError:
            raise NodeLost(f"the holder did not send the blob within {time_s:.0f} s", node=node) from None
