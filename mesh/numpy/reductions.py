"""Reductions: one number out of many along axes.

`axis` is None (all), an int or a tuple; negative ones count from the end.  `keepdims` leaves reduced axes as 1.
Sums of bools and narrow integers are int32 (uint32); means of f16 and bf16 are taken in float32 and rounded once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from wire.errors import InputError
from wire.ir.dtypes import BF16, BOOL, F16, F32, I32, PARTS, U32, DType

from ..core.array import Array, DTypeLike, Operand, apply, renamed
from ..util.annotation_checks import checked
from ..util.argument_checks import value_text
from . import elementwise
from .promotion import asarray, cast, inexact, like, scalar

Axis = int | Sequence[int] | None


def normal_axis(axis: Any, ndim: int) -> int:
    """`axis` counted from the front; InputError if it is outside."""
    try:
        position = operator.index(axis)
    except TypeError:
        raise InputError(f"an axis is an int, got {value_text(axis)}") from None
    if not -ndim <= position < ndim:
        raise InputError(f"axis {position} is outside an array of {ndim} dimensions")
    return position % ndim


def normal_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """All axes meant by `axis`, counted from the front, each once."""
    if axis is None:
        return tuple(range(ndim))
    listed = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple([normal_axis(number, ndim) for number in listed])
    if len(set(axes)) != len(axes):
        raise InputError(f"an axis stands twice in {tuple(listed)}")
    return axes


@checked
def sum(x: Operand, axis: Axis = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """The sum, in `dtype` or x's own (at least 32 bits for integers)."""
    return _accumulate("reduce_sum", x, axis, dtype, keepdims)


@checked
def prod(x: Operand, axis: Axis = None, dtype: DTypeLike = None, *, keepdims: bool = False) -> Array:
    """The product, in `dtype` or x's own (at least 32 bits for integers)."""
    return _accumulate("reduce_prod", x, axis, dtype, keepdims)


@checked
def max(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element; NaN if any is NaN.  ShapeError over an empty axis."""
    array = asarray(x)
    return _reduce("reduce_max", array, normal_axes(axis, array.ndim), keepdims)


@checked
def min(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The smallest element; NaN if any is NaN.  ShapeError over an empty axis."""
    array = asarray(x)
    return _reduce("reduce_min", array, normal_axes(axis, array.ndim), keepdims)


@checked
def any(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """True if some element is not 0."""
    return _truth("reduce_max", x, axis, keepdims)


@checked
def all(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """True if no element is 0."""
    return _truth("reduce_min", x, axis, keepdims)


@checked
def count_nonzero(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """How many elements are not 0, as int32."""
    return sum(cast(asarray(x), BOOL), axis, keepdims=keepdims)


@checked
def mean(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The arithmetic mean; integers give float32."""
    (array,) = inexact(x)
    axes = normal_axes(axis, array.ndim)
    wide = cast(array, wide_dtype(array.type.dtype))
    total = _reduce("reduce_sum", wide, axes, keepdims)
    count = math.prod([array.shape[axis] for axis in axes])
    return cast(apply("div", total, like(float(count), total)), array.type.dtype)


@checked
def var(x: Operand, axis: Axis = None, *, correction: float = 0, ddof: float = 0, keepdims: bool = False) -> Array:
    """The mean squared distance from the mean, a real number, divided by N - correction (numpy calls it ddof)."""
    (array,) = inexact(x)
    axes = normal_axes(axis, array.ndim)
    wide = cast(array, wide_dtype(array.type.dtype))
    distance = elementwise.subtract(wide, mean(wide, axes, keepdims=True))
    total = _reduce("reduce_sum", elementwise.squared_size(distance), axes, keepdims)
    count = math.prod([array.shape[axis] for axis in axes]) - (correction + ddof)
    result = apply("div", total, like(float(count) if count > 0 else 0.0, total))
    return cast(result, PARTS.get(array.type.dtype, array.type.dtype))


@checked
def std(x: Operand, axis: Axis = None, *, correction: float = 0, ddof: float = 0, keepdims: bool = False) -> Array:
    """The square root of `var`."""
    (array,) = inexact(x)
    wide = cast(array, wide_dtype(array.type.dtype))  # the square of 256 is above every float16
    result = elementwise.sqrt(var(wide, axis, correction=correction, ddof=ddof, keepdims=keepdims))
    return cast(result, PARTS.get(array.type.dtype, array.type.dtype))


@checked
def argmax(x: Operand, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first largest element (or NaN), as int32; in the flattened array if axis is None."""
    return _position(asarray(x), axis, keepdims)


@checked
def argmin(x: Operand, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """The position of the first smallest element (or NaN), as int32; in the flattened array if axis is None."""
    array = asarray(x)
    # not(x) turns the order of integers around without overflow
    return _position(apply("neg" if array.type.dtype.kind in "fc" else "not", array), axis, keepdims)


# -- helpers ----------------------------------------------------------------------------------------------


def sum_dtype(dtype: DType) -> DType:
    """What a sum of `dtype` has: integers at least 32 bits."""
    if dtype.kind in "fc" or dtype.itemsize >= 4:
        return dtype
    return U32 if dtype.kind == "u" else I32


def wide_dtype(dtype: DType) -> DType:
    """What means are made in: float32 of halves."""
    return F32 if dtype in (F16, BF16) else dtype


def _accumulate(op: str, x: Operand, axis: Axis, dtype: DTypeLike, keepdims: bool) -> Array:
    array = asarray(x, dtype)
    axes = normal_axes(axis, array.ndim)
    return _reduce(op, array if dtype is not None else cast(array, sum_dtype(array.type.dtype)), axes, keepdims)


def _truth(op: str, x: Operand, axis: Axis, keepdims: bool) -> Array:
    array = cast(asarray(x), BOOL)
    axes = normal_axes(axis, array.ndim)
    if 0 in [array.shape[axis] for axis in axes]:
        left = _reduce("reduce_sum", cast(array, I32), axes, keepdims).type.shape
        return apply("broadcast", scalar(op == "reduce_min", BOOL), shape=left)
    return _reduce(op, array, axes, keepdims)


def _position(array: Array, axis: int | None, keepdims: bool) -> Array:
    ranked = cast(array, I32) if array.type.dtype is BOOL else array
    kept = tuple([1] * array.ndim)
    if axis is None:
        first = apply("argmax", apply("reshape", ranked, shape=(ranked.size,)), axis=0)
    else:
        position = normal_axis(axis, array.ndim)
        first = apply("argmax", ranked, axis=position)
        kept = (*array.shape[:position], 1, *array.shape[position + 1 :])
    return apply("reshape", first, shape=kept) if keepdims else first


def _reduce(op: str, array: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if not axes:
        return renamed(array)
    result = apply(op, array, axes=tuple(sorted(axes)))
    if not keepdims:
        return result
    kept = tuple([1 if axis in axes else dim for axis, dim in enumerate(array.shape)])
    return apply("reshape", result, shape=kept)
