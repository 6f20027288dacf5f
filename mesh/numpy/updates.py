"""Updates: `x.at[key].set(v)`, `.add(v)`, `.max(v)`, `.min(v)` give a new Array that differs from x at x[key].

`x[key] = v` gives its name to such a new one.  Keys are those of x[key]; a position that stands several times gets
every update (`set`: the last one).  Under a boolean mask that is the whole key, values that are the same for every
place need no known mask: that works while tracing.
"""

from __future__ import annotations

import math
from typing import Any

from ..core.array import Array, Operand, apply
from . import elementwise, indexing, manipulation
from .promotion import asarray, index_dtype, like


class At:
    """The places of an array, to be updated: `x.at[key]` is a Place."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> Place:
        return Place(self._array, key)


class Place:
    """The elements of an array at a key; each method returns a new array with them changed.

    A position that is named several times gets every update, and of `set` the last one.

    Parameters
    ----------
    array : Array
        The array, which stays as it is.
    key : index
        What x[key] takes.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> x = mnp.asarray([1, 2, 3])
    >>> x.at[0].set(9), x.at[mnp.asarray([1, 1])].add(5)
    (Array([9, 2, 3], dtype=int32), Array([ 1, 12,  3], dtype=int32))
    >>> x.at[:2].max(2), x.at[1:].min(2)
    (Array([2, 2, 3], dtype=int32), Array([1, 2, 2], dtype=int32))
    """

    __slots__ = ("_array", "_key")

    def __init__(self, array: Array, key: Any) -> None:
        self._array = array
        self._key = key

    def set(self, values: Operand) -> Array:
        """Replace the elements.

        Parameters
        ----------
        values : Array
            The new elements, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        return self._scatter(values, "set")

    def add(self, values: Operand) -> Array:
        """Add to the elements.

        Parameters
        ----------
        values : Array
            What to add, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        return self._scatter(values, "add")

    def max(self, values: Operand) -> Array:
        """Replace elements that are smaller.

        Parameters
        ----------
        values : Array
            The least elements, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        return self._scatter(values, "max")

    def min(self, values: Operand) -> Array:
        """Replace elements that are larger.

        Parameters
        ----------
        values : Array
            The largest elements, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        return self._scatter(values, "min")

    def _scatter(self, values: Operand, mode: str) -> Array:
        """Every key is a selection of positions in the flattened array, so one scatter of rank 1 serves all that do not
        choose along one axis only."""
        array, new = self._array, like(values, self._array)
        mask = indexing.sole_mask(array, self._key)
        if mask is not None and _fits_under(mask, new, array):
            return _masked(array, mask, new, mode)
        rows = _rows(self._key, array.ndim)
        if rows is not None:
            return _into_rows(array, *rows, new, mode)
        dtype = index_dtype(array.size)
        every = apply("iota", shape=(math.prod(array.shape),), dtype=dtype.name, axis=0)
        places = indexing.getitem(manipulation.reshape(every, array.shape), self._key)
        updates = manipulation.broadcast_to(_without_leading_ones(new, places.ndim), places.shape)
        flat = apply(
            "scatter",
            manipulation.ravel(array),
            manipulation.ravel(places),
            manipulation.ravel(updates),
            axis=0,
            mode=mode,
        )
        return manipulation.reshape(flat, array.shape)


def _fits_under(mask: Array, new: Array, array: Array) -> bool:
    """Whether the new values are the same for every place of the mask, so that its own values need not be known."""
    return new.ndim <= array.ndim - mask.ndim or (new.ndim == array.ndim - mask.ndim + 1 and new.shape[0] == 1)


def _rows(key: Any, rank: int) -> tuple[int, Array] | None:
    """The axis along which a key chooses by an array of integers, and this, where it takes the other axes whole."""
    entries = key if isinstance(key, tuple) else (key,)
    chosen = [axis for axis, entry in enumerate(entries) if not _is_whole(entry)]
    if len(chosen) != 1 or len(entries) > rank or not isinstance(entries[chosen[0]], Array):
        return None
    index = entries[chosen[0]]
    return (chosen[0], index) if index.type.dtype.kind in "iu" else None


def _is_whole(entry: Any) -> bool:
    return isinstance(entry, slice) and entry.start is entry.stop is entry.step is None


def _into_rows(array: Array, axis: int, index: Array, new: Array, mode: str) -> Array:
    """The array with what lies along an axis updated."""
    dim = array.shape[axis]
    every = apply("iota", shape=(dim,), dtype=index_dtype(dim).name, axis=0)
    places = indexing.getitem(every, index)  # which counts negative ones from the end
    shape = (*array.shape[:axis], *places.shape, *array.shape[axis + 1 :])
    updates = manipulation.broadcast_to(_without_leading_ones(new, len(shape)), shape)
    return apply("scatter", array, places, updates, axis=axis, mode=mode)


def _masked(array: Array, mask: Array, new: Array, mode: str) -> Array:
    below = array.shape[mask.ndim :]
    new = manipulation.broadcast_to(_without_leading_ones(new, len(below)), below)
    chosen = manipulation.reshape(mask, (*mask.shape, *[1] * len(below)))
    combine = _COMBINE.get(mode)
    return elementwise.where(chosen, new if combine is None else combine(array, new), array)


_COMBINE = {"add": elementwise.add, "max": elementwise.maximum, "min": elementwise.minimum}


def _without_leading_ones(array: Array, rank: int) -> Array:
    """numpy lets values have more dimensions than their place, if those are 1."""
    extra = max(array.ndim - rank, 0)
    return manipulation.squeeze(array, tuple(range(extra))) if extra else array


def at(x: Operand) -> At:
    """Return the places of x, to be updated: `at(x)[key].set(values)`."""
    return At(asarray(x))
