"""Session service: a coordinator daemon's answers to clients whose sessions it runs.

The shell between client messages and `coordinator/sessions/runtime.py`.  A session belongs to the client that opened
it.  It ends when the client says goodbye, or was without a link for `keep_s`: a link that breaks for a moment costs
nothing.  What is asked is numbered: it is done in that order, since steps with large arguments may arrive later than
others, and once, however often it is asked.  An answer is kept until the client says that it has it.

A session outlasts this process, too.  Its program is in the journal, and so is the record of where its state is
(`coordinator/sessions/manifest.py`).  The next process has the workers keep that.  A client that asks again is told
that it was interrupted: it says which answers it has, sends the inputs of earlier steps that may have to be done again,
and asks for the rest anew.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.errors import InputError, MeshError, NodeLost, StorageError
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
    ResumeSession,
    SessionFeed,
    SessionHeard,
    SessionOpened,
    SessionResumed,
    SessionState,
    SessionStep,
    SessionTold,
)
from wire.system.tasks import Tasks, unheard
from wire.transfer.content_exchange import BlobExchange, apart, off_loop
from wire.units import counted

from ..coordinator import Coordinator
from ..planning.model.program import Program
from ..planning.session_planner import Stateful
from ..sessions.manifest import CopyRecord, Manifest, SessionRecord, as_json, from_json, reading_journal
from ..sessions.runtime import Session, ahead_for
from ..sessions.state import Policy
from .job_store import JobStore, StoredEntry
from .journal import FORGOTTEN
from .program_upload import ProgramUpload
from .stored_program import ProgramContent, load_program

log = logging.getLogger("graph_mesh.service")
Ask = Callable[[], Awaitable[Any]]
Named = Callable[[Any], Iterable[tuple[str, NDArray[Any]]]]
SESSION, RECORD = SESSION_ENTRIES = "session", "session-record"  # kinds of entries
INTERRUPTED = SessionTold((), interrupted=True)
BEGINNING = Manifest((CopyRecord(0, 0, None),))  # of a session that no plan has begun for
_ENTRY = {SESSION: "@session ", RECORD: "@session-record "}  # before a session's name; no job has such an id


@dataclass(slots=True)
class _Terms:
    """What a client asked for as it opened a session."""

    client: str
    strategy: str
    carries: tuple[tuple[str, int], ...]
    told: int
    ahead: int
    policy: Policy

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an entry."""
        policy = [self.policy.copies, self.policy.every, self.policy.replay_bytes, self.policy.asked]
        return {
            "client": self.client,
            "strategy": self.strategy,
            "carries": self.carries,
            "told": self.told,
            "ahead": self.ahead,
            "policy": policy,
        }

    @staticmethod
    def of(fields: dict[str, Any]) -> _Terms:
        """What an entry says."""
        with reading_journal():
            copies, every, replay_bytes, asked = fields["policy"]
            policy = Policy(copies, every, fields["ahead"], replay_bytes, asked, durable=True)
            carries = tuple((name, output) for name, output in fields["carries"])
            return _Terms(fields["client"], fields["strategy"], carries, fields["told"], fields["ahead"], policy)

    @property
    def stateful(self) -> Stateful:
        return Stateful(self.carries, self.told, self.ahead)


@dataclass(slots=True)
class _ClientSession:
    """A session of a client, and what is held for it."""

    name: str
    terms: _Terms
    session: Session | None = None  # None until its client is back, where this process was started anew
    kinds: dict[str, TensorType] = field(default_factory=dict)  # of a step's inputs
    names: tuple[str, ...] = ()  # of its outputs
    next_number: int = 0
    heard: int = 0  # below it, the client has all answers
    over: set[int] = field(default_factory=set)  # numbers above that, which nobody waits for
    turns: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    answers: dict[int, asyncio.Task[SessionTold]] = field(default_factory=dict)  # until the client has them
    after: dict[int, int] = field(default_factory=dict)  # of these answers, the steps done by then
    blobs: dict[int, list[bytes]] = field(default_factory=dict)  # of these answers
    leaving: asyncio.TimerHandle | None = None  # while its client has no link
    saving: asyncio.Task[Any] | None = None  # the entry of its program
    entry: Any = None  # the values of that entry, where this process was started anew
    record: SessionRecord | None = None  # likewise, where its state is
    feeds: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)  # of steps that may be done again
    resuming: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, content: ProgramContent) -> Program:
        """The program, once its graph is known."""
        self.kinds, self.names = content.graph.input_types, tuple(content.graph.output_names[: self.terms.told])
        return Program(content.graph, content.bindings, self.terms.strategy)


