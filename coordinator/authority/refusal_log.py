"""Which of the things that strangers do are written down: each once, and never so many that they fill a disk.

A node that tries again and again does the same thing, and so does a flood.  So the same from the same origin is told
once an hour, and all that is told keeps within what is saved up: so much for an origin, so much for all.  What is not
told is counted, and the next one that is says how many there were.  At most about 1,500 lines a day, a quarter of a
megabyte, whatever comes.

Pure: time is an argument.  It does not know what the things are; docs/protocol.md, "Joining", says who is turned away.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from wire.security.connection_limiter import origin_of

REMEMBERED = 1024  # things, and origins


@dataclass(frozen=True, slots=True)
class Allowance:
    """So many lines at once, and then another one every so many seconds."""

    lines: int
    every_s: float


REPEATED_S = 3600.0
ORIGIN = Allowance(10, 360.0)  # a house whose machines are set up, one mistake after another
ALL = Allowance(100, 60.0)


class RefusalLog:
    """`tells` for every thing that one did."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], float] = OrderedDict()  # when it was told
        self._origins: OrderedDict[str, _Saved] = OrderedDict()
        self._all = _Saved(ALL.lines, 0.0)
        self._untold = 0

    def record(self, host: str, what: str, now_s: float) -> int | None:
        """How many were not told since the last one that was, or None if this is not told either."""
        origin = origin_of(host)
        told_s = self._done.get((origin, what))
        repeated = told_s is not None and told_s <= now_s < told_s + REPEATED_S
        mine = self._origins.setdefault(origin, _Saved(ORIGIN.lines, now_s))
        self._origins.move_to_end(origin)
        _shorten(self._origins)
        # A machine's own users may do what they like with its disk, and all come from the same address.
        if repeated or not ((not origin or mine.left(ORIGIN, now_s)) and self._all.left(ALL, now_s)):
            self._untold += 1
            return None
        mine.take()
        self._all.take()
        self._done[origin, what] = now_s
        self._done.move_to_end((origin, what))
        _shorten(self._done)
        untold, self._untold = self._untold, 0
        return untold


@dataclass(slots=True)
class _Saved:
    """Lines that may still be written."""

    lines: float
    at_s: float

    def left(self, allowance: Allowance, now_s: float) -> bool:
        gained = max(now_s - self.at_s, 0.0) / allowance.every_s
        self.lines, self.at_s = min(self.lines + gained, allowance.lines), now_s
        return self.lines >= 1.0

    def take(self) -> None:
        self.lines = max(self.lines - 1.0, 0.0)


def _shorten(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
