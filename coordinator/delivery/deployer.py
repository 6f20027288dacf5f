"""Deployer: sends workers their parts of a plan, and has them drop it again.

It does not know which plans there are, nor what follows once one is deployed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from itertools import chain

from wire import deadlines
from wire.errors import MeshError, NodeLost, ProtocolError
from wire.protocol import messages as wire
from wire.protocol.messages import Combine, Combined, Deploy, Deployed, Drop, MissingGraphs, PlanKey
from wire.system.bounded_wait import within
from wire.system.steady_log import steady_logger

from ..planning import plan_messages
from ..planning.model.plan import FromParam, FromState, Plan
from ..planning.model.profiles import CLIENT
from ..workers.link_prober import LinkProber
from ..workers.records import Member
from .param_slices import ParamSlices

log = steady_logger("graph_mesh.coordinator")
NO_STATE: plan_messages.State = {}
SLOWER_MAX = 2.0  # a worker that takes so many times as long is still asked before the coordinator, which sends it once


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a sum of blobs: the factor of a blob, its size, and the workers that hold it."""

    factor: int
    size_bytes: int
    holders: Collection[str]


Moved = tuple[int, int]  # bytes between workers, by socket and through shared memory
Wanted = Callable[[str], Awaitable[Collection[bytes]]]  # what a worker needs; asked where there is any to restore


async def _restore_nothing(plan: Plan, node: str, wanted: Wanted) -> Moved:
    return 0, 0


