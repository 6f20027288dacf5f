"""Normalisation: batch, instance, layer, group and RMS normalisation, softmax and its kin.

Statistics of half floats are taken in float32, as ONNX's `stash_type` asks by default, and those of doubles in double.
"""

from __future__ import annotations

import math

from wire.errors import InputError
from wire.ir.dtypes import BF16, F16, F32, F64, DType

from .... import nn
from .... import numpy as mnp
from ....core.array import Array
from ....numpy.promotion import cast, like
from ....numpy.reductions import normal_axes, normal_axis
from ..evaluate import Call, Row
from .elementwise import dtype_numbered


def _per_channel(values: Array, rank: int) -> Array:
    """(channels,) shaped to stand in (n, channels, ...)."""
    return mnp.reshape(values, (values.shape[0], *[1] * (rank - 2)))


def _batch(call: Call, x: Array, scale: Array, shift: Array, mean: Array, variance: Array) -> tuple[Array | None, ...]:
    epsilon = call.attr("epsilon", 1e-5)
    if not call.attr("training_mode", 0):
        return (_normalised(x, mean, variance, scale, shift, epsilon),)
    axes = tuple([axis for axis in range(x.ndim) if axis != 1])
    momentum = call.attr("momentum", 0.9)
    found_mean, found_variance = mnp.mean(x, axes), mnp.var(x, axes)
    running = [
        cast(
            mnp.add(mnp.multiply(old, momentum), mnp.multiply(cast(new, old.type.dtype), 1 - momentum)), old.type.dtype
        )
        for old, new in ((mean, found_mean), (variance, found_variance))
    ]
    return _normalised(x, found_mean, found_variance, scale, shift, epsilon), *running


def _normalised(x: Array, mean: Array, variance: Array, scale: Array, shift: Array, epsilon: float) -> Array:
    mean, variance, scale, shift = (
        cast(array, F32) if array.type.dtype in (F16, BF16) else array for array in (mean, variance, scale, shift)
    )
    factor = mnp.divide(scale, mnp.sqrt(mnp.add(variance, epsilon)))
    wide = cast(x, mean.type.dtype)
    centred = mnp.subtract(wide, _per_channel(mean, x.ndim))
    return cast(mnp.add(mnp.multiply(centred, _per_channel(factor, x.ndim)), _per_channel(shift, x.ndim)), x.type.dtype)


def standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """x with mean 0 and variance 1 along `axes`."""
    centred = mnp.subtract(x, mnp.mean(x, axes, keepdims=True))
    variance = mnp.mean(mnp.square(centred), axes, keepdims=True)
    return mnp.divide(centred, mnp.sqrt(mnp.add(variance, epsilon)))


def _instance(call: Call, x: Array, scale: Array, shift: Array) -> Array:
    normed = standardised(x, tuple(range(2, x.ndim)), call.attr("epsilon", 1e-5))
    return mnp.add(mnp.multiply(normed, _per_channel(scale, x.ndim)), _per_channel(shift, x.ndim))


def _stashed(x: Array, stash: DType) -> Array:
    """x in the dtype of its statistics: doubles stay doubles, as onnxruntime has it."""
    return x if x.type.dtype is F64 else cast(x, stash)


