"""Backoff: how long to wait before the next attempt.  Pure; chance is an argument.

Full jitter: each wait is drawn evenly from nothing to a bound that doubles up to a cap, so that a hundred workers whose
coordinator comes back do not all dial it at the same moment.  There is no last attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """`chance` gives numbers from 0 up to 1.  The first wait is at most `first_s`, none is longer than `cap_s`."""

    chance: Callable[[], float]
    first_s: float
    cap_s: float
    _bound_s: float = 0.0

    def next_s(self) -> float:
        """Seconds to wait now."""
        self._bound_s = min(self._bound_s * 2, self.cap_s) or self.first_s
        return self.chance() * self._bound_s

    def reset(self) -> None:
        """It worked: the next failure is a first one."""
        self._bound_s = 0.0
