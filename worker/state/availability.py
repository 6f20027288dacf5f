"""Availability: whether a worker takes work, and who may change that.  Pure.

It takes none while it leaves, while it is paused, and while its machine is about to sleep.  The person at
the machine comes first: a pause that was asked for there can only be ended there, and a pause by the coordinator can be
ended by both.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import Busy, MeshError, NodeLost

MACHINE, COORDINATOR = "machine", "coordinator"  # who paused the worker
SLEEP_S_MAX = 15.0  # a machine that still runs so long after it announced a sleep did not sleep


@dataclass(slots=True)
class Availability:
    """`paused` says who paused the worker, "" for nobody.  `awake_at_s` is when an announced sleep counts as over, None
    without one."""

    leaving: bool = False
    paused: str = ""
    awake_at_s: float | None = None

    def unavailable(self) -> MeshError | None:
        """Why no coordinator can have this worker now."""
        if self.leaving:
            return NodeLost("this worker is leaving")
        return None if self.awake_at_s is None else NodeLost("this worker's machine is about to sleep")

    def refusal(self) -> MeshError | None:
        """Why the worker takes no work now."""
        return self.unavailable() or (NodeLost("this worker is paused") if self.paused else None)

    def cannot_resume(self) -> MeshError | None:
        """Why the coordinator cannot end the pause."""
        if self.paused != MACHINE:
            return None
        return Busy("this worker was paused on its own machine", next_step="Type there: mesh-worker resume")

    def sleep(self, now: float) -> None:
        """The machine announced that it goes to sleep."""
        self.awake_at_s = now + SLEEP_S_MAX

    def overslept(self, now: float) -> bool:
        """Whether an announced sleep must be over, although nobody said that the machine woke."""
        return self.awake_at_s is not None and now >= self.awake_at_s
