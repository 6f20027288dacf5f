"""A shelf: memory of a rank that the other ranks of its machine map, so that large tensors need no mailbox.

It has two halves, both filled from the front in every step.  In the first lies what this rank *gives*: an operand made
there, or copied.  It is lent by letters (`Outbox.say`); the next step puts nothing there before all of them are
released, so nothing is written over that somebody reads, whatever became of the step before.  In the second, which only
the first rank has, all ranks *make* a result together.  They begin with that once all of them are in the same step,
so nobody reads the result of an earlier one any more.

It does not know groups, operations, nor who made the file.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BF16, F16
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import KIB, MIB

from .ring_buffer import Outbox

GIVEN_BYTES_MAX = 64 * MIB
LAID = "all_reduce"  # the collective whose operands lie there
TENSOR_BYTES_MIN = 64 * KIB  # a smaller one is sooner copied than told of
# Bytes: a page, since sums take 1.5 times as long if they are written a bit further in their page than they are read.
ALIGNMENT = 4096


class Laid(NamedTuple):
    """A shelf's file: its name, its memory, and how many bytes of that are the first half."""

    name: str
    memory: memoryview
    given_bytes: int


class Shelf:
    """That of a rank: `name` is the file's, `given_bytes` the size of the first half; `readers` are the mailboxes to
    all who may read there."""

    def __init__(self, name: str, buffer: memoryview, given_bytes: int, readers: Sequence[Outbox]) -> None:
        self.name = name
        self.buffer = buffer
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._address: int = self._bytes.ctypes.data
        self._given_bytes = given_bytes
        self._readers = readers
        self._given = self._made = 0  # bytes in this step, of the first half and of the second
        self._taking = threading.Lock()

    def begin(self) -> None:
        """A new step: this rank needs nothing of the one before."""
        self._given = self._made = 0

    def room(self, kind: TensorType) -> NDArray[Any] | None:
        """Memory for a tensor that this rank gives in this step; None if there is none."""
        first = self._room(kind.size_bytes)
        if first is None:
            return None
        return self._bytes[first : first + kind.size_bytes].view(kind.dtype.numpy).reshape(kind.shape)

    def place_of(self, array: NDArray[Any]) -> int | None:
        """Where a contiguous tensor lies that this rank gives: it was made there, or is copied now.  None if there is
        no room."""
        first: int | None = array.__array_interface__["data"][0] - self._address
        if first is not None and first >= 0 and first + array.nbytes <= self._given:
            return first
        first = self._room(array.nbytes)
        if first is not None:
            self._bytes[first : first + array.nbytes] = array.reshape(-1).view(np.uint8)
        return first

    def place_for(self, size_bytes: int) -> int | None:
        """Where a result of all ranks comes; None if there is no room."""
        first = self._given_bytes + self._made
        if first + size_bytes > self._bytes.size:
            return None
        self._made += _rounded(size_bytes)
        return first

    def _room(self, size_bytes: int) -> int | None:
        with self._taking:
            first, end = self._given, self._given + _rounded(size_bytes)
            if end > self._given_bytes or (not first and any(reader.lent for reader in self._readers)):
                return None
            self._given = end
        return first


def is_laid(kind: TensorType) -> bool:
    """Whether an operand may lie there: halves are combined in f32, and rounded once."""
    return kind.size_bytes >= TENSOR_BYTES_MIN and kind.dtype not in (F16, BF16)


def given_bytes(graph: WireGraph, ranks: int) -> int:
    """What one of so many ranks gives in a step that lies there; 0 if no tensor is large.  What loops exchange has what
    is left."""
    whole = [node for node in graph.nodes if node.op == LAID and math.prod(node.attrs["sizes"]) == ranks]
    kinds = [graph.types[node.inputs[0]] for node in whole]
    return min(sum(_rounded(kind.size_bytes) for kind in kinds if is_laid(kind)), GIVEN_BYTES_MAX)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
