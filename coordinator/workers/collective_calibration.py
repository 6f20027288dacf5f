"""Collective calibration: how many times as long as priced collectives take, learnt from finished steps.  Pure.

What a rank took, without what it computed and what it waited for inputs, went to messages, to waiting for slower ranks
and to exchanging.  The rank with least of it waited for nobody, so its rest is what the exchange took.  Workers that
share a machine with much else take several times as long as an idle one; nobody can know that but by trying.

It does not know what a part computes: `straggler_detector.py` learns that, by device.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Hashable, Mapping

from ..planning.model.plan import Plan

SEEN_MIN, SEEN = 3, 9  # steps of which the middle one counts
CHANGE_MIN = 1.5  # a factor that is off by more is changed
FACTOR_MIN, FACTOR_MAX = 0.25, 64.0
PRICED_MIN_S = 2e-4  # below, messages are all that could be seen
STEPS_MAX = 64  # whose ranks have not all answered


class CollectiveCalibration:
    """Learns factors from `ran`, which is called for every worker of a step; planning reads `factors`."""

    def __init__(self) -> None:
        self._rest: dict[Hashable, dict[str, float]] = {}
        self._seen: dict[str, deque[float]] = {}
        self._factors: dict[str, float] = {}

    @property
    def factors(self) -> Mapping[str, float]:
        """The factors that are not 1, by worker."""
        return dict(self._factors)

    def ran(self, step: Hashable, plan: Plan, node: str, rest_s: float) -> None:
        """A worker did its parts of a step that ran alone; `rest_s` is what it neither computed nor waited for
        inputs."""
        nodes = {plan.parts[part].node for gang in plan.gangs for part in gang.parts}
        if node not in nodes or not any(gang.sent_bytes for gang in plan.gangs):
            return
        rest_by_node = self._rest.setdefault(step, {})
        rest_by_node[node] = rest_s
        if rest_by_node.keys() >= nodes:
            del self._rest[step]
            self._learn(plan, nodes, min(rest_by_node.values()))
        while len(self._rest) > STEPS_MAX:
            del self._rest[next(iter(self._rest))]

    def forget(self, node: str) -> None:
        """Forget a node that is gone or was started again."""
        self._seen.pop(node, None)
        self._factors.pop(node, None)

    def _learn(self, plan: Plan, nodes: set[str], took_s: float) -> None:
        priced_s = sum(gang.seconds / gang.slower for gang in plan.gangs)
        if priced_s < PRICED_MIN_S:
            return
        for node in nodes:
            seen = self._seen.setdefault(node, deque(maxlen=SEEN))
            seen.append(min(max(took_s / priced_s, FACTOR_MIN), FACTOR_MAX))
            factor, before = statistics.median(seen), self._factors.get(node, 1.0)
            if len(seen) >= SEEN_MIN and max(factor / before, before / factor) > CHANGE_MIN:
                self._factors[node] = rounded(factor)


def rounded(times: float) -> float:
    """Round to a half power of two, so that similar figures become equal."""
    return float(2 ** (round(2 * math.log2(times)) / 2))
