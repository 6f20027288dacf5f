"""LostLinks: the steps that may have lost something with a link that ended.  Pure.

A small tensor is on its way without an answer.  So where a link to a worker ends, what was under way may be gone, and
whoever waits for it would wait for ever: the steps that needed the link fail, to be done again.  Not at once, since
where the other worker died its coordinator ends the plan, and knows better what to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wire.messages import PlanKey

GRACE_S = 1.0  # a coordinator on a LAN has noticed a death long before


@dataclass(frozen=True, slots=True)
class _Lost:
    node: str
    steps: tuple[tuple[PlanKey, int], ...]
    fail_at_s: float


@dataclass(slots=True)
class LostLinks:
    _lost: deque[_Lost] = field(default_factory=deque)

    def ended(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        """The link to `node` ended under these steps."""
        needed = tuple(steps)
        if needed:
            self._lost.append(_Lost(node, needed, now + GRACE_S))

    def due(self, now: float) -> Iterator[tuple[str, PlanKey, int]]:
        """What fails now, if it still runs: the node that was lost, the plan and the step."""
        while self._lost and self._lost[0].fail_at_s <= now:
            lost = self._lost.popleft()
            for plan, step in lost.steps:
                yield lost.node, plan, step

    def deadlines(self) -> list[float]:
        """When something is due."""
        return [lost.fail_at_s for lost in self._lost]