class Deployer:
    """Deploys to `members`.  The prober knows which of them cannot dial each other, and learns of new cases."""

    def __init__(
        self, members: Mapping[str, Member], prober: LinkProber, slices: ParamSlices, timeout_s: float
    ) -> None:
        self._members = members
        self._prober = prober
        self._slices = slices
        self._timeout_s = timeout_s  # for ranks to wait for each other
        self.restore: Callable[[Plan, str, Wanted], Awaitable[Moved]] = _restore_nothing

    async def deploy(
        self,
        plan: Plan,
        node: str,
        key: PlanKey,
        bindings: plan_messages.Bindings,
        state: plan_messages.State = NO_STATE,
        force: bool = False,
    ) -> Deployed:
        """Have a worker prepare its parts; MeshError of the worker, or NodeLost.

        `state` says which nodes hold the first values of the state; the bindings have those that are not in it.  With
        `force` the parts are compiled anew."""
        member = self._members.get(node)
        if member is None:
            raise NodeLost("the worker is gone")
        params = await self.params(plan, node, bindings, state)

        async def wanted(other: str) -> Collection[bytes]:
            theirs = params if other == node else await self.params(plan, other, bindings, state)
            return plan_messages.contents_of(plan, other, theirs).keys()

        moved = await self.restore(plan, node, wanted)
        answer = await _prepared(member, self._message(plan, member, key, params, state, force))
        if isinstance(answer, MissingGraphs):
            member.graphs.difference_update(answer.graphs)
            answer = await _prepared(member, self._message(plan, member, key, params, state, force))
        if not isinstance(answer, Deployed):
            raise ProtocolError(f"expected Deployed, got {type(answer).__name__}", node=member.profile.name)
        for other in answer.unreached:
            self._prober.probe_again(node, other)
        return answer.with_moved(*moved) if any(moved) else answer

    async def combine(
        self, node: str, terms: Mapping[bytes, Term], size_bytes: int, made: bytes | None = None, keep: bool = False
    ) -> Combined:
        """Have a worker sum blobs; MeshError.  `made` is the address of the sum, if that is known; `keep` as for
        weights."""
        member = self._members.get(node)
        if member is None:
            raise NodeLost("the worker is gone")
        summands = (
            wire.Term(term.factor, blob, term.size_bytes, (*sorted(term.holders), CLIENT))
            for blob, term in terms.items()
        )
        message = Combine(tuple(summands), size_bytes, self._addresses(node), made, keep)
        fetched = sum(term.size_bytes for term in terms.values())
        answer = await within(deadlines.STORE_COPY, member.link.request(message), member.profile.name, fetched)
        if not isinstance(answer, Combined):
            raise ProtocolError(f"expected Combined, got {type(answer).__name__}", node=member.profile.name)
        return answer

    def holders(self, blob: bytes) -> list[str]:
        """The workers that are known to have a blob."""
        return sorted(node for node, member in self._members.items() if blob in member.blobs)

    async def keep(self, node: str, key: PlanKey, held: Iterable[tuple[plan_messages.Content, frozenset[str]]]) -> None:
        """Have a worker hold blobs that others have, until this plan without parts is dropped; MeshError."""
        member = self._members.get(node)
        if member is None:
            raise NodeLost("the worker is gone")
        where = {address: (kind, holders) for (address, kind), holders in held}
        blobs = tuple(
            plan_messages.spec_of(blob, kind, tuple(sorted(holders)), keep=False)
            for blob, (kind, holders) in where.items()
        )
        message, fetched = Deploy(key, (), {}, blobs, self._addresses(node)), sum(spec.size_bytes for spec in blobs)
        answer = await within(deadlines.STORE_COPY, member.link.request(message), member.profile.name, fetched)
        if not isinstance(answer, Deployed):
            raise ProtocolError(f"expected Deployed, got {type(answer).__name__}", node=member.profile.name)

    async def params(
        self, plan: Plan, node: str, bindings: plan_messages.Bindings, state: plan_messages.State = NO_STATE
    ) -> plan_messages.Params:
        """The contents that a worker needs of the plan's params and state; BlobMissing where they cannot be known."""
        contents: dict[FromParam | FromState, plan_messages.Content] = {}
        for source, content in (await self._slices.params(plan_messages.params_of(plan, node), bindings)).items():
            contents[source] = content
        first = {piece: FromParam(piece.name, piece.window) for piece in plan_messages.states_of(plan, node)}
        bound = await self._slices.params([param for piece, param in first.items() if piece not in state], bindings)
        return contents | {piece: state[piece][0] if piece in state else bound[param] for piece, param in first.items()}

    async def drop(self, node: str, key: PlanKey, free: bool = False) -> None:
        """Have a worker forget a plan, and free its weights, or not."""
        member = self._members.get(node)
        if member is None:
            return
        try:
            await member.link.request(Drop(key, free), deadlines.DROP.seconds)
        except MeshError as error:
            log.debug("dropping generation %d on %s: %s", key.generation, member.profile.name, error)

    def _message(
        self,
        plan: Plan,
        member: Member,
        key: PlanKey,
        params: plan_messages.Params,
        state: plan_messages.State,
        force: bool,
    ) -> Deploy:
        own = member.profile.node_id
        holders: dict[str, AbstractSet[bytes]] = {
            node: self._members[node].blobs for node in _before(own, sorted(self._members))
        }
        theirs: dict[str, set[bytes]] = {}  # of the state, which they are not known to hold for long
        for (address, _), nodes in state.values():
            for node in nodes & holders.keys():
                theirs.setdefault(node, set()).add(address)
        holders |= {node: {*holders[node], *addresses} for node, addresses in theirs.items()}
        inventory = plan_messages.Inventory(holders, self._addresses(own), member.graphs, self._slower(own))
        message = plan_messages.deploy(plan, own, key, params, inventory, self._timeout_s, force)
        member.graphs.update(message.graphs)
        member.blobs.update(spec.blob for spec in message.blobs if spec.keep)
        return message

    def _slower(self, own: str) -> Callable[[str], bool]:
        """Whether content takes much longer to come to `own` from a worker than from here, where it may begin."""
        rate = self._prober.bytes_per_s

        @cache
        def slower(node: str) -> bool:
            return min(rate(CLIENT, node), rate(node, own)) * SLOWER_MAX < rate(CLIENT, own)

        return slower

    def _addresses(self, own: str) -> dict[str, tuple[str, ...]]:
        """The addresses of all workers; none for those that this one cannot reach."""
        cut = self._prober.table.relayed(own)
        return {node: () if node in cut else other.link.peer.addresses for node, other in self._members.items()}


def _before(own: str, nodes: list[str]) -> Iterator[str]:
    """The other nodes of a ring, from the one before `own` backwards: where all get the same content, each sends it to
    the next one, and none sends it to all.  They are in the order of their ids: a worker waits for content that is on
    its way to one of a smaller id, and to no other (`worker/daemon/blob_fetcher.py`)."""
    place = nodes.index(own) if own in nodes else len(nodes)  # it has just left
    return chain(reversed(nodes[:place]), reversed(nodes[place + 1 :]))


async def _prepared(member: Member, message: Deploy) -> wire.Message:
    """The worker's answer, once it has prepared its parts; DeadlineExceeded where it does not get on."""
    return await member.answer(message, deadlines.DEPLOY, sum(spec.size_bytes for spec in message.blobs))
