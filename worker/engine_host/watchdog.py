"""Watchdog: when an engine host counts as hung.  Pure; the owner of the host asks it once per beat.

A host is hung when its process says nothing (it beats from a thread of its own, also while it computes), when one
message takes it longer than any compile or part may, or when it was asked to give up a run, has begun with it, and goes
on.  Silence is counted in checks, not timed: when the daemon itself slept, one check heard nothing, not ten.  So it is
with the other two: what passed while nobody checked is taken off, for the host slept too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from wire.errors import DeviceLost, MeshError, OutOfMemory


@dataclass(slots=True)
class _Asked:
    since_s: float  # when it was sent, or the host began with it, if that is known
    run: int
    brief: bool


@dataclass(slots=True)
class Watchdog:
    """Times in seconds.  `check` is to be called every `beat_s`, from the opening of the device on."""

    beat_s: float
    silence_s: float
    part_s_max: float
    stop_s_max: float
    _asked: deque[_Asked] = field(default_factory=deque)  # what awaits an answer
    _stopped: tuple[int, float] | None = None  # the last run that the host was asked to give up, and when
    _heard: bool = False  # since the last check
    _silent_checks: int = 0
    _checked_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether the host owes an answer."""
        return bool(self._asked)

    def asked(self, now: float, run: int = 0, brief: bool = False) -> None:
        """A message that will be answered was sent: to do this run, or another one, which may be `brief`."""
        self._asked.append(_Asked(now, run, brief))

    def stopped(self, now: float, run: int) -> None:
        """The host was asked to give this run up."""
        self._stopped = run, now

    def heard(self) -> None:
        """Anything came from the host."""
        self._heard = True

    def answered(self, now: float) -> None:
        """The oldest message was answered; the host takes them one by one, so the next one begins now."""
        self._heard = True
        if self._asked:
            self._asked.popleft()
        if self._asked:
            self._asked[0].since_s = now

    def check(self, now: float) -> str:
        """Why the host is hung, or "" if it is not."""
        self._excuse(now)
        self._silent_checks = 0 if self._heard else self._silent_checks + 1
        self._heard = False
        if self._silent_checks * self.beat_s >= self.silence_s:
            return f"it was silent for {self.silence_s:g} s"
        if not self._asked:
            return ""
        first = self._asked[0]
        if now - first.since_s > self.part_s_max:
            return f"a part took longer than {self.part_s_max:g} s"
        given_up, stopped_s = self._stopped or (0, now)
        in_its_way = first.brief or first.run == given_up  # others, and compilations, may take their time
        if given_up and in_its_way and now - max(first.since_s, stopped_s) > self.stop_s_max:
            return f"a run went on for {self.stop_s_max:g} s after it was cancelled"
        return ""

    def _excuse(self, now: float) -> None:
        """Forgive a long time without a check: only one beat of it counts."""
        checked_s, self._checked_s = self._checked_s, now
        away_s = 0.0 if checked_s is None else now - checked_s - self.beat_s
        if away_s <= self.beat_s:
            return
        for work in self._asked:
            work.since_s = min(now, work.since_s + away_s)
        if self._stopped is not None:
            run, at_s = self._stopped
            self._stopped = run, min(now, at_s + away_s)


def loss_of(selection: str, reason: str, no_memory: bool = False) -> MeshError:
    """The error of an engine host that is gone; `no_memory` says that the system ended it for want of memory."""
    message = f"the engine host of {selection} is gone: {reason}"
    if no_memory:
        return OutOfMemory(
            f"{message}, as the system had no memory left",
            next_step="Give the worker a smaller --max-memory, or the machine more memory",
        )
    return DeviceLost(message, next_step="The worker starts it again; its log says why")
