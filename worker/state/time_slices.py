"""Time slices: the runs of a device that were suspended so that others run meanwhile, and whose turn is next.  Pure.

A run with loops may take for ever, and others wait for its device.  So a run that has computed for a time slice while
something waits is suspended: its engine host keeps what it has computed so far, and goes on with what it is asked next.
What begins and what is resumed get half of the time each, so that short parts do not wait for long ones, and do not
hold them up for ever either: a resumed run makes way at once for what begins, unless it got less.  Suspended runs are
resumed in the order in which they were suspended.

A run is suspended between two kernels or two turns of a loop.  Parts of gangs and of sessions are not: ranks wait for
each other, and the next step follows a session's part in its host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from wire.bounds import SUSPENDED_RUNS

from .events import RunInput

SUSPENDED_MAX = SUSPENDED_RUNS.most


@dataclass(slots=True)
class IssuedRun:
    """A run that an engine host was given.  A `stopped` one is awaited by nobody."""

    number: int
    inputs: tuple[RunInput, ...]
    suspendable: bool = False
    stopped: bool = False
    resumed: bool = False
    computed_s: float = 0.0  # in earlier slices


@dataclass(slots=True)
class TimeSlices:
    """The suspended runs of a device.  `room_bytes` is the memory that the host has beside them and the run that was
    suspended last, or None if that is not known."""

    suspended: deque[IssuedRun] = field(default_factory=deque)
    room_bytes: int | None = None
    asked: int = 0  # the run that is to be suspended
    owed_s: float = 0.0  # what resumed runs got less than those that began

    @property
    def full(self) -> bool:
        """Whether no further run may begin beside the suspended ones."""
        return len(self.suspended) >= SUSPENDED_MAX

    @property
    def resume_first(self) -> bool:
        """Whether a suspended run has the next slice, also where others could begin."""
        return bool(self.suspended) and (self.full or self.owed_s > 0 or any(run.stopped for run in self.suspended))

    def has_room(self, working_bytes: int) -> bool:
        """Whether a part that needs so much memory can run beside those that are suspended then."""
        return self.room_bytes is None or working_bytes <= self.room_bytes

    def suspend(self, run: IssuedRun, room_bytes: int, computed_s: float, slice_s: float) -> None:
        """A run was suspended, after it had computed for so long without a break."""
        self._count(run, computed_s, slice_s)
        run.computed_s += computed_s
        self.asked, self.room_bytes = 0, room_bytes
        self.suspended.append(run)

    def resume(self) -> IssuedRun:
        """The run that goes on now; one that nobody waits for comes first, since it only ends."""
        run = next((run for run in self.suspended if run.stopped), self.suspended[0])
        self.suspended.remove(run)
        run.resumed = True
        return run

    def ended(self, run: IssuedRun, computed_s: float, slice_s: float) -> None:
        """A run is over, after it had computed for so long without a break."""
        self.asked, self.room_bytes = 0, None
        self._count(run, computed_s, slice_s)

    def remove(self, number: int) -> None:
        """Forget a run, if it is among these."""
        self.suspended = deque(run for run in self.suspended if run.number != number)

    def stop(self, number: int) -> None:
        """Nobody waits for a run any more, which may be among these.  It ends when it is resumed."""
        for run in self.suspended:
            run.stopped |= run.number == number

    def _count(self, run: IssuedRun, computed_s: float, slice_s: float) -> None:
        """Old debts do not matter: what is owed is at most a slice."""
        owed_s = self.owed_s + (-computed_s if run.resumed else computed_s)
        self.owed_s = max(-slice_s, min(owed_s, slice_s)) if self.suspended else 0.0
