"""Making arrays: constants, ranges, grids and triangles.

Nothing is filled here: zeros, ones and full are one broadcast literal, ranges and triangles are counted by `iota`, so a
graph that makes large ones stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.dtypes import BF16, F16, F32, F64, I32, PARTS, DType, promote

from ..core.array import Array, DTypeLike, Operand, apply, renamed, strong, value_array
from ..core.array_api_device import DeviceLike, check_device
from ..util.annotation_checks import checked
from ..util.argument_checks import value_text
from . import elementwise, manipulation, promotion
from .manipulation import Shape, broadcast_to, to_shape
from .promotion import cast, common_dtype, inexact, is_python_scalar, like, scalar, to_dtype


def full(shape: Shape, fill_value: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """`shape` filled with one value; the dtype is the value's own if not given."""
    check_device(device)
    if dtype is not None and is_python_scalar(fill_value):
        return broadcast_to(scalar(fill_value, to_dtype(dtype)), shape)  # type: ignore[arg-type]
    return broadcast_to(promotion.asarray(fill_value, dtype), shape)


def zeros(shape: Shape, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """`shape` filled with 0, float32 by default."""
    return full(shape, 0, dtype=F32 if dtype is None else dtype, device=device)


def ones(shape: Shape, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """`shape` filled with 1, float32 by default."""
    return full(shape, 1, dtype=F32 if dtype is None else dtype, device=device)


def empty(shape: Shape, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """Zeros of `shape`, as `zeros` makes them: there is no uninitialised memory to look at."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Operand, fill_value: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """x's shape and, unless given, dtype, filled with one value."""
    array = promotion.asarray(x)
    return full(array.shape, fill_value, dtype=array.type.dtype if dtype is None else dtype, device=device)


def zeros_like(x: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """x's shape and, unless given, dtype, filled with 0."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """x's shape and, unless given, dtype, filled with 1."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Array:
    """Zeros of x's shape, as `zeros_like` makes them."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike = None, *, device: DeviceLike = None
) -> Array:
    """start, start + step, ... below stop (above it for a negative step); arange(n) counts from 0.

    int32 (int64 or uint64 where a number needs it) if all bounds are integers, else float32, unless given.
    """
    check_device(device)
    first, last = (0, start) if stop is None else (start, stop)
    bounds = (first, last, step)
    first, last, step = (_number(bound, "arange") for bound in bounds)
    if step == 0:
        raise InputError("arange needs a step other than 0")
    wanted = _natural(bounds) if dtype is None else to_dtype(dtype)
    if wanted.kind in "iu" and all(bound == int(bound) for bound in (first, last, step)):
        first, last, step = int(first), int(last), int(step)
    counter = F32 if wanted in (F16, BF16) else wanted
    if wanted.kind in "iu" and isinstance(first + last + step, float):
        counter = F64
    steps = _iota((_count(first, last, step),), 0, counter)
    if wanted.kind == "u" and isinstance(step, int):
        step %= 1 << 8 * wanted.itemsize  # a step down, which is one up that wraps
    return cast(_affine(steps, step, first), wanted)


@checked
def linspace(
    start: Operand,
    stop: Operand,
    num: int = 50,
    endpoint: bool = True,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Array:
    """`num` evenly spaced numbers from start to stop, stop included unless endpoint is False; float32 by default."""
    check_device(device)
    if num < 0:
        raise InputError(f"linspace needs a count of 0 or more, got {num}")
    first, last = inexact(start, stop)
    wanted = first.type.dtype if dtype is None else to_dtype(dtype)
    if wanted not in (F16, BF16, F32):  # those of 64 bits, and integers, which are read off numbers of 64 bits
        wider = promote(first.type.dtype, wanted if wanted.kind in "fc" else F64)
        first, last = cast(first, wider), cast(last, wider)
    steps = _iota((num,), 0, PARTS.get(first.type.dtype, first.type.dtype))
    steps = manipulation.reshape(steps, (num,) + (1,) * max(first.ndim, last.ndim))
    result = _spaced(strong(first), strong(last), steps, max(num - 1 if endpoint else num, 1))
    if endpoint and num > 1:
        result = elementwise.where(elementwise.equal(steps, num - 1), last, result)
    return cast(result, wanted) if wanted.kind in "fc" else cast(elementwise.floor(result), wanted)


def eye(
    n_rows: int, n_cols: int | None = None, *, k: int = 0, dtype: DTypeLike = None, device: DeviceLike = None
) -> Array:
    """Ones on diagonal k of a matrix of zeros, float32 by default."""
    check_device(device)
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    rows, cols = _row_and_col(shape)
    wanted = F32 if dtype is None else to_dtype(dtype)
    return cast(elementwise.equal(elementwise.add(rows, _within(k, shape)), cols), wanted)


@checked
def tril(x: Operand, k: int = 0) -> Array:
    """x with 0 above diagonal k of its last two axes."""
    return _triangle(x, k, elementwise.greater_equal)


@checked
def triu(x: Operand, k: int = 0) -> Array:
    """x with 0 below diagonal k of its last two axes."""
    return _triangle(x, k, elementwise.less_equal)


@checked
def meshgrid(*arrays: Operand, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of 1-d coordinates; "xy" puts the second array's axis first, "ij" keeps the order."""
    if indexing not in ("xy", "ij"):
        raise InputError(f"indexing is 'xy' or 'ij', got {indexing!r}")
    axes = [manipulation.ravel(array) for array in arrays]
    rank = len(axes)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[0], places[1] = 1, 0
    shaped = [
        manipulation.reshape(array, [array.size if axis == place else 1 for axis in range(rank)])
        for array, place in zip(axes, places, strict=True)
    ]
    return manipulation.broadcast_arrays(*shaped)


@checked
def asarray(value: Operand, dtype: DTypeLike = None, *, device: DeviceLike = None, copy: bool | None = None) -> Array:
    """`value` as an Array: lists and Python scalars take the default dtypes, arrays keep theirs.

    An Array is given back itself unless its dtype changes or `copy` is True.  numpy arrays that somebody could still
    change are copied; with copy=False they are not, and must not be changed.
    """
    check_device(device)
    if copy is False:
        return _uncopied(value, dtype)
    result = promotion.asarray(value, dtype)
    return renamed(result) if copy and result is value else result


@checked
def array(value: Operand, dtype: DTypeLike = None, *, copy: bool | None = True) -> Array:
    """numpy's name of `asarray`, which makes a name of its own unless `copy` is not True."""
    return asarray(value, dtype, copy=copy)


def copy(x: Operand) -> Array:
    """x under a name of its own: x[key] = v changes x alone."""
    return renamed(promotion.asarray(x))


@checked
def from_dlpack(x: Any, *, device: DeviceLike = None, copy: bool | None = None) -> Array:
    """The array of another library, from its memory if nobody can change it there, or if copy is False; else a copy."""
    check_device(device)
    if isinstance(x, Array):
        return renamed(x)
    try:
        value = np.from_dlpack(x)
    except (BufferError, RuntimeError, AttributeError, TypeError) as error:
        raise InputError(f"{type(x).__name__} does not give its memory by DLPack to a cpu ({error})") from error
    return value_array(value, shared=copy is False)


# -- helpers ----------------------------------------------------------------------------------------------


def _uncopied(value: Any, dtype: DTypeLike) -> Array:
    """ValueError, as the standard asks, where only a copy would do."""
    if isinstance(value, (np.ndarray, np.generic)):
        result = value_array(np.asarray(value), shared=True)
    elif isinstance(value, Array):
        result = value
    else:
        raise ValueError(f"a {type(value).__name__} cannot become an array without a copy")
    if dtype is not None and to_dtype(dtype) is not result.type.dtype:
        raise ValueError(f"{result.type.dtype} cannot become {to_dtype(dtype)} without a copy")
    return result


def _natural(bounds: Sequence[Any]) -> DType:
    """The dtype of what is counted between bounds: numpy's floats have their own, its integers are Python's."""
    return common_dtype([asarray(bound) if isinstance(bound, np.inexact) else _plain(bound) for bound in bounds])[0]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _number(value: Any, asker: str) -> Any:
    """A bound as a Python number: a finite float, or an integer of 64 bits."""
    number = value._scalar_for(asker).item() if isinstance(value, Array) and value.size == 1 else _plain(value)
    known = isinstance(number, (int, float)) and -math.inf < number < math.inf
    if not known or (isinstance(number, int) and abs(number) >= 1 << 64):
        raise InputError(f"{asker} counts between finite real numbers of 64 bits, got {value_text(number)}")
    return number


def _count(first: Any, last: Any, step: Any) -> int:
    """How many numbers arange gives: of integers exactly, of floats by numpy's quotient."""
    exact = isinstance(first + last + step, int)
    gaps = -((first - last) // step) if exact else (last - first) / step
    if gaps >= 1 << 63:
        raise InputError(f"arange from {first} to {last} by {step} has more numbers than an array can hold")
    whole: int = math.ceil(gaps)
    return max(whole, 0)


def _spaced(first: Array, last: Array, steps: Array, gaps: int) -> Array:
    """first + steps * ((last - first) / gaps), as numpy rounds it; a gap too small to be divided is divided last."""
    whole = elementwise.subtract(last, first)
    one = elementwise.divide(whole, gaps)
    late = elementwise.multiply(elementwise.divide(steps, gaps), whole)
    apart = elementwise.where(elementwise.equal(one, 0), late, elementwise.multiply(steps, one))
    none = elementwise.logical_and(elementwise.equal(steps, 0), elementwise.logical_not(elementwise.isfinite(one)))
    return elementwise.add(elementwise.where(none, 0, apart), first)  # 0 steps of infinite size lead nowhere


def _iota(shape: Sequence[int], axis: int, dtype: DType) -> Array:
    return apply("iota", shape=to_shape(shape), dtype=dtype.name, axis=axis)


def _affine(steps: Array, step: float, first: float) -> Array:
    if steps.type.dtype is F64:
        step = (first + step) - first  # numpy's: the first two numbers are right, and the others as far apart
    scaled = steps if step == 1 else apply("mul", steps, like(step, steps))
    return scaled if first == 0 else apply("add", scaled, like(first, steps))


def _row_and_col(shape: tuple[int, int]) -> tuple[Array, Array]:
    return _iota((shape[0], 1), 0, I32), _iota((1, shape[1]), 1, I32)


def _within(k: int, shape: tuple[int, int]) -> int:
    """The diagonal, or the one next to a corner if it is further out: a 32-bit position."""
    return min(max(k, -shape[0]), shape[1])


def _triangle(x: Operand, k: int, keep: Callable[[Operand, Operand], Array]) -> Array:
    matrix = promotion.asarray(x)
    if matrix.ndim < 2:
        raise InputError(f"a triangle needs two dimensions or more, got shape {matrix.shape}")
    shape = (matrix.shape[-2], matrix.shape[-1])
    rows, cols = _row_and_col(shape)
    return elementwise.where(keep(elementwise.add(rows, _within(k, shape)), cols), matrix, like(0, matrix))
