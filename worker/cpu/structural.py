"""Reductions, views, contraction, indexing and random bits on numpy arrays, one row each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.ir.dtypes import BF16, C64, C128, F16, F32, F64
from wire.ir.types import Attrs, HostArray, TensorType
from wire.ir.workspace import FEW_ROWS, LARGE_SIZE

from ..engine.donation import Undo
from .blocks import by_lines
from .convolution import conv
from .elementwise import Kernel

RISING_MAX = 64  # rows

Remember = Callable[[Undo], None]


def _narrow(out: TensorType) -> bool:
    return out.dtype in (F16, BF16)


def _reduce(function: Any) -> Kernel:
    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        source = operands[0].astype(np.float32) if _narrow(out) else operands[0]
        return np.asarray(function(source, axis=attrs["axes"], dtype=source.dtype)).astype(out.dtype.numpy, copy=False)

    return kernel


def _extreme(function: Any) -> Kernel:
    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        return np.asarray(function(operands[0], axis=attrs["axes"])).astype(out.dtype.numpy, copy=False)

    return kernel


def _comparable(lines: HostArray) -> HostArray:
    return lines.astype(np.float32) if lines.dtype.kind == "V" else lines


def _argmax(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    return by_lines(lambda lines: np.argmax(_comparable(lines), axis=1, keepdims=True), out, operands[0], attrs["axis"])


_WIDER = {F32: F64.numpy, C64: C128.numpy}


def _cumulative(function: Any) -> Kernel:
    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        wider = np.float32 if _narrow(out) else _WIDER.get(out.dtype, out.dtype.numpy)

        def accumulated(lines: HostArray) -> HostArray:
            sums = lines.astype(wider)
            return np.asarray(function.accumulate(sums, axis=1, dtype=wider, out=sums))

        return by_lines(accumulated, out, operands[0], attrs["axis"])

    return kernel


def _fft(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    transform = np.fft.ifft if attrs["inverse"] else np.fft.fft
    return np.asarray(transform(operands[0], axis=attrs["axis"])).astype(out.dtype.numpy, copy=False)


def _running_extreme(function: Any) -> Kernel:
    def kernel(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
        return np.asarray(function.accumulate(operands[0], axis=attrs["axis"]))

    return kernel


def _argsort(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    return by_lines(lambda lines: np.argsort(_comparable(lines), axis=1, stable=True), out, operands[0], attrs["axis"])


def _broadcast(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    if operands[0].shape == out.shape:
        return operands[0]
    result = np.empty(out.shape, out.dtype.numpy)  # and not numpy's broadcast_to, which is slow and is copied anyway
    result[...] = operands[0]
    return result


def _transpose(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    """What stays together at the end is moved as one element: numpy has a loop for each run, however short."""
    source, perm, rank = operands[0], attrs["perm"], len(attrs["perm"])
    moved = rank - next((still for still in range(rank) if perm[rank - 1 - still] != rank - 1 - still), rank)
    run = math.prod(source.shape[moved:])
    if not moved or not 1 < run <= RUN_MAX or source.size < RUNS_MIN:
        return source.transpose(perm)
    items = source.reshape(*source.shape[:moved], run).view(np.dtype((np.void, run * source.itemsize)))[..., 0]
    return items.transpose(perm[:moved]).copy().view(source.dtype).reshape(out.shape)


RUN_MAX, RUNS_MIN = 32, 1 << 12  # elements; of longer runs, and fewer, numpy's loops are as quick


def _slice(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    spans = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    return operands[0][tuple(slice(*span) for span in spans)]


def _pad(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    source, fill = operands
    result = np.full(out.shape, fill, out.dtype.numpy)
    spans = zip(attrs["low"], attrs["interior"], source.shape, strict=True)
    ends = [(low, low + (dim - 1) * (inner + 1) + 1 if dim else low, inner + 1) for low, inner, dim in spans]
    result[tuple(slice(*end) for end in ends)] = source
    return result


def concat(attrs: Attrs, operands: list[HostArray], out: TensorType, into: HostArray | None = None) -> HostArray:
    return np.concatenate(operands, axis=attrs["axis"], out=into)


def dot(attrs: Attrs, operands: list[HostArray], out: TensorType, into: HostArray | None = None) -> HostArray:
    left, right = operands
    if _narrow(out):
        left, right = left.astype(np.float32), right.astype(np.float32)
    a = _stacked(left, *_arrangement(left.shape, attrs["lhs_batch"], attrs["lhs_contract"], rows_stay=True))
    b = _stacked(right, *_arrangement(right.shape, attrs["rhs_batch"], attrs["rhs_contract"], rows_stay=False))
    return np.asarray(_product(a, b, into).reshape(out.shape).astype(out.dtype.numpy, copy=False))


def _product(a: HostArray, b: HostArray, into: HostArray | None) -> HostArray:
    """The products of matrices (n, rows, k) and (n, k, columns), put into that memory if it is given.

    BLAS takes a few rows by a large transposed matrix, as most models keep their weights, up to three times as fast the
    other way round.  A matrix by its own transpose numpy leaves to a function that rounds in another way: where a graph
    is cut between the two, they are two arrays, so they have to be that here as well.
    """
    if np.may_share_memory(a, b):
        b = b.copy(order="K")
    rows, size = a.shape[1], b.shape[1] * b.shape[2]
    if a.dtype == np.float32 and 2 <= rows <= FEW_ROWS and size >= LARGE_SIZE and b.strides[1] == b.itemsize:
        turned = np.matmul(b.swapaxes(1, 2), a.swapaxes(1, 2)).swapaxes(1, 2)
        return np.asarray(turned) if into is None else _put(turned, into)
    return np.asarray(np.matmul(a, b, out=None if into is None else into.reshape(*a.shape[:2], b.shape[2])))


def _put(array: HostArray, into: HostArray) -> HostArray:
    into.reshape(array.shape)[...] = array
    return into


@lru_cache(1024)
def _arrangement(
    shape: tuple[int, ...], batch: tuple[int, ...], contract: tuple[int, ...], rows_stay: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order of an operand's axes as a stack of matrices, and the shape of that: of the left one the rows stay, of
    the right one the columns."""
    free = tuple([axis for axis in range(len(shape)) if axis not in (*batch, *contract)])
    groups = (batch, free, contract) if rows_stay else (batch, contract, free)
    return tuple(itertools.chain(*groups)), tuple([math.prod(shape[axis] for axis in group) for group in groups])


