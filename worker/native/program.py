"""Programs: kernels that follow each other without numpy in between are one table, which the runner walks.

What only they use lies in one block of memory, where tensors that are not needed at the same time share a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType

from ..compiler.memory import assign_slots
from .runner import WORDS, Row
from .threads import Program
from .weights import Layout, Weights

ALIGNED = 64
WORDS_OF_MATRIX = np.arange(4)  # its core, where it begins, its strides along rows and columns
BEGIN = 1  # which of them says where


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


@dataclass(slots=True)
class _Matrix:
    """A right operand that may be packed, of some steps: where their arguments say how it lies, a row each, and what
    they say where it is not packed, but for its address."""

    at: NDArray[np.int64]
    words: NDArray[np.int64]
    read: int  # the place among the program's inputs
    layout: Layout
    in_panels: bool = False  # whether the arguments say that it is packed


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
        self._matrices = self._matrices_of(steps)
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

    def _matrices_of(self, steps: Sequence[Step]) -> list[_Matrix]:
        """The right operands that lie in inputs: steps that read the same one, as those of a loop do, have one."""
        places, at = dict[tuple[int, Layout], list[int]](), 0
        for step in steps:
            at += len(step.reads) + 1
            if step.matrix is not None and step.reads[step.place] in self.inputs:
                places.setdefault((self.inputs.index(step.reads[step.place]), step.matrix), []).append(at)
            at += len(step.words)
        matrices = []
        for (read, layout), starts in places.items():
            words = np.array(starts)[:, None] + WORDS_OF_MATRIX
            matrices.append(_Matrix(words, self._arguments[words], read, layout))
        return matrices

    def bind(self, inputs: Sequence[NDArray[Any]], weights: Weights) -> tuple[list[NDArray[Any]], object]:
        """Give the program its tensors, and the panels of those that are weights; the arrays that it fills, and what
        must live until it has."""
        outputs = [np.empty(kind.shape, kind.dtype.numpy) for kind in self._types]
        block = np.empty(self.block_bytes + ALIGNED, np.uint8)
        first = block.ctypes.data + -block.ctypes.data % ALIGNED
        tensors = [np.asarray(array) for array in (*inputs, *outputs)]  # numpy gives scalars for tensors without axes
        outside = [weights.address(array) for array in tensors]
        addresses = np.concatenate([np.array(outside, np.int64), self._offsets + first])
        self._arguments[self._places] = addresses[self._sources] + self._further
        panels = [weights.packed(inputs[matrix.read], matrix.layout) for matrix in self._matrices]
        for matrix, packed in zip(self._matrices, panels, strict=True):
            if packed is not None:
                self._arguments[matrix.at] = packed.words
            elif matrix.in_panels:
                matrix.words[:, BEGIN] = self._arguments[matrix.at[:, BEGIN]]
                self._arguments[matrix.at] = matrix.words
            matrix.in_panels = packed is not None
        return outputs, (tensors, block, panels)


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
