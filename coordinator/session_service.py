"""What a coordinator daemon answers clients whose sessions it has.

The shell between client messages and `sessioning.py`.  A session belongs to the link it was opened over and ends with
it; steps are numbered, since those with large arguments may arrive later than others.  It decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wire.codec import decode_graph, hash_array
from wire.errors import Cancelled, InputError, MeshError
from wire.exchange import BlobExchange, apart, off_loop
from wire.link import Link
from wire.messages import (
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
from wire.redundancy import OF_SESSIONS, copies_of
from wire.tasks import Tasks, unheard
from wire.types import TensorType

from .program import Program
from .receiving import Receiving
from .runtime import Coordinator
from .session_plan import Stateful
from .sessioning import Session, ahead_for
from .sessions import Policy

log = logging.getLogger("graph_mesh.service")
TOLD_MAX = 16  # answers with large values that wait for their client to fetch them


@dataclass(slots=True)
class _Open:
    """A session of a client, and what is held for it."""

    link: Link
    session: Session
    kinds: dict[str, TensorType]  # of a step's inputs
    names: tuple[str, ...]  # of its outputs
    held: list[bytes]  # the first state, other params, and constants
    next_number: int = 0
    over: set[int] = field(default_factory=set)  # numbers above that, which nobody waits for
    turns: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    told: deque[list[bytes]] = field(default_factory=deque)


class SessionService:
    """Registers itself as the answer to every message about sessions; `for_clients` keeps others away."""

    def __init__(
        self,
        coordinator: Coordinator,
        for_clients: Callable[[Callable[[Link, Any], Awaitable[Message]]], Callable[[Link, Any], Awaitable[Message]]],
    ) -> None:
        self._coordinator = coordinator
        self._receiving = Receiving(coordinator.blobs)
        self._sessions: dict[str, _Open] = {}
        self._ending = Tasks()
        answers: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            OpenSession: self._open,
            SessionStep: self._step,
            SessionState: self._state,
            CloseSession: self._close,
        }
        coordinator.requests.update({message: for_clients(answer) for message, answer in answers.items()})
        coordinator.unlinked.append(self._client_gone)

    async def _open(self, link: Link, body: OpenSession) -> SessionOpened:
        graph, strategy = decode_graph(body.graph), self._coordinator.config.strategy_of(body.strategy)
        if body.copies:
            copies_of(body.copies, OF_SESSIONS)
        params = await self._receiving.params(link, body.params, graph)
        consts = await self._receiving.consts(link, graph)
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
        name = secrets.token_hex(6)
        names = tuple(graph.output_names[: body.told])
        self._sessions[name] = _Open(link, session, graph.input_types, names, addresses)
        session.ended.add_done_callback(lambda _: self._let_go(addresses))
        return SessionOpened(name)

    async def _step(self, link: Link, body: SessionStep) -> SessionTold:
        opened = self._mine(link, body.session)
        try:
            inputs = await self._receiving.values(link, body.inputs, opened.kinds)
            await self._turn(opened, body.number)
            told = opened.session.step(inputs)
        finally:
            self._over(opened, body.number)
        arrays = await asyncio.shield(told)
        return SessionTold(await self._published(opened, zip(opened.names, arrays, strict=True)))

    async def _state(self, link: Link, body: SessionState) -> SessionTold:
        opened = self._mine(link, body.session)
        try:
            await self._turn(opened, body.number)
            state = opened.session.state()
        finally:
            self._over(opened, body.number)
        return SessionTold(await self._published(opened, (await state).items()))

    async def _close(self, link: Link, body: CloseSession) -> Done:
        opened = self._mine(link, body.session)
        del self._sessions[body.session]
        await self._end(opened)
        return Done()

    # -- turns: what a client asks of a session is done in the order of its numbers

    async def _turn(self, opened: _Open, number: int) -> None:
        if number < opened.next_number or number in opened.over:
            raise InputError(f"step {number} of this session was asked for before")
        if number > opened.next_number:
            await opened.turns.setdefault(number, asyncio.get_running_loop().create_future())

    def _over(self, opened: _Open, number: int) -> None:
        """It was asked of the session, or never will be: those after it need not wait for it."""
        opened.over.add(number)
        while opened.next_number in opened.over:
            opened.over.remove(opened.next_number)
            opened.next_number += 1
        waiting = opened.turns.pop(opened.next_number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # -- values on their way out, and the end

    async def _published(self, opened: _Open, arrays: Iterable[tuple[str, NDArray[Any]]]) -> tuple[NamedValue, ...]:
        """Values for the client; large ones stay here to be fetched by address, until others have taken their place."""
        values, held, named = [], [], list(arrays)
        for (name, array), far in zip(named, apart(array for _, array in named), strict=True):
            address = None
            if far:
                address = await off_loop(array.nbytes, hash_array, array)
                self._coordinator.hold(address, array)
                held.append(address)
            values.append(BlobExchange.named(name, array, far, address))
        if held:
            opened.told.append(held)
        while len(opened.told) > TOLD_MAX:
            self._let_go(opened.told.popleft())
        return tuple(values)

    def _mine(self, link: Link, name: str) -> _Open:
        opened = self._sessions.get(name)
        if opened is None or opened.link is not link:
            raise Cancelled("there is no such session", next_step="A session ends with the link it was opened over")
        return opened

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        for name in [name for name, opened in self._sessions.items() if opened.link is link]:
            self._ending.run("ending a session", self._end(self._sessions.pop(name)), unheard)

    async def _end(self, opened: _Open) -> None:
        for waiting in opened.turns.values():
            waiting.cancel()
        await opened.session.close()
        while opened.told:
            self._let_go(opened.told.popleft())

    def _let_go(self, addresses: Iterable[bytes]) -> None:
        for address in addresses:
            self._coordinator.release(address)
