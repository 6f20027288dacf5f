"""Running sums, products and extremes along an axis.

The standard's names take an axis only where there is a choice, numpy's `cumsum` and `cumprod` flatten without one.
Sums of bools and narrow integers are int32 (uint32), as those of `sum`.
"""

from __future__ import annotations

from wire.errors import InputError
from wire.ir.dtypes import BOOL, I32

from ..core.array import Array, DTypeLike, Operand, apply
from ..util.annotation_checks import checked
from . import manipulation
from .promotion import asarray, cast, scalar
from .reductions import normal_axis, sum_dtype


@checked
def cumulative_sum(
    x: Operand, axis: int | None = None, *, dtype: DTypeLike = None, include_initial: bool = False
) -> Array:
    """The sum of each element and all before it along `axis`; with `include_initial` a 0 comes first."""
    return _cumulative("cumsum", 0, x, _only_axis(x, axis), dtype, include_initial)


@checked
def cumulative_prod(
    x: Operand, axis: int | None = None, *, dtype: DTypeLike = None, include_initial: bool = False
) -> Array:
    """The product of each element and all before it along `axis`; with `include_initial` a 1 comes first."""
    return _cumulative("cumprod", 1, x, _only_axis(x, axis), dtype, include_initial)


def cumsum(x: Operand, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """numpy's `cumulative_sum`: over the flattened x if axis is None."""
    return _cumulative("cumsum", 0, *_flat_if_none(asarray(x, dtype), axis), dtype, False)


def cumprod(x: Operand, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """numpy's `cumulative_prod`: over the flattened x if axis is None."""
    return _cumulative("cumprod", 1, *_flat_if_none(asarray(x, dtype), axis), dtype, False)


def cummax(x: Operand, axis: int | None = None) -> Array:
    """Compute the largest element so far along an axis.

    Parameters
    ----------
    x : Array, (..., n, ...)
        The elements.
    axis : int, optional
        The axis; by default x is flattened.

    Returns
    -------
    Array, (..., n, ...)
        The running maximum; NaN from the first NaN on.

    Raises
    ------
    InputError
        If there is no such axis.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.cummax([1, 3, 2, 5])
    Array([1, 3, 3, 5], dtype=int32)
    """
    return _extreme("cummax", *_flat_if_none(x, axis))


def cummin(x: Operand, axis: int | None = None) -> Array:
    """Compute the smallest element so far along an axis.

    Parameters
    ----------
    x : Array, (..., n, ...)
        The elements.
    axis : int, optional
        The axis; by default x is flattened.

    Returns
    -------
    Array, (..., n, ...)
        The running minimum; NaN from the first NaN on.

    Raises
    ------
    InputError
        If there is no such axis.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.cummin([3, 1, 2, 0])
    Array([3, 1, 1, 0], dtype=int32)
    """
    return _extreme("cummin", *_flat_if_none(x, axis))


def _only_axis(x: Operand, axis: int | None) -> int:
    if axis is not None:
        return axis
    rank = asarray(x).ndim
    if rank != 1:
        raise InputError(f"an array of {rank} dimensions needs an axis", next_step="Pass axis=, or flatten it first")
    return 0


def _flat_if_none(x: Operand, axis: int | None) -> tuple[Array, int]:
    return (manipulation.ravel(x), 0) if axis is None else (asarray(x), axis)


def _cumulative(op: str, first: int, x: Operand, axis: int, dtype: DTypeLike, include_initial: bool) -> Array:
    array = asarray(x, dtype)
    place = normal_axis(axis, array.ndim)
    result = apply(op, array if dtype is not None else cast(array, sum_dtype(array.type.dtype)), axis=place)
    if not include_initial:
        return result
    none = (0,) * array.ndim
    low = tuple([1 if at == place else 0 for at in range(array.ndim)])
    return apply("pad", result, scalar(first, result.type.dtype), low=low, high=none, interior=none)


def _extreme(op: str, array: Array, axis: int) -> Array:
    place = normal_axis(axis, array.ndim)
    if array.type.dtype is BOOL:
        return cast(apply(op, cast(array, I32), axis=place), BOOL)
    return apply(op, array, axis=place)
