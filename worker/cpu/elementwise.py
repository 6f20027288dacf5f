"""Scalar ops on numpy arrays, one row each; semantics are those of wire/ops.py.

A row takes `(attrs, operands, result type)` and returns an array; operands are C-contiguous and of one dtype.  f16 and
bf16 are computed in f32 where numpy has no kernel of their own, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import BF16, F16
from wire.types import Attrs, TensorType

Array = NDArray[Any]
Kernel = Callable[[Attrs, list[Array], TensorType], Array]


def _wide(function: Callable[..., Any]) -> Kernel:
    """A float function computed in at least f32."""

    def kernel(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        if out.dtype in (F16, BF16):
            result = function(*[operand.astype(np.float32) for operand in operands])
            return np.asarray(result).astype(out.dtype.numpy)
        return np.asarray(function(*operands))

    return kernel


def _plain(function: Callable[..., Any]) -> Kernel:
    def kernel(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        return np.asarray(function(*operands))

    return kernel


def erf(x: Array) -> Array:
    """The error function, to the last bits of f64, after W. J. Cody, "Rational Chebyshev approximations for the error
    function", Math. Comp. 23 (1969); f32 is computed in f64 and rounded."""
    wide = np.asarray(x, np.float64)
    size = np.abs(wide)
    small = size <= 0.5
    square = np.where(small, wide * wide, 0.25)
    near = wide * _ratio(square, _ERF_P, _ERF_Q)
    middle = np.clip(size, 0.46875, 4.0)
    complement = np.exp(-middle * middle) * _ratio(middle, _ERFC_P, _ERFC_Q)
    far = np.clip(size, 4.0, 27.0)
    inverse = 1.0 / (far * far)
    tail = np.exp(-far * far) / far * (1.0 / math.sqrt(math.pi) - inverse * _ratio(inverse, _ERFX_P, _ERFX_Q))
    outer = np.copysign(1.0 - np.where(size <= 4.0, complement, tail), wide)
    return np.where(np.isnan(wide), wide, np.where(small, near, outer)).astype(x.dtype)


def _ratio(x: Array, upper: tuple[float, ...], lower: tuple[float, ...]) -> Array:
    return np.polynomial.polynomial.polyval(x, upper) / np.polynomial.polynomial.polyval(x, lower)


_ERF_P = (3.20937758913846947e03, 3.77485237685302021e02, 1.13864154151050156e02, 3.16112374387056560e00, 1.85777706184603153e-1)
_ERF_Q = (2.84423683343917062e03, 1.28261652607737228e03, 2.44024637934444173e02, 2.36012909523441209e01, 1.0)
_ERFC_P = (
    1.23033935479799725e03, 2.05107837782607147e03, 1.71204761263407058e03, 8.81952221241769090e02, 2.98635138197400131e02,
    6.61191906371416295e01, 8.88314979438837594e00, 5.64188496988670089e-1, 2.15311535474403846e-8,
)  # fmt: skip
_ERFC_Q = (
    1.23033935480374942e03, 3.43936767414372164e03, 4.36261909014324716e03, 3.29079923573345963e03, 1.62138957456669019e03,
    5.37181101862009858e02, 1.17693950891312499e02, 1.57449261107098347e01, 1.0,
)  # fmt: skip
_ERFX_P = (
    6.58749161529837803e-4, 1.60837851487422766e-2, 1.25781726111229246e-1, 3.60344899949804439e-1, 3.05326634961232344e-1,
    1.63153871373020978e-2,
)  # fmt: skip
_ERFX_Q = (
    2.33520497626869185e-3, 6.05183413124413191e-2, 5.27905102951428412e-1, 1.87295284992346725e00, 2.56852019228982242e00, 1.0,
)  # fmt: skip


def _sign(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    return np.asarray(np.sign(operands[0]))


def _divide(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    if out.dtype.kind == "f":
        return _wide(np.divide)(attrs, operands, out)
    return np.asarray(np.floor_divide(*operands))


def _remainder(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    if out.dtype.kind == "f":
        return _wide(np.remainder)(attrs, operands, out)
    return np.asarray(np.remainder(*operands))


def _power(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    if out.dtype.kind == "f":
        return _wide(np.power)(attrs, operands, out)
    base, exponent = np.broadcast_arrays(*operands)
    if out.dtype.kind == "u":
        return np.asarray(np.power(base, exponent))
    negative = exponent < 0
    powered = np.power(base, np.where(negative, exponent.dtype.type(0), exponent))
    odd = (exponent & 1).astype(bool)
    unit = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(negative, unit, powered).astype(out.dtype.numpy)


def _select(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    condition, taken, other = operands
    chosen = condition if condition.dtype == np.bool_ else condition > 0
    return np.where(chosen, taken, other).astype(out.dtype.numpy, copy=False)


def _shift(function: Callable[..., Any]) -> Kernel:
    def kernel(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
        return np.asarray(function(*operands))

    return kernel


def _cast(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    source, target = operands[0], out.dtype
    if target.kind == "b":
        return np.asarray(source != 0)
    if target.kind in "iu" and source.dtype.kind not in "biu":
        return _saturating(source, target.numpy)
    return source.astype(target.numpy)


def _saturating(source: Array, target: np.dtype[Any]) -> Array:
    wide = np.trunc(source.astype(np.float64))
    limits = np.iinfo(target)
    low, high = float(limits.min), float(limits.max)
    inside = np.where((wide > low) & (wide < high), wide, 0.0).astype(target)
    result = np.where(wide >= high, target.type(limits.max), np.where(wide <= low, target.type(limits.min), inside))
    return np.where(np.isnan(wide), target.type(0), result).astype(target)


def _bitcast(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    return operands[0].view(out.dtype.numpy)


def _exp2(x: Array) -> Array:
    return np.exp2(x)


ELEMENTWISE: dict[str, Kernel] = {
    "neg": _plain(np.negative),
    "recip": _wide(lambda x: x.dtype.type(1) / x),
    "sqrt": _wide(np.sqrt),
    "sin": _wide(np.sin),
    "exp2": _wide(_exp2),
    "log2": _wide(np.log2),
    "exp": _wide(np.exp),
    "log": _wide(np.log),
    "expm1": _wide(np.expm1),
    "log1p": _wide(np.log1p),
    "cos": _wide(np.cos),
    "tan": _wide(np.tan),
    "tanh": _wide(np.tanh),
    "erf": _wide(erf),
    "floor": _wide(np.floor),
    "round": _wide(np.rint),
    "sign": _sign,
    "abs": _plain(np.abs),
    "not": _plain(np.invert),
    "is_nan": _plain(np.isnan),
    "add": _wide(np.add),
    "mul": _wide(np.multiply),
    "atan2": _wide(np.arctan2),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "div": _divide,
    "rem": _remainder,
    "pow": _power,
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
}
