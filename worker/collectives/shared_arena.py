"""A shared arena: memory of a rank that the other ranks of its machine map, so that large tensors are not copied.

An arena has two halves, which are filled from the front in every step.  In the first are the rank's *operands*: tensors
that were computed there, or copied.  Messages lend them to the other ranks (`RingWriter.write`).  The next step puts
nothing there before all these messages are released, so nothing is overwritten that a rank still reads, whatever
became of the step before.  The second half, which only rank 0 has, is for *results*, which all ranks make together.
They begin with that once all of them are in the same step, so nobody still reads a result of an earlier one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.bounds import ARENA_OPERANDS
from wire.ir.dtypes import BF16, F16
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import KIB

from .ring_buffer import RingWriter

OPERAND_BYTES_MAX = ARENA_OPERANDS.most
ARENA_OP = "all_reduce"  # the collective that uses arenas
TENSOR_BYTES_MIN = 64 * KIB  # to copy a smaller one is faster than to lend it
# Bytes: a page, since sums take 1.5 times as long if they are written a bit further in their page than they are read.
ALIGNMENT = 4096


class ArenaFile(NamedTuple):
    """The file of an arena: its name, its memory, and the bytes of the half for operands."""

    name: str
    memory: memoryview
    operand_bytes: int


class SharedArena:
    """The arena of a rank.  `name` is its file's, `operand_bytes` the size of the half for operands, and `writers` lead
    to all ranks that map it."""

    def __init__(self, name: str, buffer: memoryview, operand_bytes: int, writers: Sequence[RingWriter]) -> None:
        self.name = name
        self.buffer = buffer
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._address: int = self._bytes.ctypes.data
        self._operand_bytes = operand_bytes
        self._writers = writers
        self._operands_end = self._results_end = 0  # bytes in use in this step, of each half
        self._allocating = threading.Lock()

    def begin(self) -> None:
        """Begin a step: this rank no longer needs the tensors of the one before."""
        self._operands_end = self._results_end = 0

    def allocate(self, kind: TensorType) -> NDArray[Any] | None:
        """Memory for an operand of this step; None if there is no room."""
        start = self._allocate(kind.size_bytes)
        if start is None:
            return None
        return self._bytes[start : start + kind.size_bytes].view(kind.dtype.numpy).reshape(kind.shape)

    def operand_offset(self, array: NDArray[Any]) -> int | None:
        """The offset of a contiguous operand, which is copied here unless it was computed here; None if there is no
        room."""
        start: int | None = array.__array_interface__["data"][0] - self._address
        if start is not None and start >= 0 and start + array.nbytes <= self._operands_end:
            return start
        start = self._allocate(array.nbytes)
        if start is not None:
            self._bytes[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        return start

    def result_offset(self, size_bytes: int) -> int | None:
        """The offset of a new result of all ranks; None if there is no room."""
        start = self._operand_bytes + self._results_end
        if start + size_bytes > self._bytes.size:
            return None
        self._results_end += _aligned(size_bytes)
        return start

    def _allocate(self, size_bytes: int) -> int | None:
        with self._allocating:
            start, end = self._operands_end, self._operands_end + _aligned(size_bytes)
            if end > self._operand_bytes or (not start and any(writer.lent for writer in self._writers)):
                return None
            self._operands_end = end
        return start


def fits_arena(kind: TensorType) -> bool:
    """Whether tensors of a type are reduced in arenas.  Halves are not, since they are combined in f32."""
    return kind.size_bytes >= TENSOR_BYTES_MIN and kind.dtype not in (F16, BF16)


def operand_bytes(graph: WireGraph, ranks: int) -> int:
    """The size of the half for operands that one of `ranks` ranks needs for a graph; 0 if no tensor is large.
    Collectives in loops use what is left."""
    nodes = [node for node in graph.nodes if node.op == ARENA_OP and math.prod(node.attrs["sizes"]) == ranks]
    kinds = [graph.types[node.inputs[0]] for node in nodes]
    return min(sum(_aligned(kind.size_bytes) for kind in kinds if fits_arena(kind)), OPERAND_BYTES_MAX)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
