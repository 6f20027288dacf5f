"""Throttle: how much slower a worker is to be than its machine, as `mesh-worker --throttle` says it.

    flops=2e9,rate=20Mbit/s,delay=5ms

`flops` is what its devices compute per second at most, by the op table's work column (`throttled_engine.py`);
`rate` is what it sends per second to all others together, and `delay` how much later all of that arrives
(`throttled_links.py`).  Pure.  To add a figure, add a field and a row to `_READERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wire.errors import ConfigError

_RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)(.*)")
EXAMPLE = "flops=2e9,rate=20Mbit/s,delay=5ms"
DELAY_S_MAX = 10.0  # beyond, no handshake would come about


@dataclass(frozen=True, slots=True)
class Throttle:
    """`text` is what was asked for; a figure of 0 is one that was not."""

    text: str
    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    delay_s: float = 0.0

    @property
    def slows_links(self) -> bool:
        return bool(self.bytes_per_s or self.delay_s)


def parse_throttle(text: str) -> Throttle:
    """The throttle that a flag's text asks for; ConfigError for anything else."""
    figures: dict[str, float] = {}
    for setting in text.split(","):
        key, equals, value = setting.strip().partition("=")
        if key not in _READERS or not equals:
            raise _wrong(text, f"{setting.strip()!r} is none of {', '.join(_READERS)}")
        name, read = _READERS[key]
        if name in figures:
            raise _wrong(text, f"{key} stands twice")
        figures[name] = read(text, value)
    return Throttle(text, **figures)


def _reader(units: Mapping[str, float], per_unit: float, most: float) -> Callable[[str, str], float]:
    def read(text: str, value: str) -> float:
        match = _NUMBER.fullmatch(value)
        unit = units.get(match[2]) if match else None
        figure = float(match[1]) * unit * per_unit if match and unit else 0.0
        if not 0 < figure < most:
            raise _wrong(text, f"{value!r} is no figure in {' or '.join(unit or 'flop/s' for unit in units)}")
        return figure

    return read


def _wrong(text: str, cause: str) -> ConfigError:
    return ConfigError(f"{text!r} is not a throttle", cause=cause, next_step=f"Write it as {EXAMPLE}, or some of it")


_READERS: dict[str, tuple[str, Callable[[str, str], float]]] = {
    "flops": ("flops_per_s", _reader({"": 1.0}, 1.0, 1e18)),
    "rate": ("bytes_per_s", _reader(_RATES, 1 / 8, 1e15)),
    "delay": ("delay_s", _reader(_TIMES, 1.0, DELAY_S_MAX)),
}