def _layer(call: Call, x: Array, scale: Array, shift: Array | None = None) -> tuple[Array, ...]:
    axis = normal_axis(call.attr("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    epsilon = call.attr("epsilon", 1e-5)
    stash = dtype_numbered(call, call.attr("stash_type", 1))
    wide = _stashed(x, stash)
    mean = mnp.mean(wide, axes, keepdims=True)
    centred = mnp.subtract(wide, mean)
    deviation = mnp.reciprocal(mnp.sqrt(mnp.add(mnp.mean(mnp.square(centred), axes, keepdims=True), epsilon)))
    last = axes == (x.ndim - 1,) and scale.shape == x.shape[-1:] and shift is not None and shift.shape == scale.shape
    statistics = cast(mean, stash), cast(deviation, stash)
    if last and wide.type.dtype is x.type.dtype and shift is not None:
        return nn.layer_norm(x, scale, shift, eps=epsilon), *statistics
    result = mnp.multiply(cast(mnp.multiply(centred, deviation), x.type.dtype), scale)
    return result if shift is None else mnp.add(result, shift), *statistics


def _rms(call: Call, x: Array, scale: Array) -> Array:
    axis = normal_axis(call.attr("axis", -1), x.ndim)
    wide = _stashed(x, dtype_numbered(call, call.attr("stash_type", 1)))
    mean = mnp.mean(mnp.square(wide), tuple(range(axis, x.ndim)), keepdims=True)
    normed = mnp.divide(wide, mnp.sqrt(mnp.add(mean, call.attr("epsilon", 1e-5))))
    return mnp.multiply(cast(normed, scale.type.dtype), scale)


def _group(call: Call, x: Array, scale: Array, shift: Array) -> Array:
    groups = call.required("num_groups")
    n, channels = x.shape[:2]
    if groups < 1 or channels % groups:
        raise InputError(f"{channels} channels do not divide into {groups} groups")
    wide = _stashed(x, dtype_numbered(call, call.attr("stash_type", 1)))
    split = mnp.reshape(wide, (n, groups, -1))
    normed = cast(mnp.reshape(standardised(split, (2,), call.attr("epsilon", 1e-5)), x.shape), x.type.dtype)
    if scale.shape[0] != channels:  # before opset 21: one per group
        scale, shift = (mnp.repeat(array, channels // groups) for array in (scale, shift))
    return mnp.add(mnp.multiply(normed, _per_channel(scale, x.ndim)), _per_channel(shift, x.ndim))


def _lp(call: Call, x: Array) -> Array:
    axis, order = call.attr("axis", -1), call.attr("p", 2)
    if order not in (1, 2):
        raise call.unsupported(f"the norm of order {order}")
    if order == 1:
        norm = mnp.sum(mnp.abs(x), axis, keepdims=True)
    else:
        norm = mnp.sqrt(mnp.sum(mnp.square(x), axis, keepdims=True))
    return mnp.where(mnp.equal(norm, 0), like(0, x), mnp.divide(x, norm))


def _lrn(call: Call, x: Array) -> Array:
    size = call.required("size")
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    before, channels = (size - 1) // 2, x.shape[1]
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = mnp.pad(mnp.square(x), widths)
    total = squares[:, :channels]
    for place in range(1, size):
        total = mnp.add(total, squares[:, place : place + channels])
    return mnp.divide(x, mnp.pow(mnp.add(mnp.multiply(total, alpha / size), bias), beta))


def _mean_variance(call: Call, x: Array) -> Array:
    axes = normal_axes(call.attr("axes", (0, 2, 3)), x.ndim)
    mean = mnp.mean(x, axes, keepdims=True)
    centred = mnp.subtract(x, mean)
    centred = mnp.subtract(centred, mnp.mean(centred, axes, keepdims=True))  # of numbers that are all alike, 0
    variance = mnp.mean(mnp.square(centred), axes, keepdims=True)  # E[x*x] - E[x]^2 may be rounded below 0
    return mnp.divide(centred, mnp.add(mnp.sqrt(variance), 1e-9))


def _softmax(logarithm: bool) -> Row:
    def function(x: Array, axis: int) -> Array:
        if x.type.dtype in (F16, BF16):
            return _softmax_by_steps(x, axis, logarithm)
        return nn.log_softmax(x, axis) if logarithm else nn.softmax(x, axis)

    def row(call: Call, x: Array) -> Array:
        if call.version >= 13:
            return function(x, call.attr("axis", -1))
        axis = normal_axis(call.attr("axis", 1), x.ndim)  # everything from `axis` on is one axis
        rows = mnp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return mnp.reshape(function(rows, 1), x.shape)

    return row


def _softmax_by_steps(x: Array, axis: int, logarithm: bool) -> Array:
    """The softmax of a narrow dtype as ONNX defines it by functions (opset 13).

    Each step is rounded to the dtype of x, where `nn.softmax` rounds once.
    """
    shifted = mnp.subtract(x, mnp.max(x, axis, keepdims=True))
    grown = mnp.exp(shifted)
    total = mnp.sum(grown, axis, keepdims=True)
    return mnp.subtract(shifted, mnp.log(total)) if logarithm else mnp.divide(grown, total)


ROWS: dict[str, Row] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LRN": _lrn,
    "LayerNormalization": _layer,
    "LogSoftmax": _softmax(True),
    "LpNormalization": _lp,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms,
    "Softmax": _softmax(False),
}
