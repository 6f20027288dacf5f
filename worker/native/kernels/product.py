"""Products of matrices, with the views that their operands are read through, and what is computed with their result.

A task is a tile of the result.  A core (`products.py`) computes it from operands that lie anywhere, at any strides.
Where something is computed with the result, the core leaves the tile in scratch memory, and the loops that follow take
it from the cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wire.ir.types import Attrs

from ...compiler.element_exprs import Anchor, Index
from ...compiler.expressions import Expr, terms_of
from ..cores import CORE, FEW
from ..llvm import ADDRESS, F32, F64, I64, index, ir, loop
from ..printer import Buffer, Printer
from .frame import Frame, Kernel, Value, constant, narrowed
from .map import along, span, steps_of
from .taps import is_by_taps, lower_taps

TILE = (512, 512)  # rows and columns of a task: each packs its operands, and this many pay for it
TASKS_MIN = 8  # a large product has tasks for some cores
TASK_FLOPS_MIN = 1 << 21  # tens of microseconds
RESULT = -1  # the number of the buffer with a tile
KINDS = {"f32": F32, "f64": F64}


def lower_product(frame: Frame) -> Kernel:
    return lower_taps(frame) if _is_by_taps(frame) else _product_of(frame).kernel()


def _product_of(frame: Frame) -> _Product:
    return (_Windows if any(node.op == "conv" for node in frame.graph.nodes) else _Dot)(frame)


def _is_by_taps(frame: Frame) -> bool:
    return any(
        node.op == "conv" and is_by_taps(node.attrs, *(frame.shape(source) for source in node.inputs))
        for node in frame.graph.nodes
    )


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in memory: its buffer, the index of element (0, 0) of a batch, its strides along rows and columns."""

    buffer: int
    start: Expr
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Table:
    """An operand that is read through tables: element (k, column) lies at `rows[k] + columns[column]` from `start`."""

    buffer: int
    start: Expr
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


def is_even(frame: Frame) -> bool:
    """Whether the operands of a group's product are tensors in memory at even strides, if they have to be."""
    return _is_by_taps(frame) or _product_of(frame).even


