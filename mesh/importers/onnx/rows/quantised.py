"""Quantised ops: scales and zero points per tensor, per axis and per block.

Products of integers are summed in int32 and scaled in float32; results are rounded half to even and saturate.
"""

from __future__ import annotations

from wire.ir.dtypes import BF16, F16, F32, I32, U8, DType

from .... import numpy as mnp
from ....core.array import Array
from ....numpy.promotion import INT_BOUNDS, cast
from ....numpy.reductions import normal_axis
from ..evaluate import Call, Row
from .elementwise import dtype_numbered


def _spread(call: Call, scale: Array, x: Array) -> Array:
    """A scale or zero point with the rank of x, one for each element, axis position, or block."""
    block = call.attr("block_size", 0)
    if scale.size == 1:
        return mnp.reshape(scale, ())
    axis = normal_axis(call.attr("axis", 1), x.ndim)
    if block:
        return mnp.repeat(scale, block, axis)[tuple([slice(dim) for dim in x.shape])]
    return mnp.reshape(scale, [x.shape[axis] if place == axis else 1 for place in range(x.ndim)])


def saturated(x: Array, dtype: DType) -> Array:
    """A float x rounded to the integers of `dtype`."""
    if dtype.kind == "f":
        return cast(x, dtype)
    low, high = INT_BOUNDS[dtype.name]
    return cast(mnp.clip(mnp.round(x), float(low), float(high)), dtype)


def _quantize(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    number = call.attr("output_dtype", 0)
    target = zero.type.dtype if zero is not None else dtype_numbered(call, number) if number else U8
    precision = call.attr("precision", 0)
    working = dtype_numbered(call, precision) if precision else scale.type.dtype
    ratio = mnp.round(mnp.divide(cast(x, working), cast(_spread(call, scale, x), working)))
    wide = cast(ratio, F32)
    return saturated(wide if zero is None else mnp.add(wide, cast(_spread(call, zero, x), F32)), target)


def _dequantize(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    number = call.attr("output_dtype", 0)
    target = dtype_numbered(call, number) if number else scale.type.dtype
    if x.type.dtype.kind == "f":
        raise call.unsupported(f"dequantizing {x.type.dtype.name}")
    centred = cast(x, I32)
    if zero is not None:
        centred = mnp.subtract(centred, cast(_spread(call, zero, x), I32))
    working = F32 if scale.type.dtype in (F16, BF16) else scale.type.dtype  # an integer may be more than a half holds
    return cast(mnp.multiply(cast(centred, working), cast(_spread(call, scale, x), working)), target)


def centred(x: Array, zero: Array | None, per_row: bool = False) -> Array:
    """x - zero as int32; a zero point of several elements is one per row, or one per column."""
    wide = cast(x, I32)
    if zero is None:
        return wide
    point = cast(zero, I32)
    if point.size == 1:
        point = mnp.reshape(point, ())
    elif per_row and point.ndim == 1:
        point = mnp.reshape(point, (-1, 1))
    return mnp.subtract(wide, point)


def requantised(total: Array, factor: Array, zero: Array) -> Array:
    """int32 sums times `factor`, rounded into the dtype of `zero`."""
    scaled = mnp.round(mnp.multiply(cast(total, F32), cast(factor, F32)))
    return saturated(mnp.add(scaled, cast(mnp.reshape(zero, ()) if zero.size == 1 else zero, F32)), zero.type.dtype)


def _mat_mul_integer(call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    return mnp.matmul(centred(a, a_zero, per_row=True), centred(b, b_zero))


def _q_linear_mat_mul(
    call: Call, a: Array, a_scale: Array, a_zero: Array, b: Array, b_scale: Array, b_zero: Array, scale: Array,
    zero: Array,
) -> Array:  # fmt: skip
    total = mnp.matmul(centred(a, a_zero, per_row=True), centred(b, b_zero))
    rows = mnp.reshape(a_scale, (-1, 1)) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factor = mnp.divide(mnp.multiply(cast(rows, F32), cast(b_scale, F32)), cast(scale, F32))
    return requantised(total, factor, zero)


ROWS: dict[str, Row] = {
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _mat_mul_integer,
    "QLinearMatMul": _q_linear_mat_mul,
    "QuantizeLinear": _quantize,
}
