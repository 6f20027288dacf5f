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

GAIN_MIN = 0.1  # of a call's time: less is not worth the trouble, and within what prices err
MARGIN = 2.0
REST_S = 10.0  # from one move of a program to its next


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
    return any(first if seconds is None else seconds < took_s * (1 - GAIN_MIN) for seconds in others)


@dataclass(slots=True)
class StayCost:
    """What staying has cost one program since it moved, or since there was nothing to be gained."""

    seconds: float = 0.0
    moved_s: float | None = None  # when it moved last

    def gains(self, now_s: float, then_s: float) -> bool:
        """Whether there is something to be gained from a plan that takes `then_s` instead of `now_s`."""
        gain = then_s < now_s * (1 - GAIN_MIN)
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
