"""Sleep detector: whether this process has been away, by what the clocks say.  Pure; both clocks are arguments.

While a machine sleeps its monotonic clock stands still (on most systems) and its wall clock goes on; while a process is
stopped, or its loop is held up, both go on and nothing else does.  Either way what is known of other nodes is old.
"""

from __future__ import annotations

from dataclasses import dataclass

SLEPT_S_MIN = 2.0  # time servers correct a clock by less; who sets it by hand costs every link one ping
STOOD_S_MIN = 5.0  # no loop of ours is held up so long while it works


@dataclass(slots=True)
class SleepDetector:
    """Tell it the clocks every second or so."""

    slept: bool = False  # what the last tick found: this machine, and not this process alone
    _seen: tuple[float, float] | None = None

    def tick(self, monotonic_s: float, wall_s: float) -> str:
        """What happened since the last tick that makes every link doubtful, or ""."""
        seen, self._seen = self._seen, (monotonic_s, wall_s)
        self.slept = False
        if seen is None:
            return ""
        passed_s = monotonic_s - seen[0]
        slept_s = wall_s - seen[1] - passed_s
        self.slept = slept_s >= SLEPT_S_MIN
        if self.slept:
            return f"this machine slept for {slept_s:.0f} s"
        if passed_s >= STOOD_S_MIN:
            return f"this process stood still for {passed_s:.0f} s"
        return ""
