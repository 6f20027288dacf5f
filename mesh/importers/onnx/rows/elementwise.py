"""Elementwise ops: arithmetic, comparison, logic, bits, activations, casts.

Integer division truncates towards zero in ONNX and floors in our table; both are made of each other here.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from wire.ir.dtypes import BOOL, BY_NAME, F32, F64, U8, DType

from .... import nn
from .... import numpy as mnp
from ....core.array import Array, apply
from ....numpy.promotion import cast, like
from ..evaluate import Call, Row
from ..program import ELEMENT_TYPES, element_name


def dtype_numbered(call: Call, number: int) -> DType:
    """The dtype with ONNX's number `number`; Unsupported if graphs have none."""
    name = ELEMENT_TYPES.get(number, ("", None))[1]
    if name is None or name not in BY_NAME:
        raise call.unsupported(f"the element type {element_name(number)}")
    return BY_NAME[name]


# -- older forms ------------------------------------------------------------------------------------------


def aligned(call: Call, a: Array, b: Array) -> tuple[Array, Array]:
    """Operands as numpy broadcasts them: before opset 7, `axis` said where b's dimensions stand in a."""
    axis = call.attr("axis")
    if call.version >= 7 or axis is None or not call.attr("broadcast", 0):
        return a, b
    first = axis % a.ndim if a.ndim else 0
    return a, mnp.reshape(b, (*b.shape, *[1] * (a.ndim - first - b.ndim)))


def _unary(function: Any) -> Row:
    return lambda call, x: function(x)


def _binary(function: Any) -> Row:
    return lambda call, a, b: function(*aligned(call, a, b))


def _variadic(function: Any) -> Row:
    return lambda call, *inputs: reduce(function, inputs)


# -- arithmetic -------------------------------------------------------------------------------------------


def _div(call: Call, a: Array, b: Array) -> Array:
    a, b = aligned(call, a, b)
    if a.type.dtype.kind == "f":
        return mnp.divide(a, b)
    floored = mnp.floor_divide(a, b)
    if a.type.dtype.kind == "u":
        return floored
    apart = mnp.less(mnp.bitwise_xor(a, b), 0)
    inexact = mnp.not_equal(mnp.remainder(a, b), 0)
    return mnp.add(floored, cast(mnp.logical_and(apart, inexact), a.type.dtype))


def _mod(call: Call, a: Array, b: Array) -> Array:
    if not call.attr("fmod", 0):
        return mnp.remainder(a, b)
    return mnp.fmod(a, b)


def _pow(call: Call, a: Array, b: Array) -> Array:
    a, b = aligned(call, a, b)
    kind = a.type.dtype
    if kind.kind == "f" or b.type.dtype.kind != "f":
        return mnp.pow(a, cast(b, kind))
    wide = F64 if kind.itemsize == 8 or b.type.dtype is F64 else F32
    grown = mnp.pow(cast(a, wide), cast(b, wide))
    nearest = mnp.round(grown)  # a power of integers is one, whatever the last bit of `pow` says
    exact = mnp.less_equal(mnp.abs(mnp.subtract(grown, nearest)), mnp.multiply(mnp.abs(nearest), 1e-6))
    return cast(mnp.where(exact, nearest, grown), kind)


def _mean(call: Call, *inputs: Array) -> Array:
    total = reduce(mnp.add, inputs)
    return mnp.divide(total, like(float(len(inputs)), total))


def _clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    least = low if low is not None else call.attr("min")
    most = high if high is not None else call.attr("max")
    return mnp.clip(x, None if least is None else like(least, x), None if most is None else like(most, x))


def _shift(call: Call, a: Array, b: Array) -> Array:
    left = call.required("direction") == "LEFT"
    return mnp.bitwise_left_shift(a, b) if left else mnp.bitwise_right_shift(a, b)


# -- tests ------------------------------------------------------------------------------------------------


def _is_inf(call: Call, x: Array) -> Array:
    positive, negative = call.attr("detect_positive", 1), call.attr("detect_negative", 1)
    if positive and negative:
        return mnp.isinf(x)
    if not positive and not negative:
        return mnp.zeros(x.shape, dtype=BOOL)
    return mnp.equal(x, math.inf if positive else -math.inf)


# -- activations ------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which needs no care: exp overflows to infinity, and 1 over that is 0."""
    return mnp.divide(1.0, mnp.add(1.0, mnp.exp(mnp.negative(x))))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return mnp.add(mnp.maximum(x, 0), mnp.log1p(mnp.exp(mnp.negative(mnp.abs(x)))))


def _positive_part(x: Array, negative: Array) -> Array:
    return mnp.where(mnp.less(x, 0), negative, x)


def _elu(call: Call, x: Array) -> Array:
    return _positive_part(x, mnp.multiply(mnp.expm1(x), call.attr("alpha", 1.0)))


def _selu(call: Call, x: Array) -> Array:
    alpha, gamma = call.attr("alpha", 1.67326319217681884765625), call.attr("gamma", 1.05070102214813232421875)
    return mnp.multiply(_positive_part(x, mnp.multiply(mnp.expm1(x), alpha)), gamma)


def _celu(call: Call, x: Array) -> Array:
    alpha = call.attr("alpha", 1.0)
    return _positive_part(x, mnp.multiply(mnp.expm1(mnp.divide(x, alpha)), alpha))


def _leaky_relu(call: Call, x: Array) -> Array:
    return _positive_part(x, mnp.multiply(x, call.attr("alpha", 0.01)))


