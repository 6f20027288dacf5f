"""Reductions along axes, arg-max and arg-min.

`axes` is an attribute in older opsets and an input in newer ones; without it all axes are reduced, unless
`noop_with_empty_axes` says none.  A reduction of nothing gives the neutral element, as ONNX has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wire.ir.dtypes import BF16, BOOL, F16, F32, F64, I64

from .... import numpy as mnp
from ....core.array import Array
from ....numpy.promotion import cast, extreme, like, scalar
from ....numpy.reductions import normal_axes, normal_axis
from ..evaluate import Call, Row

Reducer = Callable[[Array, tuple[int, ...], bool], Array]


def reduction(reducer: Reducer, before: Callable[[Array], Array] = lambda x: x) -> Row:
    """A row that reduces by `reducer(x, axes, keepdims)`, after `before` on every element."""

    def row(call: Call, x: Array, axes: Array | None = None) -> Array:
        listed = call.ints("axes", axes)
        none = not listed and call.attr("noop_with_empty_axes", 0)  # what the op does to each element, it still does
        along = () if none else normal_axes(listed or None, x.ndim)
        return reducer(before(x), along, bool(call.attr("keepdims", 1)))

    return row


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return mnp.sum(x, axes, dtype=x.type.dtype, keepdims=keepdims)


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if x.type.dtype.kind == "f":
        return mnp.mean(x, axes, keepdims=keepdims)
    count = math.prod([x.shape[axis] for axis in axes])
    total = mnp.sum(cast(x, I64 if x.type.dtype.itemsize == 8 else F64), axes, keepdims=keepdims)
    return cast(mnp.trunc(mnp.divide(cast(total, F64), float(count))), x.type.dtype)


def _extreme(function: Any, largest: bool) -> Reducer:
    def reducer(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        if 0 not in [x.shape[axis] for axis in axes]:
            whole = cast(x, F32) if x.type.dtype is BOOL else x
            return cast(function(whole, axes, keepdims=keepdims), x.type.dtype)
        empty = scalar(extreme(x.type.dtype, not largest), x.type.dtype)
        return mnp.broadcast_to(empty, _left(x, axes, keepdims))

    return reducer


def _left(x: Array, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    shape = [1 if axis in axes else dim for axis, dim in enumerate(x.shape)]
    return tuple(shape if keepdims else [dim for axis, dim in enumerate(shape) if axis not in axes])


def _log_sum_exp(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if 0 in [x.shape[axis] for axis in axes]:
        return mnp.log(_sum(x, axes, keepdims))
    largest = mnp.max(x, axes, keepdims=True)
    shift = mnp.where(mnp.isfinite(largest), largest, like(0, largest))
    total = mnp.log(_sum(mnp.exp(mnp.subtract(x, shift)), axes, True))
    result = mnp.add(total, shift)
    return result if keepdims else mnp.squeeze(result, axes)


def _in_floats(x: Array) -> Array:
    """Integers in a float that holds them: logarithms and roots of integers are taken there."""
    return x if x.type.dtype.kind == "f" else cast(x, F64)


def _norm(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    wide = cast(x, F32) if x.type.dtype in (F16, BF16) else _in_floats(x)
    return cast(mnp.sqrt(_sum(mnp.square(wide), axes, keepdims)), x.type.dtype)


def _by_floats(reducer: Reducer) -> Reducer:
    return lambda x, axes, keepdims: cast(reducer(_in_floats(x), axes, keepdims), x.type.dtype)


def _position(smallest: bool) -> Row:
    function = mnp.argmin if smallest else mnp.argmax

    def row(call: Call, x: Array) -> Array:
        axis = normal_axis(call.attr("axis", 0), x.ndim)
        keepdims = bool(call.attr("keepdims", 1))
        if not call.attr("select_last_index", 0):
            return cast(function(x, axis, keepdims=keepdims), I64)
        behind = function(mnp.flip(x, axis), axis, keepdims=keepdims)
        return cast(mnp.subtract(x.shape[axis] - 1, behind), I64)

    return row


ROWS: dict[str, Row] = {
    "ArgMax": _position(False),
    "ArgMin": _position(True),
    "ReduceL1": reduction(_sum, mnp.abs),
    "ReduceL2": reduction(_norm),
    "ReduceLogSum": reduction(_by_floats(lambda x, axes, keepdims: mnp.log(_sum(x, axes, keepdims)))),
    "ReduceLogSumExp": reduction(_by_floats(_log_sum_exp)),
    "ReduceMax": reduction(_extreme(mnp.max, True)),
    "ReduceMean": reduction(_mean),
    "ReduceMin": reduction(_extreme(mnp.min, False)),
    "ReduceProd": reduction(lambda x, axes, keepdims: mnp.prod(x, axes, dtype=x.type.dtype, keepdims=keepdims)),
    "ReduceSum": reduction(_sum),
    "ReduceSumSquare": reduction(_sum, mnp.square),
}