@dataclass(eq=False)
class _Product(ABC):
    """A batch of products [rows, length] x [length, columns], whose results follow each other in memory."""

    frame: Frame

    def __post_init__(self) -> None:
        frame = self.frame
        self.anchor = next(place for place, node in enumerate(frame.graph.nodes) if node.op in ("dot", "conv"))
        self.batches, self.rows, self.columns, self.length = self._sizes()
        self.kind = "f64" if frame.dtype(self.anchor) == "f64" else "f32"
        build = frame.build
        self.batch, self.row = build.var("batch", self.batches), build.var("row", self.rows)
        self.x, self.k = build.var("x", self.columns), build.var("k", self.length)
        self._plain = frame.elements()

    @property
    def even(self) -> bool:
        return self.left is not None and self.right is not None

    @abstractmethod
    def _sizes(self) -> tuple[int, int, int, int]:
        """Batches, rows, columns, length."""

    @property
    @abstractmethod
    def left(self) -> Operand | None: ...

    @property
    @abstractmethod
    def right(self) -> Operand | Table | None: ...

    @property
    @abstractmethod
    def core(self) -> str:
        """The core's name, as a kernel asks for it."""
        ...

    def _strided(self, load: Expr, row: Expr, column: Expr) -> Operand | None:
        const, terms = terms_of(load.args[0])
        strides = [terms.pop(variable, 0) for variable in (row, column)]
        if any(atom.free & {row.attr, column.attr} for atom in terms):
            return None
        return Operand(load.attr, self.frame.build.affine(const, terms), *strides)

    # -- the kernel ---------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        frame, build = self.frame, self.frame.build
        assert self.even, "the outline keeps other operands out"
        tall, wide = self._tile()
        down, across = -(-self.rows // tall), -(-self.columns // wide)
        direct = frame.root == self.anchor and frame.dtype(self.anchor) == self.kind
        builder, printer, task, scratch = frame.function()
        tile = builder.sdiv(task, index(across))
        first_column, stop_column = span(builder, builder.srem(task, index(across)), wide, self.columns)
        first_row, stop_row = span(builder, builder.srem(tile, index(down)), tall, self.rows)
        printer.bind("batch", narrowed(builder, builder.sdiv(tile, index(down))))
        height, width = builder.sub(stop_row, first_row), builder.sub(stop_column, first_column)
        result_type = KINDS[self.kind].as_pointer()
        if direct:
            place = build.sum(
                build.scaled(self.batch, self.rows * self.columns), build.scaled(self.row, self.columns), self.x
            )
            with printer.scope():
                printer.bind("row", narrowed(builder, first_row))
                printer.bind("x", narrowed(builder, first_column))
                start = builder.zext(printer.scalar(place), I64)
            into, across_row = builder.gep(printer.buffers[frame.root].pointer, [start]), index(self.columns)
        else:
            into, across_row = builder.bitcast(scratch, result_type), index(wide)
        tile_bytes = 0 if direct else tall * wide * frame.graph.types[self.anchor].dtype.itemsize
        tile_bytes += -tile_bytes % 64
        self._call_core(printer, (first_row, first_column), (height, width), into, across_row,
                        builder.gep(scratch, [index(tile_bytes)]))  # fmt: skip
        if not direct:
            self._finish(printer, into, wide, (first_row, stop_row), (first_column, stop_column))
        builder.ret_void()
        return Kernel(builder.module, self.batches * down * across, tile_bytes, (self.core,))

    def _tile(self) -> tuple[int, int]:
        """Rows and columns of a task."""
        tall, wide = min(self.rows, TILE[0]), min(self.columns, TILE[1])
        while self.batches * -(-self.rows // tall) * -(-self.columns // wide) < TASKS_MIN:
            if 2 * tall * wide * self.length < 2 * TASK_FLOPS_MIN:
                break
            if tall > wide or wide <= 64:
                tall = -(-tall // 2)
            else:
                wide = -(-wide // 128) * 64
        return tall, wide

    def _call_core(
        self, printer: Printer, first: tuple[Value, Value], size: tuple[Value, Value], into: Value, across_row: Value,
        scratch: Value,
    ) -> None:  # fmt: skip
        builder = printer.builder
        assert self.left is not None and self.right is not None
        words = [*self._row_words(printer, self.left, first[0]), *self._column_words(printer, self.right, first[1])]
        address = self._core_address(builder)
        core = builder.inttoptr(address, CORE.as_pointer())
        builder.call(core, [*words, builder.bitcast(into, ADDRESS), across_row, *size, index(self.length), scratch])

    def _core_address(self, builder: ir.IRBuilder) -> Value:
        """The argument behind the tensors' addresses."""
        return builder.load(builder.gep(builder.function.args[0], [index(len(self.frame.reads) + 1)]))

    def _row_words(self, printer: Printer, left: Operand, first: Value) -> list[Value]:
        """The core's arguments for the left operand from a row on."""
        return self._words(printer, left, printer.builder.mul(first, index(left.row)))

    @abstractmethod
    def _column_words(self, printer: Printer, right: Operand | Table, first: Value) -> list[Value]:
        """The core's arguments for the right operand from a column on."""

    def _words(self, printer: Printer, operand: Operand, further: Value) -> list[Value]:
        builder = printer.builder
        start = builder.add(builder.zext(printer.scalar(operand.start), I64), further)
        pointer = builder.gep(printer.buffers[operand.buffer].pointer, [start])
        return [builder.bitcast(pointer, ADDRESS), index(operand.row), index(operand.column)]

    def _finish(
        self, printer: Printer, tile: Value, wide: int, rows: tuple[Value, Value], columns: tuple[Value, Value]
    ) -> None:
        """Compute the result from the tile, row by row."""
        frame, build, builder = self.frame, self.frame.build, printer.builder
        begin = builder.gep(tile, [builder.neg(columns[0])])  # so that x itself is the place in a row of the tile
        printer.buffers = {**printer.buffers, RESULT: Buffer(begin, self.kind)}
        in_tile = build.sum(build.scaled(build.var("tile_row", self.rows), wide), self.x)
        product = build.load(RESULT, in_tile, self.kind)
        value_of = frame.elements({self.anchor: self._anchor(product)})
        place = build.sum(
            build.scaled(self.batch, self.rows * self.columns), build.scaled(self.row, self.columns), self.x
        )
        value = value_of.at(frame.root, build.unravel(place, frame.shape(frame.root)))
        exprs = [value, place]
        printer.hoist(exprs, ("row", "x", "tile_row"))
        with loop(builder, rows[0], rows[1], index(1), "row") as row, printer.scope():
            printer.bind("row", narrowed(builder, row))
            printer.bind("tile_row", narrowed(builder, builder.sub(row, rows[0])))
            printer.hoist(exprs, ("x",))
            for columns_of, width in along(builder, *columns, steps_of(frame.lanes()), self.columns):
                with columns_of as position, printer.scope():
                    printer.bind_lanes("x", narrowed(builder, position), width)
                    printer.store(frame.root, place, printer.vector(value))

    def _anchor(self, product: Expr) -> Anchor:
        def read(index: Index) -> Expr:
            return self._plain.rounded(product, self.frame.dtype(self.anchor))

        return read


class _Dot(_Product):
    """A dot: axes of one role are folded into one."""

    def _sizes(self) -> tuple[int, int, int, int]:
        _, inputs, attrs = self.frame.graph.nodes[self.anchor]
        (batch, rows, length), (_, columns, _) = (
            _sizes(self.frame.shape(node), attrs, name) for node, name in zip(inputs, ("lhs", "rhs"), strict=True)
        )
        return math.prod(batch), math.prod(rows), math.prod(columns), math.prod(length)

    @property
    def core(self) -> str:
        """Few rows or columns are multiplied where the other operand lies, if its rows or columns are contiguous."""
        other = self.right if self.rows <= FEW else self.left if self.columns <= FEW else None
        lies = isinstance(other, Operand) and 1 in (other.row, other.column)
        return f"{'few_rows' if lies else 'product'} {self.kind}"

    @cached_property
    def left(self) -> Operand | None:
        return self._operand(0, self.row, self.k)

    @cached_property
    def right(self) -> Operand | None:
        return self._operand(1, self.k, self.x)

    def _operand(self, side: int, row: Expr, column: Expr) -> Operand | None:
        """The operand as a matrix of `row` and `column`."""
        frame, build = self.frame, self.frame.build
        _, inputs, attrs = frame.graph.nodes[self.anchor]
        shape, name = frame.shape(inputs[side]), ("lhs", "rhs")[side]
        batch, free, contract = _sizes(shape, attrs, name)
        where: list[Expr] = [self.batch] * len(shape)
        for axes, variable, sizes in (
            (attrs[f"{name}_batch"], self.batch, batch),
            (_free(shape, attrs, name), row if side == 0 else column, free),
            (attrs[f"{name}_contract"], self.k, contract),
        ):
            for axis, coordinate in zip(axes, build.unravel(variable, sizes), strict=True):
                where[axis] = coordinate
        value = self._plain.at(inputs[side], tuple(where))
        return None if value.op != "load" else self._strided(value, row, column)

    def _column_words(self, printer: Printer, right: Operand | Table, first: Value) -> list[Value]:
        assert isinstance(right, Operand)
        return self._words(printer, right, printer.builder.mul(first, index(right.column)))


class _Windows(_Product):
    """A convolution without padding: rows are channels of the result, columns its places, and the length is that of a
    window.  Where an element of a window lies is the sum of two tables, one by its place in the window, and one by the
    window's."""

    def _sizes(self) -> tuple[int, int, int, int]:
        _, (_, weights), attrs = self.frame.graph.nodes[self.anchor]
        samples, channels, *places = self.frame.shape(self.anchor)
        groups, shape = attrs["groups"], self.frame.shape(weights)
        return samples * groups, channels // groups, math.prod(places), math.prod(shape[1:])

    @property
    def core(self) -> str:
        return f"windows {self.kind}"

    @cached_property
    def left(self) -> Operand | None:
        _, (_, weights), attrs = self.frame.graph.nodes[self.anchor]
        build, shape = self.frame.build, self.frame.shape(weights)
        group = build.mod(self.batch, attrs["groups"])
        channel = build.sum(build.scaled(group, self.rows), self.row)
        value = self._plain.at(weights, (channel, *build.unravel(self.k, shape[1:])))
        return None if value.op != "load" else self._strided(value, self.row, self.k)

    @cached_property
    def right(self) -> Table | None:
        _, (x, weights), attrs = self.frame.graph.nodes[self.anchor]
        build, shape = self.frame.build, self.frame.shape(x)
        channels, *taps = self.frame.shape(weights)[1:]
        sample, group = build.div(self.batch, attrs["groups"]), build.mod(self.batch, attrs["groups"])
        channel = build.var("channel", channels)
        axes = [build.var(f"axis{axis}", dim) for axis, dim in enumerate(shape[2:])]
        value = self._plain.at(x, (sample, build.sum(build.scaled(group, channels), channel), *axes))
        if value.op != "load":
            return None
        const, terms = terms_of(value.args[0])
        strides = [terms.pop(variable, 0) for variable in (channel, *axes)]
        if any(atom.free & {variable.attr for variable in (channel, *axes)} for atom in terms):
            return None
        reach = [1, *attrs["rhs_dilation"]]
        rows = _places((channels, *taps), [stride * far for stride, far in zip(strides, reach, strict=True)])
        steps = [stride * step for stride, step in zip(strides[1:], attrs["stride"], strict=True)]
        columns = _places(self.frame.shape(self.anchor)[2:], steps)
        return Table(value.attr, build.affine(const, terms), rows, columns)

    def _column_words(self, printer: Printer, right: Operand | Table, first: Value) -> list[Value]:
        builder = printer.builder
        start = builder.zext(printer.scalar(right.start), I64)
        pointer = builder.gep(printer.buffers[right.buffer].pointer, [start])
        assert isinstance(right, Table)
        rows, columns = (
            builder.ptrtoint(constant(builder.module, name, I64, table.tolist()), I64)
            for name, table in (("rows", right.rows), ("columns", right.columns))
        )
        columns = builder.add(columns, builder.mul(first, index(8)))
        return [builder.bitcast(pointer, ADDRESS), rows, columns]


def _places(sizes: Sequence[int], strides: Sequence[int]) -> NDArray[np.int64]:
    """The places of a box's elements, in row-major order."""
    place = np.zeros((), np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        place = place[..., None] + np.arange(size, dtype=np.int64) * (stride if size > 1 else 0)
    return np.ascontiguousarray(place.reshape(-1))


def _sizes(shape: Sequence[int], attrs: Attrs, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The sizes of a dot's operand's batch, free and contracting axes."""
    axes = attrs[f"{name}_batch"], _free(shape, attrs, name), attrs[f"{name}_contract"]
    batch, free, contract = (tuple(shape[axis] for axis in group) for group in axes)
    return batch, free, contract


def _free(shape: Sequence[int], attrs: Attrs, name: str) -> tuple[int, ...]:
    taken = (*attrs[f"{name}_batch"], *attrs[f"{name}_contract"])
    return tuple(axis for axis in range(len(shape)) if axis not in taken)
