"""Session service: a coordinator daemon's answers to clients whose sessions it runs.

The shell between client messages and `coordinator/sessions/runtime.py`.  A session belongs to the client that opened
it.  It ends when the client says goodbye, or was without a link for `keep_s`: a link that breaks for a moment costs
nothing.  What is asked is numbered: it is done in that order, since steps with large arguments may arrive later than
others, and once, however often it is asked.  An answer is kept until the client says that it has it.

A session with a name outlasts its client, for `keep_named_s`.  Another client of the same member may attach to it: it
gives the session a token of its own, by which all is asked from then on, and the former token is refused.  Who drives a
session is in the journal before any client learns it.

A session outlasts this process, too.  Its program is in the journal, and so is the record of where its state is
(`coordinator/sessions/manifest.py`).  The next process has the workers keep that.  A client that asks again learns
that it was interrupted: it says which answers it has, sends the inputs of earlier steps that may have to be done again,
and asks for the rest anew.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.bounds import SESSION_ANSWERS, SESSION_INPUTS, SESSIONS_OF_CLIENT, SESSIONS_OPEN
from wire.errors import Busy, Cancelled, InputError, LimitExceeded, MeshError, NodeLost, SessionTaken, StorageError
from wire.ir.codec import hash_array
from wire.ir.types import TensorType
from wire.limits import KIB
from wire.link.link import Link
from wire.policy.redundancy import OF_SESSIONS, copies_of
from wire.protocol.messages import (
    AskSessions,
    AttachSession,
    CloseSession,
    Done,
    EndSession,
    Message,
    NamedValue,
    OpenSession,
    ResumeSession,
    SessionAttached,
    SessionFeed,
    SessionHeard,
    SessionOpened,
    SessionReport,
    SessionResumed,
    Sessions,
    SessionState,
    SessionStep,
    SessionTold,
)
from wire.roles import OPERATOR, may, member_id
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, isolated, unheard
from wire.transfer.content_exchange import BlobExchange, graph_from, off_loop, sent_separately
from wire.units import counted, size_text

from ..coordinator import Coordinator
from ..sessions.manifest import CopyRecord, Manifest, SessionRecord, as_json, from_json, reading_journal
from ..sessions.runtime import Session, StepFeeds, ahead_for
from ..sessions.state import Policy
from .client_contents import ClientContents
from .client_session import ClientSession, Requests, Terms
from .job_store import Content, JobStore, StoredEntry
from .journal import FORGOTTEN
from .program_upload import ProgramUpload, upload_to_disk
from .stored_program import ProgramContent, load_program

log = steady_logger("graph_mesh.service")
Ask = Callable[[], Awaitable[Any]]
Named = Callable[[Any], Iterable[tuple[str, NDArray[Any]]]]
SESSION, RECORD, DRIVER = SESSION_ENTRIES = "session", "session-record", "session-driver"  # kinds of entries
ANSWER_BYTES = KIB  # of an answer, besides its values
FORMER_MAX = 16  # tokens of a session, whose programs learn who drives it now
TAKE = "Attach with take=True to drive it from here; the other program gets an error at its next step"
INTERRUPTED = SessionTold((), interrupted=True)
BEGINNING = Manifest((CopyRecord(0, 0, None),))  # of a session that no plan has begun for
# Before a session's id, which is its first token if no other has that; no job has such an id.
_ENTRY = {SESSION: "@session ", RECORD: "@session-record ", DRIVER: "@session-driver "}


class SessionService:
    """Registers itself as the answer to every message about sessions.  Call `resume` before `listen`.  `close` ends the
    sessions for good: call it before the coordinator's, and only if a user or program stopped that.  Tokens and names
    are those of one member: to others a session is not there, and they may give theirs the same."""

    def __init__(
        self,
        coordinator: Coordinator,
        contents: ClientContents,
        store: JobStore,
        wall: Callable[[], float] = time.time,
        acted: Callable[[Link, str, str], None] = lambda link, what, to: None,
    ) -> None:
        self._acted = acted
        self._coordinator = coordinator
        self._contents = contents
        self._wall = wall
        self._store = store
        self._keep_s = coordinator.config.timeouts.keep_sessions_s
        self._keep_named_s = coordinator.config.timeouts.keep_named_sessions_s
        self._sessions_max, self._sessions_of_client_max = SESSIONS_OPEN.most, SESSIONS_OF_CLIENT.most
        self._inputs_bytes_max, self._answers_bytes_max = SESSION_INPUTS.most, SESSION_ANSWERS.most
        self._upload = ProgramUpload(coordinator.blobs)
        self._arriving: Counter[str] = Counter()  # bytes of steps' inputs by owner
        self._sessions: dict[str, ClientSession] = {}  # by id
        self._tokens: dict[tuple[str, str], str] = {}  # by member and token, former ones too, the session
        self._doing, self._ending = Tasks(), Tasks()
        answers: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            OpenSession: self._open,
            SessionStep: self._step,
            SessionState: self._state,
            ResumeSession: self._resume,
            SessionFeed: self._feed,
            CloseSession: self._close,
            AttachSession: self._attach,
            AskSessions: self._reports,
            EndSession: self._end_named,
        }
        coordinator.requests.update(answers)
        coordinator.notices[SessionHeard] = self._heard
        coordinator.unlinked.append(self._client_gone)

    def resume(self, entries: Iterable[StoredEntry]) -> None:
        """Expect the sessions of the process before: their workers keep their state, and their clients come back."""
        records, drivers = {}, {}
        for entry in entries:
            id = entry.job.removeprefix(_ENTRY[entry.kind])
            if entry.kind == RECORD:
                records[id] = from_json(entry.fields.get("record"))
            elif entry.kind == DRIVER:
                drivers[id] = entry.fields
            else:
                terms, values = Terms.of(entry.fields), entry.fields.get("values")
                token, name = entry.fields.get("token", id), entry.fields.get("driver", "")
                self._sessions[id] = ClientSession(id, token, terms.client, name, terms, entry=values)
                self._sessions[id].form = values.get("form", b"") if isinstance(values, dict) else b""
        for id, opened in list(self._sessions.items()):
            if (driver := drivers.get(id)) is not None:
                with reading_journal():
                    opened.token, opened.client, opened.client_name = driver["token"], driver["client"], driver["name"]
                    opened.former = tuple(driver["former"])
            self._tokens.update({(opened.owner, token): id for token in (opened.token, *opened.former)})
            opened.record = records.get(id) or SessionRecord(BEGINNING, {}, {})
            self._coordinator.sessions.expect(opened.record)
            self._leave(opened, self._keep_s)
        for kind, ids in ((RECORD, records.keys()), (DRIVER, drivers.keys())):
            for id in ids - self._sessions.keys():
                self._ending.run("forgetting a session", self._forget_entry(kind, id), unheard)
        self._coordinator.begin_above(max((max(record.epochs, default=0) for record in records.values()), default=0))
        if self._sessions:
            log.info("%s of before, to be taken up by their clients", counted(len(self._sessions), "session"))

    @property
    def left(self) -> bool:
        """Whether there are sessions for the process that goes on with the journal."""
        return bool(self._sessions)

    async def leave(self) -> None:
        """Leave every session to the process that goes on with the journal."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        for opened in self._sessions.values():
            if opened.leaving is not None:
                opened.leaving.cancel()
        self._coordinator.sessions.leave()

    async def _open(self, link: Link, body: OpenSession) -> SessionOpened:
        token = body.session or secrets.token_hex(6)
        if (known := self._known(link, token, body.name)) is not None:
            return await self._opened(known)
        self._check_room(member_id(link.peer.node_id))
        graph, strategy = await graph_from(body.graph), self._coordinator.config.strategy_of(body.strategy)
        if body.copies:
            copies_of(body.copies, OF_SESSIONS)
        with upload_to_disk(self._coordinator.blobs, self._store, self._ending) as upload:
            params = await upload.params(link, body.params, graph)
            content = ProgramContent(graph, params, await upload.consts(link, graph))
            return await self._open_with(link, body, token, content, strategy)

    async def _open_with(
        self, link: Link, body: OpenSession, token: str, content: ProgramContent, strategy: str
    ) -> SessionOpened:
        if (known := self._known(link, token, body.name)) is not None:
            return await self._opened(known)
        self._check_room(member_id(link.peer.node_id))  # others came while its values did
        graph, kinds = content.graph, content.graph.param_types
        for carry in body.carries:
            if carry.name not in kinds or max(carry.output + 1, body.returned_count) > len(graph.outputs):
                raise InputError(f"the state {carry.name!r} is no param of the graph, or its next value no output")
        size_bytes = sum(kinds[carry.name].size_bytes for carry in body.carries)
        ahead = body.ahead or ahead_for(size_bytes)
        asked = bool(body.copies)
        policy = Policy(body.copies or "buddy", max(body.every, 1), ahead, body.replay_bytes, asked, durable=True)
        carries = tuple((carry.name, carry.output) for carry in body.carries)
        me = link.peer
        terms = Terms(
            me.node_id, strategy, carries, body.returned_count, ahead, policy, body.name, self._wall(), size_bytes
        )
        id = token if token not in self._sessions else secrets.token_hex(6)  # another member may have the same token
        opened = ClientSession(id, token, me.node_id, me.name, terms, form=body.form)
        program, addresses = opened.take(content), self._hold(opened, content)
        write = partial(self._write, opened)
        try:
            session = self._coordinator.sessions.open(program, terms.stateful, policy, write=write)
        except MeshError:
            self._let_go(opened, addresses)
            raise
        opened.saving = self._doing.run("keeping a session", self._save(opened, content), unheard)
        self._began(opened, session, addresses)
        return await self._opened(opened)

    def _check_room(self, owner: str) -> None:
        mine = sum(opened.owner == owner for opened in self._sessions.values())
        for count, most, whose in (
            (len(self._sessions), self._sessions_max, ""),
            (mine, self._sessions_of_client_max, " of this client"),
        ):
            if count >= most:
                raise Busy(
                    f"{count} sessions{whose} are open, and no more than {most} can be",
                    next_step="Close others: mesh-coord sessions lists those with a name",
                )

    async def _opened(self, opened: ClientSession) -> SessionOpened:
        """Answer once the session's program is in the journal; without that, there is no session."""
        try:
            if opened.saving is not None:
                await asyncio.shield(opened.saving)
        except MeshError as error:
            await self._end(opened)
            raise error.copy() from None
        return SessionOpened(opened.token)

    def _hold(self, opened: ClientSession, content: ProgramContent) -> list[bytes]:
        for address, array in content.held:
            self._contents.hold(opened.owner, address, array)
        return [address for address, _ in content.held]

    def _began(self, opened: ClientSession, session: Session, addresses: Sequence[bytes]) -> None:
        opened.session = session
        self._sessions[opened.id], self._tokens[opened.owner, opened.token] = opened, opened.id
        session.ended.add_done_callback(lambda _: self._let_go(opened, addresses))

    # -- what a client asks

    async def _step(self, link: Link, body: SessionStep) -> SessionTold:
        opened = self._session_of_request(link, body)
        requests = opened.requests
        if opened.session is None:
            return INTERRUPTED
        if body.number not in requests.answers:
            ask, size_bytes = await self._step_with(link, opened, opened.session, body)
            self._do(
                opened, requests, body.number, ask, lambda arrays: zip(opened.names, arrays, strict=True), size_bytes
            )
        return await _answer(requests.answers[body.number])

    async def _step_with(
        self, link: Link, opened: ClientSession, session: Session, body: SessionStep
    ) -> tuple[Ask, int]:
        """A function that asks the session for a step, and the bytes of inputs that it holds.  If the link ends before
        they have come, the client retries."""
        ahead = body.number > opened.requests.next_number
        try:
            inputs = await self._inputs(link, opened, body.inputs, opened.kinds, ahead)
        except MeshError as error:
            if not await _stands(link):
                raise
            return partial(_refuse, error), 0
        return partial(session.step, inputs), sum(array.nbytes for array in inputs.values())

    async def _inputs(
        self,
        link: Link,
        opened: ClientSession,
        values: tuple[NamedValue, ...],
        kinds: Mapping[str, TensorType],
        ahead: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """The inputs of a step from its client; LimitExceeded where its sessions hold too many here.  Those that wait
        for their turn leave room for the step that they wait for, which is not `ahead`."""
        size_bytes = sum(kind.size_bytes for kind in kinds.values())
        mine = [each for each in self._sessions.values() if each.owner == opened.owner]
        held_bytes = self._arriving[opened.owner] + sum(each.held_bytes for each in mine)
        held_bytes += sum(sum(each.requests.waiting_bytes.values()) for each in mine) if ahead else 0
        if held_bytes and held_bytes + size_bytes > self._inputs_bytes_max:
            for each in mine:
                if each.session is not None:
                    each.session.make_room()
            raise LimitExceeded(
                f"the sessions of this client have {size_text(held_bytes)} of arguments here, and this step "
                f"{size_text(size_bytes)} more; the limit is {size_text(self._inputs_bytes_max)}",
                next_step="Try again once the steps before are done and a copy of the state was made",
            )
        self._arriving[opened.owner] += size_bytes
        try:
            return await self._upload.values(link, values, kinds)
        finally:
            self._arriving[opened.owner] -= size_bytes
            if not self._arriving[opened.owner]:
                del self._arriving[opened.owner]

    async def _state(self, link: Link, body: SessionState) -> SessionTold:
        opened = self._session_of_request(link, body)
        if opened.session is None:
            return INTERRUPTED
        self._do(opened, opened.requests, body.number, self._ask_of_state(opened, opened.session), dict.items)
        return await _answer(opened.requests.answers[body.number])

    def _ask_of_state(self, opened: ClientSession, session: Session) -> Ask:
        """A function that asks the session for its state, or refuses that: a client that confirms no answer may ask for
        it without end, and all that it asked for would be kept."""
        mine = (each.requests.kept_bytes for each in self._sessions.values() if each.owner == opened.owner)
        if sum(sum(kept.values()) for kept in mine) <= self._answers_bytes_max:
            return session.state
        return partial(
            _refuse,
            LimitExceeded(
                f"this client has not confirmed answers of {size_text(self._answers_bytes_max)} of its sessions",
                next_step="Wait for the states that were asked for before",
            ),
        )

    async def _close(self, link: Link, body: CloseSession) -> Done:
        opened = self._mine(link, body.session)
        if body.keep and opened.terms.name:
            opened.client = ""
            self._client_left(opened)
        else:
            await self._end(opened)
        return Done()

    # -- turns: what a client asks of a session is done in the order of its numbers, once

    def _do(
        self, opened: ClientSession, requests: Requests, number: int, ask: Ask, named: Named, size_bytes: int = 0
    ) -> None:
        """Ask it of the session in its turn, unless that was done: the client may ask again after a link's end.  Until
        then it holds `size_bytes`."""
        if number not in requests.answers:
            if number < requests.next_number or number in requests.over:
                raise InputError(f"step {number} of this session was asked for before")
            work = self._in_turn(opened, requests, number, ask, named)
            requests.answers[number] = self._doing.run("a step of a session", work, unheard)
            requests.waiting_bytes[number] = size_bytes

    async def _in_turn(
        self, opened: ClientSession, requests: Requests, number: int, ask: Ask, named: Named
    ) -> SessionTold:
        session = opened.session
        assert session is not None
        try:
            if number > requests.next_number and not requests.ended:
                await requests.turns.setdefault(number, asyncio.get_running_loop().create_future())
            if opened.requests is not requests:
                raise _taken_error(opened)
            step, answer = session.next_number, ask()
            after = session.next_number
        finally:
            requests.done(number)
        values = await self._published(opened, requests, number, named(await answer))
        if number in requests.answers:
            requests.after[number] = after
            requests.kept_bytes[number] = ANSWER_BYTES + sum(len(value.data or b"") for value in values)
        return SessionTold(values, step, session.feeds_from)

    # -- values on their way out

    async def _published(
        self, opened: ClientSession, requests: Requests, number: int, arrays: Iterable[tuple[str, NDArray[Any]]]
    ) -> tuple[NamedValue, ...]:
        """Values for the client; large ones stay here to be fetched by address, until it says that it has them."""
        values, named, held = [], list(arrays), requests.blobs.setdefault(number, [])
        for (name, array), far in zip(named, sent_separately(array for _, array in named), strict=True):
            address = None
            if far:
                address = await off_loop(array.nbytes, hash_array, array)
                self._contents.hold(opened.owner, address, array)
                held.append(address)
            values.append(BlobExchange.named(name, array, far, address))
        if number not in requests.answers:  # the session ended meanwhile, or another client has it
            self._let_go(opened, requests.blobs.pop(number, ()))
        return tuple(values)

    def _session_of_request(self, link: Link, body: SessionStep | SessionState) -> ClientSession:
        """The session that a request is for; the answers that its client has received are freed."""
        opened = self._mine(link, body.session)
        self._have_heard(opened, body.heard)
        return opened

    def _heard(self, link: Link, body: SessionHeard) -> None:
        opened = self._with_token(member_id(link.peer.node_id), body.session)
        if opened is not None and (opened.token, opened.client) == (body.session, link.peer.node_id):
            self._have_heard(opened, body.heard)

    def _have_heard(self, opened: ClientSession, below: int) -> None:
        """The client has the answers below this number, or gave up to ask."""
        steps, requests = 0, opened.requests
        if below > requests.next_number:
            requests.give_up(below)
        news = range(requests.heard, min(below, requests.next_number))
        for number in news if len(news) <= len(requests.answers) else [*requests.answers]:
            if number in news:
                steps = max(steps, requests.after.pop(number, 0))
                self._forget(opened, requests, number)
        requests.heard = max(requests.heard, news.stop)
        if opened.session is not None and opened.away:
            opened.away = False
            opened.session.client_went(False)
        if steps and opened.session is not None:
            opened.session.heard(steps)

    def _forget(self, opened: ClientSession, requests: Requests, number: int) -> None:
        answer = requests.answers.pop(number, None)
        requests.kept_bytes.pop(number, None)
        if answer is not None and answer.done():
            self._let_go(opened, requests.blobs.pop(number, ()))

    def _let_go(self, opened: ClientSession, addresses: Iterable[bytes]) -> None:
        self._contents.release(opened.owner, addresses)

    # -- the journal, and sessions of the process before

    async def _save(self, opened: ClientSession, content: ProgramContent) -> None:
        form = {"form": Content(memoryview(opened.form))} if opened.terms.name else {}
        values = content.values(state=dict(opened.terms.carries)) | form
        fields = {**opened.terms.fields, "token": opened.token, "driver": opened.client_name}
        await self._store.save(_ENTRY[SESSION] + opened.id, SESSION, fields, values)

    async def _write(self, opened: ClientSession, record: SessionRecord) -> None:
        """Write down where the state of a session is, after its program."""
        if opened.saving is not None:
            await asyncio.shield(opened.saving)
        await self._store.save(_ENTRY[RECORD] + opened.id, RECORD, {"record": as_json(record)})

    async def _forget_entries(self, opened: ClientSession) -> None:
        if opened.saving is not None:
            await asyncio.wait([opened.saving])
        for kind in _ENTRY if opened.terms.name else (SESSION, RECORD):
            await self._forget_entry(kind, opened.id)

    async def _forget_entry(self, kind: str, id: str) -> None:
        try:
            await self._store.save(_ENTRY[kind] + id, FORGOTTEN, {})
        except StorageError as error:  # the next process waits for its client, and then forgets it
            log.warning("session %s stays in the journal: %s", id, error)

    async def _feed(self, link: Link, body: SessionFeed) -> Done:
        opened = self._mine(link, body.session)
        if opened.session is not None:
            return Done()
        content = await self._content(opened)
        inputs = await self._inputs(link, opened, body.inputs, content.graph.input_types)
        if opened.session is None:
            opened.feeds[body.step] = inputs
        return Done()

    async def _resume(self, link: Link, body: ResumeSession) -> SessionResumed:
        opened = self._mine(link, body.session)
        async with opened.resuming:
            record = opened.record
            if opened.session is not None or record is None:
                return SessionResumed(body.answered, body.answered)
            first = record.manifest.first_feed(body.answered, body.since)
            missing = next((step for step in range(first, body.answered) if step not in opened.feeds), body.answered)
            if missing < body.answered:
                return SessionResumed(missing, body.answered)
            feeds = {step: opened.feeds[step] for step in range(first, body.answered)}
            await self._open_again(opened, record, body.answered, feeds, body.since)
            opened.requests.next_number = opened.requests.heard = body.number
            log.info("session %s continues after step %d", opened.id, body.answered)
            return SessionResumed(body.answered, body.answered)

    async def _open_again(
        self, opened: ClientSession, record: SessionRecord, answered: int | None, feeds: StepFeeds, since: int = 0
    ) -> Session:
        """Go on with a session of the process before."""
        content = await self._content(opened)
        if self._sessions.get(opened.id) is not opened:  # it was closed meanwhile
            raise self._none_such(opened.token)
        program, addresses = opened.take(content), self._hold(opened, content)
        session = self._coordinator.sessions.open_again(
            program,
            opened.terms.stateful,
            opened.terms.policy,
            record,
            answered,
            feeds,
            partial(self._write, opened),
            since,
        )
        opened.feeds, opened.record = {}, None
        self._began(opened, session, addresses)
        return session

    async def _content(self, opened: ClientSession) -> ProgramContent:
        """The program of a session of the process before."""
        async with opened.loading:  # its client sends many feeds at once
            if not isinstance(opened.entry, ProgramContent):
                with reading_journal():
                    opened.entry = await load_program(opened.entry, self._store.load)
        return opened.entry

    # -- sessions that have a name, and who drives them

    async def _attach(self, link: Link, body: AttachSession) -> SessionAttached:
        opened = self._named(link, body.name)
        async with opened.resuming:
            if opened.token != body.session:
                other = self._linked(opened.client) and opened.client != link.peer.node_id
                if other and not body.take:
                    reason = f"session {body.name!r} is driven by {opened.client_name} ({opened.client})"
                    raise SessionTaken(reason, next_step=TAKE)
                await self._hand_over(opened, link.peer.node_id, link.peer.name, body.session)
            opened = self._mine(link, body.session)
            session = opened.session
            try:
                if session is None:
                    assert opened.record is not None
                    session = await self._open_again(opened, opened.record, None, {})
                steps = await session.claim()
            except MeshError as error:
                if opened.over:  # its name is free again
                    await self._end(opened)
                raise error.copy() from None
            form = opened.form if isinstance(opened.form, bytes) else bytes(await self._store.load(opened.form))
            opened.form = form
        opened.away = False
        if not self._linked(opened.client):
            self._client_left(opened)
        log.info("%s drives session %r from step %d on", opened.client_name, body.name, steps)
        return SessionAttached(steps, opened.graph, form, opened.fixed)

    async def _hand_over(self, opened: ClientSession, client: str, name: str, token: str) -> None:
        """Have the client with this token drive the session from now on, and nobody else.  It is done to the end, also
        where that client goes meanwhile: the journal may say so by then."""
        handing = self._doing.run("handing a session over", self._handed_over(opened, client, name, token), unheard)
        try:
            await asyncio.shield(handing)
        except asyncio.CancelledError:
            await asyncio.wait([handing])
            raise

    async def _handed_over(self, opened: ClientSession, client: str, name: str, token: str) -> None:
        former = (*opened.former, opened.token)[-FORMER_MAX:]
        fields = {"client": client, "name": name, "token": token, "former": former}
        await self._store.save(_ENTRY[DRIVER] + opened.id, DRIVER, fields)
        if self._sessions.get(opened.id) is not opened:  # it was ended meanwhile
            await self._forget_entry(DRIVER, opened.id)
            return
        for gone in set(opened.former).difference(former):
            del self._tokens[opened.owner, gone]
        opened.token, opened.former, opened.client, opened.client_name = token, former, client, name
        self._tokens[opened.owner, token] = opened.id
        requests, opened.requests = opened.requests, Requests()
        self._over(opened, requests, _taken_error(opened))
        if opened.client and not self._linked(opened.client):  # it went before it was the one who drives
            self._client_left(opened)

    async def _adopt(self, opened: ClientSession) -> None:
        """Go on with a session of the process before, whose client did not come back, so that its state stays safe."""
        async with opened.resuming:
            if opened.session is None and opened.record is not None:
                await self._hand_over(opened, "", "", secrets.token_hex(6))
                await self._open_again(opened, opened.record, None, {})
                opened.away = True
                log.info("session %r is kept until a program attaches to it", opened.terms.name)

    async def _reports(self, link: Link, body: AskSessions) -> Sessions:
        owner, everybodys = member_id(link.peer.node_id), may(link.peer.role, OPERATOR)
        named = [opened for opened in self._sessions.values() if opened.terms.name]
        mine = [opened for opened in named if everybodys or opened.owner == owner]
        return Sessions(tuple(self._report(opened) for opened in sorted(mine, key=lambda each: each.terms.name)))

    def _report(self, opened: ClientSession) -> SessionReport:
        record, session = opened.record, opened.session
        if session is not None:
            steps, nodes = session.committed, session.workers
        else:
            assert record is not None
            steps, nodes = record.manifest.least, frozenset(node for _, node in record.manifest.places)
        workers = self._coordinator.sessions.names(nodes)
        age_s = max(self._wall() - opened.terms.opened_s, 0.0)
        return SessionReport(
            opened.terms.name, steps, workers, opened.client_name, self._linked(opened.client), age_s,
            opened.terms.size_bytes, session is not None,
        )  # fmt: skip

    async def _end_named(self, link: Link, body: EndSession) -> Done:
        opened = self._named(link, body.name, may(link.peer.role, OPERATOR))
        self._acted(link, "end session", body.name)
        await self._end(opened)
        return Done()

    def _named(self, link: Link, name: str, everybodys: bool = False) -> ClientSession:
        """A session by its name; InputError for one that is not there, or is another member's, unless the only one of
        that name and `everybodys` are meant."""
        opened = self._with_name(member_id(link.peer.node_id), name)
        if opened is None and everybodys:
            found = [each for each in self._sessions.values() if name and each.terms.name == name]
            opened = found[0] if len(found) == 1 else None
        if opened is None:
            raise InputError(
                f"this coordinator has no session {name!r} of yours",
                next_step="See mesh-coord sessions for those there are",
            )
        return opened

    def _with_name(self, owner: str, name: str) -> ClientSession | None:
        named = (opened for opened in self._sessions.values() if (opened.owner, opened.terms.name) == (owner, name))
        return next(named, None)

    def _with_token(self, owner: str, token: str) -> ClientSession | None:
        return self._sessions.get(self._tokens.get((owner, token), ""))

    # -- clients that come and go, and the end

    def _known(self, link: Link, token: str, name: str) -> ClientSession | None:
        """The session that a client has opened before by this token; InputError if another of its member has the
        name."""
        owner = member_id(link.peer.node_id)
        if self._with_token(owner, token) is not None:
            return self._mine(link, token)
        if not name or self._with_name(owner, name) is None:
            return None
        raise InputError(
            f"there is a session {name!r} already",
            next_step=f'Continue it with m.attach("{name}"), or end it: mesh-coord sessions end {name}',
        )

    def _mine(self, link: Link, token: str) -> ClientSession:
        """The session that this client drives by this token; SessionTaken if it does not any more."""
        client = link.peer.node_id
        opened = self._with_token(member_id(client), token)
        if opened is None or not (opened.client == client or opened.terms.name):
            raise self._none_such(token)
        if (opened.token, opened.client) != (token, client):
            raise _taken_error(opened)
        return opened

    def _none_such(self, token: str) -> NodeLost:
        return NodeLost(
            f"this coordinator has no session {token!r} of this client, or not any more",
            next_step="Open a session with the state that you saved last; one without a name ends when its "
            f"client is away for more than {self._keep_s:g} s",
        )

    def _linked(self, client: str) -> bool:
        link = self._coordinator.endpoint.links.get(client)
        return link is not None and not link.closed

    def _client_gone(self, link: Link, error: MeshError | None) -> None:
        client = link.peer.node_id
        if self._linked(client):  # by a newer one
            return
        for opened in [opened for opened in self._sessions.values() if opened.client == client]:
            if opened.terms.name:
                self._client_left(opened)
            else:
                self._leave(opened, self._keep_s if error else 0.0)

    def _client_left(self, opened: ClientSession) -> None:
        """Nobody drives a session with a name any more, for now."""
        if opened.session is not None and not opened.over:
            opened.away = True
            with isolated("telling a session that its client went"):  # it ends in time all the same
                opened.session.client_went(True)
        self._leave(opened, self._keep_s if opened.session is None or opened.over else self._keep_named_s)

    def _leave(self, opened: ClientSession, keep_s: float) -> None:
        """Give a client so long to come back for its session."""
        if opened.leaving is not None:
            opened.leaving.cancel()
        opened.leaving = asyncio.get_running_loop().call_later(keep_s, self._end_if_gone, opened)

    def _end_if_gone(self, opened: ClientSession) -> None:
        """End a session whose client said goodbye or had no link for too long, unless the client is back.  One with a
        name that was not taken up yet goes on without it."""
        if self._sessions.get(opened.id) is not opened or self._linked(opened.client):
            return
        if opened.terms.name and opened.session is None:
            self._ending.run("keeping a session with a name", self._adopt(opened), unheard)
            self._leave(opened, self._keep_named_s)
        else:
            self._ending.run("ending a session", self._end(opened), unheard)

    async def _end(self, opened: ClientSession) -> None:
        """End a session: to the end also where the client that asks for it goes meanwhile, as the journal names it
        until then, and its name would be taken after the next start."""
        if self._sessions.pop(opened.id, None) is None:
            return
        for token in (opened.token, *opened.former):
            self._tokens.pop((opened.owner, token), None)
        if opened.leaving is not None:
            opened.leaving.cancel()
        await asyncio.shield(self._ending.run("ending a session", self._ended(opened), unheard))

    async def _ended(self, opened: ClientSession) -> None:
        if opened.session is not None:
            await opened.session.close()
        elif opened.record is not None:
            self._coordinator.sessions.give_up(opened.record)
        self._over(opened, opened.requests, Cancelled("the session was closed"))
        await self._forget_entries(opened)

    def _over(self, opened: ClientSession, requests: Requests, error: MeshError) -> None:
        """Nobody will ask or hear any more of what was asked by these numbers."""
        requests.end(error)
        for number in list(requests.answers):
            self._forget(opened, requests, number)


def _taken_error(opened: ClientSession) -> SessionTaken:
    name = opened.terms.name
    if not opened.client:
        reason = f"session {name!r} went on without this program, which was away"
    else:
        reason = f"session {name!r} is driven by {opened.client_name} ({opened.client}) now, not by this program"
    return SessionTaken(reason, next_step=f'Call attach("{name}") to go on with it from here')


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
