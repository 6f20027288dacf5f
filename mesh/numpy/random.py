"""Random numbers of explicit keys: a function of the key and nothing else, on every machine and engine.

    key = mesh.random.key(7)
    first, second = mesh.random.split(key)
    noise = mesh.random.normal(first, (3, 4))

A key is a uint32 array of two words and is used once: for one draw, or to make other keys.  Element i of a draw depends
on the key and on i only, so work that is split gives the numbers it would give whole.  Bits are threefry2x32 (the op
`random_bits`); keys are made of bits under a tag of their own, so that they never are numbers that somebody draws.
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import F32, F64, U32, U64, DType

from ..core.array import Array, DTypeLike, Operand, apply, value_array
from ..util.annotation_checks import checked
from ..util.argument_checks import integer, native, value_text
from . import elementwise, indexing, manipulation, reductions
from .promotion import asarray, cast, floats, scalar, to_dtype

__all__ = [
    "bernoulli", "bits", "categorical", "choice", "exponential", "fold_in", "gumbel", "key", "normal", "permutation",
    "randint", "split", "truncated_normal", "uniform",
]  # fmt: skip

Shape = int | Sequence[int]

TAIL = 2.0  # deviations from 0, from which on numbers are drawn by the logarithm of what is left above them
TAIL_STEPS = 4  # of Newton's method, which then has what f64 has
FAR = 25.0  # from here on four terms of a series are exact, and below erfc is no 0

_SPLIT, _FOLD = 0x73706C69, 0x666F6C64  # tags: what keys are made under
_MANTISSA = {"f16": 11, "bf16": 8, "f32": 24}  # bits of a number in [0, 1)


@checked
def key(seed: int) -> Array:
    """Make the key of a seed.

    Parameters
    ----------
    seed : int
        A number of up to 64 bits.

    Returns
    -------
    Array, (2,)
        The key, as uint32.

    Raises
    ------
    InputError
        If the seed has more bits.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.key(7)
    Array([0, 7], dtype=uint32)
    """
    if not -(1 << 63) <= seed < 1 << 64:
        raise InputError(f"a seed has up to 64 bits, got {seed}")
    return value_array(np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32))


@checked
def split(key: Operand, count: int = 2) -> Array:
    """Make keys of a key.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    count : int, optional
        How many.

    Returns
    -------
    Array, (count, 2)
        Keys that are independent of each other.

    Raises
    ------
    InputError
        If that is no key or no count.

    Examples
    --------
    >>> import mesh
    >>> first, second = mesh.random.split(mesh.random.key(7))
    >>> first
    Array([1399050475, 3844594329], dtype=uint32)
    """
    return _words(_tagged(key, _SPLIT), (integer(count, "a count of keys", 0), 2))


def fold_in(key: Operand, data: Operand) -> Array:
    """Make a key of a key and a number: of a step, a layer or a worker.

    Parameters
    ----------
    key : Array, (2,)
        The key.
    data : int or Array, ()
        The number, from 0 to 2^32 - 1.

    Returns
    -------
    Array, (2,)
        Another key.

    Raises
    ------
    InputError
        If that is no key, or the number is known and no integer of that range.
    ShapeError
        If it is not one number.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.fold_in(mesh.random.key(0), 3)
    Array([2280163900, 4261900185], dtype=uint32)
    """
    given = asarray(data)
    if given.shape != ():
        raise ShapeError(f"fold_in takes one integer, got shape {given.shape}")
    value = given.value
    if value is not None and (np.iscomplexobj(value) or not (0 <= value < 1 << 32 and value == int(value))):
        raise InputError(f"fold_in takes an integer from 0 to 2^32 - 1, got {value}")
    number = cast(given, U32)
    hashed = _words(_tagged(key, _FOLD), (2,))
    return _words(hashed ^ manipulation.stack([scalar(0, U32), number]), (2,))


@checked
def bits(key: Operand, shape: Shape = (), dtype: DTypeLike = np.uint32) -> Array:
    """Draw random bits.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The type: uint32 or uint64.

    Returns
    -------
    Array, shape
        Unsigned integers.

    Raises
    ------
    InputError
        If that is no key or no shape.
    DTypeError
        If it is another dtype.

    Notes
    -----
    The generator is threefry2x32: Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.bits(mesh.random.key(0), (2,))
    Array([1797259609,  928981903], dtype=uint32)
    """
    kind, wanted = to_dtype(dtype), manipulation.to_shape(shape)
    if kind is U32:
        return _words(_key(key), wanted)
    if kind is not U64:
        raise DTypeError(f"random bits are uint32 or uint64, got {kind.name}")
    pair = cast(_words(_key(key), (*wanted, 2)), U64)
    return (pair[..., 0] << 32) | pair[..., 1]


@checked
def uniform(
    key: Operand, shape: Shape = (), dtype: DTypeLike = np.float32, minval: Operand = 0.0, maxval: Operand = 1.0
) -> Array:
    """Draw from the uniform distribution over [minval, maxval).

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The float type.
    minval : float or Array, optional
        The lower bound.
    maxval : float or Array, optional
        The upper bound.  The rounding of a wide range may reach it.

    Returns
    -------
    Array, shape
        Floats.

    Raises
    ------
    InputError
        If that is no key or no shape, or the range is not finite.
    DTypeError
        If it is no float type.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.uniform(mesh.random.key(0), (2,))
    Array([0.4184571 , 0.21629542], dtype=float32)
    """
    kind = _float(dtype)
    unit = _unit(key, manipulation.to_shape(shape), kind)
    if isinstance(minval, float) and isinstance(maxval, float) and (minval, maxval) == (0.0, 1.0):
        return unit
    low, high = (asarray(bound, kind) for bound in (minval, maxval))
    if low.value is not None and high.value is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            span = high.value - low.value
        if not np.isfinite(span).all():
            raise InputError(f"the range of uniform is finite, got {value_text(minval)} to {value_text(maxval)}")
    return unit * (high - low) + low


@checked
def normal(key: Operand, shape: Shape = (), dtype: DTypeLike = np.float32) -> Array:
    """Draw from the standard normal distribution.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The float type.

    Returns
    -------
    Array, shape
        Floats.

    Raises
    ------
    InputError
        If that is no key or no shape.
    DTypeError
        If it is no float type.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.normal(mesh.random.key(0), (2, 2)).shape
    (2, 2)
    """
    kind = _float(dtype)
    return cast(math.sqrt(2) * erfinv(_symmetric(key, manipulation.to_shape(shape), kind)), kind)


@checked
def truncated_normal(
    key: Operand, lower: float, upper: float, shape: Shape = (), dtype: DTypeLike = np.float32
) -> Array:
    """Draw from the standard normal distribution, given that it is in [lower, upper].

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    lower : float
        The lower bound.
    upper : float
        The upper bound.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The float type.

    Returns
    -------
    Array, shape
        Floats.

    Raises
    ------
    InputError
        If that is no key or no shape, or no number is in [lower, upper].
    DTypeError
        If it is no float type.

    Examples
    --------
    >>> import mesh
    >>> draws = mesh.random.truncated_normal(mesh.random.key(0), -1.0, 1.0, (100,))
    >>> bool((abs(draws) <= 1).all())
    True
    """
    kind = _float(dtype)
    if not (lower <= upper and lower < math.inf and upper > -math.inf):
        raise InputError(f"truncated_normal draws from lower to upper, got {lower} and {upper}")
    unit = _open_unit(key, manipulation.to_shape(shape), kind)
    if lower >= TAIL:
        draws = _of_tail(unit, lower, upper)
    elif upper <= -TAIL:
        draws = -_of_tail(1 - unit, -upper, -lower)
    else:
        low, high = (math.erf(bound / math.sqrt(2)) for bound in (lower, upper))
        bound = 1 - (2.0**-53 if kind is F64 else 2.0**-24)
        draws = math.sqrt(2) * erfinv(elementwise.clip(low + (high - low) * unit, -bound, bound))
    return elementwise.clip(cast(draws, kind), *_inside(lower, upper, kind))


@checked
def bernoulli(key: Operand, p: Operand = 0.5, shape: Shape | None = None) -> Array:
    """Draw booleans that are true with a probability.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    p : float or Array, optional
        The probability.
    shape : int or sequence of int, optional
        The shape; that of `p` by default.

    Returns
    -------
    Array, shape
        Booleans.

    Raises
    ------
    InputError
        If that is no key or no shape.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.bernoulli(mesh.random.key(0), 0.5, (4,))
    Array([ True,  True, False, False], dtype=bool)
    """
    (chance,) = _wide_floats(p)
    wanted = chance.shape if shape is None else manipulation.to_shape(shape)
    return _unit(key, wanted, chance.type.dtype) < chance


@checked
def randint(key: Operand, shape: Shape, low: int, high: int, dtype: DTypeLike = np.int32) -> Array:
    """Draw integers from low to high - 1, all with the same probability.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int
        The shape.
    low : int
        The least integer.
    high : int
        One more than the largest integer.
    dtype : dtype, optional
        The integer type.

    Returns
    -------
    Array, shape
        Integers.  Probabilities differ by the rounding of 64 random bits, of 128 where there are more than 2^32.

    Raises
    ------
    InputError
        If that is no key or no shape, low is not less than high, or they do not fit the type.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.randint(mesh.random.key(0), (5,), 0, 10)
    Array([4, 9, 5, 8, 5], dtype=int32)
    """
    kind = to_dtype(dtype)
    span = high - low
    if kind.kind not in "iu" or span < 1:
        raise InputError(f"randint needs low < high and an integer dtype, got {low}, {high} and {kind.name}")
    limits = np.iinfo(kind.numpy)
    if low < limits.min or high - 1 > limits.max:
        raise InputError(f"{low} to {high - 1} does not fit {kind.name}")
    wanted = manipulation.to_shape(shape)
    if span > 1 << 32:
        drawn = bits(key, wanted, U64) if span == 1 << 64 else _below(bits(key, (*wanted, 2), U64), span)
        return cast(drawn + scalar(low % (1 << 64), U64), kind)
    pair = _words(_key(key), (*wanted, 2))
    drawn = pair[..., 1] if span == 1 << 32 else _below(pair, span)
    width = U64 if kind.itemsize == 8 else U32
    return cast(cast(drawn, width) + scalar(low % (1 << 8 * width.itemsize), width), kind)


@checked
def exponential(key: Operand, shape: Shape = (), dtype: DTypeLike = np.float32) -> Array:
    """Draw from the exponential distribution of mean 1.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The float type.

    Returns
    -------
    Array, shape
        Floats.

    Raises
    ------
    InputError
        If that is no key or no shape.
    DTypeError
        If it is no float type.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.exponential(mesh.random.key(0), (2,)).round(2)
    Array([0.54, 0.24], dtype=float32)
    """
    kind = _float(dtype)
    return -elementwise.log1p(-_unit(key, manipulation.to_shape(shape), kind))


@checked
def gumbel(key: Operand, shape: Shape = (), dtype: DTypeLike = np.float32) -> Array:
    """Draw from the standard Gumbel distribution.

    The position of the largest of logits plus this noise is a draw with probabilities softmax(logits).

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    shape : int or sequence of int, optional
        The shape.
    dtype : dtype, optional
        The float type.

    Returns
    -------
    Array, shape
        Floats.

    Raises
    ------
    InputError
        If that is no key or no shape.
    DTypeError
        If it is no float type.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.gumbel(mesh.random.key(0), (2,)).round(2)
    Array([ 0.14, -0.43], dtype=float32)
    """
    kind = _float(dtype)
    return cast(-elementwise.log(-elementwise.log(_open_unit(key, manipulation.to_shape(shape), kind))), kind)


@checked
def categorical(key: Operand, logits: Operand, axis: int = -1, shape: Shape | None = None) -> Array:
    """Draw positions along an axis, with the probabilities softmax(logits).

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    logits : Array, (..., n, ...)
        The logarithms of probabilities, up to a constant.
    axis : int, optional
        The axis of the positions.
    shape : int or sequence of int, optional
        The shape of the draws: that of logits without the axis by default, and after more dimensions to draw more
        often.

    Returns
    -------
    Array, shape
        Positions from 0 to n - 1, as int32.

    Raises
    ------
    InputError
        If that is no key, or there is no such axis.
    ShapeError
        If the shape does not end in that of logits without the axis.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.categorical(mesh.random.key(0), [0.0, 0.0, -1e9], shape=(5,))
    Array([0, 0, 0, 1, 1], dtype=int32)
    """
    (scores,) = _wide_floats(logits)
    place = reductions.normal_axis(axis, scores.ndim)
    left = scores.shape[:place] + scores.shape[place + 1 :]
    wanted = left if shape is None else manipulation.to_shape(shape)
    if wanted[len(wanted) - len(left) :] != left:
        raise ShapeError(f"categorical draws of shape {wanted} do not end in {left}")
    more = wanted[: len(wanted) - len(left)]
    noise = gumbel(key, (*more, *scores.shape), scores.type.dtype)
    return reductions.argmax(noise + scores, axis=len(more) + place)


@checked
def permutation(key: Operand, x: int | Operand, axis: int = 0) -> Array:
    """Put the numbers below x, or x's entries along an axis, in random order.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    x : int or Array, (..., n, ...)
        The numbers or entries.
    axis : int, optional
        The axis.

    Returns
    -------
    Array, of the shape of x, or (x,)
        The permutation.

    Raises
    ------
    InputError
        If that is no key, or there is no such axis.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.permutation(mesh.random.key(0), 5)
    Array([0, 2, 1, 4, 3], dtype=int32)
    """
    x = native(x)
    if isinstance(x, int):
        return _order(key, x)
    array = asarray(x)
    place = reductions.normal_axis(axis, array.ndim)
    return indexing.take(array, _order(key, array.shape[place]), axis=place)


@checked
def choice(key: Operand, a: int | Operand, shape: Shape = (), replace: bool = True, p: Operand | None = None) -> Array:
    """Draw from the numbers below a, or from a's entries along its first axis.

    Parameters
    ----------
    key : Array, (2,)
        The key, used once.
    a : int or Array, (n, ...)
        The numbers or entries.
    shape : int or sequence of int, optional
        The shape of the draws.
    replace : bool, optional
        Whether an entry can be drawn several times.
    p : Array, (n,), optional
        The probabilities; all the same by default.

    Returns
    -------
    Array, shape or (*shape, ...)
        The draws.

    Raises
    ------
    InputError
        If that is no key, there are more draws than entries without `replace`, or no probability is above 0.
    ShapeError
        If there are more or fewer probabilities than entries.

    Examples
    --------
    >>> import mesh
    >>> mesh.random.choice(mesh.random.key(0), 10, (3,), replace=False)
    Array([3, 0, 2], dtype=int32)
    """
    wanted, a = manipulation.to_shape(shape), native(a)
    count = math.prod(wanted)
    size = a if isinstance(a, int) else _rows(a)
    if size < 1 or (not replace and count > size):
        raise InputError(f"{count} draws {'with' if replace else 'without'} replacement from {size}")
    if p is None:
        index = randint(key, wanted, 0, size) if replace else _order(key, size)[:count].reshape(wanted)
    else:
        shares = _wide_floats(p)[0]
        if shares.shape != (size,):
            raise ShapeError(f"choice among {size} needs as many probabilities, got {shares.shape}")
        known = shares.value
        if known is not None and size and not (np.isfinite(known).all() and (known >= 0).all() and known.any()):
            raise InputError("probabilities of choice are not below 0, and one of them is above 0")
        possible = size if known is None else np.count_nonzero(known)
        if not replace and count > possible:
            raise InputError(f"{count} draws without replacement from {possible} with a probability above 0")
        scores = elementwise.log(shares)
        if replace:
            index = categorical(key, scores, shape=(*wanted,))
        else:  # the largest of logits plus Gumbel noise are draws one after the other
            noisy = -(scores + gumbel(key, scores.shape, scores.type.dtype))
            index = apply("argsort", noisy, axis=0)[:count].reshape(wanted)
    return index if isinstance(a, int) else indexing.take(a, index, axis=0)


# -- helpers ----------------------------------------------------------------------------------------------


def _rows(a: Operand) -> int:
    array = asarray(a)
    if not array.ndim:
        raise InputError(f"choice draws from the numbers below an int, or from an array's entries, not {array.type}")
    return array.shape[0]


def _key(value: Operand) -> Array:
    array = asarray(value)
    if array.type.dtype is not U32 or array.shape != (2,):
        raise InputError(f"a random key is uint32[2], got {array.type}", next_step="Make one: mesh.random.key(seed)")
    return array


def _tagged(value: Operand, tag: int) -> Array:
    return _key(value) ^ value_array(np.array([tag, 0], np.uint32))


def _words(key: Array, shape: tuple[int, ...]) -> Array:
    return apply("random_bits", key, shape=shape)


def _float(dtype: DTypeLike) -> DType:
    kind = to_dtype(dtype)
    if kind.kind != "f":
        raise DTypeError(f"random numbers of this distribution have a float dtype, got {kind.name}")
    return kind


def _wide_floats(value: Operand) -> list[Array]:
    """One array of floats, float32 at least: what decides a draw has all its bits, whatever the probabilities have."""
    return [cast(array, reductions.wide_dtype(array.type.dtype)) for array in floats(value)]


def _unit(key: Operand, shape: tuple[int, ...], kind: DType) -> Array:
    """Multiples of 2^-bits in [0, 1), as many bits as the dtype has."""
    if kind is F64:
        return cast(bits(key, shape, U64) >> 11, F64) * 2.0**-53
    width = _MANTISSA[kind.name]
    return cast(cast(_words(_key(key), shape) >> (32 - width), F32) * 2.0**-width, kind)


def _symmetric(key: Operand, shape: tuple[int, ...], kind: DType) -> Array:
    """Draws from (-1, 1), symmetric, without its ends; f64, or f32 for everything narrower."""
    if kind is F64:
        return (cast(bits(key, shape, U64) >> 12, F64) - 2.0**51 + 0.5) * 2.0**-51
    return (cast(_words(_key(key), shape) >> 8, F32) - 2.0**23 + 0.5) * 2.0**-23


def _open_unit(key: Operand, shape: tuple[int, ...], kind: DType) -> Array:
    """Draws from (0, 1) without its ends, to which numbers may be rounded; f64, or f32 for everything narrower."""
    last = 1 - (2.0**-53 if kind is F64 else 2.0**-24)
    return elementwise.minimum(0.5 * _symmetric(key, shape, kind) + 0.5, last)


def _of_tail(unit: Array, lower: float, upper: float) -> Array:
    """Normal numbers in a tail, [lower, upper], by draws from (0, 1): where the probability of what is above has fallen
    by a part of what it falls by from bound to bound.

    erf is 1 there, to a dtype's precision, so the logarithm of what is left is inverted, by Newton's method: beyond
    `lower` by d it has fallen by lower d + d d / 2, less what the logarithm of the scaled erfc has grown by, which is
    little.
    """
    from .special import log_scaled_erfc  # which is made of this file's functions

    falls = math.inf
    if upper < math.inf:
        falls = (upper - lower) * (upper + lower) / 2 - (_log_scaled_tail(upper) - _log_scaled_tail(lower))
    fallen = -elementwise.log1p(unit * math.expm1(-falls))
    beyond = 2 * fallen / (lower + elementwise.sqrt(lower * lower + 2 * fallen))
    for _ in range(TAIL_STEPS):
        there = log_scaled_erfc((lower + beyond) / math.sqrt(2))
        slope = math.sqrt(2 / math.pi) * elementwise.exp(-there)
        now = beyond * (lower + 0.5 * beyond) - (there - _log_scaled_tail(lower))
        beyond = beyond - (now - fallen) / slope
    return lower + beyond


def _log_scaled_tail(x: float) -> float:
    """`special.log_scaled_erfc` of x / sqrt(2)."""
    if x < FAR:
        return math.log(math.erfc(x / math.sqrt(2))) + x * x / 2
    return math.log(math.sqrt(2 / math.pi) / x) + math.log1p(-(x**-2) + 3 * x**-4 - 15 * x**-6)


def _inside(lower: float, upper: float, kind: DType) -> tuple[float, float]:
    """The least and the greatest number of a dtype in [lower, upper], or what is nearest to the bounds."""
    number = kind.numpy.type
    with np.errstate(over="ignore"):  # bounds beyond the dtype
        ends = [number(bound) for bound in (lower, upper)]
        low = np.nextafter(ends[0], number(math.inf)) if float(ends[0]) < lower else ends[0]
        high = np.nextafter(ends[1], number(-math.inf)) if float(ends[1]) > upper else ends[1]
    return (float(low), float(high)) if low <= high else (float(ends[0]), float(ends[1]))


def _below(pair: Array, span: int) -> Array:
    """floor(fraction * span) of the fractions that are pairs of words, in words: those of 32 bits, for every engine, or
    of 64 bits for a wide span."""
    high, low = pair[..., 0], pair[..., 1]
    carried = high * scalar(span, pair.type.dtype) + _high_word(low, span)
    return _high_word(high, span) + cast(carried < _high_word(low, span), pair.type.dtype)


def _high_word(x: Array, by: int) -> Array:
    """The upper word of the two of x * by, by the school's method on halves."""
    word = x.type.dtype
    half = 4 * word.itemsize  # bits
    halves = (1 << half) - 1
    upper, lower = scalar(by >> half, word), scalar(by & halves, word)
    first = (x >> half) * lower + (((x & halves) * lower) >> half)
    second = (x & halves) * upper + (first & halves)
    return (x >> half) * upper + (first >> half) + (second >> half)


