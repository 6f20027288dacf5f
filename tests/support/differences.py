"""Derivatives by central differences, and sums over pytrees of numbers: what tests compare transforms with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mesh import realise
from mesh.core.array import Array
from mesh.numpy import asarray

STEP = 1e-5  # of f64: the error is STEP^2 by the formula and 1e-16 / STEP by rounding
RTOL, ATOL = 1e-6, 2e-8

Numbers = NDArray[Any]
Function = Callable[..., Sequence[Array]]


def numbers(arrays: Sequence[Any]) -> list[Numbers]:
    """The values of all, computed together."""
    given = [asarray(array) for array in arrays]
    realise(given)
    return [np.asarray(array) for array in given]


def along(fn: Function, point: Sequence[Numbers], direction: Sequence[Numbers]) -> list[Numbers]:
    """The derivative of `fn` at `point` along `direction`, by central differences."""
    ahead, back = (
        fn(*[asarray(np.asarray(x + sign * STEP * d)) for x, d in zip(point, direction, strict=True)])
        for sign in (1, -1)
    )
    values = numbers([*ahead, *back])
    return [(a - b) / (2 * STEP) for a, b in zip(values[: len(ahead)], values[len(ahead) :], strict=True)]


def inner(left: Sequence[Numbers | None], right: Sequence[Numbers]) -> float:
    """The real part of the sum of all products; None is zero."""
    return float(sum(np.sum(np.asarray(a) * b).real for a, b in zip(left, right, strict=True) if a is not None))


def assert_close(found: Any, wanted: Any, what: str = "", scale: float = 1.0) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), RTOL, ATOL * scale, err_msg=what)
