"""A product by tiles in workgroup memory, for GPUs: a block of results in each invocation's registers.

Both tiles lie as [length][row or column], so that an invocation reads its rows and its columns in fours.  An operand
that lies along the length is turned over in registers, four by four, on its way there.  The next tile is loaded into
registers while the present one is multiplied: GPUs have many loads in flight, and wait only where a value is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wire.cached_property import cached_property

from ...compiler.expressions import Expr
from ..kernel_ir import Assign, Barrier, Declare, Kernel, Let, Loop, Shared, Statement, StoreShared
from .operands import Side, runs_along
from .product import Product


@dataclass(frozen=True, slots=True)
class _Tile:
    """An operand's tile in workgroup memory: `quads` of its rows or columns, of which the operand has `size`; `at` is
    which tile it is.  `along`: the operand lies along the length."""

    name: str
    side: Side
    along: bool
    at: Expr
    quads: int
    size: int


@dataclass(frozen=True, slots=True)
class _Share:
    """Invocations `first` to below `last` load a block of four by four of a tile each, in order from block `block`,
    into the registers of round `turn`."""

    turn: int
    tile: _Tile
    first: int
    last: int
    block: int


class TiledProduct(Product):
    """`form.y` by `form.x` invocations."""

    def kernel(self) -> Kernel:
        build, form = self.build, self.form
        steps = -(-self.stretch // form.length)
        turns = self.stretches * steps
        zero = build.number(0)
        following = self._following(steps) if turns > 1 else ()
        inner = (*self._keep(), Barrier(), *following, *self._multiply(), Barrier())
        sweep = Loop(build.var("turn", turns), zero, turns, 1, inner)
        body = (*self.head(), *self._registers(turns), *self._fetch(zero, zero), sweep, *self.results())
        shared = tuple(Shared(tile.name, self.quad, form.length * tile.quads) for tile in self._tiles)
        return Kernel("matmul", self.groups, form.invocations, body, self.frame.dtypes, shared)

    @property
    def x(self) -> Expr:
        return self.build.mod(self.lane, self.form.x)

    @property
    def y(self) -> Expr:
        return self.build.div(self.lane, self.form.x)

    def row_of(self, i: Expr) -> Expr:
        build = self.build
        four = build.sum(build.scaled(build.div(i, 4), self.form.y), self.y)
        return build.sum(build.scaled(self.tile_row, self.form.tile_rows), build.scaled(four, 4), build.mod(i, 4))

    def quad_of(self, j: int) -> Expr:
        across = self.form.tile_columns // 4
        return self.build.sum(self.build.scaled(self.tile_column, across), self.x, self.build.number(j * self.form.x))

    # -- tiles --------------------------------------------------------------------------------------------

    @cached_property
    def _tiles(self) -> tuple[_Tile, _Tile]:
        form, frame, left, right = self.form, self.frame, self.left, self.right
        return (
            _Tile("left", left, runs_along(frame, left), self.tile_row, form.tile_rows // 4, self.rows),
            _Tile("right", right, runs_along(frame, right), self.tile_column, form.tile_columns // 4, self.columns),
        )

    def _shares(self) -> Iterator[_Share]:
        """The shares of all invocations: the blocks of both tiles, one after the other, dealt out in rounds."""
        done, size = 0, self.form.invocations
        for tile in self._tiles:
            block, count = 0, tile.quads * self.form.length // 4
            while block < count:
                turn, first = divmod(done, size)
                last = min(size, first + count - block)
                yield _Share(turn, tile, first, last, block)
                block += last - first
                done += last - first

    def _each(self, make: Callable[[_Share, Expr, Expr, int], Statement]) -> list[Statement]:
        """make(share, quad of the rows or columns, quad of the length, c) for each share and c of 0 to 3, done by those
        that have it."""
        build, body = self.build, list[Statement]()
        for share in self._shares():
            quad, deep = self._place(share)
            conditions = []
            if share.first:
                conditions.append(build.make("ge", [self.lane, build.number(share.first)], "bool"))
            if share.last < self.form.invocations:
                conditions.append(build.make("lt", [self.lane, build.number(share.last)], "bool"))
            body += self.guarded(self.elements.both(conditions), [make(share, quad, deep, c) for c in range(4)])
        return body

    def _place(self, share: _Share) -> tuple[Expr, Expr]:
        """The place of this invocation's block: its quad of rows or columns, and its quad of the length."""
        build, quads, deep = self.build, share.tile.quads, self.form.length // 4
        block = build.sum(self.lane, build.number(share.block - share.first))
        if block.lo < 0 or block.hi >= quads * deep:
            block = build.bounded(block, quads * deep - 1)  # true of those that have a share
        if share.tile.along:
            return build.div(block, deep), build.mod(block, deep)
        return build.mod(block, quads), build.div(block, quads)

    def _registers(self, turns: int) -> list[Statement]:
        """The registers that keep the next tile, and the counters that say which one it is."""
        zero = self.build.make("splat", [self.zero], self.quad)
        rounds = 1 + max(share.turn for share in self._shares())
        body: list[Statement] = [Declare(f"p{turn}_{c}", zero) for turn in range(rounds) for c in range(4)]
        counted = ["next_step"] if turns > 1 else []
        counted += [f"next_{var.attr}" for var, _, _ in self._counters]
        return body + [Declare(name, self.build.number(0)) for name in counted]

    @cached_property
    def _counters(self) -> list[tuple[Expr, int, int]]:
        """The number of the stretch in digits that no place divides, lowest first: (digit, its values, its weight)."""
        if self.stretches == 1:
            return []
        turn, within = self.build.var("which", self.stretches), self.build.var(f"within{self.stretch}", self.stretch)
        weights = [1]
        for by in sorted(self.divisors(turn, within, self.stretch, "which")):
            if by % weights[-1] == 0 and self.stretches % by == 0:
                weights.append(by)
        sizes = [above // below for below, above in pairwise([*weights, self.stretches])]
        digits = [self.build.var(f"digit{place}", size) for place, size in enumerate(sizes)]
        return list(zip(digits, sizes, weights, strict=True))

    def _following(self, steps: int) -> list[Statement]:
        """Load what the next turn multiplies: the counters go on by one; after the last turn they are zero again."""
        build, body = self.build, list[Statement]()
        carry = build.literal(1, "bool")
        step = build.var("step", steps)
        for var, size in [(step, steps), *((digit, size) for digit, size, _ in self._counters)]:
            own = build.mutable(f"next_{var.attr}", "u32")
            more = build.sum(own, build.number(1))
            over = build.make("ge", [more, build.number(size)], "bool")
            following = build.make("var", (), "bool", f"after_{var.attr}")
            body.append(Let(following, self.elements.both([carry, over])))
            wrapped = build.make("select", [following, build.number(0), more], "u32")
            body.append(Assign(f"next_{var.attr}", self.elements.choose(carry, wrapped, own)))
            body.append(Let(var, own))
            carry = following
        places = [build.scaled(digit, weight) for digit, _, weight in self._counters]
        return body + self._fetch(build.sum(build.number(0), *places), step)

    def _fetch(self, stretch: Expr, step: Expr) -> list[Statement]:
        """Blocks from memory into registers."""
        build = self.build
        known: dict[_Share, Sequence[Sequence[Expr]]] = {}

        def make(share: _Share, quad: Expr, deep: Expr, c: int) -> Statement:
            tile = share.tile
            if share not in known:
                frees = self.at_edge(build.sum(build.scaled(tile.at, tile.quads), quad), tile.size)
                depths = self.fours(build.sum(build.scaled(step, self.form.length // 4), deep), self.stretch)
                known[share] = self.block(tile.side, frees, stretch, depths)
            return Assign(f"p{share.turn}_{c}", self.vector(known[share][c]))

        return self._each(make)

    def _keep(self) -> list[Statement]:
        """Blocks from registers into workgroup memory."""
        build = self.build

        def make(share: _Share, quad: Expr, deep: Expr, c: int) -> Statement:
            where = build.sum(build.scaled(deep, 4 * share.tile.quads), quad, build.number(c * share.tile.quads))
            return StoreShared(share.tile.name, where, build.mutable(f"p{share.turn}_{c}", self.quad))

        return self._each(make)

    def _multiply(self) -> list[Statement]:
        form, body = self.form, list[Statement]()
        left, right = self._tiles
        for k in range(form.length):
            lefts = [self._read(body, left, k, q * form.y, self.y) for q in range(form.rows // 4)]
            rights = [self._read(body, right, k, j * form.x, self.x) for j in self.column_quads]
            for i in range(form.rows):
                scalar = self.lane_of(lefts[i // 4], i % 4)
                body += [self.add(i, j, [(scalar, rights[j])]) for j in self.column_quads]
        return body

    def _read(self, body: list[Statement], tile: _Tile, k: int, first: int, own: Expr) -> Expr:
        """A quad of a tile at depth k: this invocation's among neighbours, of which the first has quad `first`."""
        where = self.build.sum(own, self.build.number(k * tile.quads + first))
        value = self.build.make("shared", [where], self.quad, tile.name)
        return self.named(body, f"{tile.name[0]}{k}_{first}", value)