def _order(key: Operand, size: int) -> Array:
    """A permutation as int32: positions sorted by random words, twice, which leaves ties of both too rare to matter."""
    halves = split(key)
    first, second = (apply("argsort", _words(halves[at], (size,)), axis=0) for at in (0, 1))
    return indexing.take(first, second, axis=0)


def erfinv(x: Array) -> Array:
    """The inverse of erf, for f32 and f64.

    M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2012), single precision; f64 adds two steps of
    Newton's method.
    """
    w = -elementwise.log1p(-x * x)
    near, far = _horner(w - 2.5, _NEAR), _horner(elementwise.sqrt(elementwise.maximum(w, 5.0)) - 3.0, _FAR)
    estimate = elementwise.where(w < 5.0, near, far) * x
    if x.type.dtype is not F64:
        return estimate
    for _ in range(2):
        slope = 2 / math.sqrt(math.pi) * elementwise.exp(-estimate * estimate)
        estimate = estimate - (elementwise.erf(estimate) - x) / slope
    return estimate


def _horner(x: Array, coefficients: tuple[float, ...]) -> Array:
    result: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        result = coefficient + result * x
    total: Array = result
    return total


# fmt: off
_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
         -0.00417768164, 0.246640727, 1.50140941)
_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682)
# fmt: on
