"""The shell of a session's copies: it has workers take and store them, holds those of this process, and puts the state
together.

Which copies there are, and where, the session's machine decides (`state.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from wire.deadlines import SNAPSHOT
from wire.errors import BlobMissing, Cancelled, MeshError, NodeLost, ProtocolError
from wire.ir.codec import hash_array, tensor_from
from wire.ir.dtypes import U8
from wire.ir.types import TensorType
from wire.policy.redundancy import Copies
from wire.protocol.messages import Snapshot, Snapshotted
from wire.system.tasks import as_error
from wire.transfer.content_exchange import off_loop

from ..lifecycle.answers import Made
from ..lifecycle.error_context import is_lack_of_memory
from ..planning import plan_messages
from ..planning.model.plan import FromState, Plan, Window
from ..planning.model.profiles import CLIENT
from ..planning.model.program import Program
from ..workers.records import Deployment, StateStart
from . import events as ev
from .manifest import Manifest
from .parity import SessionParity
from .session_context import SessionContext

# Errors of others: the machine has an answer to them.  Any other is a fault of this process, and ends the session.
FORESEEN = (MeshError, MemoryError, OSError)


class CopyShell:
    """The copies of one session of `program`, whose plans are `deployments`.

    `feed` takes what happened, `spawn` begins work that ends the session if it fails in a way that nobody foresaw, and
    `let_go` has a worker forget a plan or a copy.
    """

    def __init__(
        self,
        context: SessionContext,
        program: Program,
        kind: Copies,
        deployments: Mapping[int, Deployment],
        feed: Callable[[ev.Event], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        let_go: Callable[[str, int], None],
    ) -> None:
        plans = context.plans
        self._members, self._deployer, self._held, self._key = plans.members, plans.deployer, plans.held, plans.key
        self._publish, self._blobs = plans.events.publish, context.blobs
        self._program, self._kind, self._deployments = program, kind, deployments
        self._feed, self._spawn, self._let_go = feed, spawn, let_go
        self._copies: dict[int, dict[FromState, bytes]] = {}  # what this process holds, or is about to
        self._parity = SessionParity(plans.deployer, plans.members)
        self.performers: dict[type, Callable[[Any], object]] = {
            ev.TakeSnapshot: lambda action: spawn(self._snapshot(action)),
            ev.MakeChecks: lambda action: spawn(self._make_checks(action)),
            ev.StoreCopy: self._begin_to_store,
            ev.ReleaseCopy: self._release,
        }

    def take_over(self, manifest: Manifest) -> None:
        """Know the checks of copies that another process had made."""
        for copy in manifest.copies:
            self._parity.take_over(copy, {piece: self._type_of(piece).size_bytes for piece in copy.contents or ()})

    # -- the state of a plan

    async def gather(self, start: StateStart) -> None:
        """Gather the whole state here, where the new plan splits it in another way than the old one."""
        assert start.contents is not None
        arrays = {}
        for piece, address in start.contents.items():
            arrays[piece] = await self._fetched(piece, address, start.holders[piece])
        size_bytes = sum(array.nbytes for array in arrays.values())
        for name, array in (await off_loop(size_bytes, self.whole, arrays)).items():
            address = await off_loop(array.nbytes, hash_array, array)
            self._held.hold(address, array)
            start.gathered[name] = address, self._program.bindings[name][1]

    def let_gathered_go(self, start: StateStart) -> None:
        """Free what was gathered for a plan."""
        for address, _ in start.gathered.values():
            self._held.release(address)
        start.gathered.clear()

    async def first_values(self, start: StateStart, plan: Plan, node: str) -> plan_messages.State:
        """Find the nodes that hold the pieces that a plan begins with; lost ones are restored on this node first."""
        contents = start.contents if start.contents and not start.gathered else {}
        state = {piece: ((at, self._type_of(piece)), start.holders[piece]) for piece, at in contents.items()}
        mine = [state[piece] for piece in plan_messages.states_of(plan, node) if piece in state]
        await self._parity.restore(node, [at for (at, _), nodes in mine if not nodes])
        return state

    # -- actions

    async def _snapshot(self, action: ev.TakeSnapshot) -> None:
        deployment, member = self._deployments.get(action.generation), self._members.get(action.node)
        try:
            if member is None or deployment is None or deployment.state is None:
                raise NodeLost("the worker is gone")
            pieces = deployment.state.pieces
            size_bytes = sum(self._type_of(piece).size_bytes for piece in pieces.values())
            question = Snapshot(self._key(action.generation), action.step)
            answer = await member.answer(question, SNAPSHOT, size_bytes)
            if not isinstance(answer, Snapshotted):
                raise ProtocolError(f"expected Snapshotted, got {type(answer).__name__}", node=member.profile.name)
        except FORESEEN as fault:
            self._not_kept(action, as_error("taking a snapshot failed", fault))
            return
        blobs = {(value.part, value.output): value.blob for value in answer.values}
        contents = {piece: blobs[at] for at, piece in pieces.items() if at in blobs}
        self._feed(ev.SnapshotTaken(action.copy, action.node, contents))

    async def _make_checks(self, action: ev.MakeChecks) -> None:
        sizes = {piece: self._type_of(piece).size_bytes for piece in action.owners}
        try:
            checked = await self._parity.make(action, sizes, self._kind)
        except FORESEEN as fault:
            self._feed(ev.ChecksFailed(action.copy, as_error("making checks failed", fault)))
        else:
            self._feed(ev.ChecksMade(action.copy, checked))

    def _begin_to_store(self, action: ev.StoreCopy) -> None:
        if action.node == CLIENT:
            self._copies[action.copy] = {}
        self._spawn(self._store(action))

    async def _store(self, action: ev.StoreCopy) -> None:
        contents, holders = action.contents, action.holders
        try:
            if action.node == CLIENT:
                await self._hold(action.copy, contents, holders)
            else:
                state = {piece: ((at, self._type_of(piece)), holders[piece]) for piece, at in contents.items()}
                await self._deployer.keep(action.node, self._key(action.copy), state.values())
        except FORESEEN as fault:
            self._not_kept(action, as_error("keeping a copy failed", fault))
        else:
            self._feed(ev.CopyStored(action.copy, action.node))

    def _not_kept(self, action: ev.TakeSnapshot | ev.StoreCopy, error: MeshError) -> None:
        if is_lack_of_memory(error):
            self._publish("unguarded", action.node, f"no room for a copy of a session's state: {error}", 0)
        self._feed(ev.CopyFailed(action.copy, action.node, error))

    async def _hold(self, copy: int, contents: ev.Contents, holders: ev.Holders) -> None:
        """Hold these pieces of a copy in this process."""
        mine = self._copies.get(copy)
        for piece, address in contents.items():
            array = await self._fetched(piece, address, holders[piece])
            if mine is None or mine is not self._copies.get(copy):
                raise Cancelled("this copy is not wanted any more")
            self._held.hold(address, array)
            mine[piece] = address

    async def _fetched(self, piece: FromState, address: bytes, holders: Iterable[str]) -> NDArray[Any]:
        """Fetch a piece from any worker that holds it."""
        kind = self._type_of(piece)
        if address in self._held:
            return self._held.of(address, kind)
        error: MeshError = BlobMissing("nobody holds a piece of the state")
        there = set(holders) - {CLIENT} or await self._parity.restored(address)
        for node in sorted(there):
            member = self._members.get(node)
            if member is None:
                continue
            try:
                return tensor_from(await self._blobs.fetch(member.link, address, kind.size_bytes), kind)
            except MeshError as failure:
                error = failure
        raise error

    def _release(self, action: ev.ReleaseCopy) -> None:
        self._parity.forget(action.copy)
        if action.node != CLIENT:
            self._let_go(action.node, action.copy)
            return
        for address in self._copies.pop(action.copy, {}).values():
            self._held.release(address)

    # -- tensors

    def value_of(self, contents: ev.Contents | None, names: Iterable[str]) -> Made[dict[str, NDArray[Any]]]:
        """The state that this process holds, by name; `contents` None: what the client gave under these names."""
        if contents is None:
            given = {FromState(name): self._program.bindings[name] for name in names}
            held = {piece: self._held.of(*content) for piece, content in given.items()}
        else:
            held = {piece: self._held.of(at, self._type_of(piece)) for piece, at in contents.items()}

        def make() -> dict[str, NDArray[Any]]:
            return self.whole({piece: array.copy() if piece.window is None else array for piece, array in held.items()})

        return sum(array.nbytes for array in held.values()), make

    def whole(self, arrays: Mapping[FromState, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The tensors of the state, put together where they were cut."""
        pieces: dict[str, list[tuple[Window, NDArray[Any]]]] = {}
        tensors = {}
        for piece, array in arrays.items():
            if piece.window is None:
                tensors[piece.name] = array
            else:
                pieces.setdefault(piece.name, []).append((piece.window, array))
        kinds = {name: self._program.bindings[name][1] for name in pieces}
        return tensors | {name: plan_messages.assembled(kinds[name], windows) for name, windows in pieces.items()}

    def _type_of(self, piece: FromState | ev.Check) -> TensorType:
        if isinstance(piece, ev.Check):
            return TensorType((piece.size_bytes,), U8)
        kind = self._program.bindings[piece.name][1]
        return kind if piece.window is None else TensorType(piece.window.sizes, kind.dtype)
