"""Functions of the error integral and of the gamma function that importers need; halves are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from wire.ir.dtypes import BF16, F16, F32, F64

from ..core.array import Array
from . import elementwise, random
from .creation import full_like
from .promotion import cast, floats


def _wide(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function, computed in float32 for halves, and of integers in float32."""

    @wraps(function)
    def computed(x: Array) -> Array:
        (x,) = floats(x)
        narrow = x.type.dtype in (F16, BF16)
        return cast(function(cast(x, F32)), x.type.dtype) if narrow else function(x)

    return computed


@_wide
def erfc(x: Array) -> Array:
    """1 - erf(x), which stays exact where erf(x) is nearly 1."""
    size = elementwise.abs(x)
    t, rest = _tail_of(size)
    tail = t * elementwise.exp(-size * size + rest)
    return elementwise.where(x < 0, 2 - tail, tail)


def log_scaled_erfc(x: Array) -> Array:
    """log(erfc(x)) + x * x, for f32 and f64 that are not below 0."""
    t, rest = _tail_of(x)
    return elementwise.log(t) + rest


def _tail_of(x: Array) -> tuple[Array, Array]:
    """t and y with erfc(x) = t exp(y - x * x), for x that are not below 0.

    The logarithm of erfc is nearly a parabola; what is left is a series of Chebyshev polynomials of t = 2 / (2 + x):
    Press et al., Numerical Recipes, third edition, 6.2.2.
    """
    t = 2 / (2 + x)
    place, last, before = 4 * t - 2, full_like(x, 0), full_like(x, 0)
    terms = _ERFC if x.type.dtype is F64 else _ERFC[:_SINGLE]
    for coefficient in reversed(terms[1:]):
        last, before = place * last - before + coefficient, last
    return t, 0.5 * (terms[0] + place * last) - before


@_wide
def erfinv(x: Array) -> Array:
    """The inverse of erf, infinite at -1 and 1."""
    return elementwise.where(elementwise.abs(x) == 1, x * math.inf, random.erfinv(x))


@_wide
@elementwise.with_slope("cbrt")
def cbrt(x: Array) -> Array:
    """The real third root."""
    return elementwise.copysign(elementwise.pow(elementwise.abs(x), 1 / 3), x)


@_wide
def lgamma(x: Array) -> Array:
    """The logarithm of |gamma(x)|, infinite at 0, -1, -2 and so on, and at both ends.

    Lanczos, g = 7 and nine coefficients, with the reflection below a half.
    """
    small = x < 0.5
    z = elementwise.where(small, -x, x - 1)
    total = full_like(z, _LANCZOS[0])
    for place, coefficient in enumerate(_LANCZOS[1:], 1):
        total = total + coefficient / (z + place)
    t = z + 7.5
    value = (z + 0.5) * elementwise.log(t) - t + math.log(math.sqrt(2 * math.pi)) + elementwise.log(total)
    apart = elementwise.abs(x - elementwise.round(x))  # from the next integer, so that the sine of one is 0
    reflected = math.log(math.pi) - elementwise.log(elementwise.sin(math.pi * apart)) - value
    return elementwise.where(elementwise.isinf(x), math.inf, elementwise.where(small, reflected, value))


_SINGLE = 15  # terms that float32 tells apart
_ERFC = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6,
    1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10, 9.6467911e-11,
    2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15, -1.523e-15, -9.4e-17,
    1.21e-16, -2.8e-17,
)  # fmt: skip
_LANCZOS = (
    0.99999999999980993227684700473478, 676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354, 12.507343278686904814458936853,
    -0.13857109526572011689554707, 9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