def _stacked(array: HostArray, order: tuple[int, ...], shape: tuple[int, ...]) -> HostArray:
    """A stack of matrices: no copy where BLAS can read these where they are, transposed or not."""
    stacked = array.transpose(order).reshape(shape)
    return stacked if stacked.itemsize in stacked.strides[-2:] else np.ascontiguousarray(stacked)


def _gather(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    source, indices = operands
    axis, batch = attrs["axis"], attrs["batch_dims"]
    if out.size == 0:
        return np.empty(out.shape, out.dtype.numpy)
    clamped = np.clip(indices, 0, source.shape[axis] - 1).astype(np.int64)
    if batch == 0:
        return np.take(source, clamped, axis=axis)
    lead, middle = math.prod(source.shape[:batch]), math.prod(source.shape[batch:axis])
    flat = source.reshape(lead, middle, source.shape[axis], -1)
    rows, columns = np.arange(lead)[:, None, None], np.arange(middle)[:, None]
    return flat[rows, columns, clamped.reshape(lead, 1, -1)].reshape(out.shape)


def _scatter(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    wide = _narrow(out) and attrs["mode"] != "set"
    result = operands[0].astype(np.float32) if wide else operands[0].copy()
    scatter_into(result, attrs, operands)
    return result.astype(out.dtype.numpy, copy=False)


def scatter_into(
    array: HostArray, attrs: Attrs, operands: Sequence[HostArray], remember: Remember | None = None
) -> None:
    """Update `array`, which holds the first operand; `remember` is called with what was there."""
    _, indices, updates = operands
    axis, rank, mode = attrs["axis"], indices.ndim, attrs["mode"]
    rows = np.moveaxis(array, axis, 0) if axis else array
    moved = np.moveaxis(updates, range(axis, axis + rank), range(rank)) if axis else updates
    flat = indices.reshape(-1)
    moved = moved.reshape(flat.size, *rows.shape[1:]).astype(array.dtype, copy=False)
    if mode == "set" and (few := _rising(flat, rows.shape[0])) is not None:
        if remember is not None:
            remember(Undo(array.shape, axis, few, np.array(rows[few])))
        rows[few] = moved
        return
    keep = (flat >= 0) & (flat < rows.shape[0])
    where, values = flat[keep].astype(np.int64), moved[keep]
    if remember is not None:
        remember(Undo(array.shape, axis, where, rows[where]))
    if mode == "set" and (where[1:] > where[:-1]).all():
        rows[where] = values
    elif mode == "set":
        last = np.full(rows.shape[0], -1, np.int64)
        last[where] = np.arange(where.size)
        hit = np.nonzero(last >= 0)[0]
        rows[hit] = values[last[hit]]
    else:
        {"add": np.add, "max": np.maximum, "min": np.minimum}[mode].at(rows, where, values)


def _rising(flat: HostArray, count: int) -> slice | list[int] | None:
    """Few rows that are all among `count` and rise, as those of a token do in a cache: Python finds that out sooner
    than numpy.  Rows at even steps are a slice, which numpy writes sooner."""
    if not 0 < flat.size <= RISING_MAX:
        return None
    places: list[int] = flat.tolist()
    steps = {after - before for before, after in itertools.pairwise(places)} or {1}
    if min(steps) < 1 or places[0] < 0 or places[-1] >= count:
        return None
    return places if len(steps) > 1 else slice(places[0], places[-1] + 1, steps.pop())


def _window(source: HostArray, starts: HostArray, sizes: tuple[int, ...]) -> tuple[slice, ...]:
    spans = zip(starts.tolist(), sizes, source.shape, strict=True)
    firsts = [(min(max(start, 0), dim - size), size) for start, size, dim in spans]
    return tuple(slice(first, first + size) for first, size in firsts)


def _dynamic_slice(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    return operands[0][_window(operands[0], operands[1], attrs["sizes"])]


def _dynamic_update_slice(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    result = operands[0].copy()
    update_into(result, attrs, operands)
    return result


def update_into(
    array: HostArray, attrs: Attrs, operands: Sequence[HostArray], remember: Remember | None = None
) -> None:
    """Update `array`, which holds the first operand; `remember` is called with what was there."""
    _, update, starts = operands
    window = _window(array, starts, update.shape)
    if remember is not None:
        remember(Undo(array.shape, 0, window, array[window].copy()))
    array[window] = update


def _iota(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    axis = attrs["axis"]
    line = np.arange(out.shape[axis]).astype(out.dtype.numpy)
    return np.broadcast_to(line.reshape([-1 if place == axis else 1 for place in range(len(out.shape))]), out.shape)


def _random_bits(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    """threefry2x32-20 (Salmon et al., SC 2011) of the key over the counters (0, index); the first word."""
    keys = [np.uint32(operands[0][0]), np.uint32(operands[0][1])]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    low = np.arange(out.size, dtype=np.uint32)
    words: list[NDArray[np.uint32]] = [np.full(out.size, keys[0], np.uint32), low + keys[1]]
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    for group in range(5):
        for turn in rotations[group % 2]:
            words[0] = words[0] + words[1]
            words[1] = (words[1] << np.uint32(turn)) | (words[1] >> np.uint32(32 - turn))
            words[1] = words[1] ^ words[0]
        words[0] = words[0] + keys[(group + 1) % 3]
        words[1] = words[1] + keys[(group + 2) % 3] + np.uint32(group + 1)
    return words[0].reshape(out.shape)


STRUCTURAL: dict[str, Kernel] = {
    "iota": _iota,
    "random_bits": _random_bits,
    "reduce_sum": _reduce(np.sum),
    "reduce_prod": _reduce(np.prod),
    "reduce_max": _extreme(np.max),
    "reduce_min": _extreme(np.min),
    "argmax": _argmax,
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _running_extreme(np.maximum),
    "cummin": _running_extreme(np.minimum),
    "fft": _fft,
    "argsort": _argsort,
    "reshape": lambda attrs, operands, out: operands[0].reshape(out.shape),
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": concat,
    "after": lambda attrs, operands, out: operands[0],
    **dict.fromkeys(("constraint", "transfer"), lambda attrs, operands, out: operands[0]),
    "reverse": lambda attrs, operands, out: np.flip(operands[0], attrs["axes"]),
    "dot": dot,
    "conv": conv,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
