"""A product by one subgroup per tile, for software devices: no workgroup memory, and as few loads as there can be.

The lanes hold the tile's left block in registers, rows side by side, and read each other's; each lane has columns of
its own.  Software drivers turn a load from a buffer into a loop over lanes, one from a texture into a few instructions,
and a broadcast into one.
"""

from __future__ import annotations

from ...compiler.expressions import Expr
from ..kernel_ir import Kernel, Loop, Statement
from .product import Places, Product


class BroadcastProduct(Product):
    """`form.x` lanes side by side along columns, `form.rows` rows that all of them share."""

    rows_first = True  # the right operand's tile is the larger one, and stays in a core's cache from tile to tile

    def kernel(self) -> Kernel:
        build = self.build
        whole, rest = divmod(self.stretch, 4)
        stretch = self.stretch_var
        inner: list[Statement] = []
        if whole:
            step = build.var("step", whole)
            inner.append(Loop(step, build.number(0), whole, 1, tuple(self._multiply(stretch, self._deep(step, 4)))))
        if rest:
            inner += self._multiply(stretch, self._deep(build.number(whole), rest))
        sweep: list[Statement] = inner
        if self.stretches > 1:
            sweep = [Loop(stretch, build.number(0), self.stretches, 1, tuple(inner))]
        body = (*self.head(), *sweep, *self.results())
        reads = frozenset(self.frame.group.reads)
        return Kernel("matmul", self.groups, self.form.invocations, body, self.frame.dtypes, from_textures=reads)

    def row_of(self, i: Expr) -> Expr:
        return self.build.sum(self.build.scaled(self.tile_row, self.form.rows), i)

    def quad_of(self, j: int) -> Expr:
        across = self.form.tile_columns // 4
        return self.build.sum(
            self.build.scaled(self.tile_column, across), self.lane, self.build.number(j * self.form.x)
        )

    @property
    def _blocks(self) -> list[tuple[int, list[Expr]]]:
        """The rows that this lane holds, in blocks of neighbours; a block's first row in lane 0."""
        build, lanes, rows = self.build, self.form.x, self.form.rows
        tile = build.scaled(self.tile_row, rows)
        if rows % (4 * lanes) == 0:
            starts = range(0, rows, 4 * lanes)
            quads = [build.div(build.sum(tile, build.number(start)), 4) for start in starts]
            return [
                (start, self.at_edge(build.sum(quad, self.lane), self.rows))
                for start, quad in zip(starts, quads, strict=True)
            ]
        own = [(start, build.sum(tile, self.lane, build.number(start))) for start in range(0, rows, lanes)]
        return [(start, [build.least(row, self.rows - 1)]) for start, row in own]

    def _deep(self, quad: Expr, count: int) -> Places:
        """Places along a stretch, all of them inside."""
        start = self.build.scaled(quad, 4)
        yes = self.build.literal(1, "bool")
        return [(self.build.sum(start, self.build.number(c)), yes) for c in range(count)]

    def _multiply(self, stretch: Expr, depths: Places) -> list[Statement]:
        body: list[Statement] = []
        held: dict[int, tuple[Expr, int]] = {}  # row of the tile: the quad along the length, and the lane that has it
        for start, rows in self._blocks:
            values = self.block(self.left, rows, stretch, depths)
            for i in range(len(rows)):
                own = self.named(body, f"a{start + i}", self.vector([deep[i] for deep in values]))
                held.update({start + lane * len(rows) + i: (own, lane) for lane in range(self.form.x)})
        rights = []
        for j in self.column_quads:
            values = self.block(self.right, self.at_edge(self.quad_of(j), self.columns), stretch, depths)
            rights.append([self.named(body, f"b{c}_{j}", self.vector(deep)) for c, deep in enumerate(values)])
        for row in range(self.form.rows):
            quad, lane = held[row]
            shared = self.named(body, f"s{row}", self.build.make("broadcast", [quad], self.quad, lane))
            scalars = [self.lane_of(shared, c) for c in range(len(depths))]
            body += [self.add(row, j, list(zip(scalars, rights[j], strict=True))) for j in self.column_quads]
        return body
