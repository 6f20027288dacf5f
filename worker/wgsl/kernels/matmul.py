"""dot and conv: tiles in workgroup memory, a block of results per invocation in registers, and a fused epilogue.

Any batch, free and contracting axes: each operand is seen as (batch, rows or columns, length) through the same index
algebra as every view, so a transpose or a reshape before a dot costs nothing.  The left tile lies as [row][length/4] of
vec4 along the length, the right tile as [length][column/4] of vec4 along the columns; edges are loaded clamped, zeroed
past the length and never stored past the result.  Integers wrap; f16 is loaded into f32 and rounded once.
To try another blocking: a row in `blocking`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...compiler.element_exprs import Elements, Index, register
from ...compiler.expressions import Expr, terms_of
from ..kernel_ir import (
    Assign,
    Barrier,
    Declare,
    Kernel,
    Leave,
    Let,
    Loop,
    Shared,
    Statement,
    Store,
    StoreShared,
    When,
)
from ..profile import Profile
from .convolution import kernels_and_windows
from .frame import Frame


@dataclass(frozen=True, slots=True)
class Blocking:
    """Invocations per workgroup along columns (x) and rows (y), results per invocation, and the tile's length."""

    x: int
    y: int
    rows: int
    columns: int
    length: int

    @property
    def tile_rows(self) -> int:
        return self.y * self.rows

    @property
    def tile_columns(self) -> int:
        return self.x * self.columns

    @property
    def invocations(self) -> int:
        return self.x * self.y


def blocking(profile: Profile, rows: int, columns: int) -> Blocking:
    """The blocking for a result of this size: larger blocks load less, smaller ones waste less at the edges."""
    if rows >= 48 and columns >= 48 and profile.software:
        return Blocking(8, 8, 8, 8, 16)
    if rows >= 24 and columns >= 24:
        return Blocking(8, 8, 4, 4, 16)
    return Blocking(8, 4, 2, 4, 16)


def lower_matmul(frame: Frame) -> list[Kernel]:
    """One kernel; no axis of the dot is empty."""
    return [_Matmul(frame).kernel()]


