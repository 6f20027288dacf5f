"""One sum of scores that are computed where they are summed: attention, and each part of its derivative.

An invocation has a few rows of scores, and what makes them lies in its registers.  The workgroup goes through the
columns block by block: a block of the other operands is loaded once, and every invocation reads each column of it in
turn, the same one at the same time.  On a GPU a block lies in workgroup memory.  On a software device, where a load by
invocation is a loop, each invocation of a subgroup holds a column and hands it to the others: they read its registers,
or, where the driver would make a loop of that too, those of the first one, and then each takes over the column of its
neighbour.

A softmax and its product with values are one sweep: the maximum and the sum so far are corrected by each block (Milakov
and Gimelshein 2018, Dao et al. 2022).  Sums are f32 whatever is stored.  Blocks that a mask of positions rules out
altogether are skipped (`masks.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wire.ir.dtypes import F32

from ...compiler.constants import identity_of
from ...compiler.element_exprs import Anchor, Elements
from ...compiler.expressions import Expr
from ...compiler.scores import axes_of, place, sizes_of, softmax_of, walk_of
from ..kernel_ir import (
    SUBGROUP_LANE,
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
    walk,
)
from .frame import Frame
from .masks import may_count
from .row import COMBINE
from .scores_forms import Scores, choose

AT_ONCE = 2  # columns of a turn where they are passed on and one product makes scores: else the code is too long
READ_BY_TURN_MAX = 8  # invocations of a subgroup that drivers let read any other one by an instruction


def lower_scores(frame: Frame) -> list[Kernel]:
    """One kernel."""
    return [_Scores(frame).kernel()]


Quad = Callable[[Expr, Expr | int], Expr]
"""(row or column, number of the quad) to four elements of an operand."""


@dataclass(frozen=True, slots=True)
class _Tile:
    """A block of an operand, `quads` to a column: `name` in registers or workgroup memory."""

    name: str
    quads: int


class _Scores:
    def __init__(self, frame: Frame) -> None:
        self.frame, self.build, self.root = frame, frame.build, frame.root
        graph, profile = frame.graph, frame.profile
        self.stored = tuple(index for index in frame.group.anchors if graph.nodes[index].op != "dot")
        self.dots = tuple(index for index in frame.group.anchors if graph.nodes[index].op == "dot")
        self.softmax = softmax_of(graph, self.root)
        own = (self.softmax.peak, self.softmax.total) if self.softmax is not None else ()
        found = walk_of(graph, self.root, self.dots, [index for index in own if index != self.root])
        assert found is not None, "a sum of scores"
        self.walk = found
        self.reducing = graph.nodes[self.root].op if found.width == 0 else None
        self.widths = {dot: sizes_of(graph, dot, 0)[2] for dot in self.dots}
        self.passing = profile.subgroup > READ_BY_TURN_MAX
        self.batch = self.build.var("batch", found.batch) if found.batch > 1 else self.build.number(0)
        self.plain = frame.elements()
        self.tiles: dict[tuple[Expr, ...], _Tile] = {}
        self.loads: dict[str, Quad] = {}
        self.names = {
            dot: self._tile(f"k{n}", self._columns_of(dot), self.widths[dot]) for n, dot in enumerate(self.dots)
        }
        self.values = self._tile("v", self._values(), found.width) if found.width else None
        form, self.choice = choose(self._sizes(), profile)
        self.lanes, self.per_lane, self.columns = form.lanes, form.rows, form.columns
        self.lane = self.build.var("lane", self.lanes)
        self.rows = [self.build.var(f"row{p}", found.rows) for p in range(self.per_lane)]
        self.tile_rows = self.lanes * self.per_lane
        self.row_tiles = -(-found.rows // self.tile_rows)
        self.groups = found.batch * self.row_tiles
        self.block = self.build.var("block", -(-found.columns // self.columns))
        self.at_once = AT_ONCE if self.passing and len(self.dots) == 1 else 1
        self.cells = list(itertools.product(range(self.per_lane), range(self.at_once)))  # the scores of a turn
        self.turn = self.build.var("j", self.columns // self.at_once)

    def _sizes(self) -> Scores:
        found, quads = self.walk, sum(tile.quads for tile in self.tiles.values())
        held = sum(self._quads(dot) for dot in self.dots) + -(-found.width // 4)
        kind = "attention" if self.softmax is not None and found.width else ""
        width = max(self.widths.values())
        dtype = self.frame.dtype(self.dots[0])
        return Scores(kind, dtype, found.batch, found.rows, found.columns, width, held, quads)

    def kernel(self) -> Kernel:
        build, profile = self.build, self.frame.profile
        group = build.var("group", self.groups)
        tile = build.mod(group, self.row_tiles)
        body: list[Statement] = []
        if self.groups > profile.limits.groups_per_dimension:
            body.append(Leave(build.make("ge", [group, build.number(self.groups)], "bool")))
        if self.batch.op == "var":
            body.append(Let(self.batch, build.div(group, self.row_tiles)))
        for p, row in enumerate(self.rows):
            body.append(Let(row, build.least(self._row(tile, p), self.walk.rows - 1)))
        for n, dot in enumerate(self.dots):
            for p in range(self.per_lane):
                body += [Let(self._held(n, p, d), self._rows_of(dot)(self.rows[p], d)) for d in range(self._quads(dot))]
        sweep = self._online() if self.softmax is not None else self._sum()
        counts = may_count(self.frame, self.walk, self.softmax, tile, self.tile_rows, self.block, self.columns)
        inner = (*self._load(), *sweep.inner)
        guarded = inner if counts is None else (When(counts, inner),)
        body += [*sweep.before, Loop(self.block, build.number(0), self.block.hi + 1, 1, guarded), *sweep.after]
        shared: tuple[Shared, ...] = ()
        if not profile.subgroup:
            shared = tuple(Shared(tile.name, "f32x4", self.columns * tile.quads) for tile in self.tiles.values())
        dtypes = self.frame.dtypes | {index: self.frame.dtype(index) for index in self.stored}
        return Kernel("scores", self.groups, self.lanes, tuple(body), dtypes, shared, choice=self.choice)

    def _row(self, tile: Expr, p: int) -> Expr:
        start = self.build.scaled(tile, self.tile_rows)
        return self.build.sum(start, self.lane, self.build.number(p * self.lanes))

    # -- operands -----------------------------------------------------------------------------------------

    def _quads(self, dot: int) -> int:
        return -(-self.widths[dot] // 4)

    def _rows_of(self, dot: int) -> Quad:
        return self._operand(dot, 1 if self.walk.turned[dot] else 0)

    def _columns_of(self, dot: int) -> Quad:
        return self._operand(dot, 0 if self.walk.turned[dot] else 1)

    def _operand(self, dot: int, side: int) -> Quad:
        """The side of a dot that makes scores, along its length."""
        return self._quad(
            dot, side, lambda where, along: (self.batch, where, along), sizes_of(self.frame.graph, dot, side)[2]
        )

    def _values(self) -> Quad:
        """What the root sums with the scores, by column and result."""
        return self._quad(self.root, self.walk.other, lambda where, along: (self.batch, along, where), self.walk.width)

    def _quad(self, dot: int, side: int, order: Callable[[Expr, Expr], Sequence[Expr]], size: int) -> Quad:
        graph, build = self.frame.graph, self.build
        node, axes = graph.nodes[dot].inputs[side], axes_of(graph, dot, side)
        shape, zero = graph.types[node].shape, self.build.literal(0, "f32")

        def at(where: Expr, quad: Expr | int) -> Expr:
            lanes, quad = [], build.number(quad) if isinstance(quad, int) else quad
            for lane in range(4):
                along = build.sum(build.scaled(quad, 4), build.number(lane))
                if along.lo >= size:
                    lanes.append(zero)
                    continue
                index = place(build, shape, axes, order(where, build.least(along, size - 1)))
                lanes.append(self.plain.choose(self.plain.inside(along, 0, size), self.plain.at(node, index), zero))
            return build.make("quad", lanes, "f32x4")

        return at

    def _tile(self, name: str, quad: Quad, width: int) -> _Tile:
        """A block of these columns; one that is there already if it has the same elements."""
        column = self.build.var("column", self.walk.columns)
        key = tuple(quad(column, d) for d in range(-(-width // 4)))
        if key not in self.tiles:
            self.tiles[key] = _Tile(name, len(key))
            self.loads[name] = quad
        return self.tiles[key]

    def _load(self) -> list[Statement]:
        """A block of every operand: a column for each invocation, or into workgroup memory."""
        build, last = self.build, self.walk.columns - 1
        start = build.scaled(self.block, self.columns)
        if self.frame.profile.subgroup:
            column = build.least(build.sum(start, self.lane), last)
            return [
                Declare(self._register(tile, d), self.loads[tile.name](column, d))
                for tile in self.tiles.values()
                for d in range(tile.quads)
            ]
        body: list[Statement] = [Barrier()]
        for tile in self.tiles.values():
            count = self.columns * tile.quads
            for first in range(0, count, self.lanes):
                item = build.sum(self.lane, build.number(first))
                column = build.least(build.sum(start, build.div(item, tile.quads)), last)
                store = StoreShared(tile.name, item, self.loads[tile.name](column, build.mod(item, tile.quads)))
                whole = first + self.lanes <= count
                inside = build.make("lt", [item, build.number(count)], "bool")
                body.append(store if whole else When(inside, (store,)))
        return [*body, Barrier()]

    @staticmethod
    def _register(tile: _Tile, d: int) -> str:
        return f"{tile.name}_{d}"

    def _held_now(self, tile: _Tile, d: int) -> Expr:
        """Quad `d` of the column that this invocation of a subgroup holds."""
        return self.build.mutable(self._register(tile, d), "f32x4")

    def _read(self, tile: _Tile, d: int, u: int) -> Expr:
        """Quad `d` of column `u` of this turn, the same for every invocation."""
        if self.passing:
            return self.build.make("broadcast", [self._held_now(tile, d)], "f32x4", u)
        if self.frame.profile.subgroup:
            return self.build.make("shuffle", [self._held_now(tile, d), self.turn], "f32x4")
        where = self.build.sum(self.build.scaled(self.turn, tile.quads), self.build.number(d))
        return self.build.make("shared", [where], "f32x4", tile.name)

    def _held(self, n: int, p: int, d: int) -> Expr:
        """Quad `d` of what makes scores of row `p`."""
        return self.build.make("var", (), "f32x4", f"q{n}_{p}_{d}")

    # -- sweeps -------------------------------------------------------------------------------------------

    def _turns(self, inner: Sequence[Statement], tiles: Iterable[_Tile]) -> Loop:
        """The statements for each column of a block, which read these tiles."""
        passed = [statement for tile in tiles for statement in self._passed_on(tile)] if self.passing else []
        return Loop(self.turn, self.build.number(0), self.columns // self.at_once, 1, (*inner, *passed))

    def _column(self, u: int) -> Expr:
        """Column `u` of this turn; it may lie past the last one."""
        turn = self.build.sum(self.build.scaled(self.turn, self.at_once), self.build.number(u))
        return self.build.sum(self.build.scaled(self.block, self.columns), turn)

    def _passed_on(self, tile: _Tile) -> list[Statement]:
        """Each invocation takes over the column that another one has; after all turns it has its own again."""
        build = self.build
        own = build.var(SUBGROUP_LANE, self.lanes)
        following = build.mod(build.sum(own, build.number(self.at_once)), self.lanes)
        return [
            Assign(self._register(tile, d), build.make("shuffle", [self._held_now(tile, d), following], "f32x4"))
            for d in range(tile.quads)
        ]

    def _made(self) -> list[Statement]:
        """The products of this turn, each in a variable of its own."""
        body: list[Statement] = []
        zero = self.build.literal(0, "f32")
        for n, dot in enumerate(self.dots):
            body += [Declare(f"s{n}_{c}", zero) for c in range(len(self.cells))]
            for d in range(self._quads(dot)):
                read = [self._named(body, f"x{n}_{d}_{u}", self._read(self.names[dot], d, u)) for u in self._places]
                for c, (p, u) in enumerate(self.cells):
                    part = self.build.make("dot4", [self._held(n, p, d), read[u]], "f32")
                    body.append(self._add(f"s{n}_{c}", part))
            for c in range(len(self.cells)):
                value = self.build.mutable(f"s{n}_{c}", "f32")
                narrow = self.frame.dtype(dot) == "f16"
                value = self.build.make("to_f16", [value], "f32") if narrow else value
                body.append(Let(self._product(n, c), value))
        return body

    @property
    def _places(self) -> range:
        """The numbers of a turn's columns."""
        return range(self.at_once)

    def _named(self, body: list[Statement], name: str, value: Expr) -> Expr:
        own = self.build.make("var", (), value.dtype, name)
        body.append(Let(own, value))
        return own

    def _add(self, name: str, value: Expr, dtype: str = "f32") -> Assign:
        return Assign(name, self.build.make("add", [self.build.mutable(name, dtype), value], dtype))

    def _product(self, n: int, c: int) -> Expr:
        return self.build.make("var", (), "f32", f"p{n}_{c}")

    def _score(self, node: int, c: int) -> Expr:
        """A node of the scores' shape in this turn, at the row and the column of cell `c`."""
        anchors: dict[int, Anchor] = {}
        for n, dot in enumerate(self.dots):
            anchors[dot] = _always(self._product(n, c))
        p, u = self.cells[c]
        column = self.build.least(self._column(u), self.walk.columns - 1)
        elements = Elements(self.frame.graph, self.build, self.plain.sources, anchors)
        return elements.at(node, self._index_of(node, p, column))

    def _index_of(self, node: int, p: int, column: Expr) -> tuple[Expr, ...]:
        return self.walk.at(self.build, self.batch, self.rows[p], column)

    def _inside(self, value: Expr, u: int, otherwise: float) -> Expr:
        """The value, or past the last column what changes nothing."""
        if self.walk.columns % self.columns == 0:
            return value
        return self.plain.choose(
            self.plain.inside(self._column(u), 0, self.walk.columns), value, self._number(otherwise)
        )

    def _number(self, value: float) -> Expr:
        return self.build.literal(int(np.float32(value).view(np.uint32)), "f32")

    def _sum(self) -> _Sweep:
        build = self.build
        first = identity_of(self.reducing, F32) if self.reducing else 0
        before, inner = [*self._sums(first)], self._made()
        weights = [build.make("var", (), "f32", f"w{c}") for c in range(len(self.cells))]
        for c, (p, u) in enumerate(self.cells):
            score = self._score(self.walk.value, c)
            before += self._of_rows(score) if u == 0 else []
            inner.append(Let(weights[c], self._inside(score, u, first)))
            if self.reducing:
                own = build.mutable(f"o{p}", "f32")
                inner.append(Assign(f"o{p}", build.make(COMBINE[self.reducing], [own, weights[c]], "f32")))
        turns = self._turns([*inner, *self._weighted(weights)], self.tiles.values())
        return _Sweep(before, [turns], self._results(None))

    def _of_rows(self, score: Expr) -> list[Statement]:
        """What of a score depends on the row alone, before the loop over columns."""
        fixed = {"batch", "lane", "group", *(row.attr for row in self.rows)}
        return [
            Let(self.build.make("var", (), expr.dtype, f"h{expr.uid}"), expr)
            for expr in walk([score])
            if expr.op == "load" and expr.free <= fixed
        ]

    def _online(self) -> _Sweep:
        build, softmax = self.build, self.softmax
        assert softmax is not None
        lowest, zero = self._number(-math.inf), self._number(0)
        before, scoring, picking, update = [*self._sums(0)], self._made(), list[Statement](), list[Statement]()
        declared: list[Statement] = []
        for p in range(self.per_lane):
            before += [Declare(f"m{p}", lowest), Declare(f"l{p}", zero)]
            names = [f"w{p}_{column}" for column in range(self.columns)]
            declared += [Declare(name, lowest) for name in names]
            update += self._corrected(p, names, build.mutable(f"m{p}", "f32"))
        weights = [build.make("var", (), "f32", f"e{c}") for c in range(len(self.cells))]
        for c, (p, u) in enumerate(self.cells):
            score, own = self._score(softmax.scores, c), build.make("var", (), "f32", f"w{c}")
            before += self._of_rows(score) if u == 0 else []
            scoring.append(Let(own, self._inside(score, u, -math.inf)))
            names = [f"w{p}_{column}" for column in range(u, self.columns, self.at_once)]
            picked: Expr = build.mutable(names[-1], "f32")
            for turn, name in enumerate(names):
                here = build.make("eq", [self.turn, build.number(turn)], "bool")
                scoring.append(Assign(name, build.make("select", [here, own, build.mutable(name, "f32")], "f32")))
                if name != names[-1]:
                    picked = build.make("select", [here, build.mutable(name, "f32"), picked], "f32")
            base = build.make("var", (), "f32", f"b{p}")
            shifted = build.make("add", [picked, build.make("neg", [base], "f32")], "f32")
            picking += [Let(weights[c], build.make("exp", [shifted], "f32")), self._add(f"l{p}", weights[c])]
        scores = self._turns(scoring, dict.fromkeys(self.names.values()))
        sums = self._turns([*picking, *self._weighted(weights)], [] if self.values is None else [self.values])
        inner = [*declared, scores, *update, sums]
        return _Sweep(before, inner, self._results([build.mutable(f"l{p}", "f32") for p in range(self.per_lane)]))

    def _corrected(self, p: int, names: Sequence[str], top: Expr) -> list[Statement]:
        """The maximum with this block, and the sums so far as if it had been known from the first."""
        build = self.build
        body: list[Statement] = []
        highest = build.make("var", (), "f32", f"n{p}")
        body.append(Declare(f"t{p}m", top))
        for name in names:
            body.append(
                Assign(f"t{p}m", build.make("max", [build.mutable(f"t{p}m", "f32"), build.mutable(name, "f32")], "f32"))
            )
        body.append(Let(highest, build.mutable(f"t{p}m", "f32")))
        none = build.make("eq", [highest, self._number(-math.inf)], "bool")
        base = build.make("var", (), "f32", f"b{p}")
        body.append(Let(base, build.make("select", [none, self._number(0), highest], "f32")))
        factor = build.make("var", (), "f32", f"c{p}")
        shifted = build.make("add", [top, build.make("neg", [base], "f32")], "f32")
        body += [Let(factor, build.make("exp", [shifted], "f32")), Assign(f"m{p}", highest)]
        body.append(Assign(f"l{p}", build.make("mul", [build.mutable(f"l{p}", "f32"), factor], "f32")))
        for name in self._names(p):
            body.append(Assign(name, build.make("scaled", [build.mutable(name, "f32x4"), factor], "f32x4")))
        return body

    def _names(self, p: int) -> list[str]:
        return [f"o{p}_{d}" for d in range(self.values.quads)] if self.values is not None else []

    def _sums(self, first: float) -> list[Statement]:
        if self.reducing and self.softmax is None:
            return [Declare(f"o{p}", self._number(first)) for p in range(self.per_lane)]
        zero = self.build.make("splat", [self._number(0)], "f32x4")
        return [Declare(name, zero) for p in range(self.per_lane) for name in self._names(p)]

    def _weighted(self, weights: Sequence[Expr]) -> list[Statement]:
        """Add this turn's values by weight."""
        if self.values is None:
            return []
        body: list[Statement] = []
        for d in range(self.values.quads):
            read = [self._named(body, f"y_{d}_{u}", self._read(self.values, d, u)) for u in self._places]
            for p in range(self.per_lane):
                total = self.build.mutable(f"o{p}_{d}", "f32x4")
                for c, (own, u) in enumerate(self.cells):
                    if own == p:
                        total = self.build.make("fma", [total, weights[c], read[u]], "f32x4")
                body.append(Assign(f"o{p}_{d}", total))
        return body

    # -- results ------------------------------------------------------------------------------------------

    def _results(self, totals: Sequence[Expr] | None) -> list[Statement]:
        body: list[Statement] = []
        group = self.build.var("group", self.groups)
        for p in range(self.per_lane):
            place = self._row(self.build.mod(group, self.row_tiles), p)
            inside = self.build.make("lt", [place, self.build.number(self.walk.rows)], "bool")
            body.append(When(inside, tuple(self._stores(p, totals))))
        return body

    def _stores(self, p: int, totals: Sequence[Expr] | None) -> list[Statement]:
        build, walk = self.build, self.walk
        row = build.sum(build.scaled(self.batch, walk.rows), self.rows[p])
        if self.softmax is not None:
            own = {self.softmax.peak: f"m{p}", self.softmax.total: f"l{p}"}
        else:
            own = {self.root: f"o{p}"}
        body: list[Statement] = []
        for index in (*self.stored, *([self.root] if self.reducing else [])):
            body.append(Store(index, row, (self._narrow(build.mutable(own[index], "f32"), index),)))
        if self.values is None:
            return body
        for d, name in enumerate(self._names(p)):
            quad = build.mutable(name, "f32x4")
            lanes = [build.make("lane", [quad], "f32", lane) for lane in range(min(4, walk.width - 4 * d))]
            if totals is not None:
                lanes = [build.make("div", [lane, totals[p]], "f32") for lane in lanes]
            values = [self._narrow(lane, self.root) for lane in lanes]
            where = [self._linear(p, 4 * d + lane) for lane in range(len(lanes))]
            together = self.frame.contiguous(where) if len(where) == 4 else None
            if together is not None:
                body.append(Store(self.root, together, tuple(values)))
            else:
                body += [Store(self.root, at, (value,)) for at, value in zip(where, values, strict=True)]
        return body

    def _narrow(self, value: Expr, node: int) -> Expr:
        return self.build.make("to_f16", [value], "f32") if self.frame.dtype(node) == "f16" else value

    def _linear(self, p: int, result: int) -> Expr:
        """The place of this result of row `p` in the root, whose axes are batch, left, right."""
        walk, own = self.walk, self.build.number(result)
        if walk.side == 0:
            return self.build.ravel((self.batch, self.rows[p], own), (walk.batch, walk.rows, walk.width))
        return self.build.ravel((self.batch, own, self.rows[p]), (walk.batch, walk.width, walk.rows))


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Statements before the loop over blocks, in it and after it."""

    before: list[Statement]
    inner: list[Statement]
    after: list[Statement]


def _always(value: Expr) -> Anchor:
    return lambda index: value
