"""Device queue: one device as the worker's machine sees it: what waits for it, what runs, whether its host serves.
Pure.

A host takes what it is asked one by one: parts to prepare, a part to run, and of a session the part that follows, so
that it need not wait to hear of it.  Their numbers grow, so the smallest is what it does now, and `since_s` is when it
began with that.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.protocol.messages import PlanKey, Working

from .device_recovery import Repair
from .events import Use

Entry = tuple[PlanKey, int, int]  # plan, step, part


@dataclass(slots=True)
class Lane:
    """`queue` has what is ready, in the order of becoming so.  `ordered` has what must run in the order in which it
    stands there, ready or not: nothing of it passes what stands before it, and what is not of it may pass anything."""

    queue: deque[Entry] = field(default_factory=deque)
    ordered: deque[Entry] = field(default_factory=deque)
    told: deque[tuple[int, tuple[Use, ...]]] = field(default_factory=deque)  # runs of its host, and their inputs
    begun: bool = False  # whether the first of them was begun, and nobody has looked yet
    since_s: float = 0.0  # when the host began with what it does now
    asked: dict[int, tuple[PlanKey, int]] = field(default_factory=dict)  # parts (plan, part) that it is to prepare
    preparing: set[int] = field(default_factory=set)  # parts of deployed plans that a new host does not have yet
    repair: Repair = field(default_factory=Repair)

    @property
    def running(self) -> int | None:
        """The number of the run that its host does."""
        return self.told[0][0] if self.told else None

    @property
    def serves(self) -> bool:
        """Whether its host has all that it should have."""
        return self.repair.up and not self.preparing

    @property
    def idle(self) -> bool:
        """Whether it may be given a part to run."""
        return not self.told and self.serves

    @property
    def next(self) -> Entry | None:
        """What may run next: of what is ready, the first that is not behind another by order."""
        later = set(itertools.islice(self.ordered, 1, None)) if self.queue else ()
        return next((entry for entry in self.queue if entry not in later), None)

    def take(self) -> Entry | None:
        """That, for a device that is idle: it no longer waits."""
        return self._taken(self.next) if self.idle else None

    def follow(self, plan: PlanKey) -> Entry | None:
        """That, if it is of this plan, for a device whose host does a run and was told of no other."""
        entry = self.next if self.serves and len(self.told) == 1 else None
        return self._taken(entry) if entry is not None and entry[0] == plan else None

    def _taken(self, entry: Entry | None) -> Entry | None:
        if entry is not None:
            self.queue.remove(entry)
            if self.ordered and self.ordered[0] == entry:
                self.ordered.popleft()
        return entry

    def validate(self) -> None:
        """AssertionError if it contradicts itself."""
        assert not self.idle or self.next is None, "a device idles while parts are ready"
        assert len(self.ordered) == len(set(self.ordered)), "a part has two places in the order"
        assert not self.told or self.repair.up, "a part runs on a device that is down"

    def working(self, runs: Mapping[int, tuple[PlanKey, int, int]], now: float) -> Working | None:
        """What the host does now, and for how long."""
        number = self._now
        if number is None:
            return None
        seconds = max(0.0, now - self.since_s)
        if number == self.running:
            return Working(*runs[number], seconds)
        plan, part = self.asked[number]
        return Working(plan, 0, part, seconds, preparing=True)

    @property
    def busy_since_s(self) -> float | None:
        """When the host began with what it does now; None for one that owes nothing."""
        return None if self._now is None else self.since_s

    def start(self, run: int, inputs: tuple[Use, ...], now: float) -> None:
        """The host is asked to run a part."""
        if self._now is None:
            self.since_s = now
        self.begun |= not self.told
        self.told.append((run, inputs))

    def end(self, run: int, now: float) -> None:
        """The run is over, if it is this lane's; the host does the next one that it was told of.  One behind it may be
        over as well: the host was not told of it after all."""
        first = self.running == run
        self.told = deque(each for each in self.told if each[0] != run)
        if first:
            self.begun, self.since_s = bool(self.told), now

    def just_begun(self) -> bool:
        """Whether a run was begun since this was asked."""
        begun, self.begun = self.begun, False
        return begun

    def ask(self, number: int, plan: PlanKey, part: int, now: float) -> None:
        """The host is asked to prepare a part."""
        if self._now is None:
            self.since_s = now
        self.asked[number] = plan, part

    def answered(self, number: int, now: float) -> None:
        """It prepared a part, or could not, if it was this lane's."""
        if self.asked.pop(number, None) is not None:
            self.since_s = now

    @property
    def _now(self) -> int | None:
        running = () if self.running is None else (self.running,)
        return min((*self.asked, *running), default=None)

    def forget(self, plan: PlanKey, step: int) -> None:
        """Nothing of a step that is over waits any more."""
        for entries in (self.queue, self.ordered):
            kept = [entry for entry in entries if entry[:2] != (plan, step)]
            entries.clear()
            entries.extend(kept)
