"""all_reduce of a large tensor by the ranks of one machine, where it lies: on their shelves (`shared_arena.py`).

Each rank tells all others where its tensor is, and the first one where the result comes.  Each combines its region of
all tensors there, in the order of the ranks, and tells the others that it has.  So nothing is copied, and all ranks
have the same memory for a result, which is read only and lasts for this step.  It is the algorithm "direct"
(`algorithms.py`), to the bit.  Where one rank has no room, or cannot map what another has, all go on with letters.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import BlobCorrupt, BlobMissing, OutOfMemory

from .algorithms import Region, even, others
from .channels import Wires
from .executor import Run

BLOCK_BYTES = 64 << 10  # combined at a time: sums stay in the cache
_OFFER = struct.Struct("<16sqq")
_NOWHERE = -1
_DONE, _NOT_DONE = b"+", b"-"


@dataclass(frozen=True, slots=True)
class _Offer:
    """A rank's shelf, and where on it are its tensor, and of the first rank the result."""

    shelf: str
    given: int
    made: int

    def pack(self) -> bytes:
        return _OFFER.pack(bytes.fromhex(self.shelf), self.given, self.made)

    @classmethod
    def unpack(cls, packed: bytes) -> _Offer:
        name, given, made = _OFFER.unpack(packed)
        return cls(name.hex(), given, made)


_NO_OFFER = _Offer("", _NOWHERE, _NOWHERE)


def reduced(run: Run, wires: Wires, rank: int, n: int, given: NDArray[Any], combine: np.ufunc) -> NDArray[Any] | None:
    """What all ranks' flat tensors make; None if not all have room."""
    regions, mine, shelf = even(given.size, n), _NO_OFFER, wires.shelf
    if shelf is not None:
        began_s = time.perf_counter()
        places = shelf.place_of(given), 0 if rank else shelf.place_for(given.nbytes)
        wires.packed_s += time.perf_counter() - began_s
        mine = _Offer(shelf.name, *(_NOWHERE if each is None else each for each in places))
    for to in others(rank, n):
        run.say(to, mine.pack(), lends=True)
    inboxes = {source: run.hear(source, _OFFER.size) for source in others(rank, n)}
    offers = {source: _Offer.unpack(inbox.said(_OFFER.size)) for source, inbox in inboxes.items()} | {rank: mine}
    if shelf is None or any(_NOWHERE in (each.given, each.made) for each in offers.values()):
        for inbox in inboxes.values():
            inbox.release()
        return None

    def flat(owner: int, first: int) -> NDArray[Any]:
        memory = shelf.buffer if owner == rank else inboxes[owner].file(offers[owner].shelf)
        if not 0 <= first <= len(memory) - given.nbytes:
            raise BlobCorrupt(f"rank {owner} has {len(memory)} bytes, and none at {first} for {given.nbytes}")
        return np.frombuffer(memory, given.dtype, given.size, first)

    try:
        made, tensors = flat(0, offers[0].made), [flat(source, offers[source].given) for source in range(n)]
    except (BlobMissing, OutOfMemory):
        said = _NOT_DONE
    else:
        said = _DONE
        _combine(tensors, made, regions[rank], combine)
    for inbox in inboxes.values():
        inbox.release()
    for to in others(rank, n):
        run.say(to, said)
        wires.sent_bytes += sum((regions[each][1] - regions[each][0]) * given.itemsize for each in (rank, to))
    done = {said}
    for source in others(rank, n):
        inbox = run.hear(source, len(_DONE))
        done.add(inbox.said(len(_DONE)))
        inbox.release()
    if done != {_DONE}:
        return None
    made.flags.writeable = False
    return made


def _combine(tensors: Sequence[NDArray[Any]], made: NDArray[Any], region: Region, combine: np.ufunc) -> None:
    """By rank, a block after the other."""
    size = BLOCK_BYTES // made.itemsize
    for first in range(*region, size):
        block = slice(first, min(first + size, region[1]))
        out, before = made[block], tensors[0][block]
        for tensor in tensors[1:]:
            before = combine(before, tensor[block], out=out, dtype=out.dtype)
