"""Normalisation: layer, root mean square, group, instance, batch.

layer_norm is a composite: an engine may have a kernel for it.  Statistics of float16 and bfloat16 are made in float32.
"""

from __future__ import annotations

import math

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.promotion import asarray, cast, floats
from ..transforms.composite import composite
from ..util.annotation_checks import checked
from .precision import wide


@checked
def layer_norm(x: Operand, weight: Operand, bias: Operand, *, eps: float = 1e-5) -> Array:
    """x (..., width) normalised to mean 0 and variance 1 along the last axis, times `weight` plus `bias` (width,).

    Ba, Kiros and Hinton, 2016 (arXiv 1607.06450); BERT's eps is 1e-12.
    """
    array, scale, shift = floats(x, weight, bias)
    if not array.ndim or scale.shape != array.shape[-1:] or shift.shape != array.shape[-1:]:
        raise ShapeError(
            f"layer_norm needs x (..., width), weight and bias (width,), "
            f"got {array.shape}, {scale.shape} and {shift.shape}"
        )
    return composite("layer_norm", _layer_norm, array, scale, shift, axis=array.ndim - 1, eps=float(eps))


@checked
def rms_norm(x: Operand, weight: Operand, *, eps: float = 1e-6) -> Array:
    """x (..., width) divided by the root of its mean square along the last axis, times `weight` (width,).

    Zhang and Sennrich, 2019 (arXiv 1910.07467).
    """
    array, scale = floats(x, weight)
    if not array.ndim or scale.shape != array.shape[-1:]:
        raise ShapeError(f"rms_norm needs x (..., width) and weight (width,), got {array.shape} and {scale.shape}")
    high = wide(array)
    mean = mnp.mean(high * high, -1, keepdims=True)
    return cast(high / mnp.sqrt(mean + eps), array.type.dtype) * scale


@checked
def group_norm(
    x: Operand, groups: int, weight: Operand | None = None, bias: Operand | None = None, *, eps: float = 1e-5
) -> Array:
    """x (n, channels, *dims) normalised over each sample's groups of channels; weight and bias (channels,).

    Wu and He, 2018 (arXiv 1803.08494).  As many groups as channels are an instance norm.
    """
    (array,) = floats(x)
    if array.ndim < 2 or groups < 1 or array.shape[1] % groups:
        raise ShapeError(f"group_norm of {array.shape} in {groups} groups")
    share = math.prod(array.shape[1:]) // groups
    rows = wide(array).reshape(array.shape[0], groups, share)
    centred = rows - mnp.mean(rows, -1, keepdims=True)
    variance = mnp.mean(centred * centred, -1, keepdims=True)
    found = cast((centred / mnp.sqrt(variance + eps)).reshape(array.shape), array.type.dtype)
    return _by_channel(found, weight, bias)


@checked
def instance_norm(
    x: Operand, weight: Operand | None = None, bias: Operand | None = None, *, eps: float = 1e-5
) -> Array:
    """x (n, channels, *dims) normalised over the dims of each channel; weight and bias (channels,)."""
    array = asarray(x)
    return group_norm(array, array.shape[1] if array.ndim > 1 else 0, weight, bias, eps=eps)


@checked
def batch_norm(
    x: Operand,
    mean: Operand,
    variance: Operand,
    weight: Operand | None = None,
    bias: Operand | None = None,
    *,
    eps: float = 1e-5,
) -> Array:
    """x (n, channels, *dims) normalised by the mean and variance of each channel; all (channels,).

    Ioffe and Szegedy, 2015 (arXiv 1502.03167); `batch_statistics` gives those of x itself.
    """
    array, centre, spread = floats(x, mean, variance)
    if array.ndim < 2:
        raise ShapeError(f"batch_norm needs x (n, channels, *dims), got {array.shape}")
    scale = 1 / mnp.sqrt(spread + eps)
    return _by_channel(
        _by_channel(array, None, -centre), scale if weight is None else mnp.multiply(scale, weight), bias
    )


def batch_statistics(x: Operand) -> tuple[Array, Array]:
    """Mean and variance of each channel of x (n, channels, *dims), over everything else."""
    (array,) = floats(x)
    if array.ndim < 2:
        raise ShapeError(f"batch_statistics needs x (n, channels, *dims), got {array.shape}")
    axes = (0, *range(2, array.ndim))
    high = wide(array)
    mean = mnp.mean(high, axes, keepdims=True)
    centred = high - mean
    return mean.reshape(-1), mnp.mean(centred * centred, axes)


def _layer_norm(x: Array, weight: Array, bias: Array, axis: int, eps: float) -> Array:
    high = wide(x)
    centred = high - high.mean(axis, keepdims=True)
    variance = (centred * centred).mean(axis, keepdims=True)
    return cast(centred / mnp.sqrt(variance + eps) * wide(weight) + wide(bias), x.type.dtype)


def _by_channel(x: Array, weight: Operand | None, bias: Operand | None) -> Array:
    """x (n, channels, *dims) times weight plus bias, both (channels,)."""
    shape = (-1, *[1] * (x.ndim - 2))
    if weight is not None:
        x = x * asarray(weight).reshape(shape)
    return x if bias is None else x + asarray(bias).reshape(shape)