class SessionService:
    """Registers itself as the answer to every message about sessions; `for_clients` keeps others away.  Call `resume`
    before `listen`.  `close` ends the sessions for good: call it before the coordinator's, and only if somebody stopped
    that."""

    def __init__(
        self,
        coordinator: Coordinator,
        for_clients: Callable[[Callable[[Link, Any], Awaitable[Message]]], Callable[[Link, Any], Awaitable[Message]]],
        store: JobStore,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._keep_s = coordinator.config.timeouts.keep_sessions_s
        self._upload = ProgramUpload(coordinator.blobs)
        self._sessions: dict[str, _ClientSession] = {}
        self._doing, self._ending = Tasks(), Tasks()
        answers: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            OpenSession: self._open,
            SessionStep: self._step,
            SessionState: self._state,
            ResumeSession: self._resume,
            SessionFeed: self._feed,
            CloseSession: self._close,
        }
        coordinator.requests.update({message: for_clients(answer) for message, answer in answers.items()})
        coordinator.notices[SessionHeard] = self._heard
        coordinator.unlinked.append(self._client_gone)

    def resume(self, entries: Iterable[StoredEntry]) -> None:
        """Expect the sessions of the process before: their workers keep their state, and their clients come back."""
        records = {}
        for entry in entries:
            name = entry.job.removeprefix(_ENTRY[entry.kind])
            if entry.kind == RECORD:
                records[name] = from_json(entry.fields.get("record"))
            else:
                self._sessions[name] = _ClientSession(name, _Terms.of(entry.fields), entry=entry.fields.get("values"))
        for name, opened in list(self._sessions.items()):
            opened.record = records.get(name) or SessionRecord(BEGINNING, {}, {})
            self._coordinator.sessions.expect(opened.record)
            self._leave(name)
        for name in records.keys() - self._sessions.keys():
            self._ending.run("forgetting a session", self._forget_entry(RECORD, name), unheard)
        self._coordinator.begin_above(max((max(record.epochs, default=0) for record in records.values()), default=0))
        if self._sessions:
            log.info("%s of before, to be taken up by their clients", counted(len(self._sessions), "session"))

    async def close(self) -> None:
        """End every session, with its workers' state and its entries."""
        await asyncio.gather(*(self._end(self._sessions.pop(name)) for name in list(self._sessions)))
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _open(self, link: Link, body: OpenSession) -> SessionOpened:
        name = body.session or secrets.token_hex(6)
        if self._is_open(link, name):
            return await self._opened(self._sessions[name])
        graph, strategy = decode_graph(body.graph), self._coordinator.config.strategy_of(body.strategy)
        if body.copies:
            copies_of(body.copies, OF_SESSIONS)
        params = await self._upload.params(link, body.params, graph)
        consts = await self._upload.consts(link, graph)
        if self._is_open(link, name):
            return await self._opened(self._sessions[name])
        kinds = graph.param_types
        for carry in body.carries:
            if carry.name not in kinds or carry.output >= len(graph.outputs) or body.told > len(graph.outputs):
                raise InputError(f"the state {carry.name!r} is no param of the graph, or its next value no output")
        ahead = body.ahead or ahead_for(sum(kinds[carry.name].size_bytes for carry in body.carries))
        asked = bool(body.copies)
        policy = Policy(body.copies or "buddy", max(body.every, 1), ahead, body.replay_bytes, asked, durable=True)
        carries = tuple((carry.name, carry.output) for carry in body.carries)
        terms = _Terms(link.peer.node_id, strategy, carries, body.told, ahead, policy)
        content, opened = ProgramContent(graph, params, consts), _ClientSession(name, terms)
        program, addresses = opened.take(content), self._hold(content)
        write = partial(self._write, opened)
        try:
            session = self._coordinator.sessions.open(program, terms.stateful, policy, write=write)
        except MeshError:
            self._let_go(addresses)
            raise
        opened.saving = self._doing.run("keeping a session", self._save(opened, content), unheard)
        self._began(opened, session, addresses)
        return await self._opened(opened)

    async def _opened(self, opened: _ClientSession) -> SessionOpened:
        """Answer once the session's program is in the journal; without that, there is no session."""
        try:
            if opened.saving is not None:
                await asyncio.shield(opened.saving)
        except MeshError as error:
            if self._sessions.pop(opened.name, None) is not None:
                await self._end(opened)
            raise error.copy() from None
        return SessionOpened(opened.name)

    def _hold(self, content: ProgramContent) -> list[bytes]:
        for address, array in content.held:
            self._coordinator.hold(address, array)
        return [address for address, _ in content.held]

    def _began(self, opened: _ClientSession, session: Session, addresses: Sequence[bytes]) -> None:
        opened.session = session
        self._sessions[opened.name] = opened
        session.ended.add_done_callback(lambda _: self._let_go(addresses))

    # -- what a client asks

    async def _step(self, link: Link, body: SessionStep) -> SessionTold:
        opened = self._asked(link, body)
        if opened.session is None:
            return INTERRUPTED
        if body.number not in opened.answers:
            ask = await self._step_with(link, opened, opened.session, body)
            self._do(opened, body.number, ask, lambda arrays: zip(opened.names, arrays, strict=True))
        return await _answer(opened.answers[body.number])

    async def _step_with(self, link: Link, opened: _ClientSession, session: Session, body: SessionStep) -> Ask:
        """A function that asks the session for a step.  If the link ends before the inputs have come, the client
        retries."""
        try:
            return partial(session.step, await self._upload.values(link, body.inputs, opened.kinds))
        except MeshError as error:
            if not await _stands(link):
                raise
            return partial(_refuse, error)

    async def _state(self, link: Link, body: SessionState) -> SessionTold:
        opened = self._asked(link, body)
        if opened.session is None:
            return INTERRUPTED
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
        session = opened.session
        assert session is not None
        try:
            if number > opened.next_number:
                await opened.turns.setdefault(number, asyncio.get_running_loop().create_future())
            step, answer = session.next_number, ask()
            after = session.next_number
        finally:
            self._over(opened, number)
        values = await self._published(opened, number, named(await answer))
        opened.after[number] = after
        return SessionTold(values, step, session.feeds_from)

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
        self._have_heard(opened, body.heard)
        return opened

    def _heard(self, link: Link, body: SessionHeard) -> None:
        opened = self._sessions.get(body.session)
        if opened is not None and opened.terms.client == link.peer.node_id:
            self._have_heard(opened, body.heard)

    def _have_heard(self, opened: _ClientSession, below: int) -> None:
        """The client has the answers below this number."""
        steps = 0
        for number in range(opened.heard, min(below, opened.next_number)):
            steps = max(steps, opened.after.pop(number, 0))
            if number in opened.answers:
                self._forget(opened, number)
        opened.heard = max(opened.heard, min(below, opened.next_number))
        if steps and opened.session is not None:
            opened.session.heard(steps)

    def _forget(self, opened: _ClientSession, number: int) -> None:
        if opened.answers.pop(number).done():
            self._let_go(opened.blobs.pop(number, ()))

    def _let_go(self, addresses: Iterable[bytes]) -> None:
        for address in addresses:
            self._coordinator.release(address)

    # -- the journal, and sessions of the process before

    async def _save(self, opened: _ClientSession, content: ProgramContent) -> None:
        await self._store.save(_ENTRY[SESSION] + opened.name, SESSION, opened.terms.fields, content.values)

    async def _write(self, opened: _ClientSession, record: SessionRecord) -> None:
        """Write down where the state of a session is, after its program."""
        if opened.saving is not None:
            await asyncio.shield(opened.saving)
        await self._store.save(_ENTRY[RECORD] + opened.name, RECORD, {"record": as_json(record)})

    async def _forget_entries(self, opened: _ClientSession) -> None:
        if opened.saving is not None:
            await asyncio.wait([opened.saving])
        for kind in _ENTRY:
            await self._forget_entry(kind, opened.name)

    async def _forget_entry(self, kind: str, name: str) -> None:
        try:
            await self._store.save(_ENTRY[kind] + name, FORGOTTEN, {})
        except StorageError as error:  # the next process waits for its client, and then forgets it
            log.warning("session %s stays in the journal: %s", name, error)

    async def _feed(self, link: Link, body: SessionFeed) -> Done:
        opened = self._mine(link, body.session)
        if opened.session is not None:
            return Done()
        content = await self._content(opened)
        inputs = await self._upload.values(link, body.inputs, content.graph.input_types)
        if opened.session is None:
            opened.feeds[body.step] = inputs
        return Done()

    async def _resume(self, link: Link, body: ResumeSession) -> SessionResumed:
        opened = self._mine(link, body.session)
        async with opened.resuming:
            record = opened.record
            if opened.session is not None or record is None:
                return SessionResumed(body.told, body.told)
            first = record.manifest.first_feed(body.told)
            missing = next((step for step in range(first, body.told) if step not in opened.feeds), body.told)
            if missing < body.told:
                return SessionResumed(missing, body.told)
            content = await self._content(opened)
            self._mine(link, body.session)  # it may have been closed meanwhile
            program, addresses = opened.take(content), self._hold(content)
            feeds = {step: opened.feeds[step] for step in range(first, body.told)}
            session = self._coordinator.sessions.open_again(
                program, opened.terms.stateful, opened.terms.policy, record, body.told, feeds,
                partial(self._write, opened),
            )  # fmt: skip
            opened.next_number = opened.heard = body.number
            opened.feeds, opened.record = {}, None
            self._began(opened, session, addresses)
            log.info("session %s goes on after step %d", opened.name, body.told)
            return SessionResumed(body.told, body.told)

    async def _content(self, opened: _ClientSession) -> ProgramContent:
        """The program of a session of the process before."""
        if not isinstance(opened.entry, ProgramContent):
            with reading_journal():
                opened.entry = await load_program(opened.entry, self._store.load)
        return opened.entry

    # -- clients that come and go, and the end

    def _is_open(self, link: Link, name: str) -> bool:
        """Whether a client opened this session before; NodeLost for a name that is another's."""
        return name in self._sessions and self._mine(link, name) is not None

    def _mine(self, link: Link, name: str) -> _ClientSession:
        opened = self._sessions.get(name)
        if opened is None or opened.terms.client != link.peer.node_id:
            raise NodeLost(
                f"this coordinator has no session {name!r} of this client, or not any more",
                next_step="Open a session with the state that you saved last; one ends when its coordinator is "
                f"stopped, and when its client is away for more than {self._keep_s:g} s",
            )
        return opened

    def _linked(self, client: str) -> bool:
        link = self._coordinator.endpoint.links.get(client)
        return link is not None and not link.closed

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        client = link.peer.node_id
        if self._linked(client):  # by a newer one
            return
        for name in [name for name, opened in self._sessions.items() if opened.terms.client == client]:
            self._leave(name, self._keep_s if error else 0.0)

    def _leave(self, name: str, keep_s: float | None = None) -> None:
        """Give a client so long to come back for its session."""
        opened, loop = self._sessions[name], asyncio.get_running_loop()
        if opened.leaving is not None:
            opened.leaving.cancel()
        opened.leaving = loop.call_later(self._keep_s if keep_s is None else keep_s, self._away, name)

    def _away(self, name: str) -> None:
        """End a session whose client said goodbye or had no link for too long, unless the client is back."""
        opened = self._sessions.get(name)
        if opened is not None and not self._linked(opened.terms.client):
            del self._sessions[name]
            self._ending.run("ending a session", self._end(opened), unheard)

    async def _end(self, opened: _ClientSession) -> None:
        if opened.leaving is not None:
            opened.leaving.cancel()
        for waiting in opened.turns.values():
            waiting.cancel()
        if opened.session is not None:
            await opened.session.close()
        elif opened.record is not None:
            self._coordinator.sessions.give_up(opened.record)
        for number in list(opened.answers):
            self._forget(opened, number)
        await self._forget_entries(opened)


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
