"""Complex numbers: their parts, and what elementwise functions are of them where no op of the table does it.

The functions of one Array that stand in `elementwise.py` under the same name are called from there for complex arrays.
Branch cuts and signed zeros are the standard's (C99's); the inverse functions are W. Kahan's, "Branch cuts for complex
elementary functions, or much ado about nothing's sign bit" (1987), which take square roots before they multiply and so
neither overflow nor cancel.  To add one: a function here, and the mark `of_complex` on the one in `elementwise.py`.
"""

from __future__ import annotations

import math

from ..core.array import Array, Operand, apply, renamed
from ..util.annotation_checks import checked
from . import elementwise
from .promotion import asarray, inexact, operands, scalar


def real(x: Operand) -> Array:
    """The real part; x itself where it is real."""
    (array,) = operands(x)
    return apply("real", array) if array.type.dtype.kind == "c" else renamed(array)


def imag(x: Operand) -> Array:
    """The imaginary part; zeros where x is real."""
    (array,) = operands(x)
    if array.type.dtype.kind == "c":
        return apply("imag", array)
    return apply("broadcast", scalar(0, array.type.dtype, array.weak), shape=array.type.shape)


def conj(x: Operand) -> Array:
    """x with its imaginary part negated; x itself where it is real."""
    (array,) = operands(x)
    if array.type.dtype.kind != "c":
        return renamed(array)
    return _complex(apply("real", array), apply("neg", apply("imag", array)))


@checked
def angle(x: Operand, deg: bool = False) -> Array:
    """The angle of x in the complex plane, in (-pi, pi], or in degrees; 0 or pi of real numbers."""
    (array,) = inexact(x)
    radians = elementwise.atan2(imag(array), real(array))
    return elementwise.multiply(radians, 180 / math.pi) if deg else radians


def iscomplexobj(x: Operand) -> bool:
    """Whether x has a complex dtype."""
    return asarray(x).type.dtype.kind == "c"


def isrealobj(x: Operand) -> bool:
    """Whether x has a dtype that is not complex."""
    return not iscomplexobj(x)


def iscomplex(x: Operand) -> Array:
    """True where the imaginary part is not 0."""
    return elementwise.not_equal(imag(x), 0)


def isreal(x: Operand) -> Array:
    """True where the imaginary part is 0."""
    return elementwise.equal(imag(x), 0)


# -- of complex arrays, for elementwise.py ----------------------------------------------------------------


def sign(z: Array) -> Array:
    """z / |z|, 0 at 0."""
    large = isinf(z)
    ends = [elementwise.where(elementwise.isinf(x), elementwise.copysign(1, x), x * 0) for x in _parts(z)]
    near = elementwise.where(large, _complex(*ends), z)
    size = elementwise.abs(near)
    whole = elementwise.where(elementwise.equal(size, 0), 1, size)
    return _complex(*(elementwise.divide(part, whole) for part in _parts(near)))


def squared_size(z: Array) -> Array:
    """|z| squared, without its root."""
    return elementwise.add(*(elementwise.square(part) for part in _parts(z)))


def isinf(z: Array) -> Array:
    return elementwise.logical_or(*(elementwise.isinf(part) for part in _parts(z)))


def isfinite(z: Array) -> Array:
    return elementwise.logical_and(*(elementwise.isfinite(part) for part in _parts(z)))


def exp2(z: Array) -> Array:
    return elementwise.exp(_scaled(z, math.log(2)))


def expm1(z: Array) -> Array:
    x, y = _parts(z)
    small = elementwise.less(elementwise.abs(x), 0.5)  # elsewhere exp(z) is far from 1
    near = elementwise.where(small, x, 0)
    half = elementwise.sin(elementwise.multiply(y, 0.5))
    x_near = elementwise.subtract(
        elementwise.multiply(elementwise.expm1(near), elementwise.cos(y)), elementwise.multiply(2, half * half)
    )
    y_near = elementwise.multiply(elementwise.exp(near), elementwise.sin(y))
    x_far, y_far = _parts(elementwise.exp(z))
    return _complex(elementwise.where(small, x_near, x_far - 1), elementwise.where(small, y_near, y_far))


def log1p(z: Array) -> Array:
    x, y = _parts(z)
    small = elementwise.less(elementwise.maximum(elementwise.abs(x), elementwise.abs(y)), 0.5)
    a, b = elementwise.where(small, x, 0), elementwise.where(small, y, 0)
    near = elementwise.multiply(elementwise.log1p(a * (a + 2) + b * b), 0.5)
    x_far, y_far = _parts(elementwise.log(_complex(x + 1, y)))
    return _complex(elementwise.where(small, near, x_far), y_far)


def log2(z: Array) -> Array:
    return _scaled(elementwise.log(z), 1 / math.log(2))


def log10(z: Array) -> Array:
    return _scaled(elementwise.log(z), 1 / math.log(10))


def sinh(z: Array) -> Array:
    return _over_i(elementwise.sin(_times_i(z)))


