"""Programs: kernels that follow each other without numpy in between are one table, which the runner walks.

What only they use lies in one block of memory, where tensors that are not needed at the same time share a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.types import TensorType

from ..compiler.memory import assign_slots
from .runner import WORDS, Row
from .threads import Program

ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel of a program: its function, the numbers of the values that it reads, and of the one that it makes."""

    function: int
    words: tuple[int, ...]  # arguments behind the tensors' addresses
    reads: tuple[int, ...]
    result: int
    tasks: int
    scratch_bytes: int


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
        self._arguments, places, sources = _arguments(steps, number)
        self._places, self._sources = np.array(places, np.int64), np.array(sources, np.int64)
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

    def bind(self, inputs: Sequence[NDArray[Any]]) -> tuple[list[NDArray[Any]], object]:
        """Give the program its tensors; the arrays that it fills, and what must live until it has."""
        outputs = [np.empty(kind.shape, kind.dtype.numpy) for kind in self._types]
        block = np.empty(self.block_bytes + ALIGNED, np.uint8)
        first = block.ctypes.data + -block.ctypes.data % ALIGNED
        tensors = [np.asarray(array) for array in (*inputs, *outputs)]  # numpy gives scalars for tensors without axes
        outside = [array.ctypes.data for array in tensors]
        addresses = np.concatenate([np.array(outside, np.int64), self._offsets + first])
        self._arguments[self._places] = addresses[self._sources]
        return outputs, (tensors, block)


def _arguments(steps: Sequence[Step], number: Mapping[int, int]) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """The words of all steps' arguments, and which of them is which tensor's address."""
    words, places, sources = list[int](), list[int](), list[int]()
    for step in steps:
        for value in (*step.reads, step.result):
            places.append(len(words))
            sources.append(number[value])
            words.append(0)
        words += step.words
    return np.array(words, np.int64), places, sources
