"""Deploying: telling the workers that are there their parts of a plan, and to forget them again.

It does not know which plans there are, nor what follows once one is deployed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from wire.errors import MeshError, NodeLost, ProtocolError
from wire.messages import Deploy, Deployed, Drop, MissingGraphs, PlanKey

from . import dispatch
from .plan import Plan
from .prober import Prober
from .records import Member
from .slices import Slices

log = logging.getLogger("graph_mesh.coordinator")


class Deploying:
    """To `members`; the prober knows which of them cannot dial each other, and hears who could not."""

    def __init__(self, members: Mapping[str, Member], prober: Prober, slices: Slices) -> None:
        self._members = members
        self._prober = prober
        self._slices = slices

    async def deploy(self, plan: Plan, node: str, key: PlanKey, bindings: dispatch.Bindings) -> Deployed:
        """Have a worker ready for its parts; its own MeshError, or NodeLost."""
        member = self._members.get(node)
        if member is None:
            raise NodeLost("the worker is gone")
        params = await self.params(plan, node, bindings)
        answer = await member.link.request(self._message(plan, member, key, params))
        if isinstance(answer, MissingGraphs):
            member.graphs -= set(answer.graphs)
            answer = await member.link.request(self._message(plan, member, key, params))
        if not isinstance(answer, Deployed):
            raise ProtocolError(f"expected Deployed, got {type(answer).__name__}", node=member.profile.name)
        for other in answer.unreached:
            self._prober.doubt(node, other)
        return answer

    async def params(self, plan: Plan, node: str, bindings: dispatch.Bindings) -> dispatch.Params:
        """What a worker needs of the plan's params: which content that is; BlobMissing where it cannot be known."""
        return await self._slices.params(dispatch.params_of(plan, node), bindings)

    async def drop(self, node: str, key: PlanKey) -> None:
        """Have a worker forget a plan."""
        member = self._members.get(node)
        if member is None:
            return
        try:
            await member.link.request(Drop(key))
        except MeshError as error:
            log.debug("dropping generation %d on %s: %s", key.generation, member.profile.name, error)

    def _message(self, plan: Plan, member: Member, key: PlanKey, params: dispatch.Params) -> Deploy:
        own = member.profile.node_id
        holders = {node: other.blobs for node, other in self._members.items() if node != own}
        cut = self._prober.pairs.relayed(own)
        addresses = {node: () if node in cut else other.link.peer.addresses for node, other in self._members.items()}
        message = dispatch.deploy(plan, own, key, params, member.graphs, holders, addresses)
        member.graphs.update(message.graphs)
        member.blobs.update(spec.blob for spec in message.blobs)
        return message
