"""Device recovery: what becomes of a device whose engine host is lost.  Pure.

A host is lost when it dies, hangs, loses its device or is killed for memory.  It is started again, later each time.
Three losses within ten minutes are no accident, not counting the time for which it hung: the device is then given up
until the worker starts anew, and its work goes to the worker's other devices.  The last device gets two more tries,
since without it the worker can only leave.

`TRANSITIONS` is the whole behaviour, and what is not in it changes nothing:

    SERVING --REPORTED--> FAILING        the host said that its device is gone, and is about to end
    any     --LOST------> STARTING       the first loss of late: a new host at once
    any     --LOST_AGAIN> WAITING        another one: a new host after a pause, and the plans go elsewhere meanwhile
    WAITING --DUE-------> STARTING
    STARTING --READY----> SERVING
    any     --LOST_TOO_OFTEN, or LOST_FOR_GOOD--> GIVEN_UP

To change what happens, change a row.  To add an effect, add it to `Effect` and perform it in `device_losses.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

LOSSES_MAX = 3
LOSSES_OF_LAST_MAX = 5
WITHIN_S = 600.0
RESTART_S = (0.0, 0.5, 2.0, 5.0)  # the wait before a host starts again, by how many losses came before


class Phase(Enum):
    """The state of a device."""

    SERVING = auto()
    FAILING = auto()  # its host has said that the device is gone, and still runs
    STARTING = auto()  # a new host is being started
    WAITING = auto()  # a new host will be started at `restart_at_s`
    GIVEN_UP = auto()


class Change(Enum):
    """What happens to a device."""

    REPORTED = auto()
    LOST = auto()
    LOST_AGAIN = auto()
    LOST_TOO_OFTEN = auto()  # and the worker has other devices
    LOST_FOR_GOOD = auto()  # too often, and it was the worker's last device
    DUE = auto()
    READY = auto()


class Effect(Enum):
    """What follows for the plans and the hosts of the worker."""

    FAIL_ISSUED_RUNS = auto()  # no part is to blame for the loss
    FAIL_RUNS = auto()  # the part that ran may have caused the loss
    FORGET_HOST = auto()  # whatever was only in the host's memory is gone
    DROP_PLANS = auto()  # plans with a part there end, so that new ones are made without the device
    START_HOST = auto()
    PREPARE_PARTS = auto()
    GIVE_UP_DEVICE = auto()
    LEAVE = auto()


_GONE = (Effect.FAIL_RUNS, Effect.FORGET_HOST)
_AWAY = (*_GONE, Effect.DROP_PLANS)
_BY_LOSS: dict[Change, tuple[Phase, tuple[Effect, ...]]] = {
    Change.LOST: (Phase.STARTING, (*_GONE, Effect.START_HOST)),
    Change.LOST_AGAIN: (Phase.WAITING, _AWAY),
    Change.LOST_TOO_OFTEN: (Phase.GIVEN_UP, (*_AWAY, Effect.GIVE_UP_DEVICE)),
    Change.LOST_FOR_GOOD: (Phase.GIVEN_UP, (*_AWAY, Effect.LEAVE)),
}
_IN_USE = (Phase.SERVING, Phase.FAILING, Phase.STARTING, Phase.WAITING)
TRANSITIONS: dict[tuple[Phase, Change], tuple[Phase, tuple[Effect, ...]]] = {
    (Phase.SERVING, Change.REPORTED): (Phase.FAILING, (Effect.FAIL_ISSUED_RUNS,)),
    (Phase.WAITING, Change.DUE): (Phase.STARTING, (Effect.START_HOST,)),
    (Phase.STARTING, Change.READY): (Phase.SERVING, (Effect.PREPARE_PARTS,)),
    **{(phase, loss): row for phase in _IN_USE for loss, row in _BY_LOSS.items()},
}


@dataclass(slots=True)
class DeviceRecovery:
    """The phase of one device, and its losses of late.  `restart_at_s` is set while it waits for a new host."""

    phase: Phase = Phase.SERVING
    restart_at_s: float | None = None
    _losses: deque[float] = field(default_factory=deque)  # by a clock that stands still while the host hangs
    _hung_s: float = 0.0

    @property
    def up(self) -> bool:
        """Whether the host serves."""
        return self.phase is Phase.SERVING

    @property
    def away(self) -> bool:
        """Whether the device will not serve soon, so that work is better done elsewhere."""
        return self.phase in (Phase.WAITING, Phase.GIVEN_UP)

    @property
    def given_up(self) -> bool:
        return self.phase is Phase.GIVEN_UP

    @property
    def losses(self) -> int:
        """The number of losses within the last WITHIN_S."""
        return len(self._losses)

    def step(self, change: Change) -> tuple[Effect, ...]:
        """Go through one row of the table."""
        self.phase, effects = TRANSITIONS.get((self.phase, change), (self.phase, ()))
        if self.phase is not Phase.WAITING:
            self.restart_at_s = None
        return effects

    def lost(self, now: float, last: bool, since_s: float | None = None) -> tuple[Effect, ...]:
        """The host is gone.  `since_s` is when it began with what it did last, and `last` says that the worker has no
        other device."""
        if self.given_up:
            return ()
        began_s = now if since_s is None else since_s
        at_s, self._hung_s = began_s - self._hung_s, self._hung_s + now - began_s
        self._losses.append(at_s)
        while at_s - self._losses[0] > WITHIN_S:
            self._losses.popleft()
        wait_s = RESTART_S[min(len(self._losses), len(RESTART_S)) - 1]
        if len(self._losses) >= (LOSSES_OF_LAST_MAX if last else LOSSES_MAX):
            return self.step(Change.LOST_FOR_GOOD if last else Change.LOST_TOO_OFTEN)
        effects = self.step(Change.LOST_AGAIN if wait_s else Change.LOST)
        self.restart_at_s = now + wait_s if wait_s else None
        return effects

    def due(self, now: float) -> tuple[Effect, ...]:
        """Time passed."""
        if self.restart_at_s is None or now < self.restart_at_s:
            return ()
        return self.step(Change.DUE)
