"""numpy's names for what takes a line or two of the standard's functions.

Nothing here has an op, a rule or a dtype of its own.  What numpy answers with a Python number (`allclose`) is an array
of no dimension.  Functions whose result's shape depends on values (argwhere, flatnonzero, extract) need the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wire.errors import InputError, ShapeError
from wire.ir.dtypes import F32, I32, PARTS, dtype_named

from ..core.array import Array, DTypeLike, Operand, apply, renamed
from ..util.annotation_checks import checked
from ..util.argument_checks import items, native
from . import (
    complexes,
    contraction,
    creation,
    elementwise,
    indexing,
    linalg,
    manipulation,
    padding,
    reductions,
    sorting,
)
from .manipulation import Shape, concat, expand_dims, reshape, to_shape
from .promotion import asarray, cast, concrete, floats, inexact, like, operands
from .reductions import Axis, normal_axes, normal_axis

# -- joining, splitting, turning --------------------------------------------------------------------------


@checked
def vstack(arrays: Sequence[Operand]) -> Array:
    """Arrays joined as rows."""
    return concat([manipulation.atleast_2d(array) for array in operands(*arrays)], 0)


@checked
def hstack(arrays: Sequence[Operand]) -> Array:
    """Arrays joined along their second axis, vectors along their first."""
    pieces = [manipulation.atleast_1d(array) for array in operands(*arrays)]
    return concat(pieces, 0 if pieces and pieces[0].ndim == 1 else 1)


@checked
def dstack(arrays: Sequence[Operand]) -> Array:
    """Arrays joined along their third axis."""
    return concat([atleast_3d(array) for array in operands(*arrays)], 2)


@checked
def column_stack(arrays: Sequence[Operand]) -> Array:
    """Vectors, and the columns of matrices, as columns of one matrix."""
    columns = operands(*arrays)
    return concat([reshape(array, (-1, 1)) if array.ndim < 2 else array for array in columns], 1)


def atleast_3d(x: Operand) -> Array:
    """x with three dimensions or more: a vector along the second, a matrix along the first two."""
    array = asarray(x)
    if array.ndim >= 3:
        return renamed(array)
    return reshape(array, {0: (1, 1, 1), 1: (1, *array.shape, 1)}.get(array.ndim, (*array.shape, 1)))


def append(x: Operand, values: Operand, axis: int | None = None) -> Array:
    """x with `values` joined behind it, both flattened if axis is None."""
    return concat([x, values], axis)


def array_split(x: Operand, indices_or_sections: Shape, axis: int = 0) -> list[Array]:
    """`split` into sections that may differ by one: the first ones are longer."""
    indices_or_sections = native(indices_or_sections)
    if not isinstance(indices_or_sections, int):
        return manipulation.split(x, indices_or_sections, axis)
    array = asarray(x)
    if indices_or_sections < 1:
        raise InputError(f"an array is split into 1 section or more, got {indices_or_sections}")
    size, longer = divmod(array.shape[normal_axis(axis, array.ndim)], indices_or_sections)
    ends = np.cumsum([size + (place < longer) for place in range(indices_or_sections)])
    return manipulation.split(array, ends[:-1].tolist(), axis)


def vsplit(x: Operand, indices_or_sections: Shape) -> list[Array]:
    """`split` along the first axis."""
    return manipulation.split(x, indices_or_sections, 0)


def hsplit(x: Operand, indices_or_sections: Shape) -> list[Array]:
    """`split` along the second axis, of a vector along the first."""
    return manipulation.split(x, indices_or_sections, 1 if asarray(x).ndim > 1 else 0)


def dsplit(x: Operand, indices_or_sections: Shape) -> list[Array]:
    """`split` along the third axis."""
    return manipulation.split(x, indices_or_sections, 2)


def flipud(x: Operand) -> Array:
    """The order of the first axis reversed."""
    return manipulation.flip(x, 0)


def fliplr(x: Operand) -> Array:
    """The order of the second axis reversed."""
    return manipulation.flip(x, 1)


@checked
def rot90(x: Operand, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """x turned k quarters from the first axis towards the second."""
    array = asarray(x)
    plane = [normal_axis(axis, array.ndim) for axis in items(axes, "as the axes of rot90")]
    if len(plane) != 2:
        raise InputError(f"rot90 turns two axes, got {axes}")
    first, second = plane
    if first == second:
        raise InputError(f"rot90 turns two different axes, got {axes}")
    if k % 4 == 2:
        return manipulation.flip(array, (first, second))
    turned = manipulation.flip(array, second) if k % 4 == 1 else array
    if k % 2:
        turned = manipulation.swapaxes(turned, first, second)
    return manipulation.flip(turned, second) if k % 4 == 3 else manipulation.reshape(turned, turned.shape)


def delete(x: Operand, obj: Any, axis: int | None = None) -> Array:
    """x without the positions `obj` (an int, a slice or known ints) of an axis, flattened if axis is None."""
    array, place = (manipulation.ravel(x), 0) if axis is None else (asarray(x), normal_axis(axis, asarray(x).ndim))
    try:
        kept = np.delete(np.arange(array.shape[place]), obj)
    except (IndexError, ValueError) as error:
        raise InputError(f"positions to delete from an axis of {array.shape[place]}: {error}") from error
    return indexing.take(array, kept.astype(np.int32), place)


# -- making -----------------------------------------------------------------------------------------------


def identity(n: int, dtype: DTypeLike = None) -> Array:
    """The n x n matrix with ones on its diagonal."""
    return creation.eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = None) -> Array:  # numpy's names
    """Ones on and below diagonal k, zeros above."""
    return creation.tril(creation.ones((N, N if M is None else M), dtype=dtype), k=k)


@checked
def diagonal(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Diagonal `offset` of two axes, the first two by default, as the last axis; `linalg.diagonal` has the last two."""
    array = asarray(x)
    if array.ndim < 2:
        raise ShapeError(f"a diagonal needs two dimensions or more, got shape {array.shape}")
    return contraction.diagonal(manipulation.moveaxis(array, (axis1, axis2), (-2, -1)), offset)


