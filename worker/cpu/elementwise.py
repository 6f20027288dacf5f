"""Scalar ops on numpy arrays, one row each; semantics are those of wire/ir/ops.py.

A row takes `(attrs, operands, result type)` and returns an array; operands are C-contiguous and of one dtype.  f16 and
bf16 are computed in f32 where numpy has no kernel of their own, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wire.ir.dtypes import BF16, F16, dtype_of
from wire.ir.types import Attrs, HostArray, TensorType

from .blocks import by_blocks

Kernel = Callable[[Attrs, list[HostArray], TensorType], HostArray]


def _wide(function: Callable[..., Any]) -> Kernel:
    """A float function computed in at least f32."""

    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        if out.dtype in (F16, BF16):
            return by_blocks(lambda *parts: function(*[part.astype(np.float32) for part in parts]), out, *operands)
        return np.asarray(function(*operands))

    return kernel


def _plain(function: Callable[..., Any]) -> Kernel:
    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        return np.asarray(function(*operands))

    return kernel


def erf(x: HostArray) -> HostArray:
    """The error function to within one ulp of its dtype."""
    block = _erf_f64 if x.dtype == np.float64 else _erf_f32
    return by_blocks(lambda part: block(part.astype(np.float64)), TensorType(x.shape, dtype_of(x)), x)


def _erf_f32(x: HostArray) -> HostArray:
    """x P(x^2) / Q(x^2) on [-4, 4], the minimax rational of Eigen's vectorised erf: 6.5e-8 relative, here in f64."""
    bounded = np.clip(x, -4.0, 4.0)
    square = bounded * bounded
    return bounded * _horner(square, _ERF32_P) / _horner(square, _ERF32_Q)


def _erf_f64(x: HostArray) -> HostArray:
    """W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969)."""
    size = np.abs(x)
    square = np.where(size <= 0.5, x * x, 0.25)
    near = x * _horner(square, _ERF_P) / _horner(square, _ERF_Q)
    middle = np.clip(size, 0.46875, 4.0)
    complement = np.exp(-middle * middle) * _horner(middle, _ERFC_P) / _horner(middle, _ERFC_Q)
    far = np.clip(size, 4.0, 27.0)
    inverse = 1.0 / (far * far)
    series = inverse * _horner(inverse, _ERFX_P) / _horner(inverse, _ERFX_Q)
    tail = np.exp(-far * far) / far * (1.0 / math.sqrt(math.pi) - series)
    outer = np.copysign(1.0 - np.where(size <= 4.0, complement, tail), x)
    return np.where(np.isnan(x), x, np.where(size <= 0.5, near, outer))


def _horner(x: HostArray, coefficients: tuple[float, ...]) -> HostArray:
    """The polynomial with these coefficients, lowest first."""
    result = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        result += coefficient
        result *= x
    result += coefficients[0]
    return result


# fmt: off
_ERF32_P = (
    -1.60960333262415e-02, -2.95459980854025e-03, -7.34990630326855e-04, -5.69250639462346e-05,
    -2.10102402082508e-06, 2.77068142495902e-08, -2.72614225801306e-10,
)
_ERF32_Q = (
    -1.42647390514189e-02, -7.37332916720468e-03, -1.68282697438203e-03, -2.13374055278905e-04,
    -1.45660718464996e-05,
)
_ERF_P = (
    3.20937758913846947e03, 3.77485237685302021e02, 1.13864154151050156e02, 3.16112374387056560e00,
    1.85777706184603153e-1,
)
_ERF_Q = (
    2.84423683343917062e03, 1.28261652607737228e03, 2.44024637934444173e02, 2.36012909523441209e01,
    1.0,
)
_ERFC_P = (
    1.23033935479799725e03, 2.05107837782607147e03, 1.71204761263407058e03, 8.81952221241769090e02,
    2.98635138197400131e02, 6.61191906371416295e01, 8.88314979438837594e00, 5.64188496988670089e-1,
    2.15311535474403846e-8,
)
_ERFC_Q = (
    1.23033935480374942e03, 3.43936767414372164e03, 4.36261909014324716e03, 3.29079923573345963e03,
    1.62138957456669019e03, 5.37181101862009858e02, 1.17693950891312499e02, 1.57449261107098347e01,
    1.0,
)
_ERFX_P = (
    6.58749161529837803e-4, 1.60837851487422766e-2, 1.25781726111229246e-1, 3.60344899949804439e-1,
    3.05326634961232344e-1, 1.63153871373020978e-2,
)
_ERFX_Q = (
    2.33520497626869185e-3, 6.05183413124413191e-2, 5.27905102951428412e-1, 1.87295284992346725e00,
    2.56852019228982242e00, 1.0,
)
# fmt: on


