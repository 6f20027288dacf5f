"""The stderr of an engine host as lines of the daemon's log: so many in a minute, since a driver may complain of every
dispatch.  Pure: times come with the calls.

What is left out is counted, and the last of it is kept: a host that ends has said why just before.
"""

from __future__ import annotations

import math

from wire.bounds import HOST_LINES
from wire.limits import KIB

MINUTE_S = 60.0
LINE_BYTES_MAX = 4 * KIB
REST_BYTES_MAX = 16 * KIB
LAST_LINES_MAX = 64  # a traceback has fewer


class StderrLines:
    """One host's.  `lines_max` are logged in a minute."""

    def __init__(self, lines_max: int = HOST_LINES.most) -> None:
        self._lines_max = lines_max
        self._room = lines_max
        self._renewed_s = -math.inf
        self._rest = b""  # a line that is not whole, or the last of what was left out
        self._left_out = 0  # lines since one was logged

    def take(self, data: bytes, now: float) -> list[str]:
        """Take what was read; the lines to log."""
        before: list[str] = []
        if now - self._renewed_s >= MINUTE_S:
            before = self._told()
            self._rest = self._rest.rpartition(b"\n")[2]  # what is whole of it was left out
            self._renewed_s, self._room = now, self._lines_max
        *lines, rest = (self._rest + data).split(b"\n", self._room)
        self._room -= len(lines)
        self._left_out += data.count(b"\n") - len(lines)
        self._rest = rest[-REST_BYTES_MAX:]
        return [*before, *map(_text, lines)]

    def end(self) -> list[str]:
        """The host says no more: the last lines to log."""
        last, self._rest = self._rest.splitlines()[-LAST_LINES_MAX:], b""
        self._left_out = max(self._left_out - len(last), 0)
        return [*self._told(), *map(_text, last)]

    def _told(self) -> list[str]:
        """The line about those that were left out, if any were."""
        left_out, self._left_out = self._left_out, 0
        return [f"({left_out} lines were left out here)"] if left_out else []


def _text(line: bytes) -> str:
    return line[:LINE_BYTES_MAX].decode("utf-8", "replace")