@checked
def trace(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The sum of diagonal `offset` of two axes, the first two by default; `linalg.trace` has the last two."""
    return reductions.sum(diagonal(x, offset, axis1, axis2), -1)


@checked
def diag(x: Operand, k: int = 0) -> Array:
    """The diagonal k of a matrix, or the matrix with that diagonal."""
    array = asarray(x)
    if array.ndim == 2:
        return contraction.diagonal(array, k)
    if array.ndim != 1:
        raise ShapeError(f"diag needs one or two dimensions, got shape {array.shape}")
    size = array.size + abs(k)
    wide = padding.pad(array, (max(k, 0), max(-k, 0)))
    chosen = creation.eye(size, k=k, dtype="bool")
    return elementwise.where(chosen, wide, like(0, array))


@checked
def diagflat(x: Operand, k: int = 0) -> Array:
    """The matrix with the flattened x on diagonal k."""
    return diag(manipulation.ravel(x), k)


@checked
def logspace(start: Operand, stop: Operand, num: int = 50, endpoint: bool = True, base: Operand = 10.0) -> Array:
    """`num` numbers from base**start to base**stop, evenly spaced on a logarithmic scale."""
    return elementwise.pow(base, creation.linspace(start, stop, num, endpoint=endpoint))


@checked
def geomspace(start: Operand, stop: Operand, num: int = 50, endpoint: bool = True) -> Array:
    """`num` numbers above 0 from start to stop, each the same multiple of the one before."""
    first, last = floats(start, stop)
    return elementwise.exp2(creation.linspace(elementwise.log2(first), elementwise.log2(last), num, endpoint=endpoint))


def indices(dimensions: Sequence[int], dtype: DTypeLike = None) -> Array:
    """The coordinates of every position of a shape, one int32 array per axis, stacked."""
    shape = to_shape(dimensions)
    every = [apply("iota", shape=shape, dtype=I32.name, axis=axis) for axis in range(len(shape))]
    return manipulation.stack([asarray(counter, dtype) for counter in every])


# -- arithmetic -------------------------------------------------------------------------------------------


def fabs(x: Operand) -> Array:
    """|x| of real numbers, as floats."""
    return elementwise.abs(*floats(x))


def rint(x: Operand) -> Array:
    """x rounded to integers, halves to the even neighbour."""
    return elementwise.round(x)


def divmod(x1: Operand, x2: Operand) -> tuple[Array, Array]:
    """floor_divide and remainder."""
    return elementwise.floor_divide(x1, x2), elementwise.remainder(x1, x2)


def fmod(x1: Operand, x2: Operand) -> Array:
    """The remainder with the sign of x1."""
    left, right = operands(x1, x2)
    if left.type.dtype.kind != "f":  # the smallest integer has no size
        remainder = elementwise.remainder(left, right)
        other_sign = elementwise.not_equal(elementwise.less(remainder, 0), elementwise.less(left, 0))
        apart = elementwise.logical_and(elementwise.not_equal(remainder, 0), other_sign)
        return elementwise.where(apart, elementwise.subtract(remainder, right), remainder)
    below = elementwise.signbit(left)  # -0.0 too
    size = elementwise.where(below, elementwise.negative(left), left)  # abs has no slope at 0
    size = elementwise.remainder(size, elementwise.abs(right))
    return elementwise.where(below, elementwise.negative(size), size)


def fmax(x1: Operand, x2: Operand) -> Array:
    """The larger of x1 and x2, or the one that is not NaN."""
    return _but_nan(elementwise.maximum, x1, x2)


def fmin(x1: Operand, x2: Operand) -> Array:
    """The smaller of x1 and x2, or the one that is not NaN."""
    return _but_nan(elementwise.minimum, x1, x2)


def _but_nan(choose: Callable[[Operand, Operand], Array], x1: Operand, x2: Operand) -> Array:
    left, right = operands(x1, x2)
    of_numbers = elementwise.where(elementwise.isnan(right), left, choose(left, right))
    return elementwise.where(elementwise.isnan(left), right, of_numbers)


def float_power(x1: Operand, x2: Operand) -> Array:
    """x1 to the power x2 as a float or complex number."""
    return elementwise.pow(*inexact(x1, x2))


def heaviside(x1: Operand, x2: Operand) -> Array:
    """0 below 0, x2 at 0 and 1 above."""
    left, at_zero = floats(x1, x2)
    side = elementwise.where(elementwise.less(left, 0), 0, elementwise.where(elementwise.equal(left, 0), at_zero, 1))
    return elementwise.where(elementwise.isnan(left), left, side)


def logaddexp2(x1: Operand, x2: Operand) -> Array:
    """log2(2**x1 + 2**x2) without overflow."""
    left, right = floats(x1, x2)
    scale = math.log(2)
    return elementwise.divide(
        elementwise.logaddexp(elementwise.multiply(left, scale), elementwise.multiply(right, scale)), scale
    )


@elementwise.with_slope("cbrt")
def cbrt(x: Operand) -> Array:
    """The cube root, of negative numbers too."""
    (array,) = floats(x)
    size = elementwise.abs(array)
    root = elementwise.exp2(elementwise.divide(elementwise.log2(size), 3))
    better = elementwise.divide(
        elementwise.add(elementwise.multiply(root, 2), size / (root * root)), 3
    )  # one Newton step
    plain = elementwise.logical_or(elementwise.equal(size, 0), elementwise.equal(size, math.inf))
    return elementwise.copysign(elementwise.where(plain, size, better), array)


def sinc(x: Operand) -> Array:
    """sin(pi x) / (pi x), 1 at 0."""
    (array,) = inexact(x)
    angle = elementwise.multiply(array, math.pi)
    near = elementwise.less(elementwise.abs(angle), 0.05)  # there the quotient has no exact derivatives, and none at 0
    squared = elementwise.square(elementwise.where(near, angle, 0))
    series = 1 - squared / 6 * (1 - squared / 20 * (1 - squared / 42))
    apart = elementwise.where(near, 1, angle)
    return elementwise.where(near, series, elementwise.divide(elementwise.sin(apart), apart))


def deg2rad(x: Operand) -> Array:
    """Degrees as radians."""
    return elementwise.multiply(floats(x)[0], math.pi / 180)


def rad2deg(x: Operand) -> Array:
    """Radians as degrees."""
    return elementwise.multiply(floats(x)[0], 180 / math.pi)


def nan_to_num(x: Operand, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """x with NaN and infinities replaced, in both parts of complex x; infinities by the largest numbers of the dtype
    unless given."""
    (array,) = operands(x)
    if array.type.dtype.kind == "c":
        parts = (complexes.real(array), complexes.imag(array))
        return apply("complex", *(nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf) for part in parts))
    if array.type.dtype.kind != "f":
        return renamed(array)
    from .dtypes import finfo

    limits = finfo(array.type.dtype.numpy)
    above, below = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    finite = elementwise.where(elementwise.equal(array, math.inf), above, array)
    finite = elementwise.where(elementwise.equal(array, -math.inf), below, finite)
    return elementwise.where(elementwise.isnan(array), nan, finite)


# -- tests ------------------------------------------------------------------------------------------------


@checked
def isclose(x1: Operand, x2: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """True where |x1 - x2| <= atol + rtol |x2|, or both are the same infinity, or (if asked for) both are NaN."""
    left, right = operands(x1, x2)
    if left.type.dtype.kind in "iu":
        gap, same = cast(_distance(left, right), F32), elementwise.equal(left, right)
        return elementwise.logical_or(gap <= elementwise.abs(cast(right, F32)) * rtol + atol, same)
    left, right = inexact(left, right)
    gap, room = elementwise.abs(left - right), elementwise.add(elementwise.abs(right) * rtol, atol)
    near = elementwise.logical_and(elementwise.less_equal(gap, room), elementwise.isfinite(right))
    near = elementwise.logical_or(near, elementwise.equal(left, right))
    both = elementwise.logical_and(elementwise.isnan(left), elementwise.isnan(right))
    return elementwise.logical_or(near, both) if equal_nan else near


def _distance(left: Array, right: Array) -> Array:
    """How far integers are apart, which their own dtype may not hold, as unsigned ones."""
    apart = elementwise.where(left > right, left - right, right - left)
    return cast(apart, _UNSIGNED.get(left.type.dtype, left.type.dtype))


_UNSIGNED = {dtype_named(f"i{bits}"): dtype_named(f"u{bits}") for bits in (8, 16, 32, 64)}


@checked
def allclose(x1: Operand, x2: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """Whether `isclose` holds everywhere."""
    return reductions.all(isclose(x1, x2, rtol, atol, equal_nan))


def array_equal(x1: Operand, x2: Operand) -> Array:
    """Whether both have one shape and equal elements."""
    left, right = operands(x1, x2)
    if left.shape != right.shape:
        return asarray(False)
    return reductions.all(elementwise.equal(left, right))


def isposinf(x: Operand) -> Array:
    """True where x is infinite and above 0."""
    return elementwise.logical_and(elementwise.isinf(x), elementwise.greater(x, 0))


def isneginf(x: Operand) -> Array:
    """True where x is infinite and below 0."""
    return elementwise.logical_and(elementwise.isinf(x), elementwise.less(x, 0))


# -- reductions -------------------------------------------------------------------------------------------


@checked
def ptp(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The distance from the smallest to the largest element."""
    return elementwise.subtract(reductions.max(x, axis, keepdims=keepdims), reductions.min(x, axis, keepdims=keepdims))


@checked
def average(x: Operand, axis: int | None = None, weights: Operand | None = None, *, keepdims: bool = False) -> Array:
    """The mean, each element as often as its weight says (of x's shape, or one per position of the axis)."""
    if weights is None:
        return reductions.mean(x, axis, keepdims=keepdims)
    array, weight = (_wide(each) for each in inexact(x, weights))
    dtype = inexact(x, weights)[0].type.dtype
    if weight.shape != array.shape:
        if axis is None or weight.shape != (array.shape[normal_axis(axis, array.ndim)],):
            raise ShapeError(f"weights {weight.shape} for an array {array.shape} along axis {axis}")
        place = normal_axis(axis, array.ndim)
        weight = reshape(weight, [dim if at == place else 1 for at, dim in enumerate(array.shape)])
        weight = manipulation.broadcast_to(weight, array.shape)
    total = reductions.sum(elementwise.multiply(array, weight), axis, keepdims=keepdims)
    return cast(elementwise.divide(total, reductions.sum(weight, axis, keepdims=keepdims)), dtype)


@checked
def nansum(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The sum of what is not NaN."""
    return reductions.sum(_numbers(x, 0), axis, keepdims=keepdims)


@checked
def nanprod(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The product of what is not NaN."""
    return reductions.prod(_numbers(x, 1), axis, keepdims=keepdims)


@checked
def nanmax(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The largest element that is not NaN; NaN if there is none."""
    return _extreme_number(reductions.max, -math.inf, x, axis, keepdims)


@checked
def nanmin(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The smallest element that is not NaN; NaN if there is none."""
    return _extreme_number(reductions.min, math.inf, x, axis, keepdims)


@checked
def nanvar(x: Operand, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Array:
    """The mean squared distance from their mean of what is not NaN, divided by how many there are - ddof."""
    (array,) = inexact(x)
    return cast(_nanvar(_wide(array), axis, ddof, keepdims), PARTS.get(array.type.dtype, array.type.dtype))


@checked
def nanstd(x: Operand, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Array:
    """The square root of `nanvar`."""
    (array,) = inexact(x)
    result = elementwise.sqrt(_nanvar(_wide(array), axis, ddof, keepdims))
    return cast(result, PARTS.get(array.type.dtype, array.type.dtype))


@checked
def nanmean(x: Operand, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The mean of what is not NaN."""
    (array,) = inexact(x)
    wide = _wide(array)
    there = cast(elementwise.logical_not(elementwise.isnan(array)), wide.type.dtype)
    count = reductions.sum(there, axis, keepdims=keepdims)
    return cast(elementwise.divide(nansum(wide, axis, keepdims=keepdims), count), array.type.dtype)


def _nanvar(array: Array, axis: Axis, ddof: float, keepdims: bool) -> Array:
    missing = elementwise.isnan(array)
    apart = elementwise.squared_size(elementwise.where(missing, 0, array - nanmean(array, axis, keepdims=True)))
    there = cast(elementwise.logical_not(missing), apart.type.dtype)
    count = reductions.sum(there, axis, keepdims=keepdims) - ddof
    total = reductions.sum(apart, axis, keepdims=keepdims)  # NaN where an infinity is: it is nowhere near the mean
    return elementwise.where(count > 0, total / count, math.nan)


def _wide(array: Array) -> Array:
    """Halves as float32: sums that are divided in the end have room then."""
    return cast(array, reductions.wide_dtype(array.type.dtype))


def _numbers(x: Operand, instead: float) -> Array:
    array = asarray(x)
    return elementwise.where(elementwise.isnan(array), instead, array) if array.type.dtype.kind in "fc" else array


def _extreme_number(choose: Callable[..., Array], least: float, x: Operand, axis: Axis, keepdims: bool) -> Array:
    array = asarray(x)
    if array.type.dtype.kind != "f":
        return choose(array, axis, keepdims=keepdims)
    extreme = choose(_numbers(array, least), axis, keepdims=keepdims)
    nothing = reductions.all(elementwise.isnan(array), axis, keepdims=keepdims)
    return elementwise.where(nothing, math.nan, extreme)


# -- products ---------------------------------------------------------------------------------------------


def dot(x1: Operand, x2: Operand) -> Array:
    """The sum of products over x1's last axis and x2's last but one; a product where either has no axis."""
    left, right = operands(x1, x2)
    if not left.ndim or not right.ndim:
        return elementwise.multiply(left, right)
    return contraction.tensordot(left, right, axes=((-1,), (max(right.ndim - 2, 0),)))


def inner(x1: Operand, x2: Operand) -> Array:
    """The sum of products over the last axes of both."""
    left, right = operands(x1, x2)
    if not left.ndim or not right.ndim:
        return elementwise.multiply(left, right)
    return contraction.tensordot(left, right, axes=((-1,), (-1,)))


def vdot(x1: Operand, x2: Operand) -> Array:
    """The sum of products of both flattened, x1 conjugated where it is complex."""
    return contraction.vecdot(*[manipulation.ravel(array) for array in operands(x1, x2)])


def kron(x1: Operand, x2: Operand) -> Array:
    """Every element of x1 in turn, times the whole of x2."""
    left, right = operands(x1, x2)
    rank = max(left.ndim, right.ndim)
    first = (1,) * (rank - left.ndim) + left.shape
    second = (1,) * (rank - right.ndim) + right.shape
    product = contraction.outer(left, right)
    mixed = reshape(product, (*first, *second)) if rank <= 4 else None
    if mixed is None:
        raise ShapeError(f"kron of {rank} dimensions; 4 at most")
    order = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    return reshape(manipulation.permute_dims(mixed, order), [a * b for a, b in zip(first, second, strict=True)])


def cross(x1: Operand, x2: Operand, axis: int = -1) -> Array:
    """The cross product of vectors of three along `axis`."""
    return linalg.cross(x1, x2, axis=axis)


# -- along an axis ----------------------------------------------------------------------------------------


def ediff1d(x: Operand) -> Array:
    """The differences of neighbours of the flattened x."""
    return manipulation.diff(manipulation.ravel(x))


def trapezoid(y: Operand, x: Operand | None = None, dx: float = 1.0, axis: int = -1) -> Array:
    """Integrate y along an axis by the trapezoidal rule.

    Parameters
    ----------
    y : Array, (..., n, ...)
        The values.
    x : Array, (n,) or of the shape of y, optional
        The points; by default they are `dx` apart.
    dx : float, optional
        The distance of points.
    axis : int, optional
        The axis.

    Returns
    -------
    Array
        The integral, without that axis.

    Raises
    ------
    InputError
        If there is no such axis.

    Examples
    --------
    >>> import mesh.numpy as mnp
    >>> mnp.trapezoid([0.0, 1.0, 2.0], dx=0.5)
    Array(1., dtype=float32)
    """
    values, *points = inexact(*[y] if x is None else (y, x))
    place = normal_axis(axis, values.ndim)
    rows = manipulation.moveaxis(values, place, -1)
    middles = elementwise.multiply(elementwise.add(rows[..., 1:], rows[..., :-1]), 0.5)
    if not points:
        return elementwise.multiply(reductions.sum(middles, -1), dx)
    steps = manipulation.diff(points[0] if points[0].ndim == 1 else manipulation.moveaxis(points[0], place, -1))
    return reductions.sum(elementwise.multiply(middles, steps), -1)


def interp(x: Operand, xp: Operand, fp: Operand, left: Operand | None = None, right: Operand | None = None) -> Array:
    """The line through the points (xp, fp), xp rising, at x; `left` and `right` beyond its ends (else the ends)."""
    asked, known, values = floats(x, xp, fp)
    if known.ndim != 1 or known.shape != values.shape or known.size == 0:
        raise ShapeError(f"interp needs points of one dimension, got {known.shape} and {values.shape}")
    above = elementwise.clip(indexing.searchsorted(known, asked, side="right"), 1, max(known.size - 1, 1))
    above = elementwise.minimum(above, known.size - 1)
    below = elementwise.maximum(above - 1, 0)
    start, end = indexing.take(known, below), indexing.take(known, above)
    first, last = indexing.take(values, below), indexing.take(values, above)
    width = elementwise.where(elementwise.equal(end, start), 1, end - start)
    result = first + (last - first) * ((asked - start) / width)
    result = elementwise.where(elementwise.less(asked, known[0]), values[0] if left is None else left, result)
    result = elementwise.where(elementwise.greater_equal(asked, known[-1]), values[-1], result)
    beyond = values[-1] if right is None else right
    result = elementwise.where(elementwise.greater(asked, known[-1]), beyond, result)
    return elementwise.where(elementwise.isnan(asked), asked, result)


@checked
def digitize(x: Operand, bins: Operand, right: bool = False) -> Array:
    """The int32 number of the bin (rising edges) each element lies in."""
    return indexing.searchsorted(bins, x, side="left" if right else "right")


def gradient(x: Operand, *spacing: float, axis: int | Sequence[int] | None = None) -> Array | list[Array]:
    """The slopes along `axis`, of all axes by default: half the difference of both neighbours, at the ends that to the
    only one, over `spacing`, one number or one for each axis.  A list where there are several axes."""
    (array,) = inexact(x)
    axes = normal_axes(axis, array.ndim)
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    if len(steps) != len(axes) or not all(isinstance(step, (int, float)) for step in steps):
        raise InputError(f"gradient takes one number as spacing, or {len(axes)}, one for place axis, got {spacing}")
    slopes = [_slope(array, place, step) for place, step in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(array: Array, axis: int, step: float) -> Array:
    rows = manipulation.moveaxis(array, axis, -1)
    if rows.shape[-1] < 2:
        raise ShapeError(f"gradient needs two elements or more along an axis, got {rows.shape[-1]}")
    inside = (rows[..., 2:] - rows[..., :-2]) / 2
    slope = concat([rows[..., 1:2] - rows[..., :1], inside, rows[..., -1:] - rows[..., -2:-1]], -1)
    return manipulation.moveaxis(slope if step == 1 else slope / step, -1, axis)


@checked
def convolve(x1: Operand, x2: Operand, mode: str = "full") -> Array:
    """The convolution of two vectors; `mode` is full, same or valid, as numpy has them."""
    left, right = operands(x1, x2)
    if left.ndim != 1 or right.ndim != 1 or not left.size or not right.size:
        raise ShapeError(f"convolve needs two vectors that are not empty, got {left.shape} and {right.shape}")
    if mode not in ("full", "same", "valid"):
        raise InputError(f"mode is 'full', 'same' or 'valid', got {mode!r}")
    long, short = (left, right) if left.size >= right.size else (right, left)
    edge = short.size - 1
    wide = padding.pad(long, edge)
    starts = np.arange(long.size + edge)[:, None] + np.arange(short.size)
    full = contraction.matmul(indexing.take(wide, starts.astype(np.int32)), manipulation.flip(short))
    if mode == "full":
        return full
    start, count = (edge // 2, long.size) if mode == "same" else (edge, long.size - edge)
    return full[start : start + count]


@checked
def cov(m: Operand, *, ddof: int = 1) -> Array:
    """The covariances of the rows of a matrix, each row a variable and each column an observation."""
    (given,) = inexact(manipulation.atleast_2d(m))
    rows = _wide(given)
    if rows.ndim > 2:
        raise ShapeError(f"cov needs a matrix, got shape {rows.shape}")
    apart = rows - reductions.mean(rows, 1, keepdims=True)
    products = contraction.matmul(apart, complexes.conj(manipulation.matrix_transpose(apart)))
    return cast(manipulation.squeeze(products / like(max(rows.shape[1] - ddof, 0), products)), given.type.dtype)


def corrcoef(m: Operand) -> Array:
    """The correlations of the rows of a matrix, in [-1, 1]."""
    (array,) = inexact(m)
    covariance = manipulation.atleast_2d(cov(_wide(array)))
    spread = elementwise.sqrt(contraction.diagonal(covariance))
    scaled = manipulation.squeeze(covariance / expand_dims(spread, 1) / spread)
    real = elementwise.clip(complexes.real(scaled), -1, 1)
    if scaled.type.dtype.kind == "c":
        real = real + 1j * elementwise.clip(complexes.imag(scaled), -1, 1)
    return cast(real, array.type.dtype)


def bincount(x: Operand, weights: Operand | None = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often (or with what weight) each integer from 0 on stands in a vector.

    With `length` that many numbers are counted and larger ones are not, which works while tracing; without, x must
    have a value.
    """
    array = asarray(x)
    if array.ndim != 1 or array.type.dtype.kind not in "iu":
        raise ShapeError(f"bincount needs a vector of integers, got {array.type}")
    if length is None:
        value = concrete(array, "bincount")
        if (value < 0).any():
            raise InputError("bincount counts integers of 0 or more")
        length = max(int(value.max()) + 1 if value.size else 0, minlength)
    ones = creation.ones(array.shape, dtype="int32") if weights is None else asarray(weights)
    ones = cast(ones, reductions.sum_dtype(ones.type.dtype))  # they are summed up
    if ones.shape != array.shape:
        raise ShapeError(f"weights {ones.shape} for a vector {array.shape}")
    start = creation.zeros(length, dtype=ones.dtype)
    return apply("scatter", start, array, ones, axis=0, mode="add")


# -- choosing ---------------------------------------------------------------------------------------------


@checked
def select(condlist: Sequence[Operand], choicelist: Sequence[Operand], default: Operand = 0) -> Array:
    """The first choice where the first condition holds, else the second where the second holds, ..., else default."""
    condlist, choicelist = items(condlist, "as conditions"), items(choicelist, "as choices")
    if len(condlist) != len(choicelist) or not condlist:
        raise InputError(f"select needs as many choices as conditions, got {len(choicelist)} and {len(condlist)}")
    *choices, result = operands(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = elementwise.where(condition, choice, result)
    return result


def argwhere(x: Operand) -> Array:
    """The int32 coordinates of the elements that are not 0, one row each; x must have a value."""
    array = asarray(x)
    if not array.ndim:
        return asarray(np.zeros((int(array._scalar_for("argwhere") != 0), 0), np.int32))
    return manipulation.stack(indexing.nonzero(array), axis=-1)


def flatnonzero(x: Operand) -> Array:
    """The int32 places of the elements of the flattened x that are not 0; x must have a value."""
    return indexing.nonzero(manipulation.ravel(x))[0]


def extract(condition: Operand, x: Operand) -> Array:
    """The elements of the flattened x where the condition holds; it must have a value."""
    return indexing.getitem(manipulation.ravel(x), asarray(manipulation.ravel(condition), "bool"))


def compress(condition: Operand, x: Operand, axis: int | None = None) -> Array:
    """The positions of an axis where the condition holds; it must have a value, and may be shorter than the axis."""
    array, place = (manipulation.ravel(x), 0) if axis is None else (asarray(x), normal_axis(axis, asarray(x).ndim))
    return indexing.take(array, flatnonzero(condition), place)


def partition(x: Operand, kth: int, axis: int | None = -1) -> Array:
    """x sorted: then every element is in its place, the k-th too."""
    return sorting.sort(x, axis)


def argpartition(x: Operand, kth: int, axis: int | None = -1) -> Array:
    """The order that sorts x, as `argsort` returns it."""
    return sorting.argsort(x, axis)


@checked
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The int32 rows and columns of the positions on and below diagonal k of an n x m matrix."""
    rows, columns = np.tril_indices(n, k, m)
    return asarray(rows.astype(np.int32)), asarray(columns.astype(np.int32))


@checked
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """The int32 rows and columns of the positions on and above diagonal k of an n x m matrix."""
    rows, columns = np.triu_indices(n, k, m)
    return asarray(rows.astype(np.int32)), asarray(columns.astype(np.int32))


# -- in place ---------------------------------------------------------------------------------------------


@checked
def putmask(x: Array, mask: Operand, values: Operand) -> None:
    """x[mask] = values, where the values have x's shape or one element."""
    x[...] = elementwise.where(mask, values, x)


@checked
def put_along_axis(x: Array, indices: Operand, values: Operand, axis: int) -> None:
    """The elements that `take_along_axis` would give become `values`."""
    index, place = asarray(indices), normal_axis(axis, x.ndim)
    shape = tuple(dim if at != place else index.shape[at] for at, dim in enumerate(x.shape))
    index = manipulation.broadcast_to(indexing.wrapped(index, x.shape[place]), shape)
    key = [apply("iota", shape=shape, dtype=I32.name, axis=at) for at in range(x.ndim)]
    key[place] = index
    x[tuple(key)] = values


@checked
def fill_diagonal(x: Array, value: Operand) -> None:
    """The diagonal of a matrix becomes `value`."""
    if x.ndim != 2:
        raise ShapeError(f"fill_diagonal needs a matrix, got shape {x.shape}")
    places = np.arange(min(x.shape), dtype=np.int32)
    x[places, places] = value


@checked
def copyto(dst: Array, src: Operand) -> None:
    """dst[...] = src."""
    dst[...] = src
