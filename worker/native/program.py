"""Programs: kernels that follow each other without numpy in between are one table, which the runner walks.

What only they use lies in one block of memory, where tensors that are not needed at the same time share a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType

from ..compiler.memory import assign_slots
from .runner import WORDS, Row
from .threads import Program
from .weights import Layout, Packed

ALIGNED = 64
WORDS_OF_MATRIX = 4  # its core, where it begins, its strides along rows and columns
Packs = Callable[[NDArray[Any], Layout], Packed | None]


def nothing_packed(array: NDArray[Any], layout: Layout) -> None:
    """No tensor is a weight."""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel of a program: its function, the numbers of the values that it reads, and of the one that it makes."""

    function: int
    words: tuple[int, ...]  # arguments behind the tensors' addresses
    reads: tuple[int, ...]
    result: int
    tasks: int
    scratch_bytes: int
    matrix: Layout | None = None  # in the value `place` of `reads`: the first word is followed by where it lies
    place: int = 0


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A right operand that may be packed: the arguments from `at` on say where it lies.  They are `words` where it is
    not packed, but for its address."""

    at: int
    words: NDArray[np.int64]
    read: int  # the place among the program's inputs
    layout: Layout


class Sequenced:
    """Steps as a program: `needed` are the values that others use, `types` those of results."""

    def __init__(self, steps: Sequence[Step], types: Mapping[int, TensorType], needed: Sequence[int]) -> None:
        made = {step.result for step in steps}
        self.inputs = tuple(dict.fromkeys(value for step in steps for value in step.reads if value not in made))
        self.outputs = tuple(value for value in made if value in set(needed))
        self._types = [types[value] for value in self.outputs]
        inner = {value: -(-types[value].size_bytes // ALIGNED) * ALIGNED for value in made - set(self.outputs)}
        slots, sizes = assign_slots([(*step.reads, step.result) for step in steps], inner, ())
        starts = np.cumsum([0, *sizes])
        self.block_bytes = int(starts[-1])
        number = {value: place for place, value in enumerate((*self.inputs, *self.outputs))}
        self._offsets = np.array([starts[slots[value]] for value in slots], np.int64)
        number.update({value: len(number) + place for place, value in enumerate(slots)})
        self._arguments, places = _arguments(steps, number)
        self._places, self._sources, self._further = (
            np.array(column, np.int64) for column in zip(*places, strict=True)
        )
        self._matrices = [
            _Matrix(at, self._arguments[at : at + WORDS_OF_MATRIX].copy(), self.inputs.index(value), step.matrix)
            for at, value, step in _with_matrices(steps)
            if step.matrix is not None and value in self.inputs
        ]
        self.program = Program(self._rows(steps, slots), max(step.scratch_bytes for step in steps))

    def _rows(self, steps: Sequence[Step], slots: Mapping[int, int]) -> NDArray[np.int64]:
        rows, at, address = np.zeros((len(steps), WORDS), np.int64), 0, int(self._arguments.ctypes.data)
        touched: dict[int | None, int] = {}  # by slot: how many rows must be done before another tensor may lie there
        when = {step.result: place for place, step in enumerate(steps)}
        for place, step in enumerate(steps):
            before = max((when[value] + 1 for value in step.reads if value in when), default=0)
            slot = slots.get(step.result)
            before = max(before, touched.get(slot, 0))
            rows[place, Row.FUNCTION] = step.function
            rows[place, Row.ARGUMENTS] = address + 8 * at
            rows[place, Row.TASKS] = step.tasks
            rows[place, Row.AFTER] = before
            for value in (*step.reads, step.result):
                if value in slots:
                    touched[slots[value]] = place + 1
            at += len(step.reads) + 1 + len(step.words)
        return rows

    def bind(self, inputs: Sequence[NDArray[Any]], packed: Packs = nothing_packed) -> tuple[list[NDArray[Any]], object]:
        """Give the program its tensors, and the panels of those that are `packed`; the arrays that it fills, and what
        must live until it has."""
        outputs = [np.empty(kind.shape, kind.dtype.numpy) for kind in self._types]
        block = np.empty(self.block_bytes + ALIGNED, np.uint8)
        first = block.ctypes.data + -block.ctypes.data % ALIGNED
        tensors = [np.asarray(array) for array in (*inputs, *outputs)]  # numpy gives scalars for tensors without axes
        outside = [array.ctypes.data for array in tensors]
        addresses = np.concatenate([np.array(outside, np.int64), self._offsets + first])
        self._arguments[self._places] = addresses[self._sources] + self._further
        panels = [self._place(matrix, packed(inputs[matrix.read], matrix.layout)) for matrix in self._matrices]
        return outputs, (tensors, block, panels)

    def _place(self, matrix: _Matrix, packed: Packed | None) -> Packed | None:
        """Say where a matrix lies: in panels, or where its address says."""
        arguments = self._arguments[matrix.at : matrix.at + WORDS_OF_MATRIX]
        if packed is not None:
            arguments[:] = packed.words
        else:
            arguments[0], arguments[2:] = matrix.words[0], matrix.words[2:]
        return packed


def _arguments(
    steps: Sequence[Step], number: Mapping[int, int]
) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
    """The words of all steps' arguments; and which of them are addresses, of which tensor, and how many bytes on."""
    words, places = list[int](), list[tuple[int, int, int]]()
    for step in steps:
        for value in (*step.reads, step.result):
            places.append((len(words), number[value], 0))
            words.append(0)
        if (matrix := step.matrix) is not None:
            begin = matrix.start * np.dtype(dtype_named(matrix.dtype).numpy).itemsize
            places.append((len(words) + 1, number[step.reads[step.place]], begin))
        words += step.words
    return np.array(words, np.int64), places


def _with_matrices(steps: Sequence[Step]) -> Iterator[tuple[int, int, Step]]:
    """Steps whose right operand is a matrix: where the arguments say where it lies, and the value that it lies in."""
    at = 0
    for step in steps:
        at += len(step.reads) + 1
        if step.matrix is not None:
            yield at, step.reads[step.place], step
        at += len(step.words)
