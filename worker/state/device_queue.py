"""Device queue: what waits for one device of the worker, what its engine host was given, and what it does now.  Pure.

A host does what it is given one by one: parts to prepare, a part to run, and, in a session, the part that follows, so
that it need not wait for the daemon in between.  Run numbers and prepare numbers come from one counter, so the smallest
is what the host does now.  `since_s` is when it began with that.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.protocol.messages import PlanKey, Working

from .device_recovery import DeviceRecovery
from .events import RunInput

Entry = tuple[PlanKey, int, int]  # plan, step, part


@dataclass(slots=True)
class DeviceQueue:
    """`ready` has the parts whose inputs are all there, in the order in which they became so.  `ordered` has the parts
    of ordered plans, ready or not: such a part never runs before the ones in front of it.  Other parts may overtake."""

    ready: deque[Entry] = field(default_factory=deque)
    ordered: deque[Entry] = field(default_factory=deque)
    issued: deque[tuple[int, tuple[RunInput, ...]]] = field(
        default_factory=deque
    )  # runs that the host has, with inputs
    begun: bool = False  # whether the first issued run has begun and `just_begun` has not been asked since
    unreported: bool = False  # the coordinator does not know that the run has begun
    since_s: float = 0.0  # when the host began with what it does now
    preparing: dict[int, tuple[PlanKey, int]] = field(default_factory=dict)  # parts (plan, part) the host is to prepare
    restoring: set[int] = field(default_factory=set)  # numbers of parts of deployed plans that a new host lacks
    recovery: DeviceRecovery = field(default_factory=DeviceRecovery)

    @property
    def running(self) -> int | None:
        """The number of the run that the host does."""
        return self.issued[0][0] if self.issued else None

    @property
    def serves(self) -> bool:
        """Whether the host is up and has every part that it should have."""
        return self.recovery.up and not self.restoring

    @property
    def idle(self) -> bool:
        """Whether the device may be given a part to run."""
        return not self.issued and self.serves

    @property
    def next(self) -> Entry | None:
        """The part that may run next: the first ready one that no earlier part of its order holds back."""
        if not (self.ready and self.ordered):
            return self.ready[0] if self.ready else None
        later = set(itertools.islice(self.ordered, 1, None))
        return next((entry for entry in self.ready if entry not in later), None)

    def take(self) -> Entry | None:
        """Remove and return the next part, if the device is idle."""
        return self._remove(self.next) if self.idle else None

    def take_following(self, plan: PlanKey) -> Entry | None:
        """Remove and return the next part, if it is of this plan and the host has one run and no more."""
        entry = self.next if self.serves and len(self.issued) == 1 else None
        return self._remove(entry) if entry is not None and entry[0] == plan else None

    def _remove(self, entry: Entry | None) -> Entry | None:
        if entry is not None:
            self.ready.remove(entry)
            if self.ordered and self.ordered[0] == entry:
                self.ordered.popleft()
        return entry

    def validate(self) -> None:
        """Assert that the queue does not contradict itself."""
        assert not self.idle or self.next is None, "a device idles while parts are ready"
        assert len(self.ordered) == len(set(self.ordered)), "a part has two places in the order"
        assert not self.issued or self.recovery.up, "a part runs on a device that is down"

    def working(self, runs: Mapping[int, Entry], now: float) -> Working | None:
        """What the host does now, and for how long."""
        number = self._now
        if number is None:
            return None
        seconds = max(0.0, now - self.since_s)
        if number == self.running:
            return Working(*runs[number], seconds)
        plan, part = self.preparing[number]
        return Working(plan, 0, part, seconds, preparing=True)

    @property
    def busy_since_s(self) -> float | None:
        """The time at which the host began with what it does now; None if it has nothing to do."""
        return None if self._now is None else self.since_s

    def start(self, run: int, inputs: tuple[RunInput, ...], now: float) -> None:
        """The host is given a run."""
        if self._now is None:
            self.since_s = now
        self.begun |= not self.issued
        self.issued.append((run, inputs))

    def end(self, run: int, now: float) -> None:
        """A run is over, if it is this device's.  The host goes on with the next issued one.  A run behind the first
        may end too: then the host never got it."""
        first = self.running == run
        self.issued = deque(entry for entry in self.issued if entry[0] != run)
        if first:
            self.begun, self.since_s = bool(self.issued), now

    def just_begun(self) -> bool:
        """Whether a run has begun since this was last called."""
        begun, self.begun = self.begun, False
        return begun

    def prepare(self, number: int, plan: PlanKey, part: int, now: float) -> None:
        """The host is given a part to prepare."""
        if self._now is None:
            self.since_s = now
        self.preparing[number] = plan, part

    def prepare_ended(self, number: int, now: float) -> None:
        """The host prepared a part, or failed to, if it is this device's."""
        if self.preparing.pop(number, None) is not None:
            self.since_s = now

    @property
    def _now(self) -> int | None:
        """The number of what the host does now."""
        running = () if self.running is None else (self.running,)
        return min((*self.preparing, *running), default=None)

    def remove_step(self, plan: PlanKey, step: int) -> None:
        """Remove the waiting parts of a step that is over."""
        for entries in (self.ready, self.ordered):
            kept = [entry for entry in entries if entry[:2] != (plan, step)]
            entries.clear()
            entries.extend(kept)
