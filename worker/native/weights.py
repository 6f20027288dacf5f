"""Weights: the tensors that an engine has to keep, and their packed forms, which products read faster.

A product reads its right operand in panels (`products.py`), and packs them in each run unless they are there.  A tensor
that was loaded does not change, so its panels are made once: in the second run that reads them, since many a tensor is
read by one run only.  They belong to the tensor and not to a kernel.  So all kernels that read the same matrix of it
share them, they go with it, and no run can meet those of another tensor.  What was not loaded, such as the state of a
session, has none.

Panels take as much memory as the matrix, and there is always another way.  So they are made only where `has_room` says
that nothing else needs the memory, and `free` gives it back at any time.  The tensor itself stays: it is mapped from a
file as a rule, which costs no memory that the system could not take back, and code that spills or replaces it needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ..engine import line_aligned
from .library import Library, ProductCore
from .runner import WORDS, Row
from .threads import ALIGNED, Program


class Layout(NamedTuple):
    """A matrix [length, columns] within a tensor of a dtype: where it begins, and its strides, in elements."""

    dtype: str
    start: int
    row: int
    column: int
    length: int
    columns: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix in panels: what a kernel's arguments say of it, and its memory."""

    words: NDArray[np.int64]  # the core that reads it, where it begins, its strides along rows and columns
    memory: NDArray[np.uint8]


@dataclass(slots=True)
class _Weight:
    array: ref[NDArray[Any]]
    address: int
    packed: dict[Layout, Packed | None] = field(default_factory=dict)  # None: it was read once


class Weights:
    """The loaded tensors of an engine, by the identity of their arrays.  The caller of `packed` has the threads'
    turn."""

    def __init__(self, library: Library, run: Callable[[Program], object], bytes_max: int) -> None:
        """`run` runs a program on the threads.  Panels take up to `bytes_max` unless the caller says whether there
        is room."""
        self.has_room: Callable[[int], bool] = lambda size_bytes: self.packed_bytes + size_bytes <= bytes_max
        self.packed_bytes = 0
        self._library, self._run = library, run
        self._weights: dict[int, _Weight] = {}
        self._cores: dict[str, tuple[ProductCore, ProductCore]] = {}
        self._lock = threading.RLock()  # the garbage collector may drop one at any place

    def add(self, array: NDArray[Any]) -> NDArray[Any]:
        """The tensor as an array that stands for it, and that nobody else has; it must not change any more."""
        own = array.view()
        key = id(own)
        with self._lock:
            self._weights[key] = _Weight(ref(own, lambda _: self._drop(key)), own.ctypes.data)
        return own

    def drop(self, array: NDArray[Any]) -> None:
        """Forget a tensor, and free its panels."""
        self._drop(id(array))

    def free(self) -> None:
        """Free all panels."""
        with self._lock:
            for weight in list(self._weights.values()):
                weight.packed.clear()
            self.packed_bytes = 0

    def address(self, array: NDArray[Any]) -> int:
        """The address of an array: numpy takes microseconds to say it, which a loaded tensor costs once."""
        weight = self._weights.get(id(array))
        return line_aligned.address(array) if weight is None else weight.address

    def packed(self, array: NDArray[Any], layout: Layout) -> Packed | None:
        """The panels of a matrix in a loaded tensor, if there are any by now."""
        weight = self._weights.get(id(array))
        if weight is None:
            return None
        if layout not in weight.packed:
            weight.packed[layout] = None
            return None
        found = weight.packed[layout]
        if found is None and (found := self._made(array, layout)) is not None:
            with self._lock:
                weight.packed[layout] = found
                self.packed_bytes += found.memory.nbytes
        return found

    def _made(self, array: NDArray[Any], layout: Layout) -> Packed | None:
        core, packing = self._cores_of(layout.dtype)
        tile = core.tile
        size_bytes = tile.panels_size(layout.length, layout.columns) * tile.bytes + ALIGNED
        if not self.has_room(size_bytes):
            return None
        memory = np.zeros(size_bytes, np.uint8)
        begin = memory.ctypes.data + -memory.ctypes.data % ALIGNED
        source = array.ctypes.data + layout.start * tile.bytes
        arguments = np.array([source, layout.row, layout.column, layout.columns, layout.length, begin], np.int64)
        row = np.zeros((1, WORDS), np.int64)
        row[0, Row.FUNCTION], row[0, Row.ARGUMENTS] = packing.address, arguments.ctypes.data
        row[0, Row.TASKS] = -(-layout.columns // tile.columns)
        self._run(Program(row, ALIGNED, arguments))
        words = np.array([core.address, begin, tile.columns, tile.deep(layout.length)], np.int64)
        return Packed(words, memory)

    def _cores_of(self, dtype: str) -> tuple[ProductCore, ProductCore]:
        if dtype not in self._cores:
            self._cores[dtype] = self._library.core(f"packed {dtype}"), self._library.core(f"panels {dtype}")
        return self._cores[dtype]

    def _drop(self, key: int) -> None:
        with self._lock:
            weight = self._weights.pop(key, None)
            for packed in weight.packed.values() if weight is not None else ():
                self.packed_bytes -= packed.memory.nbytes if packed is not None else 0
