"""Pooling: as `nn` has it, by the windows of ONNX.

The positions of maxima, which no sequence of axes gives, come from a table of all windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import I64

from .... import nn
from .... import numpy as mnp
from ....core.array import Array, apply
from ....numpy.promotion import asarray, cast, extreme, index_dtype
from ..constant_folding import ints_of
from ..evaluate import Call, Row
from .windows import Window, windows


def _slides(call: Call, places: Sequence[Window]) -> dict[str, Any]:
    """The node's windows as the functions of `nn` take them."""
    return {
        "kernel": [window.kernel for window in places],
        "stride": [window.stride for window in places],
        "padding": [(window.low, window.high) for window in places],
        "dilation": [window.dilation for window in places],
        "ceil_mode": bool(call.attr("ceil_mode", 0)),
    }


# -- maximum ----------------------------------------------------------------------------------------------


def _max_pool(call: Call, x: Array) -> Array | tuple[Array, ...]:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    result = nn.max_pool(x, **_slides(call, places))
    return (result, _positions(call, x, places)) if call.wants(1) else result


def _positions(call: Call, x: Array, places: Sequence[Window]) -> Array:
    """The place of each window's first maximum in the flattened x."""
    sizes = x.shape[2:]
    table, inside = _table(places, sizes)
    order = np.argsort(~inside, axis=1, kind="stable")  # padding stands last, as it may equal the maximum
    table, inside = np.take_along_axis(table, order, 1), np.take_along_axis(inside, order, 1)
    dtype = index_dtype(x.size)
    rows = mnp.reshape(x, (*x.shape[:2], math.prod(sizes)))
    values = apply("gather", rows, asarray(np.where(inside, table, 0).astype(np.int32)), axis=2, batch_dims=0)
    best = mnp.argmax(mnp.where(inside, values, extreme(x.type.dtype, high=False)), 3)
    kernel = table.shape[1]
    entry = mnp.add(best, (np.arange(table.shape[0]) * kernel).astype(np.int32))
    if call.attr("storage_order", 0):  # column-major within a channel
        strides = np.cumprod([1, *sizes[:-1]])
        table = sum(
            index * stride
            for index, stride in zip(np.unravel_index(np.where(inside, table, 0), sizes), strides, strict=True)
        )
    starts = apply("gather", asarray(np.reshape(table, -1).astype(dtype.numpy)), entry, axis=0, batch_dims=0)
    offsets = (np.arange(x.shape[0] * x.shape[1]) * math.prod(sizes)).reshape(*x.shape[:2], 1).astype(dtype.numpy)
    flat = mnp.add(starts, offsets)
    return cast(mnp.reshape(flat, (*x.shape[:2], *[window.count for window in places])), I64)


def _table(places: Sequence[Window], sizes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(windows, elements): which flat spatial position each reads, and whether it is inside."""
    rank = len(places)
    flat, inside = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for axis, window in enumerate(places):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = window.count, window.kernel
        positions = window.positions().reshape(shape)
        inside = inside & (positions >= 0) & (positions < window.size)
        flat = flat * sizes[axis] + positions
    count = math.prod([window.count for window in places])
    return flat.reshape(count, -1), inside.reshape(count, -1)


def _max_unpool(call: Call, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    kernel = call.required("kernel_shape")
    rank = len(kernel)
    strides, pads = call.attr("strides") or (1,) * rank, call.attr("pads") or (0,) * (2 * rank)
    sizes = [
        (x.shape[2 + axis] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis] for axis in range(rank)
    ]
    shape = (*x.shape[:2], *sizes)
    flat = mnp.zeros((math.prod(shape),), dtype=x.type.dtype)
    places = cast(mnp.ravel(indices), index_dtype(flat.size))
    done = mnp.reshape(apply("scatter", flat, places, mnp.ravel(x), axis=0, mode="set"), shape)
    if output_shape is None:
        return done
    return mnp.pad(done, [(0, wanted - dim) for wanted, dim in zip(ints_of(output_shape), shape, strict=True)])


# -- mean and norm ----------------------------------------------------------------------------------------


def _average_pool(call: Call, x: Array) -> Array:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    return nn.avg_pool(x, **_slides(call, places), count_include_pad=bool(call.attr("count_include_pad", 0)))


def _lp_pool(call: Call, x: Array) -> Array:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    return nn.lp_pool(x, call.attr("p", 2), **_slides(call, places))


def _global_lp_pool(call: Call, x: Array) -> Array:
    return nn.lp_pool(x, call.attr("p", 2), x.shape[2:])


ROWS: dict[str, Row] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda call, x: nn.global_avg_pool(x),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda call, x: nn.global_max_pool(x),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
