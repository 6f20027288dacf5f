"""Order: sort, argsort, the k largest, and what is read off sorted arrays (median, quantiles).

Everything stands on one op, `argsort`, which is stable and puts NaN last; arrays are then gathered by it.  Descending
order is the ascending one of the reversed array, reversed, so equal elements keep their order there too and NaN comes
first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import F32, F64, I32, DType

from ..core.array import Array, Operand, apply
from ..util.annotation_checks import checked
from ..util.argument_checks import integer, items, value_text
from . import elementwise, indexing, manipulation
from .promotion import asarray, cast, concrete, floats
from .reductions import Axis, mean, normal_axes, normal_axis


@checked
def sort(x: Operand, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """x in order along `axis` (flattened if None); NaN sorts as the largest."""
    array, place = _along(x, axis)
    return indexing.picked(array, _order(array, place, descending), place)


@checked
def argsort(x: Operand, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """The int32 indices that sort x along `axis` (flattened if None); equal elements keep their order."""
    array, place = _along(x, axis)
    return _order(array, place, descending)


@checked
def lexsort(keys: Sequence[Operand], axis: int = -1) -> Array:
    """The indices that sort by the last key, equal ones by the key before it, and so on."""
    columns = [asarray(key) for key in items(keys, "as the keys of lexsort")]
    if not columns:
        raise InputError("lexsort needs one key or more")
    if len({key.shape for key in columns}) > 1:
        raise ShapeError(f"lexsort needs keys of one shape, got {', '.join(str(key.shape) for key in columns)}")
    order = argsort(columns[0], axis)
    for key in columns[1:]:
        order = indexing.picked(order, argsort(indexing.picked(key, order, axis), axis), axis)
    return order


class TopK(NamedTuple):
    """The result of `topk`: the values, and where they were.

    Parameters
    ----------
    values : Array, (..., k, ...)
        The values, the best first.
    indices : Array, (..., k, ...)
        Their int32 indices along the axis.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.topk([3.0, 1.0, 2.0], 1).values
    Array([3.], dtype=float32)
    """

    values: Array
    indices: Array


@checked
def topk(x: Operand, k: int, axis: int = -1, *, largest: bool = True) -> TopK:
    """Find the k largest elements along an axis, the best first.

    Parameters
    ----------
    x : Array, (..., n, ...)
        The elements.
    k : int
        How many, from 0 to n.
    axis : int, optional
        The axis.
    largest : bool, optional
        Whether to find the largest instead of the smallest ones.

    Returns
    -------
    TopK
        The values and their indices.

    Raises
    ------
    InputError
        If there is no such axis, or k is not from 0 to n.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> values, indices = mnp.topk([3.0, 1.0, 2.0], 2)
    >>> values, indices
    (Array([3., 2.], dtype=float32), Array([0, 2], dtype=int32))
    """
    array, place = _along(x, axis)
    k = integer(k, "the k of topk")
    if not 0 <= k <= array.shape[place]:
        raise InputError(f"topk of {k} from an axis of {array.shape[place]}")
    indices = manipulation.part(_order(array, place, largest), place, 0, k)
    return TopK(indexing.picked(array, indices, place), indices)


# -- read off sorted arrays -------------------------------------------------------------------------------


@checked
def median(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The middle element, or the mean of the two middle ones; NaN if any is NaN."""
    (array,) = floats(x)
    if 0 in [array.shape[place] for place in normal_axes(axis, array.ndim)]:
        return mean(array, axis, keepdims=keepdims)  # of nothing: NaN, as numpy has it
    return quantile(array, 0.5, axis, keepdims=keepdims)


@checked
def percentile(x: Operand, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """`quantile` with q from 0 to 100."""
    return quantile(x, _quantile_values(q) / 100, axis, method=method, keepdims=keepdims)


@checked
def quantile(x: Operand, q: Any, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """The element at the share q (0 to 1, known when the graph is made) of the sorted array; NaN if any is NaN.

    Between two elements `method` decides: linear, lower, higher, nearest or midpoint; between equal ones there is
    nothing to decide, and beside an infinite one it is that (numpy: NaN at times).  Axes of q come first; the dtype is
    x's.
    """
    (array,) = floats(x)
    if method not in METHODS:
        raise InputError(f"method {method!r} is not known", next_step=f"Known: {', '.join(METHODS)}")
    shares = _quantile_values(q)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise InputError(f"quantiles lie in [0, 1], got {q}")
    axes = normal_axes(axis, array.ndim)
    others = [place for place in range(array.ndim) if place not in axes]
    dims = [array.shape[place] for place in others]
    length = math.prod([array.shape[place] for place in axes])
    if length == 0:
        raise ShapeError(f"a quantile over an empty axis has no value: shape {array.shape}, axes {axes}")
    rows = manipulation.reshape(manipulation.permute_dims(array, [*others, *axes]), (*dims, length))
    ordered = cast(sort(rows), _wide(array.type.dtype))
    between = _between(ordered, shares.reshape(-1) * (length - 1), method)
    result = cast(elementwise.where(elementwise.isnan(ordered[..., -1:]), math.nan, between), array.type.dtype)
    kept = [1 if place in axes else dim for place, dim in enumerate(array.shape)] if keepdims else dims
    return manipulation.reshape(manipulation.moveaxis(result, -1, 0), (*shares.shape, *kept))


METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


def _between(ordered: Array, positions: np.ndarray[Any, Any], method: str) -> Array:
    """The elements of the last axis at fractional positions."""
    if method == "nearest":
        return indexing.take(ordered, np.rint(positions).astype(np.int32), -1)
    low, high = (edge(positions).astype(np.int32) for edge in (np.floor, np.ceil))
    if method in ("lower", "higher"):
        return indexing.take(ordered, low if method == "lower" else high, -1)
    share = positions - low if method == "linear" else np.where(low == high, 0.0, 0.5)
    below, above = indexing.take(ordered, low, -1), indexing.take(ordered, high, -1)
    weight = asarray(share.astype(ordered.dtype))
    gap = elementwise.subtract(above, below)
    near = elementwise.add(below, elementwise.multiply(gap, weight))
    far = elementwise.subtract(above, elementwise.multiply(gap, elementwise.subtract(1, weight)))
    from_below = elementwise.logical_or(elementwise.less(weight, 0.5), elementwise.isinf(above))
    from_below = elementwise.logical_and(from_below, elementwise.logical_not(elementwise.isinf(below)))
    between = elementwise.where(from_below, near, far)
    return elementwise.where(elementwise.equal(below, above), below, between)  # infinities have no gap


# -- helpers ----------------------------------------------------------------------------------------------


def _along(x: Operand, axis: int | None) -> tuple[Array, int]:
    array = asarray(x)
    if axis is None:
        return manipulation.ravel(array), 0
    return array, normal_axis(axis, array.ndim)


def _order(array: Array, place: int, descending: bool) -> Array:
    if not descending:
        return apply("argsort", array, axis=place)
    turned = apply("argsort", apply("reverse", array, axes=(place,)), axis=place)
    last = asarray(array.shape[place] - 1, I32)
    return elementwise.subtract(last, apply("reverse", turned, axes=(place,)))


def _quantile_values(q: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(concrete(q, "a quantile") if isinstance(q, Array) else q, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"a quantile is a number, or several, not {value_text(q)}") from None


def _wide(dtype: DType) -> DType:
    return dtype if dtype is F64 else F32
