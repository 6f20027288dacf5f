"""Sampling: values between the elements of spatial axes, at coordinates that the graph computes.

`interpolated` is the one rule; GridSample, RoiAlign and deformable convolution differ in their coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import I32

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....numpy.promotion import cast, like
from ..constant_folding import value_of
from ..evaluate import Call, Row

Coefficients = Callable[[Array], list[Array]]  # of the distance to the first of the two middle neighbours


class Interpolation(NamedTuple):
    """`first` is the leftmost neighbour, counted from the floor; there is a coefficient for each from there on."""

    first: int
    coefficients: Coefficients


def _cubic(distance: Array) -> list[Array]:
    """Keys, 1981, with a = -0.75."""
    a = -0.75

    def outer(t: Array) -> Array:
        return ((t * a - 5 * a) * t + 8 * a) * t - 4 * a

    def inner(t: Array) -> Array:
        return (t * (a + 2) - (a + 3)) * t * t + 1

    rest = mnp.subtract(1, distance)
    return [outer(mnp.add(distance, 1)), inner(distance), inner(rest), outer(mnp.add(rest, 1))]


LINEAR = Interpolation(0, lambda distance: [mnp.subtract(1, distance), distance])
CUBIC = Interpolation(-1, _cubic)
NEAREST = Interpolation(0, lambda distance: [mnp.ones_like(distance)])  # of coordinates that are whole

Border = Callable[[Array, int], Array]  # where a neighbour's index points that may be outside of an axis


def interpolated(
    x: Array, coordinates: Sequence[Array], interpolation: Interpolation, border: Border | None = None
) -> Array:
    """x (n, c, *dims) at `coordinates`, (n, points) per axis: (n, c, points).  Without `border`, outside is 0."""
    neighbours = [_neighbours(at, dim, interpolation, border) for at, dim in zip(coordinates, x.shape[2:], strict=True)]
    rows = mnp.swapaxes(mnp.reshape(x, (*x.shape[:2], math.prod(x.shape[2:]))), 1, 2)  # (n, positions, c)
    total = None
    for corner in product(*neighbours):
        flat, weight = corner[0]
        for (index, share), dim in zip(corner[1:], x.shape[3:], strict=True):
            flat, weight = mnp.add(mnp.multiply(flat, dim), index), mnp.multiply(weight, share)
        term = mnp.multiply(apply("gather", rows, flat, axis=1, batch_dims=1), mnp.expand_dims(weight, 2))
        total = term if total is None else mnp.add(total, term)
    assert total is not None
    return mnp.swapaxes(total, 1, 2)


def _neighbours(at: Array, dim: int, interpolation: Interpolation, border: Border | None) -> list[tuple[Array, Array]]:
    """The index and the weight of each neighbour along one axis."""
    floor = mnp.floor(at)
    result = []
    for place, weight in enumerate(interpolation.coefficients(mnp.subtract(at, floor))):
        index = mnp.add(floor, float(interpolation.first + place))
        if border is None:
            inside = mnp.logical_and(mnp.greater_equal(index, 0), mnp.less(index, dim))
            weight = mnp.where(inside, weight, like(0, weight))
        else:
            index = border(index, dim)
        result.append((cast(mnp.clip(index, 0.0, dim - 1.0), I32), weight))
    return result


# -- GridSample -------------------------------------------------------------------------------------------

_MODES = {
    "bilinear": LINEAR, "linear": LINEAR, "bicubic": CUBIC, "cubic": CUBIC, "nearest": NEAREST,
}  # fmt: skip


def _grid_sample(call: Call, x: Array, grid: Array) -> Array:
    mode = _MODES[call.attr("mode", "linear")]
    aligned, padding = bool(call.attr("align_corners", 0)), call.attr("padding_mode", "zeros")
    rank, points = x.ndim - 2, math.prod(grid.shape[1:-1])
    wide = cast(grid, x.type.dtype)
    coordinates = []
    for axis, dim in enumerate(x.shape[2:]):
        at = mnp.reshape(wide[..., rank - 1 - axis], (x.shape[0], points))  # the last axis first
        at = _denormalised(at, dim, aligned)
        at = mnp.round(at) if mode is NEAREST else at
        if padding == "border" and mode is not CUBIC:  # a cubic's neighbours are each brought back, not its middle
            at = mnp.clip(at, 0.0, dim - 1.0)
        elif padding == "reflection" and mode is not CUBIC:
            at = _reflected(at, dim, aligned)
        coordinates.append(at)
    border: Border | None = None
    if padding == "border":
        border = lambda index, dim: index  # noqa: E731  # `interpolated` clamps
    elif padding == "reflection":
        border = lambda index, dim: mnp.trunc(_reflected(index, dim, aligned))  # noqa: E731
    return mnp.reshape(interpolated(x, coordinates, mode, border), (*x.shape[:2], *grid.shape[1:-1]))


def _denormalised(at: Array, dim: int, aligned: bool) -> Array:
    """Positions of coordinates from -1 to 1, which are the corners' centres if `aligned`, else their outer edges."""
    if aligned:
        return mnp.multiply(mnp.divide(mnp.add(at, 1), 2.0), float(dim - 1))
    return mnp.divide(mnp.subtract(mnp.multiply(mnp.add(at, 1), float(dim)), 1), 2.0)


