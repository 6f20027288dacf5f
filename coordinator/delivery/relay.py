"""Relay: forwards tensors between two workers that cannot connect, and counts them for their call.

Only what a plan has the one send to the other passes.  What is counted is bounded by the calls in progress and by the
pairs of workers that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wire.bounds import RELAYED_AT_ONCE
from wire.errors import Busy, NotTrusted, ProtocolError, StaleGeneration
from wire.link.link import Link
from wire.protocol.messages import Done, PlanKey, Relay
from wire.transfer.relay import pass_on

from ..workers.records import Call, Deployment
from .output_receiver import check_type_of


@dataclass(frozen=True, slots=True)
class RelayServer:
    """Answer Relay.  `link_to` gives the link to a connected worker; `epoch` and `calls` are the coordinator's, and
    `deployment` gives a plan by its generation."""

    link_to: Callable[[str], Link | None]
    calls: Mapping[int, Call]
    epoch: Callable[[], int]
    deployment: Callable[[int], Deployment | None]
    _in_flight: Counter[str] = field(default_factory=Counter)  # pieces, by sender

    async def serve(self, link: Link, body: Relay) -> Done:
        """Pass on a piece.  StaleGeneration if its plan is not current, NodeLost if its receiver is gone, NotTrusted if
        the plan has no such tensor between the two, Busy for more pieces at once than a worker sends."""
        sender, push = link.peer.node_id, body.push
        plan = self.deployment(push.plan.generation) if push.plan.epoch == self.epoch() else None
        if plan is None:
            raise StaleGeneration("only for plans of now")
        source, target, kind = plan.transfers.edges.get((push.part, push.slot), ("", "", None))
        if (source, target) != (sender, body.node):
            raise NotTrusted(f"the plan has {link.peer.name} send no tensor for input {push.slot} of part {push.part}")
        assert kind is not None
        check_type_of(push.value, kind)
        if body.size_bytes != kind.size_bytes:
            raise ProtocolError(f"a tensor of type {kind} does not have {body.size_bytes} bytes")
        if self._in_flight[sender] >= RELAYED_AT_ONCE.most:
            raise Busy(f"{RELAYED_AT_ONCE.most} pieces of {link.peer.name} are in flight")
        self._in_flight[sender] += 1
        try:
            return await self._pass_on(sender, body)
        finally:
            self._in_flight[sender] -= 1
            if not self._in_flight[sender]:
                del self._in_flight[sender]

    async def _pass_on(self, sender: str, body: Relay) -> Done:
        receiver = self.link_to(body.node)
        if receiver is not None:  # counted first: the last piece may end the call before its Done comes
            self._count(body.push.plan, body.push.step, (sender, body.node), body.offset == 0, len(body.data))
        return await pass_on(receiver, sender, body)

    def _count(self, plan: PlanKey, step: int, pair: tuple[str, str], begins: bool, size_bytes: int) -> None:
        for call in self.calls.values():
            if call.steps.get(plan.generation) == step:
                counts = call.relayed.setdefault((plan.generation, *pair), [0, 0])
                counts[0] += begins
                counts[1] += size_bytes
