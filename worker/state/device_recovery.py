"""Device recovery: what becomes of a device whose engine host was lost: started again, later each time, or given up.
Pure.

A host is lost when it died, hung, lost its device or was killed for memory.  Three losses within ten minutes, not
counting for how long it hung, are no accident: the device is given up until the worker is started anew, and its work
goes to the worker's other devices.  The last device is kept a little longer, since after it the worker can only leave.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LOSSES_MAX = 3
LOSSES_OF_LAST_MAX = 5
WITHIN_S = 600.0
RESTART_S = (0.0, 0.5, 2.0, 5.0)  # the wait before a host starts again, by how many losses came before


@dataclass(slots=True)
class Repair:
    """`up` is whether the host serves; if not, `restart_at_s` is when to start it again, None while it starts."""

    up: bool = True
    given_up: bool = False
    restart_at_s: float | None = None
    _losses: deque[float] = field(default_factory=deque)  # by a clock that stood still while the host hung
    _hung_s: float = 0.0

    @property
    def away(self) -> bool:
        """Whether it will not serve soon, so that work is better done elsewhere."""
        return self.given_up or self.restart_at_s is not None

    def failing(self) -> None:
        """It reported that its device is gone, and is about to end."""
        self.up = False

    def lost(self, now: float, last: bool, since_s: float | None = None) -> None:
        """The host is gone, which did since `since_s` what it did last; `last` says that the worker has no other
        device.  Where it is not `away`, start it now."""
        began_s = now if since_s is None else since_s
        at_s, self._hung_s = began_s - self._hung_s, self._hung_s + now - began_s
        self.up = False
        self._losses.append(at_s)
        while at_s - self._losses[0] > WITHIN_S:
            self._losses.popleft()
        self.given_up = len(self._losses) >= (LOSSES_OF_LAST_MAX if last else LOSSES_MAX)
        wait_s = RESTART_S[min(len(self._losses), len(RESTART_S)) - 1]
        self.restart_at_s = now + wait_s if wait_s and not self.given_up else None

    def due(self, now: float) -> bool:
        """Whether to start the host now; once."""
        if self.restart_at_s is None or now < self.restart_at_s:
            return False
        self.restart_at_s = None
        return True

    def back(self) -> None:
        """It has its device again."""
        self.up = True

    @property
    def losses(self) -> int:
        """How many there were of late."""
        return len(self._losses)
