"""Ownership: which coordinator a worker serves, and when that was last heard.  Pure.

One at a time: another that asks hears Busy.  One that was silent for a while is asked whether it lives, and given up
after `silence_s`, which it says itself.  It does not know plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import Busy, InputError, MeshError, StaleGeneration

from .events import JoinAsked

BEAT_S_MIN, BEAT_S_MAX = 0.005, 3600.0  # what a coordinator may ask for
ASK_SHARE = 1 / 4  # of the silence after which the coordinator is given up; then it is asked whether it lives


@dataclass(frozen=True, slots=True)
class Owner:
    node: str
    name: str
    epoch: int


@dataclass(slots=True)
class Ownership:
    """`owner` is None while the worker is free."""

    owner: Owner | None = None
    _last: Owner | None = None
    _heard_s: float = 0.0
    _silence_s: float = 0.0  # 0: it is never given up
    _asked: bool = False  # since it was last heard

    def refusal(self, event: JoinAsked) -> MeshError | None:
        """Why a coordinator that asks cannot have this worker."""
        if not BEAT_S_MIN <= event.beat_s <= BEAT_S_MAX:
            return InputError(f"a heartbeat of {event.beat_s} s is not within reason")
        if self.owner is not None and self.owner.node != event.node:
            busy = f"this worker serves coordinator {self.owner.name}"
            return Busy(busy, next_step="Stop that one, or use its workers")
        if self._last and self._last.node == event.node and event.epoch < self._last.epoch:
            return StaleGeneration(f"epoch {event.epoch} is over, {self._last.epoch} began")
        return None

    def joined(self, event: JoinAsked, now: float) -> None:
        self.owner = self._last = Owner(event.node, event.name, event.epoch)
        self._heard_s, self._silence_s, self._asked = now, event.silence_s, False

    def by(self, node: str) -> bool:
        """Whether this worker is that node's."""
        return self.owner is not None and self.owner.node == node

    def heard(self, node: str, now: float) -> None:
        if self.by(node):
            self._heard_s, self._asked = now, False

    def excuse(self, late_s: float, now: float) -> None:
        """We were late: what delayed us may have delayed its words too."""
        self._heard_s = min(now, self._heard_s + late_s)

    def next_deadline(self) -> float | None:
        """When to look for `ask_due` and `silent_s` again."""
        if self.owner is None or not self._silence_s:
            return None
        return self._heard_s + self._silence_s * (1 if self._asked else ASK_SHARE)

    def silent_s(self, now: float) -> float:
        """For how long the owner was silent, if that is too long; else 0."""
        quiet_s = now - self._heard_s
        return quiet_s if self.owner is not None and 0 < self._silence_s <= quiet_s else 0.0

    def ask_due(self, now: float) -> bool:
        """Whether to ask the owner now if it lives; once in a silence."""
        due_s = self.next_deadline()
        if due_s is None or self._asked or now < due_s:
            return False
        self._asked = True
        return True
