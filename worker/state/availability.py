"""Availability: whether a worker takes work, and who may change that.  Pure.

It takes none while it leaves, while somebody paused it, and while its machine is about to sleep.  Whoever sits at a
machine comes first: a pause that was asked for there ends there only, one by the coordinator may be ended by both.
It does not know what the work is.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import Busy, MeshError, NodeLost

MACHINE, COORDINATOR = "machine", "coordinator"  # who paused it
SLEEP_S_MAX = 15.0  # a machine that goes on for so long after it said that it would sleep does not sleep


@dataclass(slots=True)
class Duty:
    """`paused` says by whom, "" for nobody; `awake_at_s` when an announced sleep counts as over, None without one."""

    leaving: bool = False
    paused: str = ""
    awake_at_s: float | None = None

    def away(self) -> MeshError | None:
        """Why no coordinator can have this worker."""
        if self.leaving:
            return NodeLost("this worker is leaving")
        return None if self.awake_at_s is None else NodeLost("this worker's machine is about to sleep")

    def refusal(self) -> MeshError | None:
        """Why it takes no work."""
        return self.away() or (NodeLost("this worker is paused") if self.paused else None)

    def cannot_resume(self) -> MeshError | None:
        """Why its coordinator cannot end its pause."""
        if self.paused != MACHINE:
            return None
        return Busy("this worker was paused on its own machine", next_step="Type there: mesh-worker resume")

    def sleeps(self, now: float) -> None:
        """Its machine said that it goes to sleep."""
        self.awake_at_s = now + SLEEP_S_MAX

    def overslept(self, now: float) -> bool:
        """Whether the machine evidently did not sleep, or is awake again, and nobody said so."""
        return self.awake_at_s is not None and now >= self.awake_at_s
