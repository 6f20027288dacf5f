"""Derivatives and batches of `conv`, which are convs again: of other strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from .. import numpy as mnp
from ..core.array import Array, apply
from ..numpy.correlation import correlation, transposed_kernels

Ints = tuple[int, ...]


class _Attrs(NamedTuple):
    """The attributes of a conv, by their names in the op table; sizes and widths are per spatial axis."""

    stride: Ints
    low: Ints
    high: Ints
    lhs_dilation: Ints
    rhs_dilation: Ints
    groups: int


def of_x(g: Array, z: Array, x: Array, w: Array, **attrs: Any) -> Array:
    """The cotangent of x: z's, its elements `stride` apart, by the kernels turned around."""
    if 0 in x.shape:
        return mnp.zeros_like(x)
    conv = _Attrs(**attrs)
    pairs = []
    for axis, reach in enumerate(conv.rhs_dilation):
        before = (w.shape[2 + axis] - 1) * reach - conv.low[axis]
        full = (x.shape[2 + axis] - 1) * conv.lhs_dilation[axis] + (w.shape[2 + axis] - 1) * reach + 1
        pairs.append((before, full - before - _span(g.shape[2 + axis], conv.stride[axis])))
    kernels = transposed_kernels(w, conv.groups)
    return correlation(g, kernels, conv.lhs_dilation, pairs, conv.stride, conv.rhs_dilation, conv.groups)


def of_w(g: Array, z: Array, x: Array, w: Array, **attrs: Any) -> Array:
    """The cotangent of w: x by z's, with samples in the place of channels; a group's channels are the samples."""
    if 0 in (*x.shape, *w.shape):
        return mnp.zeros_like(w)
    conv = _Attrs(**attrs)
    pairs = []
    for axis, (first, spread) in enumerate(zip(conv.low, conv.lhs_dilation, strict=True)):
        full = (w.shape[2 + axis] - 1) * conv.rhs_dilation[axis] + _span(g.shape[2 + axis], conv.stride[axis])
        pairs.append((first, full - first - _span(x.shape[2 + axis], spread)))
    samples, channels, *dims = x.shape
    groups = conv.groups
    shares = mnp.swapaxes(x.reshape(samples, groups, channels // groups, *dims), 0, 2)
    turned = shares.reshape(channels // groups, groups * samples, *dims)
    by = mnp.swapaxes(g, 0, 1)
    cotangent = correlation(turned, by, conv.rhs_dilation, pairs, conv.lhs_dilation, conv.stride, groups)
    return mnp.swapaxes(cotangent, 0, 1)


def tangent(z: Array, tangents: Sequence[Array | None], operands: Sequence[Array], **attrs: Any) -> Array:
    """The sum of a conv of x's tangent and one of w's: it is linear in both."""
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
        z = apply("conv", x.reshape(size * x.shape[1], *x.shape[2:]), w, groups=groups, **attrs)
        return z.reshape(size, x.shape[1], *z.shape[1:])
    _, makers, share, *kernel = w.shape
    if not flags[0]:
        kernels = mnp.moveaxis(w.reshape(size, groups, makers // groups, share, *kernel), 0, 1)
        z = apply("conv", x, kernels.reshape(size * makers, share, *kernel), groups=groups, **attrs)
        apart = z.reshape(x.shape[0], groups, size, makers // groups, *z.shape[2:])
        return mnp.moveaxis(apart, 2, 0).reshape(size, x.shape[0], makers, *z.shape[2:])
    if size == 0:
        like = apply(
            "conv", *[mnp.zeros(array.shape[1:], dtype=array.dtype) for array in inputs], groups=groups, **attrs
        )
        return mnp.zeros((0, *like.shape), dtype=like.dtype)
    samples, channels, *dims = x.shape[1:]
    rows = mnp.moveaxis(x, 0, 1).reshape(samples, size * channels, *dims)
    z = apply("conv", rows, w.reshape(size * makers, share, *kernel), groups=size * groups, **attrs)
    return mnp.moveaxis(z.reshape(samples, size, makers, *z.shape[2:]), 1, 0)


def _span(dim: int, by: int) -> int:
    """The length of `dim` elements that lie `by` apart."""
    return max((dim - 1) * by + 1, 0)
