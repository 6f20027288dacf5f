"""Lost links: the steps that may have lost a tensor with a link that ended.  Pure.

A small tensor is sent without an acknowledgement.  So when a link to a worker ends, tensors in flight may be lost, and
a step that waits for one would wait for ever.  The steps that needed the link therefore fail, and are done again.  They
fail after the grace: if the other worker died, the coordinator drops the plan, and knows better what to do.

The two ends may notice the end of a link at very different times, and the later one goes on sending until a new link
takes over.  So a new link is treated like the end of one.  So are the steps that begin within the grace of it, unless
their plan was deployed after it, since nothing was sent for such a plan before.  The first step that begins later than
the grace after the end of a link that has not come back is refused.  So the coordinator learns of the end, and makes
sure that the other worker does too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wire.bounds import LOST_LINKS
from wire.errors import NodeLost
from wire.protocol.messages import PlanKey
from wire.timeouts import SILENT

NODES_MAX = LOST_LINKS.most


@dataclass(frozen=True, slots=True)
class _LostLink:
    node: str
    steps: tuple[tuple[PlanKey, int], ...]
    fail_at_s: float


@dataclass(slots=True)
class LostLinks:
    grace_s: float
    _lost: deque[_LostLink] = field(default_factory=deque)
    _ended_s: dict[str, float] = field(default_factory=dict)  # or when it was replaced, after it had ended
    _missing: set[str] = field(default_factory=set)  # nodes whose link ended and was not replaced
    _unreported: set[str] = field(default_factory=set)  # those of them that no failed step named to the coordinator

    def ended(self, node: str, steps: Sequence[tuple[PlanKey, int]], now: float, silent: bool = False) -> None:
        """The link to `node` ended under these steps.  If the node was `silent`, the caller fails them at once."""
        self._missing.add(node)
        self._changed(node, () if silent else steps, now)
        if not (silent and steps):
            self._unreported.add(node)

    def linked(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        """A link to `node` was made.  It may replace one that ended."""
        if node in self._missing:
            self._missing.remove(node)
            self._unreported.discard(node)
            self._changed(node, steps, now)

    def began(self, nodes: Iterable[str], plan: PlanKey, step: int, now: float, deployed_s: float = 0.0) -> None:
        """A step begins that needs links to these nodes.  Its plan was deployed at `deployed_s`."""
        for node in nodes:
            ended_s = self._ended_s.get(node, -self.grace_s)
            recently = now - ended_s < self.grace_s
            if recently and ended_s > deployed_s:  # if they are equal, the deploy waited for the link
                self._may_have_lost(node, [(plan, step)], now)

    def refusal(self, nodes: Iterable[str], now: float) -> NodeLost | None:
        """Why a step that needs these nodes cannot begin: the link to one of them ended a while ago, was not replaced,
        and the coordinator does not know.  Returned once per lost link.

        The other end may not have noticed: it counts a tensor as sent that is lost.
        """
        if not self._unreported:
            return None
        unreported = sorted(self._unreported.intersection(nodes))
        lost = next((node for node in unreported if now - self._ended_s[node] >= self.grace_s), None)
        if lost is None:
            return None
        self._unreported.discard(lost)
        return NodeLost("the link to a worker of the plan ended before the step", node=lost, cause=SILENT)

    def _changed(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        self._ended_s.pop(node, None)
        self._ended_s[node] = now
        while len(self._ended_s) > NODES_MAX:
            oldest = next(iter(self._ended_s))
            del self._ended_s[oldest]
            self._missing.discard(oldest)
            self._unreported.discard(oldest)
        self._may_have_lost(node, steps, now)

    def _may_have_lost(self, node: str, steps: Iterable[tuple[PlanKey, int]], now: float) -> None:
        affected = tuple(steps)
        if affected:
            self._lost.append(_LostLink(node, affected, now + self.grace_s))

    def due(self, now: float) -> Iterator[tuple[str, PlanKey, int]]:
        """The steps that fail now if they are still in flight: the lost node, the plan and the step."""
        while self._lost and self._lost[0].fail_at_s <= now:
            lost = self._lost.popleft()
            self._unreported.discard(lost.node)
            for plan, step in lost.steps:
                yield lost.node, plan, step

    def deadlines(self) -> list[float]:
        """The times at which steps fail."""
        return [lost.fail_at_s for lost in self._lost]
