"""Updates: `x.at[key].set(v)`, `.add(v)`, `.multiply(v)` and so on give a new Array that differs from x at x[key].

`x[key] = v` gives its name to such a new one.  Keys are those of x[key]; a position that stands several times gets
every update (`set`: the last one), and one outside of the array, which can only be seen of known indices, gets none.
Under a boolean mask that is the whole key, values that are the same for every place need no known mask: that works
while tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.array import Array, Operand, apply
from ..util.argument_checks import check_function
from . import creation, elementwise, indexing, manipulation, padding, sorting
from .promotion import asarray, concrete, index_dtype, like


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
    >>> x.at[1:].multiply(3), x.at[0].subtract(1), x.at[1:].power(2)
    (Array([1, 6, 9], dtype=int32), Array([0, 2, 3], dtype=int32), Array([1, 4, 9], dtype=int32))
    >>> x.at[0].divide(2), x.at[1:].apply(lambda each: -each), x.at[1:].get()
    (Array([0.5, 2. , 3. ], dtype=float32), Array([ 1, -2, -3], dtype=int32), Array([2, 3], dtype=int32))
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

    def subtract(self, values: Operand) -> Array:
        """Subtract from the elements.

        Parameters
        ----------
        values : Array
            What to subtract, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        return self._scatter(elementwise.negative(like(values, self._array)), "add")

    def multiply(self, values: Operand) -> Array:
        """Multiply the elements.

        Parameters
        ----------
        values : Array
            What to multiply by, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array.
        """
        mask = indexing.sole_mask(self._array, self._key)
        new = like(values, self._array)
        if mask is not None and _fits_under(mask, new, self._array):
            return _masked(self._array, mask, new, "multiply")
        if not indexing.chooses_by_arrays(self._key):
            return self.set(elementwise.multiply(self.get(), new))  # none stands twice
        return _multiplied(self._array, self._places(), new)

    def divide(self, values: Operand) -> Array:
        """Divide the elements.

        Parameters
        ----------
        values : Array
            What to divide by, broadcast to the shape of x[key].

        Returns
        -------
        Array
            The new array, of floats if x has integers.
        """
        return elementwise.divide(self._array, self._factors(values))

    def power(self, values: Operand) -> Array:
        """Raise the elements to a power.

        Parameters
        ----------
        values : Array
            The exponents, broadcast to the shape of x[key]; those of one element are multiplied.

        Returns
        -------
        Array
            The new array.
        """
        return elementwise.pow(self._array, self._factors(values))

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

    def apply(self, func: Callable[[Array], Operand]) -> Array:
        """Replace the elements by what a function makes of them.

        Parameters
        ----------
        func : callable
            A function of an array that computes each element by itself.

        Returns
        -------
        Array
            The new array; an element that stands several times is changed as often.

        Raises
        ------
        InputError
            If it is no function, or indices are computed while tracing, so that nobody knows how often an element
            stands there.
        """
        check_function(func, "what apply takes")
        array = self._array
        mask = indexing.sole_mask(array, self._key)
        if mask is not None:
            return _masked(array, mask, like(func(array), array), "set", whole=True)
        if not indexing.chooses_by_arrays(self._key):
            return self.set(func(self.get()))
        places = concrete(self._places(), "apply at an array of indices")
        named, often = np.unique(places, return_counts=True)
        flat = manipulation.ravel(array)
        for turn in range(int(often.max(initial=0))):
            place = Place(flat, asarray(named[often > turn]))
            flat = place.set(func(place.get()))
        return manipulation.reshape(flat, array.shape)

    def get(self) -> Array:
        """Look the elements up.

        Returns
        -------
        Array
            The elements, x[key].
        """
        return indexing.getitem(self._array, self._key)

    def _factors(self, values: Operand) -> Array:
        """1, and at the key the values; where a position stands several times, their product."""
        return Place(creation.ones_like(self._array), self._key).multiply(values)

    def _places(self) -> Array:
        """The positions at the key in the flattened array; its size for those outside."""
        array, size = self._array, self._array.size
        dtype = index_dtype(size + 1)
        every = manipulation.reshape(apply("iota", shape=(size,), dtype=dtype.name, axis=0), array.shape)
        key, open_axes = indexing.opened(array, self._key)
        if open_axes:  # what lies behind the end of an axis is outside
            behind = [(0, int(axis in open_axes)) for axis in range(array.ndim)]
            every = padding.pad(every, behind, constant_values=size)
        return indexing.getitem(every, key)

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
        places = self._places()
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
    places = indexing.wrapped(index, array.shape[axis])
    shape = (*array.shape[:axis], *places.shape, *array.shape[axis + 1 :])
    updates = manipulation.broadcast_to(_without_leading_ones(new, len(shape)), shape)
    return apply("scatter", array, places, updates, axis=axis, mode=mode)


def _multiplied(array: Array, places: Array, new: Array) -> Array:
    """The array with each product of what is to be multiplied at one of its places, in pairs of neighbours."""
    updates = manipulation.ravel(manipulation.broadcast_to(_without_leading_ones(new, places.ndim), places.shape))
    flat, places = manipulation.ravel(array), manipulation.ravel(places)
    order = sorting.argsort(places)
    places, product = indexing.take(places, order), indexing.take(updates, order)
    step = 1
    while step < places.size:
        same = elementwise.equal(places[step:], places[:-step])
        longer = elementwise.where(same, elementwise.multiply(product[step:], product[:-step]), product[step:])
        product = manipulation.concat([product[:step], longer])
        step *= 2
    last = manipulation.concat([elementwise.not_equal(places[1:], places[:-1]), asarray(np.ones(1, np.bool_))])
    last = last[: places.size]
    places = elementwise.where(last, places, like(array.size, places))  # the others are dropped
    product = elementwise.multiply(apply("gather", flat, places, axis=0, batch_dims=0), product)
    return manipulation.reshape(apply("scatter", flat, places, product, axis=0, mode="set"), array.shape)


def _masked(array: Array, mask: Array, new: Array, mode: str, whole: bool = False) -> Array:
    below = array.shape[mask.ndim :]
    new = new if whole else manipulation.broadcast_to(_without_leading_ones(new, len(below)), below)
    chosen = manipulation.reshape(mask, (*mask.shape, *[1] * len(below)))
    combine = _COMBINE.get(mode)
    return elementwise.where(chosen, new if combine is None else combine(array, new), array)


_COMBINE = {
    "add": elementwise.add,
    "multiply": elementwise.multiply,
    "max": elementwise.maximum,
    "min": elementwise.minimum,
}


def _without_leading_ones(array: Array, rank: int) -> Array:
    """numpy lets values have more dimensions than their place, if those are 1."""
    extra = max(array.ndim - rank, 0)
    return manipulation.squeeze(array, tuple(range(extra))) if extra else array


def at(x: Operand) -> At:
    """Return the places of x, to be updated: `at(x)[key].set(values)`."""
    return At(asarray(x))
