"""Convolutions and windows: conv_general_dilated, reduce_window and the gradient of a max pool."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wire.errors import Unsupported
from wire.ir.dtypes import DType

from ... import numpy as mnp
from ...core.array import Array, apply, literal
from ...numpy.promotion import cast, extreme
from .rows import Equation, Row


def _conv(equation: Equation, x: Array, w: Array) -> Array:
    numbers = equation["dimension_numbers"]
    x, w = mnp.permute_dims(x, tuple(numbers.lhs_spec)), mnp.permute_dims(w, tuple(numbers.rhs_spec))
    batches, groups = equation["batch_group_count"], equation["feature_group_count"]
    if batches > 1:  # each group of examples meets its own group of filters: those are groups of channels
        rest = x.shape[1:]
        split = mnp.reshape(x, (batches, x.shape[0] // batches, *rest))
        x, groups = mnp.reshape(mnp.moveaxis(split, 0, 1), (-1, batches * rest[0], *rest[1:])), batches
    low, high = (tuple(int(width[place]) for width in equation["padding"]) for place in (0, 1))
    x = _without(x, low, high, equation.ints("lhs_dilation"))
    wanted = equation.type.dtype
    z = apply(
        "conv", cast(x, wanted), cast(w, wanted),
        stride=equation.ints("window_strides"), low=tuple(max(pad, 0) for pad in low),
        high=tuple(max(pad, 0) for pad in high), lhs_dilation=equation.ints("lhs_dilation"),
        rhs_dilation=equation.ints("rhs_dilation"), groups=groups,
    )  # fmt: skip
    out = tuple(numbers.out_spec)
    return mnp.permute_dims(z, tuple(out.index(axis) for axis in range(len(out))))


def _without(x: Array, low: Sequence[int], high: Sequence[int], dilation: Sequence[int]) -> Array:
    """What negative padding leaves of x; the padding counts in the dilated x, whose zeros between it may cut."""
    if min((*low, *high)) >= 0:
        return x
    if any(lo < 0 and by > 1 and -lo % by for lo, by in zip((*low, *high), (*dilation, *dilation), strict=True)):
        raise Unsupported(
            f"negative padding {low} and {high} cuts between elements dilated by {dilation}", op="conv_general_dilated"
        )
    cut = [
        slice(max(-lo, 0) // by, size - max(-hi, 0) // by)
        for lo, hi, by, size in zip(low, high, dilation, x.shape[2:], strict=True)
    ]
    return x[(slice(None), slice(None), *cut)]


# -- windows ----------------------------------------------------------------------------------------------


def _reduce_window(combine: Callable[[Array, Array], Array], first: Callable[[DType], Any]) -> Row:
    """Separable: one axis after the other."""

    def row(equation: Equation, x: Array) -> Array:
        reduced = _padded(x, equation["padding"], equation["base_dilation"], first(x.type.dtype))
        for axis, size in enumerate(equation.ints("window_dimensions")):
            stride, dilation = int(equation["window_strides"][axis]), int(equation["window_dilation"][axis])
            if size == 1 and stride == 1:
                continue
            count = (reduced.shape[axis] - (size - 1) * dilation - 1) // stride + 1
            pieces = [_every(reduced, axis, place * dilation, stride, count) for place in range(size)]
            total = pieces[0]
            for piece in pieces[1:]:
                total = combine(total, piece)
            reduced = total
        return reduced

    return row


def _every(x: Array, axis: int, first: int, stride: int, count: int) -> Array:
    return x[(slice(None),) * axis + (slice(first, first + (count - 1) * stride + 1 if count else first, stride),)]


def _padded(x: Array, padding: Sequence[tuple[int, int]], dilation: Sequence[int], fill: Any) -> Array:
    low, high = (tuple(int(width[place]) for width in padding) for place in (0, 1))
    return apply(
        "pad", x, literal(fill, x.type.dtype), low=low, high=high,
        interior=tuple(int(by) - 1 for by in dilation),
    )  # fmt: skip


def _select_and_scatter_add(equation: Equation, source: Array, x: Array) -> Array:
    """Each window's share of the cotangent goes to its first largest element (or smallest)."""
    name = getattr(equation["select_prim"], "name", "ge")
    greatest = name == "ge"
    sizes, strides = equation.ints("window_dimensions"), equation.ints("window_strides")
    padding = equation["padding"]
    wide = _padded(x, padding, (1,) * x.ndim, extreme(x.type.dtype, not greatest))
    counts = source.shape
    places = list(itertools.product(*(range(size) for size in sizes)))

    def window(place: Sequence[int]) -> Array:
        picked = wide
        for axis, first in enumerate(place):
            picked = _every(picked, axis, first, strides[axis], counts[axis])
        return picked

    best, chosen = window(places[0]), mnp.zeros(counts, dtype=mnp.int32)
    for number, place in enumerate(places[1:], 1):
        candidate = window(place)
        better = candidate > best if greatest else candidate < best
        best, chosen = mnp.where(better, candidate, best), mnp.where(better, number, chosen)
    total: Array | None = None
    zero = literal(0, source.type.dtype)
    for number, place in enumerate(places):
        share = mnp.where(chosen == number, source, zero)
        spread = apply(
            "pad", share, zero, low=tuple(place),
            high=tuple(
                size - first - (count - 1) * stride - 1
                for size, first, count, stride in zip(wide.shape, place, counts, strides, strict=True)
            ),
            interior=tuple(stride - 1 for stride in strides),
        )  # fmt: skip
        total = spread if total is None else total + spread
    assert total is not None
    return total[tuple(slice(lo, lo + size) for (lo, _), size in zip(padding, x.shape, strict=True))]


ROWS: dict[str, Row] = {
    "conv_general_dilated": _conv,
    "reduce_window_max": _reduce_window(lambda a, b: apply("max", a, b), partial(extreme, high=False)),
    "reduce_window_min": _reduce_window(lambda a, b: apply("min", a, b), partial(extreme, high=True)),
    "reduce_window_sum": _reduce_window(lambda a, b: a + b, lambda dtype: 0),
    "select_and_scatter_add": _select_and_scatter_add,
}
