"""LostLinks: the steps that may have lost something with a link that ended.  Pure.

A small tensor is on its way without an answer.  So where a link to a worker ends, what was under way may be gone, and
whoever waits for it would wait for ever: the steps that needed the link fail, to be done again.  Not at once, since
where the other worker died its coordinator ends the plan, and knows better what to do.

One end of a link may know of its end long before the other, which goes on sending into it until a new one takes over.
So a link that comes anew is treated like one that ends, and so are steps that begin in its first moment, unless their
plan came after it: nothing was sent for that before.  And the first step that begins long after the end of a link,
while nothing has come in its place, is refused: so the coordinator hears of the end, and sees to it that the other end
does too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wire.errors import NodeLost
from wire.protocol.messages import PlanKey
from wire.timeouts import SILENT

GRACE_S = 1.0  # a coordinator on a LAN has noticed a death long before
NODES_MAX = 1024  # whose links are remembered, the latest ones


@dataclass(frozen=True, slots=True)
class _Lost:
    node: str
    steps: tuple[tuple[PlanKey, int], ...]
    fail_at_s: float


@dataclass(slots=True)
class LostLinks:
    _lost: deque[_Lost] = field(default_factory=deque)
    _ended_s: dict[str, float] = field(default_factory=dict)  # or came anew, after it had ended
    _missing: set[str] = field(default_factory=set)  # nodes whose link ended and did not come anew
    _untold: set[str] = field(default_factory=set)  # those of them that no step told the coordinator of

    def ended(self, node: str, steps: Sequence[tuple[PlanKey, int]], now: float, silent: bool = False) -> None:
        """The link to `node` ended under these steps; where it was `silent` they fail at once, and not here."""
        self._missing.add(node)
        self._changed(node, () if silent else steps, now)
        if not (silent and steps):
            self._untold.add(node)

    def linked(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        """There is a link to `node`, perhaps again."""
        if node in self._missing:
            self._missing.remove(node)
            self._untold.discard(node)
            self._changed(node, steps, now)

    def began(self, nodes: Iterable[str], plan: PlanKey, step: int, now: float, deployed_s: float = 0.0) -> None:
        """A step begins that needs links to these nodes, of a plan for which they stood at `deployed_s`."""
        for node in nodes:
            ended_s = self._ended_s.get(node, -GRACE_S)
            if now - ended_s < GRACE_S and ended_s > deployed_s:  # or at the same time: it was waited for
                self._may_have_lost(node, [(plan, step)], now)

    def refusal(self, nodes: Iterable[str], now: float) -> NodeLost | None:
        """Why a step that needs these nodes cannot begin: the link to one of them ended a while ago without a word to
        anybody, and did not come anew.  Told once.

        It may not know of the end: what it sends into its own link is lost, and it is done with it.
        """
        lost = sorted(self._untold.intersection(nodes))
        found = next((node for node in lost if now - self._ended_s[node] >= GRACE_S), None)
        if found is None:
            return None
        self._untold.discard(found)
        return NodeLost("the link to a worker of the plan ended before the step", node=found, cause=SILENT)

    def _changed(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        self._ended_s.pop(node, None)
        self._ended_s[node] = now
        while len(self._ended_s) > NODES_MAX:
            oldest = next(iter(self._ended_s))
            del self._ended_s[oldest]
            self._missing.discard(oldest)
            self._untold.discard(oldest)
        self._may_have_lost(node, steps, now)

    def _may_have_lost(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        needed = tuple(steps)
        if needed:
            self._lost.append(_Lost(node, needed, now + GRACE_S))

    def due(self, now: float) -> Iterator[tuple[str, PlanKey, int]]:
        """What fails now, if it still runs: the node that was lost, the plan and the step."""
        while self._lost and self._lost[0].fail_at_s <= now:
            lost = self._lost.popleft()
            self._untold.discard(lost.node)
            for plan, step in lost.steps:
                yield lost.node, plan, step

    def deadlines(self) -> list[float]:
        """When something is due."""
        return [lost.fail_at_s for lost in self._lost]
