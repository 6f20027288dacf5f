"""Slopes of the elementwise ops: for each operand, `(g, z, *operands)` to g times the partial derivative of z.

Both directions use them: a cotangent g of the result gives the operand's, a tangent g of the operand gives the
result's.  None is a derivative that is zero wherever there is one, and that of operands without derivatives.

Of complex numbers vjp is the transpose of jvp without conjugation, as JAX has it: both give the same Re(cotangent *
tangent).  So what has a complex derivative has one slope for both; `real`, `imag`, `complex` and `abs`, without one,
see by the dtype of g which way they are asked.

At the kinks: abs has slope 0 at 0; max and min share equally between equal operands; floor, round and sign are flat.
Rows are written with `mesh.numpy`, so they have derivatives themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .. import numpy as mnp
from ..core.array import Array, apply
from ..numpy.promotion import like

Slope = Callable[..., Array] | None


def choose(condition: Array, chosen: Array, other: Array) -> Array:
    """The op table's select; `mnp.where` would take a float condition otherwise."""
    return apply("select", condition, chosen, other)


def zero_like(array: Array) -> Array:
    """The number 0 in the dtype of `array`, without its shape."""
    return like(0, array)


def _pow_base(g: Array, z: Array, x: Array, y: Array) -> Array:
    exponent = _number(y)
    if exponent is None:
        unknown = mnp.logical_and(mnp.equal(y, 0), mnp.equal(x, 0))  # 0 * x**-1 is not a number at x = 0
        return g * (y * mnp.pow(choose(unknown, like(1, x), x), y - 1))  # y has a derivative of this at 0, too
    if exponent == 0:
        return mnp.zeros_like(z)
    return g * (exponent * mnp.pow(x, exponent - 1 if exponent != 1 else 0.0))


def _pow_exponent(g: Array, z: Array, x: Array, y: Array) -> Array:
    base = choose(mnp.equal(x, 0), like(1, x), x)  # 0**y stays 0 around y > 0
    return g * (z * mnp.log(base))


def _number(array: Array) -> complex | None:
    """The one number that a constant is full of."""
    value = array.value
    return value.reshape(()).item() if value is not None and value.size == 1 else None


def _is_complex(array: Array) -> bool:
    return array.type.dtype.kind == "c"


def _of_zero(array: Array) -> Array:
    """Zeros like `array`, which broadcast."""
    return apply("broadcast", zero_like(array), shape=array.shape)


def _real(g: Array, z: Array, x: Array) -> Array:
    return apply("real", g) if _is_complex(g) else apply("complex", g, _of_zero(g))


def _imag(g: Array, z: Array, x: Array) -> Array:
    return apply("imag", g) if _is_complex(g) else apply("complex", _of_zero(g), -g)


def _complex_real(g: Array, z: Array, x: Array, y: Array) -> Array:
    return apply("real", g) if _is_complex(g) else apply("complex", g, _of_zero(g))


def _complex_imag(g: Array, z: Array, x: Array, y: Array) -> Array:
    return -apply("imag", g) if _is_complex(g) else apply("complex", _of_zero(g), g)


def _abs(g: Array, z: Array, x: Array) -> Array:
    towards = mnp.sign(x)
    if not _is_complex(x):
        return g * towards
    a, b = apply("real", towards), apply("imag", towards)
    return apply("real", g) * a + apply("imag", g) * b if _is_complex(g) else apply("complex", g * a, -(g * b))


def _larger(g: Array, z: Array, x: Array, y: Array) -> Array:
    return choose(mnp.greater(x, y), g, choose(mnp.equal(x, y), g * 0.5, zero_like(g)))


def _smaller(g: Array, z: Array, x: Array, y: Array) -> Array:
    return choose(mnp.less(x, y), g, choose(mnp.equal(x, y), g * 0.5, zero_like(g)))


NONE: tuple[Slope, ...] = (None,)
NONE_OF_TWO: tuple[Slope, ...] = (None, None)

SLOPES: dict[str, tuple[Slope, ...]] = {
    "neg": (lambda g, z, x: -g,),
    "recip": (lambda g, z, x: -g * (z * z),),
    "sqrt": (lambda g, z, x: g * 0.5 / z,),
    "sin": (lambda g, z, x: g * mnp.cos(x),),
    "cos": (lambda g, z, x: -g * mnp.sin(x),),
    "tan": (lambda g, z, x: g * (1 + z * z),),
    "exp": (lambda g, z, x: g * z,),
    "exp2": (lambda g, z, x: g * (z * math.log(2)),),
    "expm1": (lambda g, z, x: g * (z + 1),),
    "log": (lambda g, z, x: g / x,),
    "log2": (lambda g, z, x: g / (x * math.log(2)),),
    "log1p": (lambda g, z, x: g / (x + 1),),
    "tanh": (lambda g, z, x: g * (1 - z * z),),
    "erf": (lambda g, z, x: g * (mnp.exp(-x * x) * (2 / math.sqrt(math.pi))),),
    "abs": (_abs,),
    "real": (_real,),
    "imag": (_imag,),
    "complex": (_complex_real, _complex_imag),
    **dict.fromkeys(("floor", "round", "sign", "not", "is_nan", "bitcast"), NONE),
    "add": (lambda g, z, x, y: g, lambda g, z, x, y: g),
    "mul": (lambda g, z, x, y: g * y, lambda g, z, x, y: g * x),
    "div": (lambda g, z, x, y: g / y, lambda g, z, x, y: -(g / y) * z),
    "rem": (lambda g, z, x, y: g, lambda g, z, x, y: g * mnp.round((z - x) / y)),
    "atan2": (lambda g, z, y, x: g * x / (x * x + y * y), lambda g, z, y, x: -g * y / (x * x + y * y)),
    "pow": (_pow_base, _pow_exponent),
    "max": (_larger, lambda g, z, x, y: _larger(g, z, y, x)),
    "min": (_smaller, lambda g, z, x, y: _smaller(g, z, y, x)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "shl", "shr"), NONE_OF_TWO),
    "select": (
        None,
        lambda g, z, c, x, y: choose(c, g, zero_like(g)),
        lambda g, z, c, x, y: choose(c, zero_like(g), g),
    ),
}
