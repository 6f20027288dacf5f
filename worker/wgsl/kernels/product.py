"""What the forms of a product share: where operands lie, how the length is walked, and what is done with results.

Operands are read in blocks of four neighbours by four of the length; where those lie in fours in memory, along either,
they are read in fours.  Places past an edge are read at the edge and never stored; past the length they count as zero.
f16 is loaded into f32 and rounded once, integers wrap.

The length is cut in stretches where that spares divisions: a conv's length is (tap, channel), and where a window lies
is worked out once per tap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from wire.cached_property import cached_property

from ...compiler.element_exprs import register
from ...compiler.expressions import Expr
from ..kernel_ir import Assign, Declare, Kernel, Leave, Let, Loop, Statement, Store, When, walk
from .frame import Frame
from .operands import Side
from .product_forms import Form

STRETCH_MIN = 8  # the turns of shorter ones cost more than divisions
ROWS_PICKED = 4  # of a tile's sums at once, out of which each is picked: to pick one of 32 takes 31 comparisons
Places = Sequence[tuple[Expr, Expr]]  # places below a size, each with whether it was inside before it was clamped


class Product(ABC):
    """One product in one form."""

    rows_first = False  # whether workgroups that follow each other share columns, not rows

    def __init__(self, frame: Frame, left: Side, right: Side, form: Form) -> None:
        self.frame, self.build, self.form = frame, frame.build, form
        self.left, self.right = left, right
        (self.dot,) = frame.group.anchors
        self.batch, self.rows, self.columns, self.length = left.batch, left.free, right.free, left.length
        self.dtype = register(frame.dtype(self.dot))
        self.quad = f"{self.dtype}x4"
        self.elements = frame.elements()
        self.zero = self.build.literal(0, self.dtype)
        row_tiles, column_tiles = -(-self.rows // form.tile_rows), -(-self.columns // form.tile_columns)
        self.groups = self.batch * row_tiles * column_tiles
        group = self.build.var("group", self.groups)
        self.lane = self.build.var("lane", form.invocations)
        first, after = (row_tiles, column_tiles) if self.rows_first else (column_tiles, row_tiles)
        inner, outer = self.build.mod(group, first), self.build.mod(self.build.div(group, first), after)
        self.tile_row, self.tile_column = (inner, outer) if self.rows_first else (outer, inner)
        self.at_batch = self.build.div(group, column_tiles * row_tiles)

    @abstractmethod
    def kernel(self) -> Kernel: ...

    @abstractmethod
    def row_of(self, i: Expr) -> Expr:
        """The row of this invocation's results `sum{i}_*`; it may lie past the last one."""

    @abstractmethod
    def quad_of(self, j: int) -> Expr:
        """The four columns of this invocation's results `sum*_{j}`, as a quad; they may lie past the last one."""

    def head(self) -> list[Statement]:
        """What comes first: workgroups past the last one leave, and sums start at zero."""
        body: list[Statement] = []
        if self.groups > self.frame.profile.limits.groups_per_dimension:
            group = self.build.var("group", self.groups)
            body.append(Leave(self.build.make("ge", [group, self.build.number(self.groups)], "bool")))
        zero = self.build.make("splat", [self.zero], self.quad)
        return body + [Declare(self.sum_name(i, j), zero) for i in range(self.form.rows) for j in self.column_quads]

    @property
    def column_quads(self) -> range:
        return range(self.form.columns // 4)

    @staticmethod
    def sum_name(i: int, j: int) -> str:
        return f"sum{i}_{j}"

    # -- operands -----------------------------------------------------------------------------------------

    @cached_property
    def stretch(self) -> int:
        """The longest stretch of the length within which no operand's place takes a division."""
        divisors = self._divisors(self.length)
        least = max(STRETCH_MIN, self.form.length)  # a shorter one would leave a part of each tile empty
        candidates = sorted((by for by in divisors if by >= least and self.length % by == 0), reverse=True)
        return next((by for by in candidates if not self._divisors(by)), self.length)

    @property
    def stretches(self) -> int:
        return self.length // self.stretch

    @property
    def stretch_var(self) -> Expr:
        """The number of the stretch, where there are several."""
        return self.build.var("stretch", self.stretches) if self.stretches > 1 else self.build.number(0)

    def _divisors(self, stretch: int) -> set[int]:
        """What places within a stretch are divided by, powers of two aside."""
        within = self.build.var(f"within{stretch}", stretch)
        turn = self.build.var(f"turn{stretch}", self.length // stretch)
        return self.divisors(turn, within, stretch, str(within.attr))

    def divisors(self, turn: Expr, within: Expr, stretch: int, name: str) -> set[int]:
        """The divisors in the operands' places that depend on a variable of that name, powers of two aside."""
        build, along = self.build, self.build.sum(self.build.scaled(turn, stretch), within)
        values = [
            side.at(self.elements, self.at_batch, build.var(f"free{side.free}", side.free), along)
            for side in (self.left, self.right)
        ]
        divisions = [expr for expr in walk(values) if expr.op in ("index_div", "index_mod") and name in expr.free]
        return {expr.attr for expr in divisions if expr.attr & (expr.attr - 1)}

    def fours(self, quad: Expr, size: int) -> Places:
        """Places 4*quad to 4*quad + 3 of `size`."""
        build = self.build
        if size % 4 == 0:
            inside = self.elements.inside(quad, 0, size // 4)
            base = build.scaled(build.least(quad, size // 4 - 1), 4)
            return [(build.sum(base, build.number(lane)), inside) for lane in range(4)]
        places = [build.sum(build.scaled(quad, 4), build.number(lane)) for lane in range(4)]
        return [(build.least(place, size - 1), self.elements.inside(place, 0, size)) for place in places]

    def at_edge(self, quad: Expr, size: int) -> list[Expr]:
        """The same places, whether they were inside or not."""
        return [place for place, _ in self.fours(quad, size)]

    def block(self, side: Side, frees: Sequence[Expr], stretch: Expr, depths: Places) -> list[list[Expr]]:
        """Elements of an operand, [depth within the stretch][row or column]; zero past the stretch."""
        start = self.build.scaled(stretch, self.stretch)
        return [
            [
                self.elements.choose(inside, self._element(side, free, self.build.sum(start, depth)), self.zero)
                for free in frees
            ]
            for depth, inside in depths
        ]

    def _element(self, side: Side, free: Expr, along: Expr) -> Expr:
        """An element of an operand.  One that is the same number everywhere, such as padding, is hidden from drivers:
        they would take 0 times NaN for 0."""
        value = side.at(self.elements, self.at_batch, free, along)
        return self.elements.apart(value) if value.op == "lit" and value.dtype == "f32" else value

    def vector(self, values: Sequence[Expr]) -> Expr:
        """Scalars as a vec4; missing ones are zero."""
        return self.build.make("quad", [*values, *[self.zero] * (4 - len(values))], self.quad)

    def named(self, body: list[Statement], name: str, value: Expr) -> Expr:
        own = self.build.make("var", (), value.dtype, name)
        body.append(Let(own, value))
        return own

    def add(self, i: int, j: int, factors: Sequence[tuple[Expr, Expr]]) -> Statement:
        """sum{i}_{j} += scalar * quad, of each pair in turn."""
        total = self.build.mutable(self.sum_name(i, j), self.quad)
        for scalar, quad in factors:
            total = self.build.make("fma", [total, scalar, quad], self.quad)
        return Assign(self.sum_name(i, j), total)

    def lane_of(self, quad: Expr, lane: int) -> Expr:
        return self.build.make("lane", [quad], self.dtype, lane)

    # -- results ------------------------------------------------------------------------------------------

    def results(self) -> list[Statement]:
        """Store this invocation's results, or what the group makes of them.  What takes more than a store is said once,
        in a loop over the rows."""
        build, rows = self.build, self.form.rows
        if rows == 1 or (self.columns % 4 == 0 and self._stores_sums):
            return [statement for i in range(rows) for statement in self._row(build.number(i), i)]
        sums = [[self.sum_name(row, j) for j in self.column_quads] for row in range(rows)]
        if rows <= 2 * ROWS_PICKED or rows % ROWS_PICKED:
            i = build.var("i", rows)
            return [self._of_rows(i, sums, i)]
        block, i = build.var("block", rows // ROWS_PICKED), build.var("i", ROWS_PICKED)
        held = [[f"u{q}_{j}" for j in self.column_quads] for q in range(ROWS_PICKED)]
        picked: list[Statement] = []
        for q, names in enumerate(held):
            picked += self._picked(block, sums[q::ROWS_PICKED], names)
        each = self._of_rows(i, held, build.sum(build.scaled(block, ROWS_PICKED), i))
        return [Loop(block, build.number(0), rows // ROWS_PICKED, 1, (*picked, each))]

    @cached_property
    def _stores_sums(self) -> bool:
        """Whether the group does no more with a sum than store it."""
        total = self.build.make("var", (), self.quad, "total")
        row, column = self.build.var("row", self.rows), self.build.var("column", self.columns)
        return self._value(row, column, total, 0) is self._rounded(total, 0)

    def _of_rows(self, i: Expr, held: list[list[str]], row: Expr) -> Loop:
        """Store the rows whose sums have these names, the one of place `i` after the other."""
        picked = self._picked(i, held, [f"v{j}" for j in self.column_quads])
        return Loop(i, self.build.number(0), len(held), 1, (*picked, *self._row(row, None)))

    def _picked(self, which: Expr, choices: list[list[str]], names: list[str]) -> list[Statement]:
        """Variables of these names, with the values of those that `which` chooses."""
        build = self.build
        body: list[Statement] = []
        for name, *values in zip(names, *choices, strict=True):
            body.append(Declare(name, build.mutable(values[0], self.quad)))
            for at, value in enumerate(values[1:], 1):
                chosen = Assign(name, build.mutable(value, self.quad))
                body.append(When(build.make("eq", [which, build.number(at)], "bool"), (chosen,)))
        return body

    def _row(self, i: Expr, number: int | None) -> list[Statement]:
        """Store one row; it is `sum{number}_*`, or `v*`."""
        own = self.row_of(i)
        row = self.build.var("row" if number is None else f"row{number}", self.rows)
        inner: list[Statement] = [Let(row, own)]
        for j in self.column_quads:
            total = self.build.mutable(f"v{j}" if number is None else self.sum_name(number, j), self.quad)
            inner += self._store(row, j, total)
        return self.guarded(self.elements.inside(own, 0, self.rows), inner)

    def _store(self, row: Expr, j: int, total: Expr) -> list[Statement]:
        build, place = self.build, self.quad_of(j)
        value = build.make("var", (), self.quad, f"w{row.attr}_{j}")
        head: Statement = Let(value, total)
        if self.columns % 4 == 0:
            quad = build.var(f"q{row.attr}_{j}", self.columns // 4)
            columns = [build.sum(build.scaled(quad, 4), build.number(lane)) for lane in range(4)]
            values = tuple(self._value(row, column, value, lane) for lane, column in enumerate(columns))
            where = build.div(self._linear(row, columns[0]), 4)
            inner: list[Statement] = [Let(quad, place), head, Store(self.frame.root, where, values)]
            return self.guarded(self.elements.inside(place, 0, self.columns // 4), inner)
        body = [head]
        for lane in range(4):
            column = build.var(f"n{row.attr}_{j}_{lane}", self.columns)
            own = build.sum(build.scaled(place, 4), build.number(lane))
            store = Store(self.frame.root, self._linear(row, column), (self._value(row, column, value, lane),))
            body += self.guarded(self.elements.inside(own, 0, self.columns), [Let(column, own), store])
        return body

    @staticmethod
    def guarded(condition: Expr, body: list[Statement]) -> list[Statement]:
        """The statements, where the condition holds; none where it never does."""
        if condition.op == "lit":
            return body if condition.attr else []
        return [When(condition, tuple(body))]

    def _linear(self, row: Expr, column: Expr) -> Expr:
        return self.build.ravel((self.at_batch, row, column), (self.batch, self.rows, self.columns))

    def _value(self, row: Expr, column: Expr, total: Expr, lane: int) -> Expr:
        """The root's element where the product's is lane `lane` of `total`."""
        value = self._rounded(total, lane)
        if self.frame.root == self.dot:
            return value
        index = self.build.unravel(self._linear(row, column), self.frame.shape(self.frame.root))
        return self.frame.elements({self.dot: lambda _: value}).at(self.frame.root, index)

    def _rounded(self, total: Expr, lane: int) -> Expr:
        """The product's element that is lane `lane` of `total`."""
        value = self.lane_of(total, lane)
        return self.build.make("to_f16", [value], "f32") if self.frame.dtype(self.dot) == "f16" else value
