"""Step time-out: how long a session waits for the step in flight before it counts as stuck.  Pure.

A worker may answer every heartbeat and never end its part: a shader hangs, a machine swaps.  The limit follows from how
long steps took so far, except for work that depends on values.  A limit that is too short costs one step done twice, so
it is doubled after every time.  Without it a session would wait ten minutes, until the worker itself ends its host
(`worker/engine_host/watchdog.py`).  Compiling a part has a limit, too, by how long that should take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wire import deadlines

FIRST_S = deadlines.FIRST_STEP.seconds  # the first step of a plan: caches are cold
FIRST_PREDICTED = 20.0  # times what it should take, in addition: predictions are rough
STEP_S_MIN = deadlines.STEP.seconds  # later ones: a busy machine may cost as much
STEP_OBSERVED = 10.0  # times the longest of late
MOVE_S_MIN, MOVE_OBSERVED = deadlines.STEP_MOVE.seconds, 3.0  # the same while a better plan waits for it
PREPARE_S_MIN = deadlines.COMPILE.seconds  # to compile one part; a GPU's driver may need tens of seconds
PREPARE_EXPECTED = 10.0  # times what its compilation should take
TOOK_DECAY = 0.8  # of what a step took, with every step after it
DOUBLED_MAX = 6
AVOIDED_S = 300.0
ASLEEP_S = 1.0  # a check that is so late means that this process was held up, and the others may have been, too


@dataclass(slots=True)
class Wait:
    """A wait with a time limit.  If the limit is checked far too late, this process was held up, and so perhaps were
    the others: the wait then begins again."""

    until_s: float | None = None  # None: nothing is waited for
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.until_s is not None

    def begin(self, now: float, seconds: float) -> None:
        """Begin to wait for so long; a wait that has begun is not changed."""
        if self.until_s is None:
            self.until_s, self.seconds = now + seconds, seconds

    def shorten(self, until_s: float) -> None:
        """Move the limit forward to this time, if it is later."""
        if self.until_s is not None:
            self.until_s = min(self.until_s, until_s)

    def renew(self, now: float) -> None:
        """Begin a wait that has begun once more."""
        if self.until_s is not None:
            self.until_s = now + self.seconds

    def end(self) -> None:
        """Stop waiting."""
        self.until_s = None

    def is_over(self, now: float) -> bool:
        """Whether the limit has passed."""
        if self.until_s is not None and now - self.until_s > ASLEEP_S:
            self.renew(now)
        return self.until_s is not None and now >= self.until_s


@dataclass(slots=True)
class StepTimeout:
    """The time-out of one session's steps; times are those of its state machine."""

    given_up: int = 0  # in a row
    took_s: float = 0.0  # the longest that a step took of late, by any plan
    _first: bool = True  # no step of the present plan was done yet
    _predicted_s: float = 0.0
    _since_s: float | None = None  # when the step that is next to be done was begun; None: nothing is in flight
    _before_s: float = 0.0  # what the one before took

    def planned(self, predicted_s: float) -> None:
        """Steps run by another plan, which should take `predicted_s` for each; infinity: that cannot be predicted."""
        self._first, self._predicted_s, self._since_s = True, predicted_s, None

    def began(self, now: float) -> None:
        """A step has begun, perhaps while others are in flight."""
        self._since_s = now if self._since_s is None else self._since_s

    def done(self, now: float, more: bool) -> None:
        """The step is done; whether there are more in flight."""
        if self._since_s is not None:
            self._before_s = now - self._since_s
            self.took_s = max(self._before_s, self.took_s * TOOK_DECAY)
        self._first, self.given_up, self._since_s = False, 0, now if more else None

    def stopped(self) -> None:
        """Nothing is in flight any more."""
        self._since_s = None

    def half_done(self, now: float) -> bool:
        """Whether the step in flight may be over by now, and the next one begun."""
        return self._since_s is None or now - self._since_s >= self._before_s / 2

    def due_s(self, moving: bool) -> float | None:
        """The time at which the step in flight counts as stuck; `moving`: a better plan waits for it to end."""
        if self._since_s is None or math.isinf(self._predicted_s):
            return None
        if moving and not self._first:
            wait_s = max(MOVE_S_MIN, MOVE_OBSERVED * self.took_s)
        elif self._first:
            wait_s = max(FIRST_S + FIRST_PREDICTED * self._predicted_s, STEP_OBSERVED * self.took_s)
        else:
            wait_s = max(STEP_S_MIN, STEP_OBSERVED * self.took_s)
        return self._since_s + wait_s * (1 << min(self.given_up, DOUBLED_MAX))

    def waited_s(self, now: float) -> float:
        """How long the step in flight has taken so far."""
        return 0.0 if self._since_s is None else now - self._since_s

    def compiles_too_long(self, seconds: float, expected_s: float) -> bool:
        """Whether to give up a part that has compiled for `seconds` and should take `expected_s`."""
        over = seconds > compile_s_max(expected_s) * (1 << min(self.given_up, DOUBLED_MAX))
        self.given_up += over
        return over

    def is_over(self, now: float, moving: bool) -> bool:
        """Whether to give up the step in flight; a check that comes far too late gives it more time instead."""
        due_s = self.due_s(moving)
        if due_s is None or now < due_s:
            return False
        if now - due_s > ASLEEP_S:
            self._since_s = now
            return False
        self.given_up += not moving
        return True


class AvoidedWorkers:
    """Workers that were stuck.  Plans leave them out for AVOIDED_S, as they may recover."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def add(self, nodes: Iterable[str], now: float) -> None:
        """Plan without these from now on."""
        self._until_s.update(dict.fromkeys(nodes, now + AVOIDED_S))

    def clear(self) -> None:
        """Avoid none any more: they are needed."""
        self._until_s.clear()

    def others(self, nodes: frozenset[str], now: float) -> frozenset[str]:
        """Select the nodes that are not avoided; none if all are."""
        return nodes - {node for node, until_s in self._until_s.items() if until_s > now}


def compile_s_max(expected_s: float) -> float:
    """How long a part may compile that should take `expected_s`."""
    return max(PREPARE_S_MIN, PREPARE_EXPECTED * expected_s)
