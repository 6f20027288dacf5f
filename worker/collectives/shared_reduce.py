"""all_reduce of a large tensor by the ranks of one machine, in their shared arenas (`shared_arena.py`).

Each rank sends all others where its operand is, and rank 0 also where the result belongs.  Each then combines its
region of all operands, in the order of the ranks, and signals the others when it is done.  So nothing is copied, and
all ranks share the memory of the result, which is read only and lasts for this step.  The bits are those of the
algorithm "direct" (`algorithms.py`).  If one rank has no room, or cannot map another's arena, all of them use ring
buffers instead.
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
from .channels import Channels
from .executor import Executor

BLOCK_BYTES = 64 << 10  # combined at a time: sums stay in the cache
_OFFER = struct.Struct("<16sqq")
_NOWHERE = -1
_DONE, _NOT_DONE = b"+", b"-"


@dataclass(frozen=True, slots=True)
class _Offer:
    """A rank's arena, the offset of its operand there, and, for rank 0, the offset of the result."""

    arena: str
    operand: int
    result: int

    def pack(self) -> bytes:
        return _OFFER.pack(bytes.fromhex(self.arena), self.operand, self.result)

    @classmethod
    def unpack(cls, packed: bytes) -> _Offer:
        name, operand, result = _OFFER.unpack(packed)
        return cls(name.hex(), operand, result)


_NO_OFFER = _Offer("", _NOWHERE, _NOWHERE)


def reduce_in_arenas(
    executor: Executor, channels: Channels, rank: int, n: int, operand: NDArray[Any], combine: np.ufunc
) -> NDArray[Any] | None:
    """The flat operands of all n ranks combined; None if one of the ranks could not take part."""
    regions, own, arena = even(operand.size, n), _NO_OFFER, channels.arena
    if arena is not None:
        began_s = time.perf_counter()
        offsets = arena.operand_offset(operand), 0 if rank else arena.result_offset(operand.nbytes)
        channels.copy_s += time.perf_counter() - began_s
        own = _Offer(arena.name, *(_NOWHERE if offset is None else offset for offset in offsets))
    for to in others(rank, n):
        executor.send_short(to, own.pack(), lends=True)
    readers = {source: executor.receive_short(source, _OFFER.size) for source in others(rank, n)}
    offers = {source: _Offer.unpack(reader.data(_OFFER.size)) for source, reader in readers.items()} | {rank: own}
    if arena is None or any(_NOWHERE in (offer.operand, offer.result) for offer in offers.values()):
        for reader in readers.values():
            reader.release()
        return None

    def tensor_at(owner: int, offset: int) -> NDArray[Any]:
        memory = arena.buffer if owner == rank else readers[owner].file(offers[owner].arena)
        if not 0 <= offset <= len(memory) - operand.nbytes:
            raise BlobCorrupt(f"rank {owner} has {len(memory)} bytes, and none at {offset} for {operand.nbytes}")
        return np.frombuffer(memory, operand.dtype, operand.size, offset)

    try:
        result = tensor_at(0, offers[0].result)
        operands = [tensor_at(source, offers[source].operand) for source in range(n)]
    except (BlobMissing, OutOfMemory):
        outcome = _NOT_DONE
    else:
        outcome = _DONE
        _combine(operands, result, regions[rank], combine)
    for reader in readers.values():
        reader.release()
    for to in others(rank, n):
        executor.send_short(to, outcome)
        moved = [regions[owner][1] - regions[owner][0] for owner in (rank, to)]
        channels.sent_bytes += sum(moved) * operand.itemsize
    outcomes = {outcome}
    for source in others(rank, n):
        reader = executor.receive_short(source, len(_DONE))
        outcomes.add(reader.data(len(_DONE)))
        reader.release()
    if outcomes != {_DONE}:
        return None
    result.flags.writeable = False
    return result


def _combine(operands: Sequence[NDArray[Any]], result: NDArray[Any], region: Region, combine: np.ufunc) -> None:
    """Combine a region of the operands, in the order of the ranks, one block after the other."""
    size = BLOCK_BYTES // result.itemsize
    for start in range(*region, size):
        block = slice(start, min(start + size, region[1]))
        out, total = result[block], operands[0][block]
        for operand in operands[1:]:
            total = combine(total, operand[block], out=out, dtype=out.dtype)
