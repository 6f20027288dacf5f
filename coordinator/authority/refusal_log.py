"""Refusal log: decides which refused connections, and which deeds of clients, are written to the audit log, so that a
flood cannot fill the disk.

A node that tries again and again does the same thing, and so does a flood.  So the same event of one origin is logged
once an hour, and a token bucket limits the lines, one per origin and one for all.  Events that are not logged are
counted, and the next line says how many there were.  Of refusals that is at most about 1,500 lines a day, a quarter of
a megabyte; of what clients did 30,000, six megabytes.

Pure: time is an argument.  It does not know what the events mean; docs/protocol.md, "Joining", says who is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from wire.security.connection_limiter import origin_of

K = TypeVar("K")
V = TypeVar("V")
REMEMBERED = 1024  # events, and origins


@dataclass(frozen=True, slots=True)
class Allowance:
    """A rate limit: `lines` at once, then one more every `every_s` seconds."""

    lines: int
    every_s: float


REPEATED_S = 3600.0
ORIGIN = Allowance(10, 360.0)  # a house whose machines are set up, one mistake after another
ALL = Allowance(100, 60.0)
CLIENT = Allowance(100, 10.0)  # a program of many calls; the rest of them is counted
ALL_CLIENTS = Allowance(1000, 3.0)


class RefusalLog:
    """`record` every refusal; it says whether to write a line."""

    def __init__(self, origin: Allowance = ORIGIN, all: Allowance = ALL) -> None:
        self._origin, self._most = origin, all
        self._done: OrderedDict[tuple[str, str], float] = OrderedDict()  # when it was logged
        self._origins: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(all.lines, 0.0)
        self._unlogged_count = 0

    def record(self, host: str, what: str, now_s: float) -> int | None:
        """Whether to log a refusal: the number of refusals that were left out since the last line, None to leave it
        out."""
        origin = origin_of(host)
        logged_s = self._done.get((origin, what))
        repeated = logged_s is not None and logged_s <= now_s < logged_s + REPEATED_S
        mine = self._origins.setdefault(origin, _Bucket(self._origin.lines, now_s))
        self._origins.move_to_end(origin)
        _shorten(self._origins)
        # A machine's own users may do what they like with its disk, and all come from the same address.
        if repeated or not ((not origin or mine.left(self._origin, now_s)) and self._all.left(self._most, now_s)):
            self._unlogged_count += 1
            return None
        mine.take()
        self._all.take()
        self._done[origin, what] = now_s
        self._done.move_to_end((origin, what))
        _shorten(self._done)
        unlogged_count, self._unlogged_count = self._unlogged_count, 0
        return unlogged_count


@dataclass(slots=True)
class _Bucket:
    """A token bucket: the lines that may still be written."""

    lines: float
    at_s: float

    def left(self, allowance: Allowance, now_s: float) -> bool:
        gained = max(now_s - self.at_s, 0.0) / allowance.every_s
        self.lines, self.at_s = min(self.lines + gained, allowance.lines), now_s
        return self.lines >= 1.0

    def take(self) -> None:
        self.lines = max(self.lines - 1.0, 0.0)


def _shorten(remembered: OrderedDict[K, V]) -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
