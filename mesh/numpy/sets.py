"""Sets: distinct elements and membership.

How many distinct elements there are depends on values, so the `unique` functions need them: not while tracing.  `isin`
has a known shape and works anywhere.  Every NaN is distinct, as the standard has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.array import Array, Operand, value_array
from ..util.annotation_checks import checked
from . import elementwise, indexing, manipulation, reductions, sorting
from .promotion import asarray, concrete, operands


class UniqueAllResult(NamedTuple):
    """Distinct elements in order, where each first stands, which one every element is, and how often each stands."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """Distinct elements in order, and how often each stands."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """Distinct elements in order, and which of them every element is."""

    values: Array
    inverse_indices: Array


def unique_all(x: Operand) -> UniqueAllResult:
    """Distinct elements with indices, inverse indices and counts (int32); x must have a value."""
    value = _value(x, "unique_all")
    distinct, first, inverse, counts = np.unique(
        value, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return UniqueAllResult(value_array(distinct), _int32(first), _int32(inverse.reshape(value.shape)), _int32(counts))


def unique_counts(x: Operand) -> UniqueCountsResult:
    """Distinct elements with counts (int32); x must have a value."""
    every = unique_all(x)
    return UniqueCountsResult(every.values, every.counts)


def unique_inverse(x: Operand) -> UniqueInverseResult:
    """Distinct elements with inverse indices (int32); x must have a value."""
    every = unique_all(x)
    return UniqueInverseResult(every.values, every.inverse_indices)


def unique_values(x: Operand) -> Array:
    """The distinct elements of x, in order; x must have a value."""
    return value_array(np.unique(_value(x, "unique_values"), equal_nan=False))


@checked
def unique(
    x: Operand, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False
) -> Array | tuple[Array, ...]:
    """numpy's name: the distinct elements, and what is asked for of `unique_all` behind them; x must have a value."""
    every = unique_all(x)
    asked = zip((return_index, return_inverse, return_counts), every[1:], strict=True)
    more = [extra for wanted, extra in asked if wanted]
    return (every.values, *more) if more else every.values


def union1d(x1: Operand, x2: Operand) -> Array:
    """What stands in x1 or x2, in order; both must have values."""
    return unique_values(manipulation.concat([x1, x2], axis=None))


def intersect1d(x1: Operand, x2: Operand) -> Array:
    """What stands in x1 and x2, in order; both must have values."""
    first, second = _distinct(x1, x2)
    return first[isin(first, second)]


def setdiff1d(x1: Operand, x2: Operand) -> Array:
    """What stands in x1 and not in x2, in order; both must have values."""
    first, second = _distinct(x1, x2)
    return first[isin(first, second, invert=True)]


def setxor1d(x1: Operand, x2: Operand) -> Array:
    """What stands in one of x1 and x2 only, in order; both must have values."""
    return union1d(setdiff1d(x1, x2), setdiff1d(x2, x1))


def _distinct(x1: Operand, x2: Operand) -> tuple[Array, Array]:
    first, second = operands(x1, x2)
    return unique_values(first), unique_values(second)


@checked
def isin(x1: Operand, x2: Operand, *, invert: bool = False) -> Array:
    """True where an element of x1 stands in x2 (with `invert`: does not); NaN stands nowhere."""
    asked, among = operands(x1, x2)
    if among.size == 0:
        member = elementwise.not_equal(asked, asked) & False
    elif among.type.dtype.kind == "c":  # which has no order
        every = elementwise.equal(manipulation.expand_dims(asked, -1), manipulation.ravel(among))
        member = reductions.any(every, -1)
    else:
        ordered = sorting.sort(manipulation.ravel(among))
        places = elementwise.minimum(indexing.searchsorted(ordered, asked), among.size - 1)
        member = elementwise.equal(indexing.take(ordered, places), asked)
    return elementwise.logical_not(member) if invert else member


def _value(x: Operand, asker: str) -> NDArray[Any]:
    return concrete(asarray(x), asker)


def _int32(array: NDArray[Any]) -> Array:
    return value_array(array.astype(np.int32))
