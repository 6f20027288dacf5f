"""Session service: a coordinator daemon's answers to clients whose sessions it runs.

The shell between client messages and `coordinator/sessions/runtime.py`.  A session belongs to the client that opened
it.  It ends when the client says goodbye, or was without a link for `keep_s`: a link that breaks for a moment costs
nothing.  What is asked is numbered: it is done in that order, since steps with large arguments may arrive later than
others, and once, however often it is asked.  An answer is kept until the client says that it has it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError, MeshError, NodeLost
from wire.ir.codec import decode_graph, hash_array
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.policy.redundancy import OF_SESSIONS, copies_of
from wire.protocol.messages import (
    CloseSession,
    Done,
    Message,
    NamedValue,
    OpenSession,
    SessionOpened,
    SessionState,
    SessionStep,
    SessionTold,
)
from wire.system.tasks import Tasks, unheard
from wire.transfer.content_exchange import BlobExchange, apart, off_loop

from ..coordinator import Coordinator
from ..planning.model.program import Program
from ..planning.session_planner import Stateful
from ..sessions.runtime import Session, ahead_for
from ..sessions.state import Policy
from .program_upload import ProgramUpload

log = logging.getLogger("graph_mesh.service")
Ask = Callable[[], Awaitable[Any]]
Named = Callable[[Any], Iterable[tuple[str, NDArray[Any]]]]


@dataclass(slots=True)
class _ClientSession:
    """A session of a client, and what is held for it."""

    client: str
    session: Session
    kinds: dict[str, TensorType]  # of a step's inputs
    names: tuple[str, ...]  # of its outputs
    next_number: int = 0
    over: set[int] = field(default_factory=set)  # numbers above that, which nobody waits for
    turns: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    answers: dict[int, asyncio.Task[SessionTold]] = field(default_factory=dict)  # until the client has them
    blobs: dict[int, list[bytes]] = field(default_factory=dict)  # of these answers
    leaving: asyncio.TimerHandle | None = None  # while its client has no link


class SessionService:
    """Registers itself as the answer to every message about sessions; `for_clients` keeps others away."""

    def __init__(
        self,
        coordinator: Coordinator,
        for_clients: Callable[[Callable[[Link, Any], Awaitable[Message]]], Callable[[Link, Any], Awaitable[Message]]],
    ) -> None:
        self._coordinator = coordinator
        self._keep_s = coordinator.config.timeouts.keep_sessions_s
        self._upload = ProgramUpload(coordinator.blobs)
        self._sessions: dict[str, _ClientSession] = {}
        self._doing, self._ending = Tasks(), Tasks()
        answers: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            OpenSession: self._open,
            SessionStep: self._step,
            SessionState: self._state,
            CloseSession: self._close,
        }
        coordinator.requests.update({message: for_clients(answer) for message, answer in answers.items()})
        coordinator.unlinked.append(self._client_gone)

    async def _open(self, link: Link, body: OpenSession) -> SessionOpened:
        name = body.session or secrets.token_hex(6)
        if self._is_open(link, name):
            return SessionOpened(name)
        graph, strategy = decode_graph(body.graph), self._coordinator.config.strategy_of(body.strategy)
        if body.copies:
            copies_of(body.copies, OF_SESSIONS)
        params = await self._upload.params(link, body.params, graph)
        consts = await self._upload.consts(link, graph)
        if self._is_open(link, name):
            return SessionOpened(name)
        kinds = graph.param_types
        for carry in body.carries:
            if carry.name not in kinds or carry.output >= len(graph.outputs) or body.told > len(graph.outputs):
                raise InputError(f"the state {carry.name!r} is no param of the graph, or its next value no output")
        held = [*params.values(), *consts.items()]
        for address, array in held:
            self._coordinator.hold(address, array)
        addresses = [address for address, _ in held]
        try:
            program = Program(graph, {name: (at, kinds[name]) for name, (at, _) in params.items()}, strategy)
            state_bytes = sum(kinds[carry.name].size_bytes for carry in body.carries)
            ahead = body.ahead or ahead_for(state_bytes)
            carries = tuple((carry.name, carry.output) for carry in body.carries)
            policy = Policy(body.copies or "buddy", max(body.every, 1), ahead, body.replay_bytes, bool(body.copies))
            session = self._coordinator.sessions.open(program, Stateful(carries, body.told, ahead), policy)
        except MeshError:
            self._let_go(addresses)
            raise
        names = tuple(graph.output_names[: body.told])
        self._sessions[name] = _ClientSession(link.peer.node_id, session, graph.input_types, names)
        session.ended.add_done_callback(lambda _: self._let_go(addresses))
        return SessionOpened(name)

    async def _step(self, link: Link, body: SessionStep) -> SessionTold:
        opened = self._asked(link, body)
        if body.number not in opened.answers:
            ask = await self._step_with(link, opened, body)
            self._do(opened, body.number, ask, lambda arrays: zip(opened.names, arrays, strict=True))
        return await _answer(opened.answers[body.number])

    async def _step_with(self, link: Link, opened: _ClientSession, body: SessionStep) -> Ask:
        """A function that asks the session for a step.  If the link ends before the inputs have come, the client
        retries."""
        try:
            return partial(opened.session.step, await self._upload.values(link, body.inputs, opened.kinds))
        except MeshError as error:
            if not await _stands(link):
                raise
            return partial(_refuse, error)

    async def _state(self, link: Link, body: SessionState) -> SessionTold:
        opened = self._asked(link, body)
        self._do(opened, body.number, opened.session.state, dict.items)
        return await _answer(opened.answers[body.number])

    async def _close(self, link: Link, body: CloseSession) -> Done:
        opened = self._mine(link, body.session)
        del self._sessions[body.session]
        await self._end(opened)
        return Done()

    # -- turns: what a client asks of a session is done in the order of its numbers, once

    def _do(self, opened: _ClientSession, number: int, ask: Ask, named: Named) -> None:
        """Ask it of the session in its turn, unless that was done: the client may ask again after a link's end."""
        if number not in opened.answers:
            if number < opened.next_number or number in opened.over:
                raise InputError(f"step {number} of this session was asked for before")
            work = self._in_turn(opened, number, ask, named)
            opened.answers[number] = self._doing.run("a step of a session", work, unheard)

    async def _in_turn(self, opened: _ClientSession, number: int, ask: Ask, named: Named) -> SessionTold:
        try:
            if number > opened.next_number:
                await opened.turns.setdefault(number, asyncio.get_running_loop().create_future())
            answer = ask()
        finally:
            self._over(opened, number)
        return SessionTold(await self._published(opened, number, named(await answer)))

    def _over(self, opened: _ClientSession, number: int) -> None:
        """Let the next number go on: this one was asked of the session, or never will be."""
        opened.over.add(number)
        while opened.next_number in opened.over:
            opened.over.remove(opened.next_number)
            opened.next_number += 1
        waiting = opened.turns.pop(opened.next_number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- values on their way out

    async def _published(
        self, opened: _ClientSession, number: int, arrays: Iterable[tuple[str, NDArray[Any]]]
    ) -> tuple[NamedValue, ...]:
        """Values for the client; large ones stay here to be fetched by address, until it says that it has them."""
        values, named, held = [], list(arrays), opened.blobs.setdefault(number, [])
        for (name, array), far in zip(named, apart(array for _, array in named), strict=True):
            address = None
            if far:
                address = await off_loop(array.nbytes, hash_array, array)
                self._coordinator.hold(address, array)
                held.append(address)
            values.append(BlobExchange.named(name, array, far, address))
        if number not in opened.answers:  # the session ended meanwhile
            self._let_go(opened.blobs.pop(number, ()))
        return tuple(values)

    def _asked(self, link: Link, body: SessionStep | SessionState) -> _ClientSession:
        """The session that a request is for; the answers that its client has received are freed."""
        opened = self._mine(link, body.session)
        for number in [number for number in opened.answers if number < body.heard]:
            self._forget(opened, number)
        return opened

    def _forget(self, opened: _ClientSession, number: int) -> None:
        if opened.answers.pop(number).done():
            self._let_go(opened.blobs.pop(number, ()))

    def _let_go(self, addresses: Iterable[bytes]) -> None:
        for address in addresses:
            self._coordinator.release(address)

    # -- clients that come and go, and the end

    def _is_open(self, link: Link, name: str) -> bool:
        """Whether a client opened this session before; NodeLost for a name that is another's."""
        return name in self._sessions and self._mine(link, name) is not None

    def _mine(self, link: Link, name: str) -> _ClientSession:
        opened = self._sessions.get(name)
        if opened is None or opened.client != link.peer.node_id:
            raise NodeLost(
                f"this coordinator has no session {name!r} of this client, or not any more",
                next_step="Open a session with the state that you saved last; one ends with its coordinator, and when "
                f"its client is away for more than {self._keep_s:g} s",
            )
        return opened

    def _linked(self, client: str) -> bool:
        link = self._coordinator.endpoint.links.get(client)
        return link is not None and not link.closed

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        client, loop = link.peer.node_id, asyncio.get_running_loop()
        if self._linked(client):  # by a newer one
            return
        for name in [name for name, opened in self._sessions.items() if opened.client == client]:
            opened = self._sessions[name]
            if opened.leaving is not None:
                opened.leaving.cancel()
            opened.leaving = loop.call_later(self._keep_s if error else 0.0, self._away, name)

    def _away(self, name: str) -> None:
        """End a session whose client said goodbye or had no link for too long, unless the client is back."""
        opened = self._sessions.get(name)
        if opened is not None and not self._linked(opened.client):
            del self._sessions[name]
            self._ending.run("ending a session", self._end(opened), unheard)

    async def _end(self, opened: _ClientSession) -> None:
        if opened.leaving is not None:
            opened.leaving.cancel()
        for waiting in opened.turns.values():
            waiting.cancel()
        await opened.session.close()
        for number in list(opened.answers):
            self._forget(opened, number)


async def _answer(task: asyncio.Task[SessionTold]) -> SessionTold:
    """Await an answer without cancelling it; each caller gets a copy of its error."""
    try:
        return await asyncio.shield(task)
    except MeshError as error:
        raise error.copy() from None  # raised itself, it would gather the stacks of them all


async def _stands(link: Link) -> bool:
    """Whether a link still works, after something failed over it: it may have ended unnoticed."""
    if not link.closed:
        try:
            await link.ping()
        except MeshError as error:
            link.fail(error)
    return not link.closed


def _refuse(error: MeshError) -> Awaitable[Any]:
    raise error
