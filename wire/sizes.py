"""Sizes in bytes as people read them, in whatever is said to them."""

from __future__ import annotations

import math
from collections.abc import Callable

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size_bytes: float) -> str:
    """A size for people: "12.5 MiB"."""
    return _text(size_bytes, round)


def need_text(size_bytes: float) -> str:
    """A size that is needed, or to be given, rounded up: who gives so much gives enough."""
    return _text(size_bytes, math.ceil)


def room_text(size_bytes: float) -> str:
    """A size that there is, rounded down: a need that is more is also read as more."""
    return _text(size_bytes, math.floor)


def _text(size_bytes: float, rounded: Callable[[float], float]) -> str:
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{rounded(size)} {UNITS[unit]}" if unit == 0 else f"{rounded(size * 10) / 10:.1f} {UNITS[unit]}"
