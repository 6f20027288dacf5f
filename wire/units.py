"""Sizes in bytes, times and counts as people read them, in whatever is said to them."""

from __future__ import annotations

import math
from collections.abc import Callable

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
TIMES = (
    ("ms", 1e-3, 0.9995),
    ("s", 1.0, 300.0),
    ("min", 60.0, 7200.0),
    ("h", 3600.0, math.inf),
)  # up to so many s
TIME_S_MIN = 1e-7  # below that nobody reads digits


def size_text(size_bytes: float) -> str:
    """A size for people: "12.5 MiB"."""
    return _text(size_bytes, round)


def need_text(size_bytes: float) -> str:
    """A size that is needed, or to be given, rounded up: who gives so much gives enough."""
    return _text(size_bytes, math.ceil)


def room_text(size_bytes: float) -> str:
    """A size that there is, rounded down: a need that is more is also read as more."""
    return _text(size_bytes, math.floor)


def time_text(seconds: float) -> str:
    """A time for people, in three digits: "0.25 ms", "1.42 s", "25 min"."""
    if 0 < seconds < TIME_S_MIN:
        return f"under {TIME_S_MIN * 1e3:.4f} ms"
    unit, unit_s, _ = next(row for row in TIMES if abs(seconds) <= row[2])
    count = seconds / unit_s
    return f"{count:.3g} {unit}" if abs(count) < 999.5 else f"{count:,.0f} {unit}"


def counted(count: int, what: str) -> str:
    """A number of things for people: "1 worker", "3 workers"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(size_bytes: float, rounded: Callable[[float], float]) -> str:
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{rounded(size)} {UNITS[unit]}" if unit == 0 else f"{rounded(size * 10) / 10:.1f} {UNITS[unit]}"
