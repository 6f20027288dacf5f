"""Index expressions keep their simple form, in which a load that is contiguous looks contiguous."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from worker.compiler.expressions import Builder, Expr
from worker.native.printer import stride_of


def value(expr: Expr, x: int) -> int:
    """What an index of one variable is."""
    args = [value(arg, x) for arg in expr.args]
    if expr.op == "affine":
        const, *factors = expr.attr
        return int(const + sum(factor * arg for factor, arg in zip(factors, args, strict=True)))
    by = {"index_div": lambda: args[0] // expr.attr, "index_mod": lambda: args[0] % expr.attr}
    return int({"var": lambda: x, "lit": lambda: expr.attr, **by}[expr.op]())


def test_axes_that_follow_each_other_are_put_together_again() -> None:
    """A sum over the samples and places of an image reads the places of a sample side by side."""
    build = Builder()
    x = build.var("x", 32 * 28 * 28)
    sample, row, column = build.unravel(x, (32, 28, 28))
    place = build.sum(build.scaled(row, 28), column)
    assert place is build.mod(x, 28 * 28)
    assert stride_of(build.sum(build.scaled(sample, 64 * 28 * 28), place), "x", 16) == 1


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 2), (6, 1, 4, 3), (5, 7), (2, 2, 2, 2, 3)])
def test_any_axes_of_an_index_keep_their_value(shape: Sequence[int]) -> None:
    size = math.prod(shape)
    for count in range(1, len(shape) + 1):
        for axes in combinations(range(len(shape)), count):
            build = Builder()
            coordinates = build.unravel(build.var("x", size), shape)
            index = build.ravel([coordinates[axis] for axis in axes], [shape[axis] for axis in axes])
            places = np.unravel_index(np.arange(size), shape)
            expected = np.ravel_multi_index([places[axis] for axis in axes], [shape[axis] for axis in axes])
            assert [value(index, at) for at in range(size)] == expected.tolist(), axes
