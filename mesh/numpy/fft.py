"""The standard's extension `fft`: discrete Fourier transforms of arrays along axes.

    mnp.fft.rfft(x, axis=-1)

All are made of the op table's `fft`, which is of complex numbers along one axis: what is real is made complex, or
mirrored, around it.  Real input of float64 gives complex128, everything else complex64.  Transforms run on cpu workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wire.errors import InputError
from wire.ir.dtypes import C64, C128, F32, F64, I32

from ..core.array import Array, DTypeLike, Operand, apply
from ..core.array_api_device import DeviceLike, check_device
from ..util.annotation_checks import checked
from ..util.units import counted
from . import complexes, elementwise, manipulation, padding
from .promotion import asarray, cast, floats, inexact, to_dtype
from .reductions import normal_axes, normal_axis

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Axes = Sequence[int] | None
Sizes = Sequence[int] | None


@checked
def fft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """The transform along `axis`, of which `n` elements are taken (zeros are added where there are fewer).

    `norm` says which direction is divided: "backward" the inverse by n, "forward" this one, "ortho" both by sqrt(n).
    """
    return _along(_complex(x), n, axis, norm, inverse=False)


@checked
def ifft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """What `fft` makes x of."""
    return _along(_complex(x), n, axis, norm, inverse=True)


@checked
def fftn(x: Operand, s: Sizes = None, axes: Axes = None, norm: str | None = "backward") -> Array:
    """`fft` along several axes, of sizes `s`: all axes, or as many of the last as there are sizes, if not given."""
    return _over(_complex(x), s, axes, norm, inverse=False)


@checked
def ifftn(x: Operand, s: Sizes = None, axes: Axes = None, norm: str | None = "backward") -> Array:
    """What `fftn` makes x of."""
    return _over(_complex(x), s, axes, norm, inverse=True)


@checked
def rfft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """`fft` of real numbers: the first n // 2 + 1 elements, of which the others are the conjugate mirror."""
    (array,) = floats(x)
    spectrum = _along(_complex(array), n, axis, norm, inverse=False)
    place = normal_axis(axis, array.ndim)
    size = spectrum.shape[place] // 2 + 1
    return _sized(spectrum, size, place)


