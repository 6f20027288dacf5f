"""conv on numpy arrays: windows copied block by block into matrices that BLAS multiplies.

Blocks are of bounded memory (wire/ir/workspace.py) and follow from shapes alone, as does everything else here, so the
same conv gives the same bits in any part of any graph.

A derivative by the weights is a conv whose kernel is as large as an image and that has few windows.  It is as quick: in
a matrix the elements of a window lie beside each other where there are more taps than windows, else below each other.

Where x is dilated, most taps of a kernel meet zeros.  Those that do not are the same at every so-many-th place, which
is a *phase*: a conv of its own, of x as it is by some of the taps.  Phases that read alike are one conv.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from wire.ir.dtypes import BF16, F16
from wire.ir.types import Attrs, HostArray, TensorType
from wire.ir.workspace import BLOCK_BYTES

SUMMED_MAX = 1 << 12  # elements of a window in one product, so that a block has many windows
COLUMNS = 1 << 10  # windows that are enough for one product: no more samples than that takes are copied together


@dataclass(frozen=True, slots=True)
class _Reads:
    """What windows read along one axis of x: they begin `stride` apart, the first at `start`, which may lie outside of
    x, and their taps are `reach` apart."""

    start: int
    windows: int
    stride: int
    taps: int
    reach: int

    def part(self, windows: slice, taps: slice) -> _Reads:
        start = self.start + windows.start * self.stride + taps.start * self.reach
        return replace(self, start=start, windows=windows.stop - windows.start, taps=taps.stop - taps.start)


@dataclass(frozen=True, slots=True)
class _Phases:
    """Along one axis, phases that read alike: the place and the tap that each begins with, and how far apart theirs
    are."""

    reads: _Reads
    firsts: tuple[tuple[int, int], ...]
    steps: tuple[int, int]


def conv(attrs: Attrs, operands: list[HostArray], out: TensorType) -> HostArray:
    """x (n, c, *dims) by w (o, c / groups, *kernel); the row of wire/ir/ops.py says what it means."""
    x, w = (array.astype(np.float32) for array in operands) if out.dtype in (F16, BF16) else operands
    if 0 in (out.size, x.size, w.size):
        return np.zeros(out.shape, out.dtype.numpy)
    groups = attrs["groups"]
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    axes = _axes(attrs, w.shape[3:], out.shape[2:])
    if all(len(phases) == 1 and phases[0].reads.taps == taps for phases, taps in zip(axes, w.shape[3:], strict=True)):
        result = _correlated(x, w, [phases[0].reads for phases in axes])
    else:
        result = np.zeros((x.shape[0], *w.shape[:2], *out.shape[2:]), x.dtype)
        for phases in itertools.product(*axes):
            _put(result, x, w, phases)
    return result.reshape(out.shape).astype(out.dtype.numpy, copy=False)


def _axes(attrs: Attrs, taps: Sequence[int], places: Sequence[int]) -> list[tuple[_Phases, ...]]:
    names = ("stride", "low", "lhs_dilation", "rhs_dilation")
    return [_phases(*axis) for axis in zip(taps, places, *(attrs[name] for name in names), strict=True)]


@lru_cache(1024)
def _phases(taps: int, places: int, stride: int, low: int, spread: int, reach: int) -> tuple[_Phases, ...]:
    """Place p and tap k meet at p * stride + k * reach - low, which is an element of x if `spread` divides it: for one
    p that holds for every so-many-th k, and these are the same for every so-many-th p."""
    place_step, divisor = spread // math.gcd(stride, spread), math.gcd(reach, spread)
    tap_step = spread // divisor
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place in range(min(place_step, places)):
        tap, rest = divmod(low - place * stride, divisor)
        tap = taps if rest else tap * pow(reach // divisor, -1, tap_step) % tap_step
        count = len(range(tap, taps, tap_step))
        start = (place * stride + tap * reach - low) // spread if count else 0
        alike.setdefault((start, count), []).append((place, tap))
    between = place_step * stride // spread, tap_step * reach // spread
    return tuple(
        _Phases(
            _Reads(start, len(range(firsts[0][0], places, place_step)), between[0], count, between[1]),
            tuple(firsts),
            (place_step, tap_step),
        )
        for (start, count), firsts in alike.items()
    )


def _put(result: HostArray, x: HostArray, w: HostArray, axes: Sequence[_Phases]) -> None:
    """What phases that read alike give, put to their places of `found`, which are zero before."""
    firsts = list(itertools.product(*(axis.firsts for axis in axes)))
    places, taps = ([_every(first, axes, side) for first in firsts] for side in (0, 1))
    if all(axis.reads.taps for axis in axes):
        makers = w.shape[1]
        together = _correlated(x, np.concatenate([w[mine] for mine in taps], axis=1), [axis.reads for axis in axes])
        for number, here in enumerate(places):
            into = result[here]
            windows = [slice(count) for count in into.shape[3:]]
            into[...] = together[:, :, number * makers : (number + 1) * makers, *windows]
    if w.dtype.kind in "fc" and not np.isfinite(w).all():  # the other taps meet zeros, and make NaN of them
        for here, mine in zip(places, taps, strict=True):
            others = w * 0
            others[mine] = 0
            result[here] += others.sum(tuple(range(2, w.ndim))).reshape(*w.shape[:2], *[1] * len(axes))


def _every(first: Sequence[tuple[int, int]], axes: Sequence[_Phases], side: int) -> Any:
    """The places (side 0) or taps (1) of one phase."""
    return (..., *(slice(at[side], None, axis.steps[side]) for at, axis in zip(first, axes, strict=True)))


def _correlated(x: HostArray, w: HostArray, axes: Sequence[_Reads]) -> HostArray:
    """x (n, groups, c, *dims) by w (groups, o, c, *taps): (n, groups, o, *windows)."""
    taps, windows = w.shape[3:], tuple([axis.windows for axis in axes])
    result = np.empty((x.shape[0], *w.shape[:2], *windows), x.dtype)
    beside = math.prod(taps) > math.prod(windows)
    block, part = _sizes((*x.shape[:3], w.shape[1]), taps, windows, x.itemsize)
    for samples, groups, *places in _boxes((x.shape[0], x.shape[1], *windows), block):
        into = result[samples, groups, :, *places]
        into = into.reshape(*into.shape[:3], -1)  # a view: a block's places follow each other
        for number, (channels, *mine) in enumerate(_boxes((x.shape[2], *taps), part)):
            read = [axis.part(*position) for axis, *position in zip(axes, places, mine, strict=True)]
            right = _matrices(_windows(x[samples, groups, channels], read), beside)
            left = w[groups, :, channels, *mine].reshape(into.shape[1], into.shape[2], -1)
            if number == 0 and into.shape[0] == 1:
                np.matmul(left, right, out=into[0])
                continue
            product = np.matmul(left, right).reshape(*into.shape[1:3], into.shape[0], -1)
            if number == 0:
                into[...] = np.moveaxis(product, 2, 0)
            else:
                into += np.moveaxis(product, 2, 0)
    return result


def _matrices(windows: HostArray, beside: bool) -> HostArray:
    """The windows (n, groups, c, *taps, *windows) of each group as a matrix with a column per window.  The next call
    reuses its memory."""
    rank = (windows.ndim - 3) // 2
    taps, places = range(3, 3 + rank), range(3 + rank, 3 + 2 * rank)
    groups, summed = windows.shape[1], math.prod(windows.shape[2 : 3 + rank])
    turned = windows.transpose((1, 0, *places, 2, *taps) if beside else (1, 2, *taps, 0, *places))
    if summed > windows.shape[2]:  # windows of one tap may be a matrix as they are
        room = _room(windows.size * windows.itemsize)
        copied = room.view(windows.dtype).reshape(turned.shape)
        np.copyto(copied, turned)
        turned = copied
    return turned.reshape(groups, -1, summed).swapaxes(1, 2) if beside else turned.reshape(groups, summed, -1)


def _room(size_bytes: int) -> HostArray:
    """Memory that this thread has already: new memory costs as much as what is done with it."""
    room: HostArray | None = getattr(_OF_THREAD, "room", None)
    if room is None or room.nbytes < size_bytes:
        room = _OF_THREAD.room = np.empty(size_bytes, np.uint8)
    return room[:size_bytes]


_OF_THREAD = threading.local()


def _windows(x: HostArray, axes: Sequence[_Reads]) -> HostArray:
    """A view (n, groups, c, *taps, *windows) of what every tap reads in every window; zeros outside of x."""
    lengths = [(axis.windows - 1) * axis.stride + (axis.taps - 1) * axis.reach + 1 for axis in axes]
    spans = list(zip([axis.start for axis in axes], lengths, x.shape[3:], strict=True))
    inside: list[Any] = [slice(max(start, 0), max(start + length, 0)) for start, length, _ in spans]
    wide: HostArray = x[..., *inside]
    if any(start < 0 or start + length > dim for start, length, dim in spans):
        ahead = zip([max(-start, 0) for start, _, _ in spans], wide.shape[3:], strict=True)
        into: list[Any] = [slice(first, first + count) for first, count in ahead]
        part, wide = wide, np.zeros((*x.shape[:3], *lengths), x.dtype)
        wide[..., *into] = part
    counts = [axis.taps for axis in axes] + [axis.windows for axis in axes]
    apart = [axis.reach for axis in axes] + [axis.stride for axis in axes]
    steps = (*wide.strides[3:], *wide.strides[3:])
    strides = [step * by if count > 1 else 0 for step, by, count in zip(steps, apart, counts, strict=True)]
    shape = (*x.shape[:3], *counts)
    return np.lib.stride_tricks.as_strided(wide, shape, (*wide.strides[:3], *strides), writeable=False)


@lru_cache(1024)
def _sizes(
    counts: tuple[int, ...], taps: tuple[int, ...], windows: tuple[int, ...], item_bytes: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The sizes of a block whose windows are copied at once, (samples, groups, *places), and of the slice of a window
    that one product sums, (channels, *taps).  `counts` are those of samples, groups, channels and makers."""
    samples, groups, channels, makers = counts
    part = _largest((channels, *taps), SUMMED_MAX)
    columns = max(1, BLOCK_BYTES // (max(math.prod(part), makers) * item_bytes))
    together = _largest((samples, *windows), min(columns, COLUMNS))[0]
    return [together, *_largest((groups, *windows), columns // together)], part


def _largest(counts: Sequence[int], most: int) -> list[int]:
    """The sizes of the largest box of `most` elements that follow each other in an array of this shape."""
    sizes = []
    for count in reversed(counts):
        sizes.append(max(1, min(count, most)))
        most //= count
    return sizes[::-1]


def _boxes(counts: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """An array of this shape in boxes of these sizes."""
    spans = (
        [slice(first, min(first + size, count)) for first in range(0, count, size)]
        for count, size in zip(counts, sizes, strict=True)
    )
    return itertools.product(*spans)
