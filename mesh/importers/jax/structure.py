"""Primitives that arrange, reduce and multiply arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from wire.ir.dtypes import BOOL, I32, dtype_of

from ... import numpy as mnp
from ...core.array import Array, apply
from ...numpy.promotion import asarray, cast, extreme
from .rows import Equation, Row


def _broadcast_in_dim(equation: Equation, x: Array, *_: Array) -> Array:
    shape, places = equation.type.shape, equation.ints("broadcast_dimensions")
    aligned = [1] * len(shape)
    for axis, place in enumerate(places):
        aligned[place] = x.shape[axis]
    return mnp.broadcast_to(mnp.reshape(x, tuple(aligned)), shape)


def _reshape(equation: Equation, x: Array, *_: Array) -> Array:
    if equation.params.get("dimensions") is not None:  # the order in which the axes are read
        x = mnp.permute_dims(x, equation.ints("dimensions"))
    return mnp.reshape(x, equation.type.shape)


def _slice(equation: Equation, x: Array) -> Array:
    strides = equation.ints("strides") if equation["strides"] else (1,) * x.ndim
    spans = zip(equation.ints("start_indices"), equation.ints("limit_indices"), strides, strict=True)
    return x[tuple(slice(*span) for span in spans)]


def _pad(equation: Equation, x: Array, fill: Array) -> Array:
    widths = [tuple(int(count) for count in width) for width in equation["padding_config"]]
    low, high, interior = (tuple(width[place] for width in widths) for place in range(3))
    padded = apply(
        "pad", x, fill,
        low=tuple(max(width, 0) for width in low), high=tuple(max(width, 0) for width in high), interior=interior,
    )  # fmt: skip
    cut = [slice(max(-lo, 0), size - max(-hi, 0)) for lo, hi, size in zip(low, high, padded.shape, strict=True)]
    return padded[tuple(cut)]


def _concatenate(equation: Equation, *xs: Array) -> Array:
    return mnp.concat(xs, axis=int(equation["dimension"]))


def _split(equation: Equation, x: Array) -> Sequence[Array]:
    edges, axis = [0], int(equation["axis"])
    for size in equation.ints("sizes"):
        edges.append(edges[-1] + size)
    before = (slice(None),) * axis
    return [x[(*before, slice(lo, hi))] for lo, hi in pairwise(edges)]


def _iota(equation: Equation, *_: Array) -> Array:
    kind = dtype_of(equation["dtype"])
    return apply("iota", shape=equation.type.shape, dtype=kind.name, axis=int(equation["dimension"]))


def _reduce(op: str) -> Row:
    return lambda equation, x: apply(op, x, axes=equation.ints("axes"))


def _extreme(op: str, high: bool) -> Row:
    """The largest or the smallest; of nothing, what all others are beyond."""

    def row(equation: Equation, x: Array) -> Array:
        if x.size:
            return apply(op, x, axes=equation.ints("axes"))
        return asarray(np.full(equation.type.shape, extreme(x.type.dtype, high), x.type.dtype.numpy))

    return row


def _reduce_bits(op: str, first: int = 0, of_bools: str = "") -> Row:
    """Bits of integers, or bools, combined half by half; of none they are those of `first`."""

    def row(equation: Equation, x: Array) -> Array:
        axes, kind = equation.ints("axes"), x.type.dtype
        if not x.size:
            return asarray(np.full(equation.type.shape, first).astype(kind.numpy))
        if of_bools and kind is BOOL:
            return apply(of_bools, x, axes=axes)
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = mnp.reshape(mnp.permute_dims(x, (*axes, *kept)), (-1, *equation.type.shape))
        while rows.shape[0] > 1:
            half = rows.shape[0] // 2
            rows = mnp.concat([apply(op, rows[:half], rows[half : 2 * half]), rows[2 * half :]], axis=0)
        return rows[0]

    return row


def _arg(negated: bool) -> Row:
    def row(equation: Equation, x: Array) -> Array:
        (axis,) = equation.ints("axes")
        places = mnp.argmin(x, axis=axis) if negated else mnp.argmax(x, axis=axis)
        return cast(places, dtype_of(equation["index_dtype"]))

    return row


def _cumulative(op: str) -> Row:
    def row(equation: Equation, x: Array) -> Array:
        axis = int(equation["axis"])
        turned = mnp.flip(x, axis=axis) if equation["reverse"] else x
        result = apply(op, turned, axis=axis)
        return mnp.flip(result, axis=axis) if equation["reverse"] else result

    return row


def _dot_general(equation: Equation, x: Array, y: Array) -> Array:
    (left, right), (left_batch, right_batch) = equation["dimension_numbers"]
    wanted = equation.type.dtype
    if wanted is BOOL:  # whether there are any
        x, y = cast(x, I32), cast(y, I32)
    elif x.type.dtype is not y.type.dtype or wanted.itemsize > x.type.dtype.itemsize:
        x, y = cast(x, wanted), cast(y, wanted)
    product = apply(
        "dot", x, y,
        lhs_batch=tuple(map(int, left_batch)), rhs_batch=tuple(map(int, right_batch)),
        lhs_contract=tuple(map(int, left)), rhs_contract=tuple(map(int, right)),
    )  # fmt: skip
    return cast(product, wanted)


ROWS: dict[str, Row] = {
    "argmax": _arg(False),
    "argmin": _arg(True),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "cummax": _cumulative("cummax"),
    "cummin": _cumulative("cummin"),
    "cumprod": _cumulative("cumprod"),
    "cumsum": _cumulative("cumsum"),
    "dot_general": _dot_general,
    "expand_dims": lambda equation, x: mnp.reshape(x, equation.type.shape),
    "iota": _iota,
    "pad": _pad,
    "reduce_and": _reduce_bits("and", -1, "reduce_min"),
    "reduce_max": _extreme("reduce_max", high=False),
    "reduce_min": _extreme("reduce_min", high=True),
    "reduce_or": _reduce_bits("or", of_bools="reduce_max"),
    "reduce_prod": _reduce("reduce_prod"),
    "reduce_sum": _reduce("reduce_sum"),
    "reduce_xor": _reduce_bits("xor"),
    "reshape": _reshape,
    "rev": lambda equation, x: apply("reverse", x, axes=equation.ints("dimensions")),
    "slice": _slice,
    "split": _split,
    "squeeze": lambda equation, x: mnp.reshape(x, equation.type.shape),
    "stack": lambda equation, *xs: mnp.stack(xs, axis=int(equation["axis"])),
    "tile": lambda equation, x: mnp.tile(x, equation.ints("reps")),
    "transpose": lambda equation, x: mnp.permute_dims(x, equation.ints("permutation")),
    "unstack": lambda equation, x: mnp.unstack(x, axis=int(equation["axis"])),
}