def cosh(z: Array) -> Array:
    x, y = _parts(z)
    real_part, imag_part = _parts(elementwise.cos(_times_i(z)))
    known = elementwise.logical_and(elementwise.isnan(x), elementwise.equal(y, 0))
    return _complex(real_part, elementwise.where(known, y, imag_part))


def acos(z: Array) -> Array:
    x, y = _parts(z)
    large, near = _beyond(z, _SQUARED)
    a, b, c, d = _roots_beside_one(near)
    far = elementwise.log(_complex(x, elementwise.unsigned(y)))
    return _either(
        large,
        (imag(far), -_doubled(far, y)),
        (_if_lost(z, math.pi / 2, elementwise.atan2(a, c) * 2), elementwise.asinh(c * b - d * a)),
    )


def asin(z: Array) -> Array:
    x, y = _parts(z)
    large, near = _beyond(z, _SQUARED)
    a, b, c, d = _roots_beside_one(near)
    far = elementwise.log(_complex(elementwise.unsigned(y), x))
    turn = elementwise.atan2(real(near), a * c - b * d)
    return _either(large, (imag(far), _doubled(far, y)), (_if_lost(z, x, turn), elementwise.asinh(a * d - b * c)))


def acosh(z: Array) -> Array:
    large, near = _beyond(z, _SQUARED)
    x, y = _parts(near)
    a, b = _parts(elementwise.sqrt(_complex(x - 1, y)))
    c, d = _parts(elementwise.sqrt(_complex(x + 1, y)))
    far = elementwise.log(z)
    return _either(
        large,
        (real(far) + math.log(2), imag(far)),
        (elementwise.asinh(a * c + b * d), _if_lost(z, math.pi / 2, elementwise.atan2(b, c) * 2)),
    )


def asinh(z: Array) -> Array:
    return _over_i(asin(_times_i(z)))


def atanh(z: Array) -> Array:
    x, y = _parts(z)
    large, near = _beyond(z, _INVERTED)
    a, b = elementwise.unsigned(real(near)), imag(near)
    grown = elementwise.log1p(a * 4 / ((1 - a) * (1 - a) + b * b)) * 0.25
    turn = elementwise.atan2(b * 2, (1 - a) * (1 + a) - b * b) * 0.5
    inverse = real(apply("recip", elementwise.where(large, z, 1)))
    shrunk = elementwise.where(isinf(z), 0, elementwise.unsigned(inverse))
    quarter = elementwise.where(elementwise.isnan(y), y, elementwise.copysign(math.pi / 2, y))
    return _either(
        large, (elementwise.copysign(shrunk, x), quarter), (_if_lost(z, x, elementwise.copysign(grown, x)), turn)
    )


def atan(z: Array) -> Array:
    return _over_i(atanh(_times_i(z)))


# -- helpers ----------------------------------------------------------------------------------------------

_SQUARED = 1e8  # beyond, z*z + 1 is z*z to the precision of f64
_INVERTED = 1e16  # beyond, atanh(z) is 1/z and a quarter turn


def _parts(z: Array) -> tuple[Array, Array]:
    return apply("real", z), apply("imag", z)


def _complex(x: Array, y: Array) -> Array:
    return apply("complex", *operands(x, y))


def _scaled(z: Array, factor: float) -> Array:
    """z by a real number, part by part: infinities times the 0 that a complex factor has would be NaN."""
    return _complex(*(elementwise.multiply(part, factor) for part in _parts(z)))


def _times_i(z: Array) -> Array:
    x, y = _parts(z)
    return _complex(apply("neg", y), x)


def _over_i(z: Array) -> Array:
    x, y = _parts(z)
    return _complex(y, apply("neg", x))


def _beyond(z: Array, bound: float) -> tuple[Array, Array]:
    """Mark where a part of z is beyond the bound, and put a half there: infinities too, which formulas make NaN."""
    far = [elementwise.greater(elementwise.abs(part), bound) for part in _parts(z)]
    large = elementwise.logical_or(*far)
    return large, elementwise.where(large, 0.5, z)


def _either(condition: Array, far: tuple[Array, Array], near: tuple[Array, Array]) -> Array:
    return _complex(*(elementwise.where(condition, one, other) for one, other in zip(far, near, strict=True)))


def _doubled(logarithm: Array, sign: Array) -> Array:
    """The logarithm of twice the size, with a sign."""
    return elementwise.copysign(real(logarithm) + math.log(2), sign)


def _if_lost(z: Array, known: Array | float, value: Array) -> Array:
    """`known` where the imaginary part is NaN and the real part 0, of which a part of the result is known."""
    x, y = _parts(z)
    return elementwise.where(elementwise.logical_and(elementwise.isnan(y), elementwise.equal(x, 0)), known, value)


def _roots_beside_one(z: Array) -> tuple[Array, Array, Array, Array]:
    """The parts of sqrt(1 - z) and of sqrt(1 + z)."""
    x, y = _parts(z)
    return (*_parts(elementwise.sqrt(_complex(1 - x, apply("neg", y)))), *_parts(elementwise.sqrt(_complex(1 + x, y))))
