"""Call times: what calls of a program took by each of the plans that `auto` chose for it, learnt from calls that were
alone.  Pure.

A prediction leaves out what it cannot know: how much a machine is shared, and what messages cost beside what its
devices compute.  So plans that are predicted to take about as long may differ by half.  What calls took decides then
(`coordinator/planning/auto_strategy.py`).

The first calls by a plan wait for memory and kernels, and do not count; of others the first quartile does.  What was
learnt of a plan that is no longer used is forgotten after a while, since machines change.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from ..planning.auto_strategy import Measured

FIRST = 3  # calls by a plan that do not count
SEEN_MIN, SEEN = 6, 12  # calls that say what a plan takes
CHANGE_MIN = 1.1  # a figure that is off by more is changed
FRESH_S = 600.0  # how long a plan's figure counts that no call renews
PROGRAMS_MAX = 256  # those called last


@dataclass(slots=True)
class _PlanTimes:
    """The calls by one plan: those of its present deployment, and what they say."""

    deployed: Hashable = None
    skipped: int = 0
    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN))
    seconds: float = 0.0  # 0.0: not known
    renewed_s: float = 0.0


class CallTimes:
    """Learns from `took`, which is called for every call that was alone; planning reads `known`."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Hashable, dict[str, _PlanTimes]] = OrderedDict()

    def known(self, program: Hashable, now_s: float) -> Measured:
        """What calls of a program took, by candidate.  A program is one on certain workers."""
        plans = self._programs.get(program, {})
        return tuple(
            (candidate, times.seconds)
            for candidate, times in sorted(plans.items())
            if times.seconds and now_s - times.renewed_s <= FRESH_S
        )

    def took(self, program: Hashable, candidate: str, deployed: Hashable, seconds: float, now_s: float) -> None:
        """A call took so long by the plan of a candidate, which is `deployed` as this one."""
        plans = self._programs.setdefault(program, {})
        self._programs.move_to_end(program)
        if len(self._programs) > PROGRAMS_MAX:
            self._programs.popitem(last=False)
        times = plans.setdefault(candidate, _PlanTimes())
        if times.deployed != deployed:
            times.deployed, times.skipped = deployed, 0
            times.seen.clear()
        if times.skipped < FIRST:
            times.skipped += 1
            return
        times.seen.append(seconds)
        if len(times.seen) < SEEN_MIN:
            return
        good_s = sorted(times.seen)[len(times.seen) // 4]
        times.renewed_s = now_s
        if not times.seconds or max(good_s / times.seconds, times.seconds / good_s) > CHANGE_MIN:
            times.seconds = good_s

    def forget(self) -> None:
        """Forget everything: devices are not as fast as they were."""
        self._programs.clear()
