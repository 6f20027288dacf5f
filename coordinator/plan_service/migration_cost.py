"""Migration cost: whether another plan is worth what it costs to go over to it.  Pure.

Nobody knows how often a program will still be called.  So a plan stays until what it has cost more than the other one
would have, call by call, exceeds what the move costs, twice over: then the move is no great loss, whatever comes, and a
program that is called on gains for ever.  Both plans are priced in the same way, and by what their parts really take
where that is known, since a prediction that errs would see gains where there are none.

It does not know when to ask: `coordinator/plan_service/straggler_mitigation.py` does, after every call while some
device is slower or well again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..planning.auto_strategy import Measured
from ..planning.model.cost_model import REPLAN_S
from ..planning.model.plan import FromParam, Plan
from ..planning.model.profiles import CLIENT, Profiles
from ..planning.model.timeline import seconds_at_present_speed
from ..planning.plan_messages import nodes


@dataclass(frozen=True, slots=True)
class Move:
    """Going over to another plan, which has to take less than `ratio` of the present one's time."""

    ratio: float

    def pays(self, now_s: float, then_s: float) -> bool:
        """Whether a plan that takes `then_s` is worth it beside one that takes `now_s`."""
        return then_s < self.ratio * now_s


# What moves decides how much is to be gained at least.  Prices err by about a tenth.
WEIGHTS_MOVE = Move(0.9)  # a call's plan; what they cost besides is added up call by call (StayCost)
SHARES_MOVE = Move(0.9)  # who computes how much of a batch
STATE_STAYS = Move(0.85)  # a session's plan, where the state stays where it is
STATE_MOVES = Move(0.8)  # a session's plan otherwise
MARGIN = 2.0
REST_S = 10.0  # from one move of a program to its next


def is_better(other: Plan, now: Plan, profiles: Profiles, move: Move, widens: bool) -> bool:
    """Whether a session should go over from the plan `now` to `other`: it is so much faster, or it `widens`, and more
    workers take part."""
    wider = widens and len(nodes(other)) > len(nodes(now))
    return wider or move.pays(seconds_at_present_speed(now, profiles), seconds_at_present_speed(other, profiles))


def move_s(plan: Plan, profiles: Profiles, holds: Callable[[str], Collection[str]], compile_s: float) -> float:
    """What going over to a plan costs: compiling, and the weights that its workers do not hold, all from the client.

    `holds(node)` are the names of the params that a worker has already.
    """
    weights_s = 0.0
    for node in {part.node for part in plan.parts}:
        mine = (part.sizes(FromParam) for part in plan.parts if part.node == node)
        needed = {source: size for sizes in mine for source, size in sizes.items()}
        held = holds(node)
        missing = sum(size for source, size in needed.items() if source.name not in held)
        weights_s += missing / profiles.link(CLIENT, node).bytes_per_s
    return REPLAN_S + compile_s + weights_s


def may_pay(plan: Plan, before: Measured, now: Measured) -> bool:
    """Whether by what calls took `now` another candidate may be so much better that it is worth planning anew, which
    takes a large program seconds.  What was not predicted counts where nothing was known of this plan `before`."""
    took_s = dict(now).get(plan.candidate)
    if took_s is None:
        return False
    first = plan.candidate not in dict(before)
    others = [dict(now).get(each.name, each.seconds) for each in plan.candidates if each.name != plan.candidate]
    return any(first if seconds is None else WEIGHTS_MOVE.pays(took_s, seconds) for seconds in others)


@dataclass(slots=True)
class StayCost:
    """What the plan in use has cost one program since it moved, or since there was nothing to be gained."""

    seconds: float = 0.0
    moved_s: float | None = None  # when it moved last

    def gains(self, now_s: float, then_s: float) -> bool:
        """Whether there is something to be gained from a plan that takes `then_s` instead of `now_s`."""
        gain = WEIGHTS_MOVE.pays(now_s, then_s)
        self.seconds = self.seconds if gain else 0.0
        return gain

    def stays(self, loss_s: float, cost_s: float, at_s: float) -> bool:
        """Another call took `loss_s` longer than it need have: whether it is too early to move for `cost_s`."""
        self.seconds += loss_s
        resting = self.moved_s is not None and at_s - self.moved_s < REST_S
        if resting or self.seconds < MARGIN * cost_s:
            return True
        self.seconds, self.moved_s = 0.0, at_s
        return False


@dataclass(slots=True)
class StayCosts:
    """The debts of programs, by what tells them apart; the oldest is forgotten first."""

    most: int = 256
    _debts: dict[object, StayCost] = field(default_factory=dict)

    def of(self, program: object) -> StayCost:
        debt = self._debts.setdefault(program, StayCost())
        while len(self._debts) > self.most:
            del self._debts[next(iter(self._debts))]
        return debt
