"""Shapes: reshaping, joining, cutting, padding, and the values that say how.

Shapes are static, so Shape and Size are constants, and whatever is computed of them is known while tracing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.ir.dtypes import BOOL, I32

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....numpy.promotion import asarray, cast, like
from ....numpy.reductions import normal_axes, normal_axis
from ..constant_folding import int_of, ints_of, value_of
from ..evaluate import Call, Row
from .elementwise import dtype_numbered

# -- values -----------------------------------------------------------------------------------------------


def _constant(call: Call) -> Array:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                        ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        number = call.attr(name)
        if number is not None:
            return value_array(np.asarray(number, dtype))
    value = call.attr("value")
    if value is None:
        value = call.attr("sparse_value")
    if value is None:
        raise call.unsupported("a constant of strings")
    return asarray(value)


def _constant_of_shape(call: Call, shape: Array) -> Array:
    value = call.attr("value")
    fill = np.zeros(1, np.float32) if value is None else value
    return mnp.broadcast_to(asarray(fill.reshape(())), ints_of(shape))


def _shape(call: Call, x: Array) -> Array:
    start, stop = call.attr("start", 0), call.attr("end")
    return value_array(np.asarray(x.shape[slice(start, stop)], np.int64))


def _range(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    dtype = start.type.dtype
    first, last, step = (value_of(bound).reshape(()).item() for bound in (start, limit, delta))
    if dtype.kind != "f":
        return value_array(np.arange(first, last, step, dtype=dtype.numpy))
    count = max(math.ceil((last - first) / step), 0)
    steps = apply("iota", shape=(count,), dtype=dtype.name, axis=0)
    return mnp.add(mnp.multiply(steps, delta.reshape(())), start.reshape(()))


def _eye_like(call: Call, x: Array) -> Array:
    number = call.attr("dtype")
    dtype = x.type.dtype if number is None else dtype_numbered(call, number)
    return mnp.eye(*x.shape, k=call.attr("k", 0), dtype=dtype)


# -- reshaping --------------------------------------------------------------------------------------------


def _reshape(call: Call, x: Array, shape: Array | None = None) -> Array:
    wanted = call.ints("shape", shape)
    if wanted is None:
        raise InputError("Reshape has no shape")
    if not call.attr("allowzero", 0):
        wanted = tuple([x.shape[place] if dim == 0 else dim for place, dim in enumerate(wanted)])
    if -1 in wanted and x.size == 0:
        wanted = tuple([0 if dim == -1 else dim for dim in wanted])
    return mnp.reshape(x, wanted)


def _flatten(call: Call, x: Array) -> Array:
    axis = call.attr("axis", 1)
    place = axis + x.ndim if axis < 0 else axis
    if not 0 <= place <= x.ndim:
        raise InputError(f"Flatten cuts {x.ndim} dimensions at -{x.ndim} to {x.ndim}, not at {axis}")
    return mnp.reshape(x, (math.prod(x.shape[:place]), math.prod(x.shape[place:])))


def _squeeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    return mnp.squeeze(x, call.ints("axes", axes))


def _unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    return mnp.expand_dims(x, call.ints("axes", axes) or ())


def _transpose(call: Call, x: Array) -> Array:
    return mnp.permute_dims(x, call.attr("perm"))


def _expand(call: Call, x: Array, shape: Array) -> Array:
    return mnp.broadcast_to(x, mnp.broadcast_shapes(x.shape, ints_of(shape)))


def _depth_to_space(call: Call, x: Array) -> Array:
    size, (n, c, *spatial) = call.required("blocksize"), x.shape
    rank = len(spatial)
    inner = c // size**rank
    blocks = [size] * rank
    if call.attr("mode", "DCR") == "DCR":
        split, first = mnp.reshape(x, (n, *blocks, inner, *spatial)), 1
        depth = rank + 1
    else:
        split, first = mnp.reshape(x, (n, inner, *blocks, *spatial)), 2
        depth = 1
    perm = [0, depth]
    for axis in range(rank):
        perm += [rank + 2 + axis, first + axis]
    return mnp.reshape(mnp.permute_dims(split, perm), (n, inner, *[dim * size for dim in spatial]))


def _space_to_depth(call: Call, x: Array) -> Array:
    size, (n, c, *spatial) = call.required("blocksize"), x.shape
    rank = len(spatial)
    split = mnp.reshape(x, (n, c, *[part for dim in spatial for part in (dim // size, size)]))
    outer, inner = [2 + 2 * axis for axis in range(rank)], [3 + 2 * axis for axis in range(rank)]
    channels = [*inner, 1] if call.attr("mode", "DCR") == "DCR" else [1, *inner]
    return mnp.reshape(
        mnp.permute_dims(split, [0, *channels, *outer]), (n, c * size**rank, *[dim // size for dim in spatial])
    )


# -- joining and cutting ----------------------------------------------------------------------------------


def _concat(call: Call, *inputs: Array) -> Array:
    return mnp.concat(inputs, axis=call.attr("axis", 1))


def _split(call: Call, x: Array, split: Array | None = None) -> list[Array]:
    axis = normal_axis(call.attr("axis", 0), x.ndim)
    sizes = call.ints("split", split)
    if sizes is None:
        parts = call.attr("num_outputs", len(call.node.outputs))
        size = -(-x.shape[axis] // parts)  # the last one may be smaller
        sizes = tuple([max(min(size, x.shape[axis] - size * part), 0) for part in range(parts)])
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0 or len(sizes) != len(call.node.outputs):
        raise InputError(
            f"{len(call.node.outputs)} parts of sizes {list(sizes)} do not make up the axis {axis} of {x.shape}"
        )
    cuts = [sum(sizes[: place + 1]) for place in range(len(sizes) - 1)]
    return mnp.split(x, cuts, axis) if cuts else [x]


def _slice(
    call: Call, x: Array, starts: Array | None = None, ends: Array | None = None, axes: Array | None = None,
    steps: Array | None = None,
) -> Array:  # fmt: skip
    first, last = call.ints("starts", starts), call.ints("ends", ends)
    if first is None or last is None:
        raise InputError("Slice has no starts or no ends")
    along = call.ints("axes", axes)
    along = tuple(range(len(first))) if along is None else along
    by = (1,) * len(first) if steps is None else ints_of(steps)
    key: list[Any] = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(along, first, last, by, strict=True):
        key[normal_axis(axis, x.ndim)] = _cut(x.shape[axis], start, stop, step)
    return x[tuple(key)]


def _cut(dim: int, start: int, stop: int, step: int) -> slice:
    """ONNX's slice as Python's.  Backwards, a start before the first element is the first element in ONNX, where Python
    takes nothing, and an end before it is -1 in ONNX and None here."""
    if step == 0:
        raise InputError("Slice has a step of 0")
    if step > 0:
        return slice(start, stop, step)
    start = min(max(start + dim if start < 0 else start, 0), dim - 1)
    stop = max(stop + dim if stop < 0 else stop, -1)
    if stop >= start:
        return slice(0, 0)
    return slice(start, None if stop < 0 else stop, step)


def _tile(call: Call, x: Array, repeats: Array, axis: Array | None = None) -> Array:
    if axis is None:
        return mnp.tile(x, ints_of(repeats))
    times = [1] * x.ndim  # before opset 6: one axis
    times[int_of(axis)] = int_of(repeats)
    return mnp.tile(x, times)


def _trilu(call: Call, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else int_of(k)
    return mnp.triu(x, k=diagonal) if call.attr("upper", 1) else mnp.tril(x, k=diagonal)


def _reverse_sequence(call: Call, x: Array, lengths: Array) -> Array:
    time, batch = call.attr("time_axis", 0), call.attr("batch_axis", 1)
    rows = mnp.moveaxis(x, (batch, time), (0, 1))
    steps = apply("iota", shape=(1, rows.shape[1]), dtype=I32.name, axis=1)
    length = cast(lengths, I32).reshape(-1, 1)
    places = mnp.where(mnp.less(steps, length), mnp.subtract(mnp.subtract(length, 1), steps), steps)
    turned = apply("gather", rows, places, axis=1, batch_dims=1)
    return mnp.moveaxis(turned, (0, 1), (batch, time))


# -- padding ----------------------------------------------------------------------------------------------


def _pad(
    call: Call, x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Array:
    widths = call.ints("paddings" if call.version < 2 else "pads", pads)
    if widths is None:
        raise InputError("Pad has no pads")
    along = tuple(range(x.ndim)) if axes is None else normal_axes(ints_of(axes), x.ndim)
    if len(widths) != 2 * len(along):
        raise InputError(f"Pad of {len(along)} axes has {2 * len(along)} pads, got {len(widths)}")
    before, after = [0] * x.ndim, [0] * x.ndim
    for place, axis in enumerate(along):
        before[axis], after[axis] = widths[place], widths[len(along) + place]
    fill = value if value is not None else call.attr("value", 0)
    return padded(call, x, list(zip(before, after, strict=True)), call.attr("mode", "constant"), fill)


def padded(call: Call, x: Array, widths: list[tuple[int, int]], mode: str, fill: Any = 0) -> Array:
    """x padded by `widths` per axis in ONNX's modes; negative widths cut."""
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise call.unsupported(f"the padding mode {mode!r}")
    if any(low + dim + high < 0 for (low, high), dim in zip(widths, x.shape, strict=True)):
        raise InputError(f"pads of {widths} take more from {x.shape} than it has")
    if any(width < 0 for pair in widths for width in pair):
        kept = [_kept(low, high, dim) for (low, high), dim in zip(widths, x.shape, strict=True)]
        widths = [
            (max(min(low, low + dim + high), 0), max(min(high, low + dim + high), 0))
            for (low, high), dim in zip(widths, x.shape, strict=True)
        ]
        x = x[tuple(kept)]
    if mode != "constant":
        return mnp.pad(x, widths, mode)
    scalar = mnp.reshape(like(fill, x), ())
    if x.type.dtype is BOOL:
        return cast(mnp.pad(cast(x, I32), widths, constant_values=cast(scalar, I32)), BOOL)
    return mnp.pad(x, widths, constant_values=scalar)


def _kept(low: int, high: int, dim: int) -> slice:
    """What negative widths leave of an axis; they may cut all of it, and of the padding at its other end."""
    start = min(max(-low, 0), dim)
    return slice(start, max(min(dim + high, dim), start))


def _center_crop_pad(call: Call, x: Array, shape: Array) -> Array:
    wanted = ints_of(shape)
    along = normal_axes(call.attr("axes", tuple(range(x.ndim))), x.ndim)
    widths = [(0, 0)] * x.ndim
    for axis, size in zip(along, wanted, strict=True):
        missing = size - x.shape[axis]
        low = missing // 2 if missing >= 0 else -(-missing // 2)
        widths[axis] = (low, missing - low)
    return padded(call, x, widths, "constant")


ROWS: dict[str, Row] = {
    "CenterCropPad": _center_crop_pad,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": _shape,
    "Size": lambda call, x: value_array(np.asarray(x.size, np.int64)),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
