"""Times as people write them: "15m", "24h", "7d"."""

from __future__ import annotations

import re

from wire.errors import ConfigError

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_duration(text: str, none: str = "") -> float:
    """Seconds in a time such as "24h" or "90", 0 for `none`; ConfigError for anything else."""
    if none and text.strip() == none:
        return 0.0
    match = _DURATION.fullmatch(text)
    unit_s = _UNITS_S.get(match[2].lower()) if match else None
    if match is None or unit_s is None or not 0 < float(match[1]) < 1e9:
        raise ConfigError(f"{text!r} is not a time", next_step="Write a number and a unit, such as 15m, 24h or 7d")
    return float(match[1]) * unit_s
