"""Pooling: one axis after the other, each as the maximum or sum of as many strided slices as its window has elements.

The positions of maxima, which no sequence of axes gives, come from a table of all windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import BF16, F16, F32, I64, DType

from .... import numpy as mnp
from ....array import Array, apply, value_array
from ....numpy.promotion import INT_BOUNDS, asarray, cast, like
from ..evaluate import Call, Row
from ..known import ints_of
from .indexing import index_dtype
from .windows import Window, windows

SLICES_MAX = 16  # a wider window is gathered and reduced


def _lowest(dtype: DType) -> float | int:
    return -math.inf if dtype.kind == "f" else INT_BOUNDS[dtype.name][0]


def slid(
    x: Array, axis: int, window: Window, pair: Callable[[Array, Array], Array], whole: Callable[..., Array]
) -> Array:
    """x (already padded) with `axis` reduced within each window: by `pair` of slices, or by `whole` at once."""
    if window.count == 1 and window.dilation == 1 and window.kernel == x.shape[axis]:
        return whole(x, axis, keepdims=True)
    if window.kernel > SLICES_MAX:
        places = np.arange(window.count)[:, None] * window.stride + np.arange(window.kernel) * window.dilation
        return whole(mnp.take(x, places.astype(np.int32), axis=axis), axis + 1)
    result = None
    for element in range(window.kernel):
        first = element * window.dilation
        part = _strided(x, axis, first, first + (window.count - 1) * window.stride + 1, window.stride)
        result = part if result is None else pair(result, part)
    assert result is not None
    return result


def _strided(x: Array, axis: int, start: int, stop: int, step: int) -> Array:
    key = [slice(None)] * x.ndim
    key[axis] = slice(start, stop, step)
    return x[tuple(key)]


def padded_for(x: Array, places: Sequence[Window], fill: float | int) -> Array:
    """x with as much around its spatial axes as the windows read."""
    widths = [window.reach for window in places]
    read = [slice(0, window.size + min(high, 0)) for window, (_, high) in zip(places, widths, strict=True)]
    cut = (slice(None), slice(None), *read)
    return mnp.pad(x[cut], [(0, 0), (0, 0), *[(low, max(high, 0)) for low, high in widths]], constant_values=fill)


# -- maximum ----------------------------------------------------------------------------------------------


def _max_pool(call: Call, x: Array) -> Array | tuple[Array, ...]:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    result = padded_for(x, places, _lowest(x.type.dtype))
    for axis, window in enumerate(places):
        result = slid(result, 2 + axis, window, mnp.maximum, mnp.max)
    return (result, _positions(call, x, places)) if call.wants(1) else result


def _positions(call: Call, x: Array, places: Sequence[Window]) -> Array:
    """Where in the flattened x each window's first maximum is."""
    sizes = x.shape[2:]
    table, inside = _table(places, sizes)
    dtype = index_dtype(x.size)
    rows = mnp.reshape(x, (*x.shape[:2], math.prod(sizes)))
    values = apply("gather", rows, asarray(np.where(inside, table, 0).astype(np.int32)), axis=2, batch_dims=0)
    best = mnp.argmax(mnp.where(inside, values, _lowest(x.type.dtype)), 3)
    kernel = table.shape[1]
    entry = mnp.add(best, (np.arange(table.shape[0]) * kernel).astype(np.int32))
    if call.attr("storage_order", 0):  # column-major within a channel
        strides = np.cumprod([1, *sizes[:-1]])
        table = sum(
            index * stride
            for index, stride in zip(np.unravel_index(np.where(inside, table, 0), sizes), strides, strict=True)
        )
    found = apply("gather", asarray(np.reshape(table, -1).astype(dtype.numpy)), entry, axis=0, batch_dims=0)
    offsets = (np.arange(x.shape[0] * x.shape[1]) * math.prod(sizes)).reshape(*x.shape[:2], 1).astype(dtype.numpy)
    flat = mnp.add(found, offsets)
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


def _sums(x: Array, places: Sequence[Window]) -> Array:
    result = padded_for(x, places, 0)
    for axis, window in enumerate(places):
        result = slid(result, 2 + axis, window, mnp.add, mnp.sum)
    return result


def _average_pool(call: Call, x: Array) -> Array:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    wide = cast(x, F32) if x.type.dtype in (F16, BF16) else x
    counts = np.ones((1,) * len(places))
    for axis, window in enumerate(places):
        counts = counts * _counted(window, bool(call.attr("count_include_pad", 0))).reshape(
            [window.count if place == axis else 1 for place in range(len(places))]
        )
    return cast(mnp.divide(_sums(wide, places), value_array(counts.astype(wide.type.dtype.numpy))), x.type.dtype)


def _counted(window: Window, padding: bool) -> NDArray[np.int64]:
    """How many elements count at each place."""
    positions = window.positions()
    low, high = (-window.low, window.size + window.high) if padding else (0, window.size)
    counts: NDArray[np.int64] = ((positions >= low) & (positions < high)).sum(1)
    return np.maximum(counts, 1)


def _power_sum_root(total: Callable[[Array], Array], x: Array, p: int) -> Array:
    powers = mnp.square(x) if p == 2 else mnp.pow(mnp.abs(x), like(p, x))
    found = total(powers)
    return mnp.sqrt(found) if p == 2 else mnp.pow(found, like(1 / p, x))


def _lp_pool(call: Call, x: Array) -> Array:
    places = windows(call, x.shape[2:], call.required("kernel_shape"))
    return _power_sum_root(lambda powers: _sums(powers, places), x, call.attr("p", 2))


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


ROWS: dict[str, Row] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda call, x: mnp.mean(x, _spatial(x), keepdims=True),
    "GlobalLpPool": lambda call, x: _power_sum_root(
        lambda powers: mnp.sum(powers, _spatial(x), keepdims=True), x, call.attr("p", 2)
    ),
    "GlobalMaxPool": lambda call, x: mnp.max(x, _spatial(x), keepdims=True),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
