"""Primitives that take elements apart: arithmetic, comparison, conversion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wire.errors import Unsupported
from wire.ir.dtypes import BF16, BOOL, F16, F32, F64, DType, dtype_of

from ... import numpy as mnp
from ...core.array import Array, apply, literal
from ...numpy import special
from ...numpy.promotion import cast
from .rows import Equation, Row


def _op(name: str) -> Row:
    return lambda equation, *operands: apply(name, *operands)


def _fn(function: Callable[..., Array]) -> Row:
    return lambda equation, *operands: function(*operands)


def _integer_pow(equation: Equation, x: Array) -> Array:
    """An integer power by repeated squaring, as XLA does it."""
    exponent = equation["y"]
    if exponent == 0:
        return mnp.ones_like(x)
    power, square, left = None, x, abs(exponent)
    while left:
        if left & 1:
            power = square if power is None else power * square
        left >>= 1
        square = square * square if left else square
    assert power is not None
    return 1 / power if exponent < 0 else power


def _div(equation: Equation, x: Array, y: Array) -> Array:
    """Integers are divided towards zero, and by zero to what has all bits set; ours are rounded down, and by zero 0."""
    quotient = apply("div", x, y)
    if x.type.dtype.kind not in "iu":
        return quotient
    if x.type.dtype.kind == "i":
        quotient = quotient + cast(_turned_down(x, y, apply("rem", x, y)), x.type.dtype)
    return mnp.where(y == 0, ~mnp.zeros_like(y), quotient) if _may_be_zero(y) else quotient


def _rem(equation: Equation, x: Array, y: Array) -> Array:
    """The remainder with the sign of the dividend; ours has that of the divisor.  By zero it is the dividend, not 0."""
    if x.type.dtype.kind == "f":
        size = apply("rem", mnp.abs(x), mnp.abs(y))
        return mnp.copysign(size, x)
    rest = apply("rem", x, y)
    rest = rest if x.type.dtype.kind == "u" else mnp.where(_turned_down(x, y, rest), rest - y, rest)
    return mnp.where(y == 0, x, rest) if _may_be_zero(y) else rest


def _may_be_zero(y: Array) -> bool:
    return y.tensor.value is None or not y.tensor.value.all()


def _turned_down(x: Array, y: Array, rest: Array) -> Array:
    """Whether a quotient of integers was rounded away from zero.  Their sizes would not tell: the lowest has none."""
    return ((x < 0) != (y < 0)) & (rest != 0)


def _pow(equation: Equation, x: Array, y: Array) -> Array:
    return apply("pow", x, cast(y, x.type.dtype))


def _logistic(equation: Equation, x: Array) -> Array:
    return apply("recip", 1 + mnp.exp(-x))


def _extreme(op: str, of_bools: str) -> Row:
    return lambda equation, x, y: apply(of_bools if x.type.dtype is BOOL else op, x, y)


def _clamp(equation: Equation, low: Array, x: Array, high: Array) -> Array:
    return apply("min", apply("max", x, low), high)


def _select_n(equation: Equation, which: Array, *cases: Array) -> Array:
    if which.type.dtype is BOOL:
        return mnp.where(which, cases[1], cases[0])
    chosen = cases[0]
    for place, case in enumerate(cases[1:], 1):
        chosen = mnp.where(which == place, case, chosen)
    return chosen


def _convert(equation: Equation, x: Array) -> Array:
    """Convert to another dtype; complex numbers that become real lose their imaginary part."""
    target = dtype_of(equation["new_dtype"])
    return cast(x if target.kind in "bc" else mnp.real(x), target)


def _bitcast(equation: Equation, x: Array) -> Array:
    return apply("bitcast", x, dtype=dtype_of(equation["new_dtype"]).name)


def _round(equation: Equation, x: Array) -> Array:
    if int(equation["rounding_method"]) == 1:  # to even
        return mnp.round(x)
    whole = mnp.trunc(x)  # away from zero; x plus a half is rounded itself
    return mnp.where(mnp.abs(x - whole) >= 0.5, whole + mnp.sign(x), whole)


def _reduce_precision(equation: Equation, x: Array) -> Array:
    """Rounding to a float of other widths, where it is one that exists."""
    widths = (equation["exponent_bits"], equation["mantissa_bits"])
    if widths not in FLOATS:
        raise Unsupported(f"rounding to floats of {widths} bits", op="reduce_precision")
    return cast(cast(x, FLOATS[widths]), x.type.dtype)


FLOATS = {(5, 10): F16, (8, 7): BF16, (8, 23): F32, (11, 52): F64}  # bits of exponent and mantissa


def _shift_logical(equation: Equation, x: Array, by: Array) -> Array:
    """Zeros come in from the left."""
    kind = x.type.dtype
    unsigned = dtype_of(np.dtype(f"uint{kind.itemsize * 8}"))
    moved = apply("shr", _bits(x, unsigned), _bits(by, unsigned))
    return apply("bitcast", moved, dtype=kind.name) if kind.kind == "i" else moved


def _shift_arithmetic(equation: Equation, x: Array, by: Array) -> Array:
    """The highest bit comes in from the left, also where it is no sign."""
    kind = x.type.dtype
    signed = dtype_of(np.dtype(f"int{kind.itemsize * 8}"))
    return apply("bitcast", apply("shr", _bits(x, signed), _bits(by, signed)), dtype=kind.name)


def _bits(x: Array, kind: DType) -> Array:
    return x if x.type.dtype is kind else apply("bitcast", x, dtype=kind.name)


def _total(strict: bool) -> Row:
    """Less, or not more, in the total order of floats: NaN is above all, and 0.0 above -0.0."""

    def row(equation: Equation, x: Array, y: Array) -> Array:
        if x.type.dtype.kind != "f":
            return apply("lt" if strict else "le", x, y)
        left, right = _ordered(x), _ordered(y)
        return apply("lt" if strict else "le", left, right)

    return row


def _ordered(x: Array) -> Array:
    """Integers in the order of the floats."""
    kind = dtype_of(np.dtype(f"int{x.type.dtype.itemsize * 8}"))
    clean = mnp.where(mnp.isnan(x), mnp.nan, x)
    bits = apply("bitcast", clean, dtype=kind.name)
    return mnp.where(bits < 0, bits ^ np.iinfo(kind.numpy).max, bits)


def _zero_like(equation: Equation, *operands: Array) -> Array:
    return literal(0, equation.type.dtype)


ROWS: dict[str, Row] = {
    "abs": _op("abs"),
    "acos": _fn(mnp.acos),
    "acosh": _fn(mnp.acosh),
    "add": _op("add"),
    "add_any": _op("add"),
    "and": _op("and"),
    "asin": _fn(mnp.asin),
    "asinh": _fn(mnp.asinh),
    "atan": _fn(mnp.atan),
    "atan2": _op("atan2"),
    "atanh": _fn(mnp.atanh),
    "bitcast_convert_type": _bitcast,
    "cbrt": _fn(special.cbrt),
    "ceil": _fn(mnp.ceil),
    "clamp": _clamp,
    "convert_element_type": _convert,
    "copy": lambda equation, x: x,
    "copy_p": lambda equation, x: x,
    "cos": _op("cos"),
    "cosh": _fn(mnp.cosh),
    "div": _div,
    "eq": _op("eq"),
    "erf": _op("erf"),
    "erf_inv": _fn(special.erfinv),
    "erfc": _fn(special.erfc),
    "exp": _op("exp"),
    "exp2": _fn(mnp.exp2),
    "expm1": _fn(mnp.expm1),
    "floor": _op("floor"),
    "ge": _op("ge"),
    "gt": _op("gt"),
    "integer_pow": _integer_pow,
    "is_finite": _fn(mnp.isfinite),
    "le": _op("le"),
    "le_to": _total(False),
    "lgamma": _fn(special.lgamma),
    "log": _op("log"),
    "log1p": _fn(mnp.log1p),
    "logistic": _logistic,
    "lt": _op("lt"),
    "lt_to": _total(True),
    "max": _extreme("max", "or"),
    "min": _extreme("min", "and"),
    "mul": _op("mul"),
    "ne": _op("ne"),
    "neg": _op("neg"),
    "nextafter": _fn(mnp.nextafter),
    "not": _op("not"),
    "optimization_barrier": lambda equation, *xs: list(xs),
    "one_minus_square": lambda equation, x: 1 - x * x,
    "or": _op("or"),
    "pow": _pow,
    "reduce_precision": _reduce_precision,
    "rem": _rem,
    "round": _round,
    "rsqrt": lambda equation, x: apply("recip", apply("sqrt", x)),
    "select_n": _select_n,
    "shift_left": lambda equation, x, by: apply("shl", x, by),
    "shift_right_arithmetic": _shift_arithmetic,
    "shift_right_logical": _shift_logical,
    "sign": lambda equation, x: mnp.where(x == 0, x, mnp.sign(x)),  # of -0.0 it is -0.0
    "sin": _op("sin"),
    "sinh": _fn(mnp.sinh),
    "sqrt": _op("sqrt"),
    "square": lambda equation, x: x * x,
    "stop_gradient": lambda equation, x: x,
    "sub": _fn(mnp.subtract),
    "tan": _op("tan"),
    "tanh": _op("tanh"),
    "xor": _op("xor"),
    "zeros_like": _zero_like,
}
