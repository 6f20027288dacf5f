"""A product of one row: what counts is that every element of the matrix is read once, in fours, by neighbours.

An invocation has a few quads of columns and every so-many-th quad of the length; its neighbours have the next columns
or the next of the length, whichever lie side by side in memory.  Where several share the length, each has one quad of
columns, and their sums are added in workgroup memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from wire.cached_property import cached_property

from ...compiler.expressions import Expr
from ..kernel_ir import Assign, Barrier, Kernel, Loop, Shared, Statement, StoreShared, When
from .operands import runs_along
from .product import Product


class LineProduct(Product):
    """`form.x` invocations side by side along columns, and `form.y` that share the length."""

    def kernel(self) -> Kernel:
        build = self.build
        zero = build.number(0)
        quads = -(-self.stretch // 4)
        steps = -(-quads // self.form.y)
        step = build.var("step", steps)
        sweep: Statement = Loop(step, zero, steps, 1, tuple(self._multiply(step)))
        if self.stretches > 1:
            sweep = Loop(self.stretch_var, zero, self.stretches, 1, (sweep,))
        body = [*self.head(), sweep, *(self._added() if self.form.y > 1 else self.results())]
        shared = (Shared("parts", self.quad, self.form.invocations),) if self.form.y > 1 else ()
        return Kernel("matmul", self.groups, self.form.invocations, tuple(body), self.frame.dtypes, shared)

    @cached_property
    def along(self) -> bool:
        return runs_along(self.frame, self.right)

    @property
    def four(self) -> Expr:
        """The first quad of columns of this invocation, in its tile."""
        return self.build.div(self.lane, self.form.y) if self.along else self.build.mod(self.lane, self.form.x)

    @property
    def share(self) -> Expr:
        """The number of this invocation among those that share the length."""
        return self.build.mod(self.lane, self.form.y) if self.along else self.build.div(self.lane, self.form.x)

    def row_of(self, i: Expr) -> Expr:
        return self.build.number(0)

    def quad_of(self, j: int) -> Expr:
        across = self.form.tile_columns // 4
        return self.build.sum(
            self.build.scaled(self.tile_column, across), self.four, self.build.number(j * self.form.x)
        )

    def _multiply(self, step: Expr) -> Iterator[Statement]:
        build = self.build
        depths = self.fours(build.sum(build.scaled(step, self.form.y), self.share), self.stretch)
        scalars = [deep[0] for deep in self.block(self.left, [build.number(0)], self.stretch_var, depths)]
        for j in self.column_quads:
            columns = self.at_edge(self.quad_of(j), self.columns)
            fours = [self.vector(deep) for deep in self.block(self.right, columns, self.stretch_var, depths)]
            yield self.add(0, j, list(zip(scalars, fours, strict=True)))

    def _added(self) -> list[Statement]:
        """The sums of those that share the length added in a tree, then the results of the first of them."""
        build, count = self.build, self.form.y
        own = build.sum(build.scaled(self.share, self.form.x), self.four)
        body: list[Statement] = [StoreShared("parts", own, build.mutable(self.sum_name(0, 0), self.quad)), Barrier()]
        while count > 1:
            count //= 2
            pair = [self._part(build.sum(own, build.number(at))) for at in (0, count * self.form.x)]
            added = StoreShared("parts", own, build.make("add", pair, self.quad))
            body += [When(self.elements.inside(self.share, 0, count), (added,)), Barrier()]
        first = [Assign(self.sum_name(0, 0), self._part(self.four)), *self.results()]
        return [*body, When(self.elements.inside(self.share, 0, 1), tuple(first))]

    def _part(self, where: Expr) -> Expr:
        return self.build.make("shared", [where], self.quad, "parts")
