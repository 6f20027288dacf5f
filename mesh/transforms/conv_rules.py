"""Derivatives and batches of `conv`, which are convs again: of other strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from .. import numpy as mnp
from ..core.array import Array, apply
from ..numpy.correlation import correlation, transposed_kernels

Ints = tuple[int, ...]


def of_x(
    g: Array, z: Array, x: Array, w: Array, stride: Ints, low: Ints, lhs_dilation: Ints, rhs_dilation: Ints,
    groups: int, **attrs: Any,
) -> Array:  # fmt: skip
    """The cotangent of x: z's, its elements `stride` apart, by the kernels turned around."""
    if 0 in x.shape:
        return mnp.zeros_like(x)
    pairs = []
    for axis, reach in enumerate(rhs_dilation):
        before = (w.shape[2 + axis] - 1) * reach - low[axis]
        whole = (x.shape[2 + axis] - 1) * lhs_dilation[axis] + (w.shape[2 + axis] - 1) * reach + 1
        pairs.append((before, whole - before - _apart(g.shape[2 + axis], stride[axis])))
    return correlation(g, transposed_kernels(w, groups), lhs_dilation, pairs, stride, rhs_dilation, groups)


def of_w(
    g: Array, z: Array, x: Array, w: Array, stride: Ints, low: Ints, lhs_dilation: Ints, rhs_dilation: Ints,
    groups: int, **attrs: Any,
) -> Array:  # fmt: skip
    """The cotangent of w: x by z's, with samples in the place of channels; a group's channels are the samples."""
    if 0 in (*x.shape, *w.shape):
        return mnp.zeros_like(w)
    pairs = []
    for axis, (first, spread) in enumerate(zip(low, lhs_dilation, strict=True)):
        whole = (w.shape[2 + axis] - 1) * rhs_dilation[axis] + _apart(g.shape[2 + axis], stride[axis])
        pairs.append((first, whole - first - _apart(x.shape[2 + axis], spread)))
    samples, channels, *dims = x.shape
    shares = mnp.swapaxes(x.reshape(samples, groups, channels // groups, *dims), 0, 2)
    turned = shares.reshape(channels // groups, groups * samples, *dims)
    found = correlation(turned, mnp.swapaxes(g, 0, 1), rhs_dilation, pairs, lhs_dilation, stride, groups)
    return mnp.swapaxes(found, 0, 1)


def tangent(z: Array, tangents: Sequence[Array | None], operands: Sequence[Array], **attrs: Any) -> Array:
    """Linear in x, and in w."""
    x, w = operands
    parts = []
    if tangents[0] is not None:
        parts.append(apply("conv", tangents[0], w, **attrs))
    if tangents[1] is not None:
        parts.append(apply("conv", x, tangents[1], **attrs))
    return reduce(partial(apply, "add"), parts)


def batched(size: int, inputs: Sequence[Array], flags: Sequence[bool], groups: int, **attrs: Any) -> Array:
    """A batch of x is more samples, one of kernels more channels out, one of both more groups."""
    x, w = inputs
    if not flags[1]:
        found = apply("conv", x.reshape(size * x.shape[1], *x.shape[2:]), w, groups=groups, **attrs)
        return found.reshape(size, x.shape[1], *found.shape[1:])
    _, makers, share, *kernel = w.shape
    if not flags[0]:
        kernels = mnp.moveaxis(w.reshape(size, groups, makers // groups, share, *kernel), 0, 1)
        found = apply("conv", x, kernels.reshape(size * makers, share, *kernel), groups=groups, **attrs)
        apart = found.reshape(x.shape[0], groups, size, makers // groups, *found.shape[2:])
        return mnp.moveaxis(apart, 2, 0).reshape(size, x.shape[0], makers, *found.shape[2:])
    if size == 0:
        like = apply(
            "conv", *[mnp.zeros(array.shape[1:], dtype=array.dtype) for array in inputs], groups=groups, **attrs
        )
        return mnp.zeros((0, *like.shape), dtype=like.dtype)
    samples, channels, *dims = x.shape[1:]
    rows = mnp.moveaxis(x, 0, 1).reshape(samples, size * channels, *dims)
    found = apply("conv", rows, w.reshape(size * makers, share, *kernel), groups=size * groups, **attrs)
    return mnp.moveaxis(found.reshape(samples, size, makers, *found.shape[2:]), 1, 0)


def _apart(dim: int, by: int) -> int:
    """The length of `dim` elements that lie `by` apart."""
    return max((dim - 1) * by + 1, 0)
