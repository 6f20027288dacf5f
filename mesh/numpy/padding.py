"""Repeating and padding.

With one count for all, or a constant border, they are views of the table.  Where numpy's rule is one about positions
(repeat by counts, pad modes), numpy itself computes the positions and the array is gathered by them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wire.errors import InputError, ShapeError

from ..core.array import Array, Operand, apply, renamed
from ..util.argument_checks import native, value_text
from .indexing import take
from .manipulation import broadcast_to, ravel, reshape
from .promotion import asarray, concrete, like
from .reductions import normal_axis


def repeat(x: Operand, repeats: Any, axis: int | None = None) -> Array:
    """Each element repeated; `repeats` is an int or known counts per element.  Flattened if axis is None."""
    array = asarray(x)
    if axis is None:
        array, axis = ravel(array), 0
    place, repeats = normal_axis(axis, array.ndim), native(repeats)
    if isinstance(repeats, int) and repeats >= 0:
        before, after = array.shape[:place], array.shape[place:]
        rows = reshape(array, (math.prod((*before, *after[:1])), 1, math.prod(after[1:])))
        copies = broadcast_to(rows, (rows.shape[0], repeats, rows.shape[2]))
        return reshape(copies, (*before, after[0] * repeats, *after[1:]))
    try:
        counts = np.asarray(concrete(repeats, "repeat") if isinstance(repeats, Array) else repeats)
    except ValueError:
        raise InputError(f"repeats are counts per element, not {value_text(repeats)}") from None
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise InputError(f"repeats are counts per element, got {counts}")
    if counts.size not in (1, array.shape[place]):
        raise ShapeError(f"{counts.size} counts for an axis of {array.shape[place]}")
    positions = np.repeat(np.arange(array.shape[place]), counts)
    return take(array, positions.astype(np.int32), axis=place)


def pad(x: Operand, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """x with a border of `pad_width` ((before, after) per axis, one pair, or one int).

    `mode` is numpy's: constant (with one constant), edge, reflect, symmetric or wrap.
    """
    array = renamed(asarray(x))
    try:
        widths = np.broadcast_to(np.asarray(pad_width, np.int64), (array.ndim, 2)).tolist()
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"pad_width is an int, a pair, or a pair for each axis, not {value_text(pad_width)}") from None
    if any(width < 0 for pair in widths for width in pair):
        raise InputError(f"pad widths are not negative, got {pad_width}")
    if mode == "constant":
        fill = like(constant_values, array)
        low, high = (tuple([pair[side] for pair in widths]) for side in (0, 1))
        return apply("pad", array, fill, low=low, high=high, interior=(0,) * array.ndim)
    if mode not in PAD_MODES:
        raise InputError(f"pad mode {mode!r} is not known", next_step=f"Known: constant, {', '.join(PAD_MODES)}")
    for axis, pair in enumerate(widths):
        if any(pair):
            if not array.shape[axis]:
                raise ShapeError(f"an empty axis has nothing to pad with in mode {mode!r}: shape {array.shape}")
            positions: Any = np.pad(np.arange(array.shape[axis]), pair, mode)  # type: ignore[call-overload]
            array = take(array, positions.astype(np.int32), axis=axis)
    return array


PAD_MODES = ("edge", "reflect", "symmetric", "wrap")
