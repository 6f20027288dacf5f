"""conv as the matmul kernel sees it: per sample and group, kernels (rows) times windows (columns).

A place in the matrix of windows is arithmetic on x's index, and zero where it falls on padding.  The length is
(position in the kernel, channel): within one position, both sides are read at a steady stride.
"""

from __future__ import annotations

import math

from ...compiler.element_exprs import Elements, padded, register
from ...compiler.expressions import Expr
from .frame import Frame


def kernels_and_windows(frame: Frame, conv: int) -> tuple[_Kernels, _Windows]:
    """The two sides of a conv."""
    return _Kernels(frame, conv), _Windows(frame, conv)


class _Conv:
    """What both sides know: `batch` counts samples and groups, `length` the products of one sum."""

    def __init__(self, frame: Frame, conv: int) -> None:
        self.build = frame.build
        node = frame.graph.nodes[conv]
        self.x, self.w = node.inputs
        self.attrs = node.attrs
        self.groups: int = node.attrs["groups"]
        samples, made, *self.places = frame.shape(conv)
        _, *self.kernel = frame.shape(self.w)[1:]
        self.share = frame.shape(self.w)[1]
        self.rows: int = made // self.groups
        self.batch: int = samples * self.groups
        self.length: int = self.share * math.prod(self.kernel)
        self.zero = self.build.literal(0, register(frame.dtype(self.x)))

    def position(self, along: Expr) -> tuple[Expr, ...]:
        """Channel of the group, and position in the kernel."""
        *position, channel = self.build.unravel(along, [*self.kernel, self.share])
        return channel, *position


class _Kernels(_Conv):
    """w: a row makes one channel of the result."""

    @property
    def free(self) -> int:
        return self.rows

    def at(self, elements: Elements, batch: Expr, free: Expr, along: Expr) -> Expr:
        group = self.build.mod(batch, self.groups)
        maker = self.build.sum(self.build.scaled(group, self.rows), free)
        return elements.at(self.w, (maker, *self.position(along)))


class _Windows(_Conv):
    """x: a column is what the kernel reads at one place."""

    @property
    def free(self) -> int:
        return math.prod(self.places)

    def at(self, elements: Elements, batch: Expr, free: Expr, along: Expr) -> Expr:
        build, attrs = self.build, self.attrs
        sample, group = build.div(batch, self.groups), build.mod(batch, self.groups)
        channel, *position = self.position(along)
        columns = (build.unravel(free, self.places), position, attrs["stride"], attrs["rhs_dilation"])
        where = [
            build.sum(build.scaled(place, stride), build.scaled(own, reach))
            for place, own, stride, reach in zip(*columns, strict=True)
        ]
        index = (sample, build.sum(build.scaled(group, self.share), channel), *where)
        return padded(elements, self.x, index, (0, 0, *attrs["low"]), (1, 1, *attrs["lhs_dilation"]), self.zero)
