"""Updates: `x.at[key].set(v)`, `.add(v)`, `.max(v)`, `.min(v)` give a new Array that differs from x at x[key].

`x[key] = v` gives its name to such a new one.  Keys are those of x[key]; a position that stands several times gets
every update (`set`: the last one).
"""

from __future__ import annotations

import math
from typing import Any

from wire.dtypes import I32, I64

from ..array import Array, Operand, apply
from . import indexing, manipulation
from .promotion import asarray, like


class At:
    """`x.at`; `x.at[key]` is the place to update."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> Place:
        return Place(self._array, key)


class Place:
    """The elements of an array at a key; each method returns the array with them changed."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: Array, key: Any) -> None:
        self._array = array
        self._key = key

    def set(self, values: Operand) -> Array:
        """x with x[key] = values."""
        return self._scatter(values, "set")

    def add(self, values: Operand) -> Array:
        """x with values added to x[key]."""
        return self._scatter(values, "add")

    def max(self, values: Operand) -> Array:
        """x with the larger of x[key] and values there."""
        return self._scatter(values, "max")

    def min(self, values: Operand) -> Array:
        """x with the smaller of x[key] and values there."""
        return self._scatter(values, "min")

    def _scatter(self, values: Operand, mode: str) -> Array:
        """Every key is a selection of positions in the flattened array, so one scatter of rank 1 serves all."""
        array = self._array
        dtype = I32 if array.size < 1 << 31 else I64
        every = apply("iota", shape=(math.prod(array.shape),), dtype=dtype.name, axis=0)
        places = indexing.getitem(manipulation.reshape(every, array.shape), self._key)
        updates = manipulation.broadcast_to(like(values, array), places.shape)
        flat = apply(
            "scatter",
            manipulation.ravel(array),
            manipulation.ravel(places),
            manipulation.ravel(updates),
            axis=0,
            mode=mode,
        )
        return manipulation.reshape(flat, array.shape)


def at(x: Operand) -> At:
    """x's places, to be updated: `at(x)[key].set(values)`."""
    return At(asarray(x))
