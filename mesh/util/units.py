"""Units: sizes and times as people type them (8GiB, 500MB, 15m, 24h); sizes, times, speeds and counts for people."""

from __future__ import annotations

import re
from numbers import Real

from wire.errors import ConfigError
from wire.units import counted, size_text, time_text

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_UNITS |= {f"{prefix}ib": 1 << shift for prefix, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))}
_SIZE_UNITS |= {f"{prefix}b": 10**power for prefix, power in (("k", 3), ("m", 6), ("g", 9), ("t", 12))}
SIZE_BYTES_MAX = 1 << 60
_TIME_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes in a size such as "8GiB" or "1.5G"; ConfigError for anything else."""
    match = _QUANTITY.fullmatch(text)
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    size_bytes = float(match[1]) * unit if match and unit else 0.0
    if not 1 <= size_bytes < SIZE_BYTES_MAX:
        raise ConfigError(f"{text!r} is not a size", next_step="Write a number and a unit, such as 8GiB or 500MB")
    return int(size_bytes)


def parse_duration(text: str, none: str = "") -> float:
    """Seconds in a time such as "24h" or "90", 0 for `none`; ConfigError for anything else."""
    if none and text.strip() == none:
        return 0.0
    match = _QUANTITY.fullmatch(text)
    unit_s = _TIME_UNITS_S.get(match[2].lower()) if match else None
    if match is None or unit_s is None or not 0 < float(match[1]) < 1e9:
        raise ConfigError(f"{text!r} is not a time", next_step="Write a number and a unit, such as 15m, 24h or 7d")
    return float(match[1]) * unit_s


def check_fraction(what: str, fraction: float) -> float:
    """A number from 0 to 1; ConfigError for another."""
    if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 <= fraction <= 1:
        raise ConfigError(f"{what}({fraction}): a fraction is a number from 0 to 1, such as 0.02")
    return fraction


def speed_text(gflops: float) -> str:
    """A speed for people: "98", "4.3", "0.1"."""
    return f"{gflops:.0f}" if gflops >= 10 or not gflops else f"{gflops:.2g}"


__all__ = ["check_fraction", "counted", "parse_duration", "parse_size", "size_text", "speed_text", "time_text"]
