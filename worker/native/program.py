"""Programs: kernels that follow each other without numpy in between are one table, which the runner walks.

What only they use lies in one block of memory, where tensors that are not needed at the same time share a place, or in
the threads' scratch memory, where a region computes them slice by slice (`steps.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import dtype_named
from wire.ir.types import TensorType

from ..compiler.memory import assign_slots
from ..engine import line_aligned
from .runner import WORDS, Row, Runner
from .steps import Region, Step, aligned, regions_of
from .threads import Program
from .weights import Layout, Weights

WORDS_OF_MATRIX = np.arange(4)  # its core, where it begins, its strides along rows and columns
BEGIN = 1  # which of them says where


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
    """Steps as a program for a `runner`: `needed` are the values that others use, `types` those of results.  Steps that
    share batch axes become regions for so many `threads`, if they may."""

    def __init__(
        self, steps: Sequence[Step], types: Mapping[int, TensorType], needed: Sequence[int], runner: Runner,
        threads: int = 1, in_regions: bool = False,
    ) -> None:  # fmt: skip
        made = {step.result for step in steps}
        self.inputs = tuple(dict.fromkeys(value for step in steps for value in step.reads if value not in made))
        self.outputs = tuple(value for value in made if value in set(needed))
        self._made = [(types[value].shape, types[value].dtype.numpy) for value in self.outputs]
        regions = regions_of(steps, types, needed, threads) if in_regions else [Region((step,)) for step in steps]
        elsewhere = {*self.outputs, *(value for region in regions for value in region.offsets)}
        inner = {value: aligned(types[value].size_bytes) for value in made - elsewhere}
        slots, sizes = assign_slots([region.uses for region in regions], inner, ())
        starts = np.cumsum([0, *sizes])
        self.block_bytes = int(starts[-1])
        number = {value: place for place, value in enumerate((*self.inputs, *self.outputs))}
        block, offsets = len(number), {value: int(starts[slot]) for value, slot in slots.items()}
        own = {value: region.ahead + offset for region in regions for value, offset in region.offsets.items()}
        self._arguments, places = _arguments(steps, {**number, **dict.fromkeys(slots, block)}, offsets, own)
        self._addresses = np.array(places, np.int64)
        self._where = int(self._arguments.ctypes.data), int(self._addresses.ctypes.data), len(places)
        self._matrices = self._matrices_of(steps)
        rows, tables = self._rows(regions, slots, types, runner.chain)
        self._bind = runner.bind
        self.program = Program(rows, max(region.scratch_bytes for region in regions), tables)

    def _rows(
        self, regions: Sequence[Region], slots: Mapping[int, int], types: Mapping[int, TensorType], chain: int
    ) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """The program's rows, and the tables of regions."""
        rows, tables, address = np.zeros((len(regions), WORDS), np.int64), [], int(self._arguments.ctypes.data)
        touched: dict[int | None, int] = {}  # by slot: how many rows must be done before another tensor may lie there
        when = {step.result: place for place, region in enumerate(regions) for step in region.steps}
        for place, region in enumerate(regions):
            before = [when[value] + 1 for value in region.uses if when.get(value, place) < place]
            before += [
                touched.get(slots[value], 0) for value in region.uses if when.get(value) == place and value in slots
            ]
            rows[place, Row.AFTER] = max(before, default=0)
            if region.offsets:
                table = _table(region, types, address)
                tables.append(table)
                rows[place, : Row.AFTER] = chain, table.ctypes.data, region.slices
            else:
                (step,) = region.steps
                rows[place, : Row.AFTER] = step.function, address, step.tasks
            for value in region.uses:
                if value in slots:
                    touched[slots[value]] = place + 1
            address += 8 * sum(step.arguments for step in region.steps)
        return rows, tables

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
        outputs = [line_aligned.empty(shape, dtype) for shape, dtype in self._made]
        multiple = line_aligned.multiple_of(self.block_bytes)
        block = np.empty(self.block_bytes + multiple, np.uint8)
        first = line_aligned.address(block)
        tensors = [np.asarray(tensor) for tensor in (*inputs, *outputs)]  # numpy gives scalars for tensors without axes
        addresses = array("q", [*map(weights.address, tensors), first + -first % multiple])
        self._bind(*self._where, addresses.buffer_info()[0])
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
    steps: Sequence[Step], number: Mapping[int, int], offsets: Mapping[int, int], own: Mapping[int, int]
) -> tuple[NDArray[np.int64], list[tuple[int, int, int]]]:
    """The words of all steps' arguments: for a value of a region's `own`, where it lies there.  And which of the others
    are addresses, of which tensor, and how many bytes on."""
    words, places = list[int](), list[tuple[int, int, int]]()
    for step in steps:
        for value in (*step.reads, step.result):
            if value in number:
                places.append((len(words), number[value], offsets.get(value, 0)))
            words.append(own.get(value, 0))
        if (matrix := step.matrix) is not None:
            begin = matrix.start * np.dtype(dtype_named(matrix.dtype).numpy).itemsize
            source = step.reads[step.place]
            places.append((len(words) + 1, number[source], offsets.get(source, 0) + begin))
        words += step.words
    return np.array(words, np.int64), places


def _table(region: Region, types: Mapping[int, TensorType], address: int) -> NDArray[np.int64]:
    """What the runner's `chain` walks for a region whose steps' arguments begin at an address."""
    words = [len(region.steps), region.ahead + region.bytes]
    for step in region.steps:
        values = [*step.reads, step.result]
        slices = [types[value].size_bytes // region.slices if value in region.offsets else 0 for value in values]
        words += [
            step.function,
            step.tasks // region.slices,
            address,
            step.arguments,
            *slices,
            *([0] * len(step.words)),
        ]
        address += 8 * step.arguments
    return np.array(words, np.int64)