def _reflected(at: Array, dim: int, aligned: bool) -> Array:
    low, high = (0.0, dim - 1.0) if aligned else (-0.5, dim - 0.5)
    if high <= low:
        return mnp.zeros_like(at)
    below, above = mnp.less(at, low), mnp.greater(at, high)
    beyond = mnp.where(below, mnp.subtract(low, at), mnp.subtract(at, high))
    turns = mnp.floor(mnp.divide(beyond, high - low))
    rest = mnp.subtract(beyond, mnp.multiply(turns, high - low))
    from_low = mnp.equal(mnp.equal(mnp.remainder(turns, 2.0), 0), below)
    inside = mnp.where(from_low, mnp.add(rest, low), mnp.subtract(high, rest))
    return mnp.where(mnp.logical_or(below, above), inside, at)


# -- regions ----------------------------------------------------------------------------------------------


def _roi_align(call: Call, x: Array, rois: Array, batch: Array) -> Array:
    ratio, high, wide = (call.attr(name, least) for name, least in (("sampling_ratio", 0), *_OUTPUT))
    if rois.shape[0] == 0:
        return mnp.zeros((0, x.shape[1], high, wide), dtype=x.type.dtype)
    if ratio > 0:
        return _aligned(call, x, rois, batch, ratio, ratio)
    sizes = np.ceil(_roi_sizes(call, value_of(rois)) / [high, wide])
    pooled = [
        _aligned(call, x, rois[place : place + 1], batch[place : place + 1], max(int(height), 1), max(int(width), 1))
        for place, (height, width) in enumerate(sizes)
    ]
    return mnp.concat(pooled, 0)


_OUTPUT = ("output_height", 1), ("output_width", 1)


def _half_pixel(call: Call) -> bool:
    default = "half_pixel" if call.version >= 16 else "output_half_pixel"
    return str(call.attr("coordinate_transformation_mode", default)) == "half_pixel"


def _roi_sizes(call: Call, rois: NDArray[Any]) -> NDArray[Any]:
    """(regions, 2): height and width."""
    sizes: NDArray[Any] = (rois[:, [3, 2]] - rois[:, [1, 0]]) * call.attr("spatial_scale", 1.0)
    return sizes if _half_pixel(call) else np.maximum(sizes, 1.0)


