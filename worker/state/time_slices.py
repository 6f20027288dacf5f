"""Time slices: the runs of a device that were suspended so that others run meanwhile, and whose turn is next.  Pure.

A run with loops may take for ever, and others wait for its device.  So a run that has computed for a time slice while
something waits is suspended: its engine host keeps what it has computed so far, and goes on with what it is asked next.
What begins and what is resumed get half of the time each, so that short parts do not wait for long ones, and do not
hold them up for ever either: a resumed run makes way soon for what begins, unless it got less.  Suspended runs are
resumed in the order in which they were suspended.  Parts of one step do not make way for each other.

A run is suspended between two kernels or two turns of a loop.  Parts of gangs and of sessions are not: ranks wait for
each other, and the next step follows a session's part in its host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from wire.bounds import SUSPENDED_RUNS
from wire.protocol.messages import PlanKey

from .events import RunInput

SUSPENDED_MAX = SUSPENDED_RUNS.most
TIME_SLICE_S = 0.25  # far longer than it takes to suspend a run, and short for a person who waits
RESUMED_SLICE_S = 0.01  # the least that a resumed run has: a hundred times what the change takes


@dataclass(slots=True)
class IssuedRun:
    """A run that an engine host was given.  A `stopped` one is awaited by nobody."""

    number: int
    inputs: tuple[RunInput, ...]
    step: tuple[PlanKey, int] | None = None
    suspendable: bool = False
    stopped: bool = False
    resumed: bool = False
    computed_s: float = 0.0  # in earlier slices


@dataclass(slots=True)
class TimeSlices:
    """The suspended runs of a device.  `room_bytes` is the memory that a further run may work with beside them; None if
    that has changed since the host said it: it does whenever it has suspended one."""

    suspended: deque[IssuedRun] = field(default_factory=deque)
    room_bytes: int | None = None
    asked: int = 0  # the run that is to be suspended
    owed_s: float = 0.0  # what resumed runs got less than those that began

    @property
    def resume_first(self) -> bool:
        """Whether a suspended run has the next slice, also where others could begin."""
        full = len(self.suspended) >= SUSPENDED_MAX
        return bool(self.suspended) and (full or self.owed_s > 0 or any(run.stopped for run in self.suspended))

    def may_begin(self, working_bytes: int) -> bool:
        """Whether a part that needs so much memory may begin beside the suspended runs."""
        return not self.suspended or (self.room_bytes is not None and working_bytes <= self.room_bytes)

    def may_begin_then(self, working_bytes: int) -> bool:
        """Whether such a part may begin once the run that computes now is suspended, as far as is known."""
        fits = self.room_bytes is None or working_bytes <= self.room_bytes
        return fits and len(self.suspended) + 1 < SUSPENDED_MAX

    def slice_s(self, run: IssuedRun, others_begin: bool) -> float:
        """How long a run computes before it makes way: for what begins, or for other suspended runs."""
        if run.resumed and others_begin:
            return max(RESUMED_SLICE_S, min(TIME_SLICE_S, self.owed_s))
        return TIME_SLICE_S

    def suspend(self, run: IssuedRun, room_bytes: int, computed_s: float) -> None:
        """A run was suspended, after it had computed for so long without a break."""
        self._count(-computed_s if run.resumed else computed_s)
        run.computed_s += computed_s
        self.asked, self.room_bytes = 0, room_bytes
        self.suspended.append(run)

    def resume(self) -> IssuedRun:
        """The run that goes on now; one that nobody waits for comes first, since it only ends."""
        run = next((run for run in self.suspended if run.stopped), self.suspended[0])
        self.suspended.remove(run)
        run.resumed = True
        return run

    def ended(self, run: IssuedRun, computed_s: float) -> None:
        """A run is over, after it had computed for so long without a break."""
        self.asked = 0
        if run.resumed:
            self.room_bytes = None
        self._count(-computed_s if run.resumed else computed_s)

    def compiled(self, seconds: float) -> None:
        """The host compiled a part, whose weights have taken memory."""
        self.room_bytes = None
        self._count(seconds)

    def remove(self, number: int) -> None:
        """Forget a run, if it is among these."""
        self.suspended = deque(run for run in self.suspended if run.number != number)

    def stop(self, number: int) -> None:
        """Nobody waits for a run any more, which may be among these.  It ends when it is resumed."""
        for run in self.suspended:
            run.stopped |= run.number == number

    def _count(self, others_s: float) -> None:
        """Others than resumed runs had the device for so long.  Old debts do not matter: at most a slice is owed."""
        owed_s = max(-TIME_SLICE_S, min(self.owed_s + others_s, TIME_SLICE_S))
        self.owed_s = owed_s if self.suspended else 0.0
