"""Parity builder: makes a check of several blobs, or makes a lost blob again from a check and the other blobs.

The sum is taken term by term as the blobs come, so that one blob is held at a time.  The coordinator says of which
blobs and with which factors.  Sums take turns, since each holds its own bytes and those of a blob.  One that waits long
for a holder lets others have a turn meanwhile, as long as few wait so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wire.erasure.gf256 import add
from wire.errors import BlobCorrupt, BlobMissing, MeshError, OutOfMemory, ProtocolError
from wire.ir.codec import hash_bytes
from wire.protocol.messages import Combine, Combined, Message, Term
from wire.transfer.content_exchange import off_loop
from wire.units import size_text

from .blob_fetcher import RemoteBlobs
from .blob_store import BlobStore
from .link_handler import Answer

PATIENCE_S = 1.0  # of a sum whose turn it is with a holder, before it lets others have a turn
ASIDE_MAX = 4  # sums that wait so at once


class ParityBuilder:
    """Sums over the blobs in `store` and those of other nodes."""

    def __init__(self, store: BlobStore, remote: RemoteBlobs) -> None:
        self._store = store
        self._remote = remote
        self._turns = asyncio.Lock()
        self._aside: set[_Turn] = set()

    def requests(self) -> dict[type[Message], Answer]:
        return {Combine: lambda link, body: self.answer(body)}

    async def answer(self, request: Combine) -> Combined:
        """Compute the sum that was asked for and put it into the store.  BlobMissing if a term is nowhere, BlobCorrupt
        if the sum is not the blob that it should be, BlobError if there is no room."""
        if request.size_bytes > max(term.size_bytes for term in request.terms):
            raise ProtocolError(f"a sum of {request.size_bytes} bytes is longer than all that it is of")
        if request.blob is not None and await self._store.find(request.blob, request.size_bytes) is not None:
            return Combined(request.blob, 0, 0)
        turn = _Turn(self._turns, self._aside)
        await turn.take()
        try:
            try:
                total = np.zeros(request.size_bytes, np.uint8)
            except MemoryError:
                raise OutOfMemory(f"{size_text(request.size_bytes)} do not fit into memory") from None
            moved = {True: 0, False: 0}
            for term in request.terms:
                moved_here, through_memory = await self._add(total, term, request, turn)
                moved[through_memory] += moved_here
            data = total.data
            blob = await off_loop(data.nbytes, hash_bytes, data)
            if request.blob not in (None, blob):
                raise BlobCorrupt("what was made of a check and the others is not what was lost")
            await self._store.put(blob, data, request.keep)
        finally:
            turn.give()
        return Combined(blob, moved[False], moved[True])

    async def _add(self, total: NDArray[np.uint8], term: Term, request: Combine, turn: _Turn) -> tuple[int, bool]:
        """Add a term.  Returns how many bytes came from another node, and whether through shared memory."""
        if await self._store.find(term.blob, term.size_bytes) is not None:
            data = self._store.view(term.blob)
            if data is not None:
                await off_loop(term.size_bytes, add, total, term.factor, data)
                return 0, False
        error: MeshError = BlobMissing(f"nobody holds blob {term.blob.hex()[:16]}, which others are to be made of")
        for holder in term.holders:
            try:
                addresses = request.peers.get(holder, ())
                with turn.waiting():
                    data, through_memory = await self._remote.fetch(holder, term.blob, term.size_bytes, addresses)
            except MeshError as failure:
                error = failure
                continue
            await turn.take()
            await off_loop(term.size_bytes, add, total, term.factor, data)
            return term.size_bytes, through_memory
        raise BlobMissing(f"no holder sent blob {term.blob.hex()[:16]}", cause=str(error))


class _Turn:
    """The turn of one sum, of which one at a time has `turns`, and those `aside` wait for a holder without it."""

    def __init__(self, turns: asyncio.Lock, aside: set[_Turn]) -> None:
        self._turns, self._aside = turns, aside
        self._mine = False

    async def take(self) -> None:
        """Wait for the turn, unless the sum has it."""
        if not self._mine:
            await self._turns.acquire()
            self._mine = True
            self._aside.discard(self)

    def give(self) -> None:
        """End the turn, if the sum has it, or what it waits for."""
        self._aside.discard(self)
        if self._mine:
            self._mine = False
            self._turns.release()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others have the turn if what is done in here takes long."""
        timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._step_aside)
        try:
            yield
        finally:
            timer.cancel()

    def _step_aside(self) -> None:
        if self._mine and len(self._aside) < ASIDE_MAX:
            self.give()
            self._aside.add(self)