def _aligned(call: Call, x: Array, rois: Array, batch: Array, high: int, wide: int) -> Array:
    """Regions sampled at high x wide points in each of their bins, and pooled over these."""
    regions, channels = rois.shape[0], x.shape[1]
    outputs = tuple([call.attr(name, least) for name, least in _OUTPUT])
    scaled = mnp.multiply(rois, call.attr("spatial_scale", 1.0))
    scaled = mnp.subtract(scaled, 0.5) if _half_pixel(call) else scaled
    axes, inside = [], None
    for place, (count, samples, dim) in enumerate(zip(outputs, (high, wide), x.shape[2:], strict=True)):
        start, stop = scaled[:, 1 - place], scaled[:, 3 - place]
        size = mnp.subtract(stop, start)
        size = size if _half_pixel(call) else mnp.maximum(size, 1.0)
        shares = (np.arange(count)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(1, -1) / count
        at = mnp.add(start[:, None], mnp.multiply(size[:, None], value_array(shares.astype(x.type.dtype.numpy))))
        fits = mnp.logical_and(mnp.greater_equal(at, -1.0), mnp.less_equal(at, float(dim)))
        shape = (regions, -1, 1) if place == 0 else (regions, 1, -1)
        inside = mnp.reshape(fits, shape) if inside is None else mnp.logical_and(inside, mnp.reshape(fits, shape))
        axes.append(mnp.reshape(mnp.clip(at, 0.0, dim - 1.0), shape))
    assert inside is not None
    points = (regions, outputs[0] * high, outputs[1] * wide)
    rows, columns = (mnp.reshape(mnp.broadcast_to(line, points), (regions, -1)) for line in axes)
    chosen = mnp.take(x, batch, axis=0)
    most = call.attr("mode", "avg") == "max"
    reduce = mnp.max if most else mnp.mean
    sampled = _largest_share(chosen, rows, columns) if most else interpolated(chosen, [rows, columns], LINEAR)
    kept = mnp.where(mnp.reshape(inside, (regions, 1, -1)), sampled, like(0, sampled))
    bins = mnp.reshape(kept, (regions, channels, outputs[0], high, outputs[1], wide))
    return reduce(bins, (3, 5))


def _largest_share(x: Array, rows: Array, columns: Array) -> Array:
    """The largest of the four weighted neighbours, which is what ONNX takes the maximum of."""
    largest = None
    flat = mnp.swapaxes(mnp.reshape(x, (*x.shape[:2], -1)), 1, 2)
    down, across = (_neighbours(at, dim, LINEAR, None) for at, dim in zip((rows, columns), x.shape[2:], strict=True))
    for (row, high), (column, wide) in product(down, across):
        index = mnp.add(mnp.multiply(row, x.shape[3]), column)
        share = mnp.multiply(apply("gather", flat, index, axis=1, batch_dims=1), mnp.multiply(high, wide)[:, :, None])
        largest = share if largest is None else mnp.maximum(largest, share)
    assert largest is not None
    return mnp.swapaxes(largest, 1, 2)


def _half_away(x: Array) -> Array:
    """x rounded, halves away from zero."""
    return mnp.multiply(mnp.sign(x), mnp.floor(mnp.add(mnp.abs(x), 0.5)))


def _max_roi_pool(call: Call, x: Array, rois: Array) -> Array:
    """Bins of whole elements: each is a mask of rows by a mask of columns."""
    scale = call.attr("spatial_scale", 1.0)
    chosen = mnp.take(x, cast(rois[:, 0], I32), axis=0)
    result, lowest = chosen, like(-math.inf, x)
    for place, count in enumerate(call.required("pooled_shape")):
        start, stop = (_half_away(mnp.multiply(rois[:, column - place], scale)) for column in (2, 4))
        size = mnp.divide(mnp.maximum(mnp.add(mnp.subtract(stop, start), 1), 1.0), float(count))
        dim, bins = x.shape[2 + place], np.arange(count, dtype=np.float32)
        first = mnp.add(mnp.floor(mnp.multiply(size[:, None], bins)), start[:, None])
        last = mnp.add(mnp.ceil(mnp.multiply(size[:, None], bins + 1)), start[:, None])
        at = np.arange(dim, dtype=np.float32)
        mask = mnp.logical_and(mnp.greater_equal(at, first[:, :, None]), mnp.less(at, last[:, :, None]))
        if place == 0:  # (regions, c, rows, columns) to (regions, c, bins, columns)
            result = mnp.max(mnp.where(mask[:, None, :, :, None], result[:, :, None], lowest), 3)
        else:
            result = mnp.max(mnp.where(mask[:, None, None], result[:, :, :, None], lowest), 4)
    return mnp.where(mnp.isinf(result), like(0, result), result)  # an empty bin is 0


ROWS: dict[str, Row] = {
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "RoiAlign": _roi_align,
}
