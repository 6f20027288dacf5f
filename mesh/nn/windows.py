"""How windows lie along axes: what users say of strides, dilations and padding, as one number or pair per axis.

Pure arithmetic on ints; it knows neither arrays nor what is done in a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.errors import InputError, ShapeError

from ..util.argument_checks import integer, items, native

Pair = tuple[int, int]


def per_axis(value: int | Sequence[int], rank: int, name: str, least: int | None = None) -> tuple[int, ...]:
    """One int for all of `rank` axes, or one for each, `least` or more."""
    value = native(value)
    entries = (value,) * rank if isinstance(value, int) else items(value, f"as {name} an int or")
    numbers = tuple([integer(entry, name, least) for entry in entries])
    if len(numbers) != rank:
        raise ShapeError(f"{name} has one entry or {rank}, one per axis, got {value}")
    return numbers


def extents(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """How many positions a kernel spans."""
    return tuple([(size - 1) * reach + 1 for size, reach in zip(kernel, dilation, strict=True)])


def pads(padding: Any, dims: Sequence[int], spans: Sequence[int], stride: Sequence[int]) -> tuple[Pair, ...]:
    """(before, after) per axis.  `padding` is an int, an int or a pair per axis, "valid", or "same": as much as makes
    ceil(dim / stride) windows, an odd one after ("same_lower": before)."""
    if isinstance(padding, str):
        if padding not in ("valid", "same", "same_lower"):
            raise InputError(
                f"padding {padding!r} is not known", next_step='Known: "same", "same_lower", "valid", ints'
            )
        if padding == "valid":
            return ((0, 0),) * len(dims)
        rows = zip(dims, spans, stride, strict=True)
        totals = [max((-(-dim // step) - 1) * step + span - dim, 0) for dim, span, step in rows]
        return tuple([((t + 1) // 2, t // 2) if padding == "same_lower" else (t // 2, (t + 1) // 2) for t in totals])
    padding = native(padding)
    entries = (padding,) * len(dims) if isinstance(padding, int) else items(padding, "as padding an int or")
    if len(entries) != len(dims):
        raise ShapeError(f"padding has an int or a pair for each of {len(dims)} axes, got {padding}")
    return tuple([_pair(native(entry)) for entry in entries])


def _pair(padding: Any) -> Pair:
    pair = (padding, padding) if isinstance(padding, int) else items(padding, "as padding of an axis an int or")
    if len(pair) != 2:
        raise ShapeError(f"padding of an axis is an int, or one before and one after, got {padding}")
    return integer(pair[0], "padding"), integer(pair[1], "padding")


def count(dim: int, span: int, step: int, pair: Pair, ceil_mode: bool = False) -> int:
    """The number of windows along an axis.

    `ceil_mode` also counts a last window that ends past the padding, if it starts before the padding's end.
    """
    room = dim + sum(pair) - span
    if room < 0 and not (ceil_mode and room > -step):
        raise ShapeError(f"a window over {span} does not fit into {dim} with padding {pair}")
    if not ceil_mode:
        return room // step + 1
    windows = -(-room // step) + 1
    return windows - 1 if (windows - 1) * step >= dim + pair[0] else windows
