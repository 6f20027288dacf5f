"""Convolution: plain, transposed, of integers, deformable, and the folding back of columns.

The op table's `conv` has x (n, c, *dims) and w (o, c / groups, *kernel), padding, strides, and dilations of both sides;
a transposed convolution is one of x with gaps by the flipped kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wire.errors import InputError
from wire.ir.dtypes import F32, I32

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....nn.windows import extents
from ....numpy.correlation import correlation, transposed_kernels
from ....numpy.promotion import cast
from ..constant_folding import ints_of
from ..evaluate import Call, Row
from .quantised import centred, requantised
from .sampling import LINEAR, interpolated
from .windows import windows

Ints = Sequence[int]


def _conv(call: Call, x: Array, weight: Array, bias: Array | None = None) -> Array:
    places = windows(call, x.shape[2:], _kernel(call, weight))
    strides, dilations = [window.stride for window in places], [window.dilation for window in places]
    pads = [(window.low, window.high) for window in places]
    return _biased(correlation(x, weight, strides, pads, [1] * len(pads), dilations, call.attr("group", 1)), bias)


def _kernel(call: Call, weight: Array) -> tuple[int, ...]:
    """The window of a weight, which the node may also state."""
    kernel = weight.shape[2:]
    stated = tuple(call.attr("kernel_shape") or kernel)
    if stated != kernel:
        raise InputError(f"{call.node.op} says that its kernel is {stated}, and its weight has {kernel}")
    return kernel


def _biased(x: Array, bias: Array | None) -> Array:
    return x if bias is None else mnp.add(x, mnp.reshape(bias, (-1, *[1] * (x.ndim - 2))))


# -- transposed -------------------------------------------------------------------------------------------


def _conv_transpose(call: Call, x: Array, weight: Array, bias: Array | None = None) -> Array:
    rank, groups = x.ndim - 2, call.attr("group", 1)
    strides, dilations = (tuple(call.attr(name) or (1,) * rank) for name in ("strides", "dilations"))
    extra = call.attr("output_padding") or (0,) * rank
    spans = extents(_kernel(call, weight), dilations)
    pads = _transposed_pads(call, x, strides, [span + more for span, more in zip(spans, extra, strict=True)])
    kept = [
        (span - 1 - low, span - 1 - high + more) for span, (low, high), more in zip(spans, pads, extra, strict=True)
    ]
    turned = transposed_kernels(weight, groups)
    return _biased(correlation(x, turned, [1] * rank, kept, strides, dilations, groups), bias)


def _transposed_pads(call: Call, x: Array, strides: Ints, spans: Ints) -> list[tuple[int, int]]:
    """What is cut off at both ends of each axis."""
    rank, auto, wanted = len(strides), call.attr("auto_pad", "NOTSET"), call.attr("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * by for size, by in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        pads = call.attr("pads") or (0,) * (2 * rank)
        return [(pads[axis], pads[rank + axis]) for axis in range(rank)]
    widths = []
    for size, by, span, dim in zip(x.shape[2:], strides, spans, wanted[-rank:], strict=True):
        total = (size - 1) * by + span - dim
        half = total // 2
        widths.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return widths


# -- integers ---------------------------------------------------------------------------------------------


def _conv_integer(
    call: Call, x: Array, weight: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    if w_zero is not None and w_zero.size > 1:
        w_zero = mnp.reshape(w_zero, (-1, *[1] * (weight.ndim - 1)))
    return _conv(call, centred(x, x_zero), centred(weight, w_zero))


def _q_linear_conv(
    call: Call, x: Array, x_scale: Array, x_zero: Array, weight: Array, w_scale: Array, w_zero: Array, scale: Array,
    zero: Array, bias: Array | None = None,
) -> Array:  # fmt: skip
    total = _biased(_conv_integer(call, x, weight, x_zero, w_zero), bias)
    per_channel = mnp.reshape(w_scale, (-1, *[1] * (x.ndim - 2))) if w_scale.size > 1 else mnp.reshape(w_scale, ())
    factor = mnp.divide(mnp.multiply(cast(x_scale, F32), cast(per_channel, F32)), cast(scale, F32))
    return requantised(total, factor, zero)


# -- deformable -------------------------------------------------------------------------------------------


def _deform_conv(
    call: Call, x: Array, weight: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
) -> Array:
    places = windows(call, x.shape[2:], _kernel(call, weight))
    groups, parts = call.attr("group", 1), call.attr("offset_group", 1)
    n, channels, rank = x.shape[0], x.shape[1], len(places)
    kernel, counts = [window.kernel for window in places], [window.count for window in places]
    taps, points = math.prod(kernel), math.prod(counts)
    shifts = mnp.reshape(offset, (n * parts, taps, rank, points))
    grids = np.meshgrid(*[np.arange(window.kernel) for window in places], indexing="ij")
    firsts = np.meshgrid(*[np.arange(window.count) for window in places], indexing="ij")
    coordinates = []
    for axis, window in enumerate(places):
        base = grids[axis].reshape(-1, 1) * window.dilation + firsts[axis].reshape(1, -1) * window.stride - window.low
        at = mnp.add(shifts[:, :, axis], value_array(base.astype(x.type.dtype.numpy)))
        coordinates.append(mnp.reshape(at, (n * parts, taps * points)))
    sampled = interpolated(mnp.reshape(x, (n * parts, channels // parts, *x.shape[2:])), coordinates, LINEAR)
    columns = mnp.reshape(sampled, (n, parts, channels // parts, taps, points))
    if mask is not None:
        columns = mnp.multiply(columns, mnp.reshape(mask, (n, parts, 1, taps, points)))
    columns = mnp.reshape(columns, (n, groups, channels // groups * taps, points))
    rows = mnp.reshape(weight, (groups, weight.shape[0] // groups, weight.shape[1] * taps))
    return _biased(mnp.reshape(mnp.matmul(rows, columns), (n, weight.shape[0], *counts)), bias)


# -- columns ----------------------------------------------------------------------------------------------


def _col2im(call: Call, columns: Array, image: Array, block: Array) -> Array:
    sizes, kernel = ints_of(image), ints_of(block)
    places = windows(call, sizes, kernel)
    taps = math.prod(kernel)
    n, channels = columns.shape[0], columns.shape[1] // taps
    padded = [window.size + window.low + window.high for window in places]
    flat = np.zeros((1,) * (2 * len(places)), np.int64)
    for axis, window in enumerate(places):
        shape = [1] * (2 * len(places))
        shape[axis], shape[len(places) + axis] = window.kernel, window.count
        flat = flat * padded[axis] + (window.positions().T + window.low).reshape(shape)
    updates = mnp.reshape(columns, (n, channels, taps, -1))
    empty = mnp.zeros((n, channels, math.prod(padded)), dtype=columns.type.dtype)
    positions = value_array(flat.reshape(taps, -1).astype(I32.numpy))
    done = mnp.reshape(apply("scatter", empty, positions, updates, axis=2, mode="add"), (n, channels, *padded))
    inner = [slice(window.low, window.low + window.size) for window in places]
    return done[(slice(None), slice(None), *inner)]


ROWS: dict[str, Row] = {
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "QLinearConv": _q_linear_conv,
}
