"""Device queue: what waits for one device of the worker, what its engine host was given, and what it does now.  Pure.

A host does what it is given one by one: parts to prepare, a part to run, and, in a session, the part that follows, so
that it need not wait for the daemon in between.  Run numbers and prepare numbers come from one counter, so the smallest
is what the host does now.  `since_s` is when it began with that, or went on with it (`time_slices.py`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from wire.protocol.messages import PlanKey, Working

from .device_recovery import DeviceRecovery
from .events import RunInput
from .time_slices import SUSPENDED_MAX, IssuedRun, TimeSlices

Entry = tuple[PlanKey, int, int]  # plan, step, part


@dataclass(slots=True)
class DeviceQueue:
    """`ready` has the parts whose inputs are all there, in the order in which they became so.  `ordered` has the parts
    of ordered plans, ready or not: such a part never runs before the ones in front of it.  Other parts may overtake."""

    ready: deque[Entry] = field(default_factory=deque)
    ordered: deque[Entry] = field(default_factory=deque)
    issued: deque[IssuedRun] = field(default_factory=deque)  # runs that the host has, but for suspended ones
    slices: TimeSlices = field(default_factory=TimeSlices)
    begun: bool = False  # whether the first issued run has begun and `just_begun` has not been asked since
    unreported: bool = False  # the coordinator does not know that the run has begun
    since_s: float = 0.0  # when the host began with what it does now
    preparing: dict[int, tuple[PlanKey, int]] = field(default_factory=dict)  # parts (plan, part) the host is to prepare
    postponed: list[tuple[PlanKey, int]] = field(default_factory=list)  # parts that fit once suspended runs are over
    exporting: set[int] = field(default_factory=set)  # numbers of blobs to be made of what the host keeps
    restoring: set[int] = field(default_factory=set)  # numbers of parts of deployed plans that a new host lacks
    recovery: DeviceRecovery = field(default_factory=DeviceRecovery)

    @property
    def running(self) -> int | None:
        """The number of the run that the host does."""
        return self.issued[0].number if self.issued else None

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
        return next(self._first(), None)

    def _first(self) -> Iterator[Entry]:
        """The ready parts that no earlier part of their order holds back."""
        later = set(itertools.islice(self.ordered, 1, None)) if self.ready else ()
        return (entry for entry in self.ready if entry not in later)

    def take(self, working_bytes: Callable[[Entry], int] = lambda _: 0) -> Entry | None:
        """Remove and return the next part that has room, if the device is idle and no suspended run goes on first."""
        if not self.idle or self.slices.resume_first:
            return None
        return self._remove(next((one for one in self._first() if self.slices.may_begin(working_bytes(one))), None))

    def resume(self, now: float) -> IssuedRun | None:
        """The suspended run that goes on now, if the device is idle otherwise."""
        if not (self.slices.suspended and self.idle and not self.preparing):
            return None
        run = self.slices.resume()
        self.issued.append(run)
        self.since_s = now
        return run

    def slice_over(self, now: float, working_bytes: Callable[[Entry], int]) -> int | None:
        """The run that is to be suspended now; its host is asked once."""
        ends_s = self.slice_ends_s(working_bytes)
        if ends_s is None or now < ends_s:
            return None
        self.slices.asked = self.issued[0].number
        return self.slices.asked

    def slice_ends_s(self, working_bytes: Callable[[Entry], int]) -> float | None:
        """The time at which the run is to be suspended; None if nothing waits for the device, or it cannot be."""
        run, slices = self.issued[0] if len(self.issued) == 1 else None, self.slices
        if run is None or not run.suspendable or run.stopped or slices.asked or self._now != run.number:
            return None
        others_begin = bool(self.preparing or self.exporting) or any(
            one[:2] != run.step and slices.may_begin_then(working_bytes(one)) for one in self._first()
        )
        return self.since_s + slices.slice_s(run, others_begin) if others_begin or slices.suspended else None

    def suspended(self, number: int, room_bytes: int, now: float) -> None:
        """The host has suspended a run, if it is this device's.  It takes what it is asked next."""
        if self.running == number:
            self.slices.suspend(self.issued.popleft(), room_bytes, now - self.since_s)
            self.exporting.clear()  # the host has been asked for these before it is asked to resume
            self.since_s = now

    def stop(self, number: int) -> bool:
        """Nobody waits for a run any more.  Returns whether the host does it now, and is to be told; a suspended one
        ends when it goes on."""
        self.slices.stop(number)
        if self.running != number:
            return False
        self.issued[0].stopped = True
        return True

    @property
    def given(self) -> tuple[IssuedRun, ...]:
        """All runs that the host has."""
        return (*self.issued, *self.slices.suspended)

    def take_following(self, plan: PlanKey) -> Entry | None:
        """Remove and return the next part, if it is of this plan and the host has one run and no more."""
        alone = self.serves and len(self.issued) == 1 and not self.slices.resume_first
        entry = self.next if alone else None
        return self._remove(entry) if entry is not None and entry[0] == plan else None

    def _remove(self, entry: Entry | None) -> Entry | None:
        if entry is not None:
            self.ready.remove(entry)
            if self.ordered and self.ordered[0] == entry:
                self.ordered.popleft()
        return entry

    def validate(self) -> None:
        """Assert that the queue does not contradict itself."""
        waits = bool(self.slices.suspended and self.preparing)  # a run goes on when the host has compiled
        assert not self.idle or waits or (self.next is None and not self.slices.suspended), "a device idles"
        assert len(self.slices.suspended) <= SUSPENDED_MAX, "too many runs are suspended"
        assert len(self.ordered) == len(set(self.ordered)), "a part has two places in the order"
        assert not self.given or self.recovery.up, "a part runs on a device that is down"

    def working(self, runs: Mapping[int, Entry], now: float) -> list[Working]:
        """What the host does now, and for how long; then the runs that it has suspended."""
        working = [Working(*runs[run.number], run.computed_s) for run in self.slices.suspended]
        number = self._now
        if number is None:
            return working
        seconds = max(0.0, now - self.since_s)
        if number == self.running:
            return [Working(*runs[number], self.issued[0].computed_s + seconds), *working]
        plan, part = self.preparing[number]
        return [Working(plan, 0, part, seconds, preparing=True), *working]

    @property
    def busy_since_s(self) -> float | None:
        """The time at which the host began with what it does now; None if it has nothing to do."""
        return None if self._now is None else self.since_s

    def start(
        self, run: int, inputs: tuple[RunInput, ...], now: float, step: tuple[PlanKey, int] | None = None,
        suspendable: bool = False,
    ) -> None:  # fmt: skip
        """The host is given a run."""
        if self._now is None:
            self.since_s = now
        self.begun |= not self.issued
        self.issued.append(IssuedRun(run, inputs, step, suspendable))

    def end(self, run: int, now: float) -> None:
        """A run is over, if it is this device's.  The host goes on with the next issued one.  A run behind the first
        may end too: then the host never got it."""
        self.slices.remove(run)
        first = self.issued[0] if self.running == run else None
        self.issued = deque(issued for issued in self.issued if issued.number != run)
        if first is not None:
            self.slices.ended(first, now - self.since_s)
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
            self.slices.compiled(now - self.since_s)
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
