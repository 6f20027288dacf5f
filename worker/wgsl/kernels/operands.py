"""The operands of a dot and a conv, as a product's kernel sees them: (batch, rows or columns, length).

Any batch, free and contracting axes go through the same index algebra as every view, so a transpose or a reshape before
a product costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from ...compiler.element_exprs import Elements, Index
from ...compiler.expressions import Expr, terms_of
from ..kernel_ir import walk
from .convolution import kernels_and_windows
from .frame import Frame


class Side(Protocol):
    """One operand."""

    @property
    def batch(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def length(self) -> int: ...

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

    def at(self, elements: Elements, batch: Expr, free: Expr, along: Expr) -> Expr:
        return elements.at(self.node, self._index(batch, free, along))

    def _index(self, batch: Expr, free: Expr, along: Expr) -> Index:
        place: dict[int, Expr] = {}
        for axes, own in zip(self.axes, (batch, free, along), strict=True):
            place.update(zip(axes, self.build.unravel(own, [self.shape[axis] for axis in axes]), strict=True))
        return tuple(place[axis] for axis in range(len(self.shape)))


def _of_dot(frame: Frame, dot: int) -> tuple[Side, Side]:
    return _Operand(frame, dot, 0), _Operand(frame, dot, 1)


SIDES: dict[str, Callable[[Frame, int], tuple[Side, Side]]] = {"dot": _of_dot, "conv": kernels_and_windows}


def sides_of(frame: Frame, product: int) -> tuple[Side, Side]:
    """The left and the right operand of a dot or a conv."""
    return SIDES[frame.graph.nodes[product].op](frame, product)


def runs_along(frame: Frame, side: Side) -> bool:
    """Whether neighbours along the length are neighbours in memory."""
    build = frame.build
    within, free = build.var(f"within{side.length}", side.length), build.var(f"free{side.free}", side.free)
    value = side.at(frame.elements(), build.var("batch", side.batch), free, within)
    loads = [expr for expr in walk([value]) if expr.op == "load"]
    return any(terms_of(load.args[0])[1].get(within) == 1 for load in loads)
