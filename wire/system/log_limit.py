"""Log limit: how often one cause may write to the log, so that a repeated cause cannot fill it.  Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..bounds import LINES_OF_ONE

EVERY_S = 60 / LINES_OF_ONE.most


@dataclass(slots=True)
class LogLimit:
    """The first line is written at once, and a further one after `every_s` at the earliest."""

    every_s: float = EVERY_S
    _next_s: float = -math.inf
    _unlogged_count: int = 0

    def admit(self, now: float) -> int | None:
        """How many lines were left out since the last one that was written; None if this one is left out, too."""
        if now < self._next_s:
            self._unlogged_count += 1
            return None
        self._next_s = now + self.every_s
        unlogged_count, self._unlogged_count = self._unlogged_count, 0
        return unlogged_count


def unlogged_text(unlogged_count: int) -> str:
    """What a line says of those that were left out before it."""
    return f" ({unlogged_count} more like it before)" if unlogged_count else ""
