"""Resize and Upsample: one axis after the other, each element a weighted sum of a few neighbours.

Sizes and scales are known, so neighbours and weights are tables made here with numpy, as the standard's reference has
them; the graph gathers and sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import BF16, F16, F32

from .... import numpy as mnp
from ....core.array import Array, value_array
from ....numpy.promotion import cast, like
from ....numpy.reductions import normal_axes
from ..constant_folding import ints_of, value_of
from ..evaluate import Call, Row
from .quantised import saturated

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis to resize: `region` is the part of it that tf_crop_and_resize takes, in shares."""

    place: int
    size: int
    count: int
    scale: float
    region: tuple[float, float]


def _resize(
    call: Call, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    if call.version < 11:
        scales, roi = roi, None
    along = normal_axes(call.attr("axes", tuple(range(x.ndim))), x.ndim)
    regions = [0.0] * len(along) + [1.0] * len(along)
    if roi is not None and roi.size:
        regions = value_of(roi).reshape(-1).tolist()
    if sizes is not None and sizes.size:
        counts, factors = _by_sizes(call, x, along, ints_of(sizes))
    elif scales is not None and scales.size:
        factors = [float(scale) for scale in value_of(scales)]
        counts = [math.floor(x.shape[axis] * factor) for axis, factor in zip(along, factors, strict=True)]
    else:
        raise call.unsupported("neither scales nor sizes")
    axes = [
        Axis(axis, x.shape[axis], counts[place], factors[place], (regions[place], regions[len(along) + place]))
        for place, axis in enumerate(along)
    ]
    return _resized(call, x, axes)


def _by_sizes(call: Call, x: Array, along: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[float]]:
    factors = [size / x.shape[axis] for size, axis in zip(sizes, along, strict=True)]
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(sizes), factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [int(factor * x.shape[axis] + 0.5) for axis in along], [factor] * len(along)


def _upsample(call: Call, x: Array, scales: Array | None = None) -> Array:
    factors = call.attr("scales")
    if scales is not None:
        factors = value_of(scales).tolist()
    elif factors is None:
        factors = (1.0, 1.0, call.required("height_scale"), call.required("width_scale"))
    axes = [
        Axis(place, dim, math.floor(dim * factor), factor, (0.0, 1.0))
        for place, (dim, factor) in enumerate(zip(x.shape, factors, strict=True))
    ]
    return _resized(call, x, axes)


def _resized(call: Call, x: Array, axes: Sequence[Axis]) -> Array:
    if any(axis.count < 0 for axis in axes):
        raise InputError(f"sizes are not negative, got {[axis.count for axis in axes]}")
    dtype = x.type.dtype
    mode = call.attr("mode", "nearest")
    as_it_is = mode == "nearest" or (dtype.kind == "f" and dtype not in (F16, BF16))
    wide = x if as_it_is else cast(x, F32)
    for axis in axes:
        identity = axis.count == axis.size and math.isclose(axis.scale, 1.0) and axis.region == (0.0, 1.0)
        if not identity:
            wide = _along(call, wide, axis, mode)
    return cast(wide, dtype) if dtype.kind == "f" or mode == "nearest" else saturated(mnp.trunc(wide), dtype)


def _along(call: Call, x: Array, axis: Axis, mode: str) -> Array:
    at, outside = _origins(call, axis)
    indices, weights = _neighbours(call, at, axis, "linear" if mode == "bilinear" else mode)
    places = np.clip(indices, 0, axis.size - 1).astype(np.int32)
    shape = [axis.count if place == axis.place else 1 for place in range(x.ndim)]
    result: Array | None = None
    for tap in range(places.shape[1]):
        if axis.count and not weights[:, tap].any():
            continue
        part = mnp.take(x, places[:, tap], axis=axis.place)
        if not (weights[:, tap] == 1).all():
            part = mnp.multiply(part, value_array(weights[:, tap].reshape(shape).astype(x.type.dtype.numpy)))
        result = part if result is None else mnp.add(result, part)
    assert result is not None
    if not outside.any():
        return result
    return mnp.where(outside.reshape(shape), like(float(call.attr("extrapolation_value", 0.0)), result), result)


# -- where an element of the result comes from ------------------------------------------------------------


def _origins(call: Call, axis: Axis) -> tuple[Floats, NDArray[np.bool_]]:
    """The coordinate that each element of the result has in the operand, and which of them lie outside."""
    mode = call.attr("coordinate_transformation_mode", "half_pixel" if call.version >= 11 else "asymmetric")
    if mode not in _TRANSFORMATIONS:
        raise call.unsupported(f"the coordinate transformation {mode!r}")
    places: Any = np.arange(axis.count, dtype=np.float32)  # runtimes compute in float32, and a floor shows it
    narrow = replace(axis, scale=float(np.float32(axis.scale)))
    at: Floats = np.asarray(_TRANSFORMATIONS[mode](places, narrow), np.float32).astype(np.float64)
    outside = (at < 0) | (at > axis.size - 1) if mode == "tf_crop_and_resize" else np.zeros(axis.count, bool)
    return at, outside


def _exact(axis: Axis) -> float:
    return axis.scale * axis.size


def _align_corners(y: Floats, axis: Axis) -> Floats:
    return y * 0 if _exact(axis) == 1 else y * (axis.size - 1) / (_exact(axis) - 1)


def _crop(y: Floats, axis: Axis) -> Floats:
    low, high = axis.region
    if axis.count == 1:
        return y * 0 + (high - low) * (axis.size - 1) / 2 + low * (axis.size - 1)
    return y * (high - low) * (axis.size - 1) / (_exact(axis) - 1) + low * (axis.size - 1)


def _half(y: Floats, axis: Axis) -> Floats:
    return (y + 0.5) / axis.scale - 0.5


def _symmetric(y: Floats, axis: Axis) -> Floats:
    return axis.size / 2 * (1 - axis.count / _exact(axis)) + _half(y, axis)


_TRANSFORMATIONS: dict[str, Callable[[Floats, Axis], Floats]] = {
    "align_corners": _align_corners,
    "asymmetric": lambda y, axis: y / axis.scale,
    "half_pixel": _half,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda y, axis: y * 0 if axis.count == 1 else _half(y, axis),
    "tf_crop_and_resize": _crop,
    "tf_half_pixel_for_nn": lambda y, axis: (y + 0.5) / axis.scale,
}


# -- neighbours and their weights -------------------------------------------------------------------------


def _neighbours(call: Call, at: Floats, axis: Axis, mode: str) -> tuple[NDArray[np.int64], Floats]:
    """(count, taps): which elements, and how much of each."""
    if mode == "nearest":
        chosen = _NEAREST[call.attr("nearest_mode", "round_prefer_floor" if call.version >= 11 else "floor")](at)
        return chosen.astype(np.int64)[:, None], np.ones((axis.count, 1))
    if mode not in _KERNELS:
        raise call.unsupported(f"the mode {mode!r}")
    radius, kernel = _KERNELS[mode]
    squeeze = min(axis.scale, 1.0) if call.attr("antialias", 0) else 1.0
    reach = math.ceil(radius / squeeze)
    indices = np.floor(at).astype(np.int64)[:, None] + np.arange(-reach + 1, reach + 1)
    weights = kernel(np.abs((indices - at[:, None]) * squeeze), call.attr("cubic_coeff_a", -0.75))
    if call.attr("exclude_outside", 0):
        weights = np.where((indices < 0) | (indices >= axis.size), 0.0, weights)
    return indices, weights / weights.sum(1, keepdims=True)


def _linear_kernel(distance: Floats, a: float) -> Floats:
    return np.clip(1 - distance, 0, 1)


def _cubic_kernel(distance: Floats, a: float) -> Floats:
    """Keys, 1981."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


_KERNELS: dict[str, tuple[int, Callable[[Floats, float], Floats]]] = {
    "cubic": (2, _cubic_kernel),
    "linear": (1, _linear_kernel),
}
_NEAREST: dict[str, Callable[[Floats], Any]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
}

ROWS: dict[str, Row] = {
    "Resize": _resize,
    "Upsample": _upsample,
}