@checked
def irfft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """The n real numbers of which `rfft` gives x; an even n, 2 * (m - 1) for m elements, if not given."""
    array = _complex(x)
    place = normal_axis(axis, array.ndim)
    count = _count(2 * (array.shape[place] - 1) if n is None else n)
    half = manipulation.moveaxis(_sized(array, count // 2 + 1, place), place, -1)
    mirrored = complexes.conj(manipulation.flip(half[..., 1 : (count + 1) // 2], -1))
    whole = manipulation.moveaxis(manipulation.concat([half, mirrored], -1), -1, place)
    return complexes.real(_along(whole, count, place, norm, inverse=True))


@checked
def rfftn(x: Operand, s: Sizes = None, axes: Axes = None, norm: str | None = "backward") -> Array:
    """`rfft` along the last of several axes, then `fft` along the others."""
    (array,) = floats(x)
    places, sizes = _some_places(array, s, axes)
    spectrum = rfft(array, sizes[-1], places[-1], norm)
    return _over(spectrum, sizes[:-1], places[:-1], norm, inverse=False)


@checked
def irfftn(x: Operand, s: Sizes = None, axes: Axes = None, norm: str | None = "backward") -> Array:
    """The real numbers of which `rfftn` gives x; an even number along the last axis if not given."""
    array = _complex(x)
    places, sizes = _some_places(array, s, axes)
    partial = _over(array, sizes[:-1], places[:-1], norm, inverse=True)
    return irfft(partial, None if s is None else sizes[-1], places[-1], norm)


@checked
def hfft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """The n real numbers that are the transform of the signal whose first half x is, the other being its mirror."""
    return irfft(complexes.conj(_complex(x)), n, axis, _OTHER[_check_norm(norm)])


@checked
def ihfft(x: Operand, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
    """The first half of what `hfft` gives real x of."""
    return complexes.conj(rfft(x, n, axis, _OTHER[_check_norm(norm)]))


@checked
def fft2(x: Operand, s: Sizes = None, axes: Axes = (-2, -1), norm: str | None = "backward") -> Array:
    """`fftn` along the last two axes."""
    return fftn(x, s, axes, norm)


@checked
def ifft2(x: Operand, s: Sizes = None, axes: Axes = (-2, -1), norm: str | None = "backward") -> Array:
    """`ifftn` along the last two axes."""
    return ifftn(x, s, axes, norm)


@checked
def rfft2(x: Operand, s: Sizes = None, axes: Axes = (-2, -1), norm: str | None = "backward") -> Array:
    """`rfftn` along the last two axes."""
    return rfftn(x, s, axes, norm)


@checked
def irfft2(x: Operand, s: Sizes = None, axes: Axes = (-2, -1), norm: str | None = "backward") -> Array:
    """`irfftn` along the last two axes."""
    return irfftn(x, s, axes, norm)


@checked
def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Array:
    """The frequency of each element of a transform of n samples that are `d` apart, float32 by default."""
    count = _count(n)
    steps = apply("iota", shape=(count,), dtype=I32.name, axis=0)
    turns = elementwise.where(elementwise.less(steps, (count + 1) // 2), steps, elementwise.subtract(steps, count))
    return _per_length(turns, count * d, dtype, device)


@checked
def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Array:
    """`fftfreq` for `rfft`, none below 0."""
    steps = apply("iota", shape=(_count(n) // 2 + 1,), dtype=I32.name, axis=0)
    return _per_length(steps, n * d, dtype, device)


def fftshift(x: Operand, axes: int | Axes = None) -> Array:
    """x with frequency 0 in the middle of the axes (all if None)."""
    return _shifted(asarray(x), axes, lambda dim: dim // 2)


def ifftshift(x: Operand, axes: int | Axes = None) -> Array:
    """What `fftshift` makes x of."""
    return _shifted(asarray(x), axes, lambda dim: -(dim // 2))


# -- helpers ----------------------------------------------------------------------------------------------

_OTHER = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _check_norm(norm: str | None) -> str:
    if norm is None:
        return "backward"
    if norm not in _OTHER:
        raise InputError(f"norm is 'backward', 'ortho' or 'forward', got {norm!r}")
    return norm


def _count(n: int) -> int:
    if n < 1:
        raise InputError(f"a transform has one element or more, got {n}")
    return n


def _complex(x: Operand) -> Array:
    (array,) = inexact(x)
    if array.type.dtype.kind == "c":
        return array
    return cast(array, C128 if array.type.dtype is F64 else C64)


def _along(x: Array, n: int | None, axis: int, norm: str | None, inverse: bool) -> Array:
    place = normal_axis(axis, x.ndim)
    count = _count(x.shape[place] if n is None else n)
    spectrum = apply("fft", _sized(x, count, place), axis=place, inverse=int(inverse))
    wanted = {"backward": count if inverse else 1, "forward": 1 if inverse else count, "ortho": math.sqrt(count)}
    scale = (count if inverse else 1) / wanted[_check_norm(norm)]  # the inverse has been divided
    return spectrum if scale == 1 else elementwise.multiply(spectrum, scale)


def _over(x: Array, s: Sizes, axes: Axes, norm: str | None, inverse: bool) -> Array:
    places, sizes = _places(x, s, axes)
    for place, size in zip(reversed(places), reversed(sizes), strict=True):
        x = _along(x, size, place, norm, inverse)
    return x


def _places(x: Array, s: Sizes, axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes, and as many sizes."""
    if axes is None and s is not None:
        axes = range(-len(s), 0)
    places = normal_axes(axes, x.ndim)
    if s is None:
        return places, tuple([x.shape[place] for place in places])
    if len(s) != len(places):
        raise InputError(f"{counted(len(s), 'size')} for {len(places)} axes")
    return places, tuple([x.shape[place] if size == -1 else size for size, place in zip(s, places, strict=True)])


def _some_places(x: Array, s: Sizes, axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chosen = _places(x, s, axes)
    if not chosen[0]:
        raise InputError("a transform of real numbers is along one axis or more")
    return chosen


def _sized(x: Array, size: int, axis: int) -> Array:
    """The first `size` elements along an axis, zeros behind them where there are fewer."""
    dim = x.shape[axis]
    if size < dim:
        return x[(slice(None),) * axis + (slice(size),)]
    return x if size == dim else padding.pad(x, [(0, size - dim if at == axis else 0) for at in range(x.ndim)])


def _per_length(steps: Array, length: float, dtype: DTypeLike, device: DeviceLike) -> Array:
    check_device(device)
    return elementwise.divide(cast(steps, F32 if dtype is None else to_dtype(dtype)), length)


def _shifted(x: Array, axes: int | Axes, by: Any) -> Array:
    places = normal_axes(axes, x.ndim)
    return manipulation.roll(x, tuple([by(x.shape[place]) for place in places]), places)
