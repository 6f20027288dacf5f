"""Ops as programs of other ops: what a rule differentiates where the op has no short derivative of its own.

Each takes the operand and the op's attributes and gives a function with the op's value and derivatives there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .. import numpy as mnp
from ..core.array import Array, apply
from ..numpy.promotion import like

Program = Callable[[Array], Array]


def product(_: Array, axes: tuple[int, ...]) -> Program:
    """reduce_prod by halving, which is right where elements are 0: log2(n) products."""

    def program(x: Array) -> Array:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        shape = [x.shape[axis] for axis in kept]
        rows = mnp.reshape(mnp.permute_dims(x, (*axes, *kept)), (math.prod(x.shape[axis] for axis in axes), *shape))
        while rows.shape[0] > 1:
            half = rows.shape[0] // 2
            pairs = rows[:half] * rows[half : 2 * half]
            rows = pairs if rows.shape[0] == 2 * half else mnp.concat([pairs, rows[2 * half :]])
        return rows[0] if rows.shape[0] else mnp.full(shape, like(1, x))

    return program


def running_product(_: Array, axis: int) -> Program:
    """cumprod by doubling the reach of each position: log2(n) products."""

    def program(x: Array) -> Array:
        rows, reach = mnp.moveaxis(x, axis, 0), 1
        while reach < rows.shape[0]:
            ones = mnp.full((reach, *rows.shape[1:]), like(1, x))
            rows = rows * mnp.concat([ones, rows[:-reach]])
            reach *= 2
        return mnp.moveaxis(rows, 0, axis)

    return program


def running_maximum(x: Array, axis: int) -> Program:
    """cummax as the elements where it is attained, the last of equal ones."""
    return _attained(x, apply("cummax", x, axis=axis), axis)


def running_minimum(x: Array, axis: int) -> Program:
    """cummin as the elements where it is attained, the last of equal ones."""
    return _attained(x, apply("cummin", x, axis=axis), axis)


def _attained(x: Array, extreme: Array, axis: int) -> Program:
    places = apply("iota", shape=x.shape, dtype="i32", axis=axis)
    latest = apply("cummax", mnp.where(mnp.equal(x, extreme), places, 0), axis=axis)
    return lambda operand: mnp.take_along_axis(operand, latest, axis)
