"""Relay: tensors between two workers that cannot connect pass here, and are counted for the call they belong to.

It knows links by node id, and the calls in progress; what a call's plan is it does not know.  What is counted is
bounded by those calls and by the pairs of workers that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wire.errors import StaleGeneration
from wire.link.link import Link
from wire.protocol.messages import Done, PlanKey, Relay
from wire.transfer.relay import pass_on

from ..workers.records import Call


@dataclass(frozen=True, slots=True)
class RelayServer:
    """Answer Relay.  `link_to` gives the link to a connected worker; `epoch` and `calls` are the coordinator's."""

    link_to: Callable[[str], Link | None]
    calls: Mapping[int, Call]
    epoch: Callable[[], int]

    async def serve(self, link: Link, body: Relay) -> Done:
        """Pass on a piece; StaleGeneration if its plan is not current, NodeLost if its receiver is gone."""
        sender = link.peer.node_id
        if self.link_to(sender) is not link or body.push.plan.epoch != self.epoch():
            raise StaleGeneration("only between workers of this mesh, and for plans of now")
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