def _divide(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    if out.dtype.kind in "fc":
        return _wide(np.divide)(attrs, operands, out)
    return np.asarray(np.floor_divide(*operands))


def _remainder(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    if out.dtype.kind == "f":
        return _wide(np.remainder)(attrs, operands, out)
    return np.asarray(np.remainder(*operands))


def _power(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    if out.dtype.kind in "fc":
        return _wide(np.power if out.dtype.kind == "c" else _float_power)(attrs, operands, out)
    base, exponent = np.broadcast_arrays(*operands)
    if out.dtype.kind == "u":
        return np.asarray(np.power(base, exponent))
    negative = exponent < 0
    if not negative.any():
        return np.asarray(np.power(base, exponent))
    powered = np.power(base, np.where(negative, exponent.dtype.type(0), exponent))
    odd = (exponent & 1).astype(bool)
    unit = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(negative, unit, powered).astype(out.dtype.numpy)


def _float_power(base: HostArray, exponent: HostArray) -> HostArray:
    """numpy's power, which takes the square root where an exponent of 0.5 repeats: of -inf that is NaN, of -0.0 it is
    -0.0."""
    half = exponent == 0.5
    if half.any():
        base = np.where(half & ((base == 0) | (base == -np.inf)), np.abs(base), base)
    return np.asarray(np.power(base, exponent))


def _select(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    condition, taken, other = operands
    chosen = np.asarray(condition if condition.dtype == np.bool_ else condition > 0)
    if not chosen.ndim:
        chosen_operand = taken if chosen else other
        return chosen_operand if chosen_operand.shape == out.shape else np.broadcast_to(chosen_operand, out.shape)
    if chosen.size < MASKED_MIN or out.dtype.itemsize not in _WORDS:
        return np.where(chosen, taken, other).astype(out.dtype.numpy, copy=False)
    # By bits, since numpy branches at each element: eight times as fast where it cannot be guessed which is taken.
    words = _WORDS[out.dtype.itemsize]
    ones, kept, mine = chosen.view(np.uint8), other.view(words), taken.view(words)
    if _is_zero(mine):  # as relu and its slope have it
        mixed = _and(np.subtract(ones, 1, dtype=words), kept)
    elif _is_zero(kept):
        mixed = _and(np.negative(ones, dtype=words), mine)
    else:
        mixed = np.bitwise_and(np.bitwise_xor(mine, kept), np.negative(ones, dtype=words))
        np.bitwise_xor(mixed, kept, out=mixed)
    return np.asarray(mixed.view(out.dtype.numpy))


def _and(mask: HostArray, other: HostArray) -> HostArray:
    return np.asarray(np.bitwise_and(mask, other, out=mask if mask.shape == other.shape else None))


def _is_zero(words: HostArray) -> bool:
    return not words.ndim and not words


MASKED_MIN = 4096
_WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def _cast(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    source, target = operands[0], out.dtype
    if target.kind == "b":
        return np.asarray(source != 0)
    if target.kind in "iu" and source.dtype.kind not in "biu":
        return by_blocks(lambda part: _saturating(part, target.numpy), out, source)
    if target is BF16 and source.dtype.itemsize > 2:
        return by_blocks(_to_bf16, out, source)
    return source.astype(target.numpy)


def _saturating(source: HostArray, target: np.dtype[Any]) -> HostArray:
    wide = np.trunc(source.astype(np.float64))
    limits = np.iinfo(target)
    low, high = float(limits.min), float(limits.max)
    inside = np.where((wide > low) & (wide < high), wide, 0.0).astype(target)
    result = np.where(wide >= high, target.type(limits.max), np.where(wide <= low, target.type(limits.min), inside))
    return np.where(np.isnan(wide), target.type(0), result).astype(target)


def _to_bf16(source: HostArray) -> HostArray:
    """Round once: where f32 landed on a tie of bf16, it is moved off it, towards what it was rounded from."""
    near = np.asarray(source).astype(np.float32)  # kernels of rank 0 give numpy's scalars, which cannot be assigned to
    ties = (near.view(np.uint32) & 0xFFFF) == 0x8000
    tied, exact = near[ties], source[ties]
    back = tied.astype(source.dtype)
    towards = np.where(exact > back, np.inf, np.where(exact < back, -np.inf, tied))
    near[ties] = np.nextafter(tied, towards.astype(np.float32))
    return near.astype(BF16.numpy)


def _complex(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    result = np.empty(out.shape, out.dtype.numpy)
    result.real, result.imag = operands
    return result


def _bitcast(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    return operands[0].view(out.dtype.numpy)


# What may be written over its operand: the processor's own operations, the same bits wherever they are put.
IN_PLACE: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "div": np.divide, "neg": np.negative, "sqrt": np.sqrt, "abs": np.abs,
}  # fmt: skip

ELEMENTWISE: dict[str, Kernel] = {
    "neg": _plain(np.negative),
    "recip": _wide(lambda x: x.dtype.type(1) / x),
    "sqrt": _wide(np.sqrt),
    "sin": _wide(np.sin),
    "exp2": _wide(np.exp2),
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
    "sign": _wide(np.sign),
    "abs": _plain(np.abs),
    "not": _plain(np.invert),
    "is_nan": _plain(np.isnan),
    "real": _plain(np.real),
    "imag": _plain(np.imag),
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
    "shl": _plain(np.left_shift),
    "shr": _plain(np.right_shift),
    "complex": _complex,
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
}
