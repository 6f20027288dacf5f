"""Lease: which coordinator a worker serves, and when that was last heard.  Pure.

A worker serves one coordinator at a time; another one that asks gets the error Busy.  A coordinator that is silent for
a while is asked whether it lives.  Its lease lapses after `silence_s`, a time that it chooses itself: from then on
another one may have this worker.  Until one comes, the plans of the silent coordinator stay, since its process may be
stopped or its machine asleep.  They are dropped `keep_s` after it was last heard, or sooner if this machine runs short
of memory.

A coordinator with a standby says which epochs it goes on from.  One that goes on from the owner's takes over at once,
and one that does not go on from the last that this worker served is refused: it was replaced.

    free --Join--> served --silent silence_s, or its link ended--> lapsed --silent keep_s, or another's Join--> free
                      ^                                              |
                      '---heard over its link, or the same epoch joins---'
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import Busy, InputError, MeshError, StaleGeneration

from .events import JoinRequested

BEAT_S_MIN, BEAT_S_MAX = 0.005, 3600.0  # what a coordinator may ask for
ASK_SHARE = 1 / 4  # of the silence after which the lease lapses: then the coordinator is asked whether it lives


@dataclass(frozen=True, slots=True)
class Owner:
    node: str
    name: str
    epoch: int


@dataclass(slots=True)
class Lease:
    """`owner` is None while the worker is free.  Once it has `lapsed`, any other coordinator may take over."""

    keep_s: float = 0.0
    served_epoch: int = 0  # of the last owner that had a standby, or was one
    owner: Owner | None = None
    lapsed: bool = False
    _linked: bool = False  # the link that the owner joined over stands
    _closing: bool = False  # we end that link ourselves
    _last: Owner | None = None
    _heard_s: float = 0.0
    _silence_s: float = 0.0  # 0: its lease does not lapse while its link stands
    _asked: bool = False  # since it was last heard

    def refusal(self, event: JoinRequested) -> MeshError | None:
        """Why a coordinator cannot have this worker."""
        if not BEAT_S_MIN <= event.beat_s <= BEAT_S_MAX:
            return InputError(f"a heartbeat of {event.beat_s} s is not within reason")
        if event.epochs and self.served_epoch and self.served_epoch not in event.epochs:
            return StaleGeneration(
                f"coordinator {event.name} was replaced by one with epoch {self.served_epoch}",
                next_step="Start it again as a standby: mesh-coord serve --standby HOST:PORT",
            )
        if self.owner is not None and not (self._is_had_by(event) or self.lapsed):
            busy = f"this worker serves coordinator {self.owner.name}"
            return Busy(busy, next_step="Connect to that one, at the address that mesh-coord serve prints; or stop it")
        if self._last and self._last.node == event.node and event.epoch < self._last.epoch:
            return StaleGeneration(f"epoch {event.epoch} is over, {self._last.epoch} began")
        return None

    def _is_had_by(self, event: JoinRequested) -> bool:
        """Whether the coordinator that joins is the owner's node, or goes on from the owner."""
        owner = self.owner
        return owner is not None and (owner.node == event.node or owner.epoch in event.epochs)

    def continues(self, event: JoinRequested) -> bool:
        """Whether the coordinator that joins may go on with the owner's plans: its next process, or its standby."""
        return self._is_had_by(event) and bool(event.earlier)

    def is_back(self, event: JoinRequested) -> bool:
        """Whether the coordinator that joins is the owner already: the same process joins again."""
        return self.owner is not None and (self.owner.node, self.owner.epoch) == (event.node, event.epoch)

    def joined(self, event: JoinRequested, now: float) -> None:
        self.owner = self._last = Owner(event.node, event.name, event.epoch)
        self._linked, self._closing, self.lapsed = True, False, False
        self._heard_s, self._silence_s, self._asked = now, event.silence_s, False
        self.served_epoch = event.epoch if event.epochs else self.served_epoch

    def is_held_by(self, node: str) -> bool:
        """Whether that node is the owner."""
        return self.owner is not None and self.owner.node == node

    def heard(self, node: str, now: float) -> float:
        """A message came from a node.  Returns for how long the owner was silent if it is back after its lease had
        lapsed, over the same link; else 0."""
        if not self.is_held_by(node) or not self._linked:
            return 0.0
        silent_s = now - self._heard_s if self.lapsed else 0.0
        self._heard_s, self._asked, self.lapsed = now, False, False
        return silent_s

    def unlinked(self) -> None:
        """The owner's link ended.  The owner comes back by joining anew."""
        self._linked, self.lapsed = False, True

    def close(self) -> None:
        """End the owner's link, if it has one, since a plan of its is gone.  It learns which when it joins anew."""
        self._closing = self._linked
        self.unlinked()

    def closed_here(self) -> bool:
        """Whether the link that ended now is one that `close` ended."""
        closing, self._closing = self._closing, False
        return closing

    def excuse(self, late_s: float, now: float) -> None:
        """Forgive a delay of this process: the owner's messages may have been delayed with it."""
        self._heard_s = min(now, self._heard_s + late_s)

    def next_deadline(self) -> float | None:
        """The time at which `ask_due`, `lapse` or `expired_s` may change; None if there is none."""
        if self.owner is None:
            return None
        if self.lapsed:
            return self._heard_s + max(self.keep_s, self._silence_s)
        if not self._silence_s:
            return None
        return self._heard_s + self._silence_s * (1 if self._asked else ASK_SHARE)

    def lapse(self, now: float) -> float:
        """Let the lease lapse if it is time.  Returns for how long the owner was silent if it lapses now; else 0."""
        quiet_s = now - self._heard_s
        if self.owner is None or self.lapsed or not 0 < self._silence_s <= quiet_s:
            return 0.0
        self.lapsed = True
        return quiet_s

    def expired_s(self, now: float) -> float:
        """The owner's silence once it is so long that its plans are dropped; else 0."""
        quiet_s = now - self._heard_s
        return quiet_s if self.lapsed and quiet_s >= max(self.keep_s, self._silence_s) else 0.0

    def ask_due(self, now: float) -> bool:
        """Whether to ask the owner now if it lives.  True once per silence."""
        due_s = self.next_deadline()
        if due_s is None or self.lapsed or self._asked or now < due_s:
            return False
        self._asked = True
        return True

    def ended(self) -> Owner:
        """End the lease.  Returns the owner that was."""
        assert self.owner is not None
        before, self.owner, self.lapsed, self._linked = self.owner, None, False, False
        return before
