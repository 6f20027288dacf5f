"""Gather, scatter, dynamic slices and sorting.

XLA's gather and scatter are general: windows of one size at computed places.  Each is done here on the flattened
operand, with the place of every element computed from indices and counters; the two forms that people write (rows by
index, one axis) go straight to ours.  Semantics: openxla.org/xla/operation_semantics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wire.ir.dtypes import I32, DType

from ... import numpy as mnp
from ...core.array import Array, apply, literal
from ...numpy.promotion import INT_BOUNDS, cast, index_dtype
from .rows import Equation, Row

CLIP, DROP = "CLIP", "FILL_OR_DROP"


@dataclass(frozen=True, slots=True)
class _Windows:
    """How the elements of an array of shape `out` are windows of an operand of `shape`.

    `sizes` are those of a window.  `batch` are the axes of `out` that run over indices, and `offsets` maps axes of the
    operand to axes of `out` that run within a window.  `starts` says which axis of the operand each component of an
    index is for, and `paired` maps axes of the operand to axes of the indices.  `mode` is what becomes of a window that
    is not inside.
    """

    shape: Sequence[int]
    sizes: Sequence[int]
    out: Sequence[int]
    batch: Sequence[int]
    offsets: Mapping[int, int]
    starts: Sequence[int]
    paired: Mapping[int, int]
    mode: str


def _gather(equation: Equation, x: Array, indices: Array) -> Array:
    numbers, sizes = equation["dimension_numbers"], equation.ints("slice_sizes")
    mode = _mode(equation)
    out = equation.type.shape
    axis = _whole_rows(numbers.start_index_map, numbers.collapsed_slice_dims, numbers.operand_batching_dims, sizes, x)
    batch = tuple(place for place in range(len(out)) if place not in numbers.offset_dims)
    if axis is not None and batch == tuple(range(axis, axis + indices.ndim - 1)):
        starts = indices[..., 0]
        rows = apply("gather", x, starts, axis=axis, batch_dims=0)
        if mode != DROP:
            return rows
        known = (starts >= 0) & (starts < x.shape[axis])
        aligned = mnp.reshape(known, (1,) * axis + known.shape + (1,) * (x.ndim - axis - 1))
        return mnp.where(aligned, rows, _fill(equation, x))
    kept = [d for d in range(x.ndim) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    offsets = dict(zip(kept, numbers.offset_dims, strict=True))
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    windows = _Windows(x.shape, sizes, out, batch, offsets, numbers.start_index_map, paired, mode)
    flat, inside = _places(windows, indices)
    gathered = apply("gather", mnp.reshape(x, (-1,)), flat, axis=0, batch_dims=0)
    return gathered if inside is None else mnp.where(inside, gathered, _fill(equation, x))


def _fill(equation: Equation, x: Array) -> Any:
    """What stands where an index is outside: NaN, the smallest signed or the largest unsigned integer, True."""
    value, kind = equation["fill_value"], x.type.dtype
    if value is None:
        limits = np.iinfo(kind.numpy) if kind.kind in "iu" else None
        value = math.nan if limits is None else limits.min if kind.kind == "i" else limits.max
        value = True if kind.kind == "b" else value
    return literal(value, kind)


def _scatter(mode_of_ours: str) -> Row:
    def row(equation: Equation, x: Array, indices: Array, updates: Array) -> Array:
        numbers, mode = equation["dimension_numbers"], _mode(equation)
        windows_at = tuple(numbers.update_window_dims)
        kept = [d for d in range(x.ndim) if d not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
        offsets = dict(zip(kept, windows_at, strict=True))
        sizes = tuple(updates.shape[offsets[d]] if d in offsets else 1 for d in range(x.ndim))
        batch = tuple(place for place in range(updates.ndim) if place not in windows_at)
        axis = _whole_rows(
            numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims, numbers.operand_batching_dims, sizes, x
        )
        if axis is not None and mode != CLIP and batch == tuple(range(axis, axis + indices.ndim - 1)):
            return apply("scatter", x, indices[..., 0], updates, axis=axis, mode=mode_of_ours)
        starts = numbers.scatter_dims_to_operand_dims
        paired = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
        windows = _Windows(x.shape, sizes, updates.shape, batch, offsets, starts, paired, mode)
        flat, inside = _places(windows, indices)
        if inside is not None:
            flat = mnp.where(inside, flat, x.size)  # which is nowhere, so it is dropped
        scattered = apply(
            "scatter", mnp.reshape(x, (-1,)), mnp.reshape(flat, (-1,)), mnp.reshape(updates, (-1,)), axis=0,
            mode=mode_of_ours,
        )  # fmt: skip
        return mnp.reshape(scattered, x.shape)

    return row


def _mode(equation: Equation) -> str:
    return str(equation["mode"]).rpartition(".")[2]


def _whole_rows(
    starts: Sequence[int], gone: Sequence[int], batching: Sequence[int], sizes: Sequence[int], x: Array
) -> int | None:
    """The axis, if every window is one whole row of x along one axis."""
    if len(starts) != 1 or tuple(gone) != tuple(starts) or batching:
        return None
    axis = int(starts[0])
    whole = all(size == (1 if d == axis else x.shape[d]) for d, size in enumerate(sizes))
    return axis if whole and x.shape[axis] else None


def _places(windows: _Windows, indices: Array) -> tuple[Array, Array | None]:
    """The place of every element of `windows.out` in the flattened operand, and whether its window is inside."""
    shape, out, batch = windows.shape, windows.out, windows.batch
    dtype = index_dtype(math.prod(shape))
    flat, stride = literal(0, dtype), 1
    inside: Array | None = None
    for axis in reversed(range(len(shape))):
        place = literal(0, dtype)
        if axis in windows.starts:
            start = _narrowed(indices[..., list(windows.starts).index(axis)], dtype)
            last = shape[axis] - windows.sizes[axis]
            if windows.mode == DROP:
                fits = (start >= 0) & (start <= last)
                inside = fits if inside is None else inside & fits
            place = _along_axes(mnp.clip(start, 0, last), batch, len(out))
        elif axis in windows.paired:
            place = _counter(out, batch[windows.paired[axis]], dtype)
        if axis in windows.offsets:
            place = place + _counter(out, windows.offsets[axis], dtype)
        flat = flat + place * stride
        stride *= shape[axis]
    if inside is not None:
        inside = _along_axes(inside, batch, len(out))
    return mnp.broadcast_to(flat, tuple(out)), inside


def _along_axes(array: Array, axes: Sequence[int], rank: int) -> Array:
    """`array` with its dimensions as these axes of an array of `rank` dimensions."""
    aligned = [1] * rank
    for axis, dim in zip(axes, array.shape, strict=True):
        aligned[axis] = dim
    return mnp.reshape(array, tuple(aligned))


def _counter(out: Sequence[int], axis: int, dtype: Any) -> Array:
    shape = tuple(int(dim) if place == axis else 1 for place, dim in enumerate(out))
    return apply("iota", shape=shape, dtype=dtype.name, axis=int(axis))


def _starts(starts: Sequence[Array]) -> Array:
    return mnp.stack([_narrowed(start, I32) for start in starts]) if starts else mnp.zeros((0,), dtype=mnp.int32)


def _narrowed(indices: Array, dtype: DType) -> Array:
    """Indices of another width, of which those that are far outside stay outside."""
    kind, (low, high) = indices.type.dtype, INT_BOUNDS[dtype.name]
    if kind.kind not in "iu" or INT_BOUNDS[kind.name][1] <= high:
        return cast(indices, dtype)
    return cast(mnp.clip(indices, low if kind.kind == "i" else None, high), dtype)


def _dynamic_slice(equation: Equation, x: Array, *starts: Array) -> Array:
    return apply("dynamic_slice", x, _starts(starts), sizes=equation.ints("slice_sizes"))


def _dynamic_update_slice(equation: Equation, x: Array, update: Array, *starts: Array) -> Array:
    return apply("dynamic_update_slice", x, update, _starts(starts))


# -- order ------------------------------------------------------------------------------------------------


def _sort(equation: Equation, *xs: Array) -> Sequence[Array]:
    """Sort by the first `num_keys` operands: a stable sort by the last key, then by the one before it, and so on."""
    axis, columns = int(equation["dimension"]), list(xs)
    for key in reversed(range(equation["num_keys"])):
        order = apply("argsort", columns[key], axis=axis)
        columns = [_along(x, order, axis) for x in columns]
    return columns


def _top_k(equation: Equation, x: Array) -> Sequence[Array]:
    """The largest first, equal ones in the order they stand in."""
    axis = int(equation.params.get("axis", x.ndim - 1)) % x.ndim
    order = apply("argsort", mnp.flip(x, axis=axis), axis=axis)  # flipped twice, equal ones keep their order
    places = x.shape[axis] - 1 - mnp.flip(order, axis=axis)
    best = places[(slice(None),) * axis + (slice(0, equation["k"]),)]
    return [_along(x, best, axis), cast(best, equation.types[1].dtype)]


def _along(x: Array, order: Array, axis: int) -> Array:
    return mnp.take_along_axis(x, order, axis=axis)


ROWS: dict[str, Row] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter("set"),
    "scatter-add": _scatter("add"),
    "scatter_add": _scatter("add"),
    "scatter-max": _scatter("max"),
    "scatter_max": _scatter("max"),
    "scatter-min": _scatter("min"),
    "scatter_min": _scatter("min"),
    "sort": _sort,
    "top_k": _top_k,
}
