"""Retry: how often work that failed is tried again, and the pause before.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

ATTEMPTS_MAX = 20  # in a row, before the work is given up
PARK_S = 0.05  # the pause, doubled with every further failure: what fails at once is not hammered
PARK_S_MAX = 1.0
EXCUSED_MAX = ATTEMPTS_MAX // 2  # failures that may be excused; the pause is the longest before that


@dataclass(slots=True)
class Retry:
    """The failures of one piece of work in a row."""

    attempts: int = 0
    parked_until_s: float | None = None  # when it is tried again; None: it does not wait for that

    def failed(self) -> bool:
        """Count a failure; whether the work is to be given up."""
        self.attempts += 1
        return self.attempts >= ATTEMPTS_MAX

    def excuse(self) -> None:
        """Take back a failure that came while other work got done: the pause grows, but not the way to giving up."""
        self.attempts = min(self.attempts, EXCUSED_MAX)

    def park(self, now: float) -> None:
        """Wait before the next attempt, for longer after each failure but the first, which is tried again at once."""
        if self.attempts > 1:
            self.parked_until_s = now + min(PARK_S * 2 ** (self.attempts - 2), PARK_S_MAX)

    def is_due(self, now: float) -> bool:
        """Whether it waited for an attempt, and for long enough."""
        return self.parked_until_s is not None and now >= self.parked_until_s

    def unpark(self) -> None:
        """Wait no more."""
        self.parked_until_s = None

    def succeeded(self) -> None:
        """Count from none again."""
        self.attempts = 0