def _prelu(call: Call, x: Array, slope: Array) -> Array:
    if call.version < 7 and slope.ndim == 1 and slope.shape[0] != 1:
        slope = mnp.reshape(slope, (*slope.shape, *[1] * (x.ndim - 2)))
    return _positive_part(x, mnp.multiply(x, slope))


def _thresholded_relu(call: Call, x: Array) -> Array:
    return mnp.where(mnp.greater(x, call.attr("alpha", 1.0)), x, like(0, x))


def _hard_sigmoid(call: Call, x: Array) -> Array:
    line = mnp.add(mnp.multiply(x, call.attr("alpha", 0.2)), call.attr("beta", 0.5))
    return mnp.clip(line, 0.0, 1.0)


def _gelu(call: Call, x: Array) -> Array:
    return nn.gelu(x, approximate=call.attr("approximate", "none") == "tanh")


def _shrink(call: Call, x: Array) -> Array:
    bound, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    if x.type.dtype.kind != "f":  # lambd and bias are floats whatever x is
        return cast(_shrunk(cast(x, F32), bound, bias), x.type.dtype)
    return _shrunk(x, bound, bias)


def _shrunk(x: Array, bound: float, bias: float) -> Array:
    inside = mnp.where(mnp.greater(x, bound), mnp.subtract(x, bias), like(0, x))
    return mnp.where(mnp.less(x, -bound), mnp.add(x, bias), inside)


def _swish(call: Call, x: Array) -> Array:
    alpha = call.attr("alpha", 1.0)
    return mnp.multiply(x, sigmoid(x if alpha == 1.0 else mnp.multiply(x, alpha)))


# -- types ------------------------------------------------------------------------------------------------


def _cast(call: Call, x: Array) -> Array:
    to = call.required("to")
    if isinstance(to, str):  # before opset 6
        to = next((number for number, (name, _) in ELEMENT_TYPES.items() if name == to.lower()), 0)
    return cast(x, dtype_numbered(call, to))


def _cast_like(call: Call, x: Array, other: Array) -> Array:
    return cast(x, other.type.dtype)


def _bit_cast(call: Call, x: Array) -> Array:
    target = dtype_numbered(call, call.required("to"))
    if target is x.type.dtype:
        return x
    if target is BOOL:  # a byte that is 0 or 1
        return cast(x, BOOL)
    if x.type.dtype is BOOL:
        x = cast(x, U8)
    return x if x.type.dtype is target else apply("bitcast", x, dtype=target.name)


ROWS: dict[str, Row] = {
    # one operand
    "Abs": _unary(mnp.abs),
    "Acos": _unary(mnp.acos),
    "Acosh": _unary(mnp.acosh),
    "Asin": _unary(mnp.asin),
    "Asinh": _unary(mnp.asinh),
    "Atan": _unary(mnp.atan),
    "Atanh": _unary(mnp.atanh),
    "BitwiseNot": _unary(mnp.bitwise_invert),
    "Ceil": _unary(mnp.ceil),
    "Cos": _unary(mnp.cos),
    "Cosh": _unary(mnp.cosh),
    "Erf": _unary(mnp.erf),
    "Exp": _unary(mnp.exp),
    "Floor": _unary(mnp.floor),
    "Identity": _unary(lambda x: x),
    "IsInf": _is_inf,
    "IsNaN": _unary(mnp.isnan),
    "Log": _unary(mnp.log),
    "Neg": _unary(mnp.negative),
    "Not": _unary(mnp.logical_not),
    "Reciprocal": _unary(mnp.reciprocal),
    "Round": _unary(mnp.round),
    "Sign": _unary(mnp.sign),
    "Sin": _unary(mnp.sin),
    "Sinh": _unary(mnp.sinh),
    "Sqrt": _unary(mnp.sqrt),
    "Tan": _unary(mnp.tan),
    "Tanh": _unary(mnp.tanh),
    # two
    "Add": _binary(mnp.add),
    "And": _binary(mnp.logical_and),
    "BitShift": _shift,
    "BitwiseAnd": _binary(mnp.bitwise_and),
    "BitwiseOr": _binary(mnp.bitwise_or),
    "BitwiseXor": _binary(mnp.bitwise_xor),
    "Div": _div,
    "Equal": _binary(mnp.equal),
    "Greater": _binary(mnp.greater),
    "GreaterOrEqual": _binary(mnp.greater_equal),
    "Less": _binary(mnp.less),
    "LessOrEqual": _binary(mnp.less_equal),
    "Mod": _mod,
    "Mul": _binary(mnp.multiply),
    "Or": _binary(mnp.logical_or),
    "Pow": _pow,
    "Sub": _binary(mnp.subtract),
    "Xor": _binary(mnp.logical_xor),
    # more
    "Clip": _clip,
    "Max": _variadic(mnp.maximum),
    "Mean": _mean,
    "Min": _variadic(mnp.minimum),
    "Sum": _variadic(mnp.add),
    "Where": lambda call, condition, x, y: mnp.where(condition, x, y),
    # activations
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda call, x: mnp.multiply(x, mnp.clip(mnp.add(mnp.multiply(x, 1 / 6), 0.5), 0.0, 1.0)),
    "LeakyRelu": _leaky_relu,
    "Mish": lambda call, x: mnp.multiply(x, mnp.tanh(softplus(x))),
    "PRelu": _prelu,
    "Relu": _unary(nn.relu),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _unary(sigmoid),
    "Softplus": _unary(softplus),
    "Softsign": lambda call, x: mnp.divide(x, mnp.add(mnp.abs(x), 1)),
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    # types
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": _cast_like,
}