class _Matmul:
    def __init__(self, frame: Frame) -> None:
        self.frame, self.build = frame, frame.build
        (self.dot,) = frame.group.anchors
        self.left, self.right = SIDES[frame.graph.nodes[self.dot].op](frame, self.dot)
        self.batch, self.rows, self.columns = self.left.batch, self.left.free, self.right.free
        self.length = self.left.length
        self.block = blocking(frame.profile, self.rows, self.columns)
        self.dtype = register(frame.dtype(self.dot))
        self.quad = f"{self.dtype}x4"
        self.elements = frame.elements()
        self.zero = self.build.literal(0, self.dtype)
        self.row_tiles = -(-self.rows // self.block.tile_rows)
        self.column_tiles = -(-self.columns // self.block.tile_columns)
        self.groups = self.batch * self.row_tiles * self.column_tiles
        group, lane = self.build.var("group", self.groups), self.build.var("lane", self.block.invocations)
        self.lane = lane
        self.tile_column = self.build.mod(group, self.column_tiles)
        self.tile_row = self.build.mod(self.build.div(group, self.column_tiles), self.row_tiles)
        self.at_batch = self.build.div(group, self.column_tiles * self.row_tiles)
        self.x, self.y = self.build.mod(lane, self.block.x), self.build.div(lane, self.block.x)
        self.step = self.build.var("step", -(-self.length // self.block.length))

    def kernel(self) -> Kernel:
        block, build = self.block, self.build
        head: list[Statement] = []
        if self.groups > self.frame.profile.limits.groups_per_dimension:
            head.append(Leave(build.make("ge", [build.var("group", self.groups), build.number(self.groups)], "bool")))
        zero = build.make("splat", [self.zero], self.quad)
        head += [Declare(self._sum(i, j), zero) for i in range(block.rows) for j in range(block.columns // 4)]
        inner = (*self._load_left(), *self._load_right(), Barrier(), *self._multiply(), Barrier())
        sweep = Loop(self.step, build.number(0), self.step.hi + 1, 1, inner)
        shared = (
            Shared("left", self.quad, block.tile_rows * block.length // 4),
            Shared("right", self.quad, block.length * block.tile_columns // 4),
        )
        body = (*head, sweep, self._epilogue())
        return Kernel("matmul", self.groups, block.invocations, body, self.frame.dtypes, shared)

    # -- tiles --------------------------------------------------------------------------------------------

    def _load_left(self) -> list[Statement]:
        block, build = self.block, self.build
        across, down = block.length // 4, block.tile_rows
        body: list[Statement] = []
        for item in self._items(across * down):
            if self.left.along_length:
                row, quad = build.div(item, across), build.mod(item, across)
            else:
                row, quad = build.mod(item, down), build.div(item, down)
            at_row = build.least(build.sum(build.scaled(self.tile_row, down), row), self.rows - 1)
            places = self._fours(build.sum(build.scaled(self.step, across), quad), self.length)
            values = [self._loaded(self.left, (self.at_batch, at_row, at), inside) for at, inside in places]
            where = build.sum(build.scaled(row, across), quad)
            body.append(StoreShared("left", where, build.make("quad", values, self.quad)))
        return body

    def _load_right(self) -> list[Statement]:
        block, build = self.block, self.build
        across, down = block.tile_columns // 4, block.length
        body: list[Statement] = []
        for item in self._items(across * down):
            if self.right.along_length:
                deep, quad = build.mod(item, down), build.div(item, down)
            else:
                deep, quad = build.div(item, across), build.mod(item, across)
            depth = build.sum(build.scaled(self.step, down), deep)
            inside = self.elements.inside(depth, 0, self.length)
            at_depth = build.least(depth, self.length - 1)
            places = self._fours(build.sum(build.scaled(self.tile_column, across), quad), self.columns)
            values = [self._loaded(self.right, (self.at_batch, at, at_depth), inside) for at, _ in places]
            where = build.sum(build.scaled(deep, across), quad)
            body.append(StoreShared("right", where, build.make("quad", values, self.quad)))
        return body

    def _loaded(self, operand: Side, place: tuple[Expr, Expr, Expr], inside: Expr) -> Expr:
        return self.elements.choose(inside, operand.at(self.elements, *place), self.zero)

    def _items(self, count: int) -> list[Expr]:
        """The quads of a tile this invocation loads."""
        size = self.block.invocations
        return [self.build.sum(self.lane, self.build.number(start)) for start in range(0, count, size)]

    def _fours(self, quad: Expr, size: int) -> list[tuple[Expr, Expr]]:
        """Positions 4*quad .. 4*quad+3, clamped below `size`, each with whether it was inside."""
        build = self.build
        if size % 4 == 0:
            inside = self.elements.inside(quad, 0, size // 4)
            base = build.scaled(build.least(quad, size // 4 - 1), 4)
            return [(build.sum(base, build.number(lane)), inside) for lane in range(4)]
        places = [build.sum(build.scaled(quad, 4), build.number(lane)) for lane in range(4)]
        return [(build.least(place, size - 1), self.elements.inside(place, 0, size)) for place in places]

    def _multiply(self) -> list[Statement]:
        block, build = self.block, self.build
        body: list[Statement] = []
        for quad in range(block.length // 4):
            lefts = []
            for i in range(block.rows):
                row = build.sum(build.scaled(self.y, block.rows), build.number(i))
                where = build.sum(build.scaled(row, block.length // 4), build.number(quad))
                lefts.append(self._named(body, f"l{quad}_{i}", build.make("shared", [where], self.quad, "left")))
            for lane in range(4):
                for j in range(block.columns // 4):
                    start = (quad * 4 + lane) * (block.tile_columns // 4) + j * block.x
                    where = build.sum(self.x, build.number(start))
                    right = self._named(body, f"r{quad}_{lane}_{j}", build.make("shared", [where], self.quad, "right"))
                    for i in range(block.rows):
                        scalar = build.make("lane", [lefts[i]], self.dtype, lane)
                        own = build.mutable(self._sum(i, j), self.quad)
                        body.append(Assign(self._sum(i, j), build.make("fma", [own, scalar, right], self.quad)))
        return body

    def _named(self, body: list[Statement], name: str, value: Expr) -> Expr:
        own = self.build.make("var", (), value.dtype, name)
        body.append(Let(own, value))
        return own

    def _sum(self, i: int, j: int) -> str:
        return f"sum{i}_{j}"

    # -- results ------------------------------------------------------------------------------------------

    def _epilogue(self) -> Statement:
        """A loop over this invocation's rows, so that a long epilogue stands once per column, not per result."""
        block, build = self.block, self.build
        i = build.var("i", block.rows)
        tile = build.sum(build.scaled(self.tile_row, block.tile_rows), build.scaled(self.y, block.rows))
        own_row = build.sum(tile, i)
        row = build.var("row", self.rows)
        inner: list[Statement] = [Let(row, own_row)]
        for j in range(block.columns // 4):
            name = f"v{j}"
            inner.append(Declare(name, build.mutable(self._sum(0, j), self.quad)))
            for other in range(1, block.rows):
                chosen = Assign(name, build.mutable(self._sum(other, j), self.quad))
                inner.append(When(build.make("eq", [i, build.number(other)], "bool"), (chosen,)))
        for j in range(block.columns // 4):
            inner += self._store_quad(j, row)
        guarded = When(build.make("lt", [own_row, build.number(self.rows)], "bool"), tuple(inner))
        return Loop(i, build.number(0), block.rows, 1, (guarded,))

    def _store_quad(self, j: int, row: Expr) -> list[Statement]:
        block, build = self.block, self.build
        across = block.tile_columns // 4
        place = build.sum(build.scaled(self.tile_column, across), self.x, build.number(j * block.x))
        total = build.make("var", (), self.quad, f"w{j}")
        head = Let(total, build.mutable(f"v{j}", self.quad))
        if self.columns % 4 == 0:
            quad = build.var(f"q{j}", self.columns // 4)
            columns = [build.sum(build.scaled(quad, 4), build.number(lane)) for lane in range(4)]
            values = tuple(self._value(row, column, total, lane) for lane, column in enumerate(columns))
            where = build.div(self._linear(row, columns[0]), 4)
            inner = (Let(quad, place), head, Store(self.frame.root, where, values))
            return [When(build.make("lt", [place, build.number(self.columns // 4)], "bool"), inner)]
        body: list[Statement] = [head]
        for lane in range(4):
            column = build.var(f"n{j}_{lane}", self.columns)
            own = build.sum(build.scaled(place, 4), build.number(lane))
            store = Store(self.frame.root, self._linear(row, column), (self._value(row, column, total, lane),))
            body.append(When(build.make("lt", [own, build.number(self.columns)], "bool"), (Let(column, own), store)))
        return body

    def _linear(self, row: Expr, column: Expr) -> Expr:
        return self.build.ravel((self.at_batch, row, column), (self.batch, self.rows, self.columns))

    def _value(self, row: Expr, column: Expr, total: Expr, lane: int) -> Expr:
        """The root's element where the dot's is lane `lane` of `total`."""
        value = self.build.make("lane", [total], self.dtype, lane)
        if self.frame.dtype(self.dot) == "f16":
            value = self.build.make("to_f16", [value], "f32")
        if self.frame.root == self.dot:
            return value
        index = self.build.unravel(self._linear(row, column), self.frame.shape(self.frame.root))
        return self.frame.elements({self.dot: lambda _: value}).at(self.frame.root, index)


class Side(Protocol):
    """One operand as (batch, free, length); `along_length` if neighbours along the length are so in memory."""

    @property
    def batch(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def along_length(self) -> bool: ...

    def at(self, elements: Elements, batch: Expr, free: Expr, along: Expr) -> Expr: ...


class _Operand:
    """One side of a dot."""

    def __init__(self, frame: Frame, dot: int, side: int) -> None:
        self.build = frame.build
        node = frame.graph.nodes[dot]
        self.node = node.inputs[side]
        self.shape = frame.shape(self.node)
        name = ("lhs", "rhs")[side]
        batch, contract = node.attrs[f"{name}_batch"], node.attrs[f"{name}_contract"]
        free = tuple(axis for axis in range(len(self.shape)) if axis not in (*batch, *contract))
        self.axes = (batch, free, contract)
        self.batch, self.free, self.length = (math.prod(self.shape[axis] for axis in axes) for axes in self.axes)
        self.along_length = self._contiguous_along_length(frame)

    def at(self, elements: Elements, batch: Expr, free: Expr, along: Expr) -> Expr:
        return elements.at(self.node, self._index(batch, free, along))

    def _index(self, batch: Expr, free: Expr, along: Expr) -> Index:
        place: dict[int, Expr] = {}
        for axes, own in zip(self.axes, (batch, free, along), strict=True):
            place.update(zip(axes, self.build.unravel(own, [self.shape[axis] for axis in axes]), strict=True))
        return tuple(place[axis] for axis in range(len(self.shape)))

    def _contiguous_along_length(self, frame: Frame) -> bool:
        """Whether neighbours along the length are neighbours in memory."""
        probe = self.build.var("probe", self.length)
        other = self.build.var("other", self.free)
        value = frame.elements().at(self.node, self._index(self.build.number(0), other, probe))
        while value.op != "load" and value.args:
            value = value.args[0]
        return value.op == "load" and terms_of(value.args[0])[1].get(probe) == 1


def _of_dot(frame: Frame, dot: int) -> tuple[Side, Side]:
    return _Operand(frame, dot, 0), _Operand(frame, dot, 1)


SIDES: dict[str, Callable[[Frame, int], Sequence[Side]]] = {"dot": _of_dot, "conv": kernels_and_windows}
