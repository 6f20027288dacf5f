"""Remote: the backend with a coordinator that runs elsewhere (`mesh-coord serve`), this process being its client.

Graphs and values go to the coordinator, which runs them as jobs on its workers; results come back.  Small tensors ride
in the messages, large ones are fetched by address from whoever has them, so an unchanged weight is sent once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wire.addresses import parse_address, shown
from wire.errors import (
    BlobMissing,
    ConfigError,
    ConnectFailed,
    MeshError,
    NoCoordinator,
    NodeLost,
    NotTrusted,
    ProtocolError,
    RemoteError,
    WrongMesh,
)
from wire.ir.codec import hash_array, tensor_bytes
from wire.ir.graph import WireGraph
from wire.joining.credentials import Credentials
from wire.link.endpoint import Endpoint as AnyEndpoint
from wire.link.guard import Guard
from wire.link.identity import identity_here, process_id
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler, Link
from wire.link.membership import Membership
from wire.link.websocket_carrier import STARTED, Endpoint
from wire.policy.strategies import text_of
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import (
    AskAuthority,
    AskJobs,
    AskNodes,
    AskSessions,
    AskTokens,
    AttachSession,
    AuthorityReport,
    AwaitJob,
    BlobStream,
    CancelJob,
    Coordinators,
    CreateToken,
    Done,
    EndSession,
    Explained,
    ExplainGraph,
    FetchBlob,
    JobAccepted,
    JobReport,
    JobResult,
    Jobs,
    Message,
    NamedValue,
    Nodes,
    PairReport,
    PauseNode,
    PlanGraph,
    Planned,
    Revocations,
    Revoked,
    RevokeNode,
    RevokeToken,
    RotateAuthority,
    SessionAttached,
    SessionReport,
    Sessions,
    SubmitJob,
    TokenCreated,
    Tokens,
)
from wire.protocol.peer import Identity
from wire.protocol.permissions import Receiver, Relation
from wire.system.open_file_limit import allow_open_files
from wire.system.shared_memory import SharedDir
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts
from wire.transfer.content_exchange import BlobExchange, graph_from, off_loop, sent_separately

from ..core.backend import Attached, Others, Running, Started, Stateful, Work
from ..core.handle import Handle
from ..core.node import Node, node_from
from .config import default_name
from .enrolment import client_membership
from .paged_reports import all_pages
from .remote_session import Open, Opening, RemoteSession

log = steady_logger("graph_mesh.client")
RENEW_S = 1.0  # at the end, where the mesh has a new authority
UNREAD_MAX = 5  # answers that nobody could read
UNREAD_ADVICE = "See whether mesh-coord --version says the same on both machines"
RETURN_WAITS_S = (0.05, 0.1, 0.2, 0.5)
BROKEN_MAX, BROKEN_S = 12, 5.0  # links that end one after the other, each so soon after the same question
MISSING_WAITS_S = (0.05, 0.1, 0.2, 0.5, *(2.0,) * 30)  # before a result is asked for again whose content is not there
M = TypeVar("M", bound=Message)


def _endpoint_here(identity: Identity, handler: Handler, credentials: Credentials, timeouts: Timeouts) -> AnyEndpoint:
    return Endpoint(identity, handler, credentials=credentials, timeouts=timeouts)


class _Breaks:
    """Links that ended as the same was done, one after the other, each soon after it began."""

    def __init__(self, when: str) -> None:
        self._when, self._count, self._asked_s = when, 0, 0.0

    def asked(self) -> None:
        self._asked_s = asyncio.get_running_loop().time()

    async def pause(self, error: MeshError) -> None:
        """Wait before it is done again, the longer the more often; NodeLost if it was too often."""
        soon = asyncio.get_running_loop().time() - self._asked_s < BROKEN_S
        self._count = self._count + 1 if soon else 1
        if self._count == BROKEN_MAX:
            raise NodeLost(
                f"the link to the coordinator ended {self._count} times, each time {self._when}",
                cause=str(error),
                next_step="Look at the coordinator's log",
            ) from None
        await asyncio.sleep((0.0, *RETURN_WAITS_S)[min(self._count - 1, len(RETURN_WAITS_S))])


class Remote:
    """Backend over a link to a coordinator, and the job verbs of `mesh-coord`.  Made by `Remote.connect`."""

    elastic = False
    simulates = False

    def __init__(
        self,
        identity: Identity,
        shared: SharedDir | None,
        membership: Membership,
        endpoint: Callable[[Identity, Handler, Credentials, Timeouts], AnyEndpoint] = _endpoint_here,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._offered: dict[str, dict[bytes, NDArray[Any]]] = {}  # what jobs need, until they were accepted with it
        self._exchange = BlobExchange(shared, partial(_find, self._offered))
        guard = Guard(self, Receiver.CLIENT, {Relation.ASKED: self._exchange.asked})
        self._endpoint = endpoint(identity, guard, membership.credentials, timeouts)
        self._watch = LinkWatch(self._endpoint)
        self._membership = membership
        self._shared = shared
        self._lasting = Tasks()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sessions: set[RemoteSession] = set()
        self._link: Link | None = None
        self._address: tuple[str, int] = ("", 0)
        self._others: tuple[str, ...] = ()  # where coordinators that may take over will listen
        self._dialling = asyncio.Lock()
        self._gone: NodeLost | None = None  # why dialling again was given up, the last time that it was
        self.asks_reproducible = False  # plans, whatever the coordinator makes for others
        self._farewell = False  # the coordinator said goodbye, or we did: the link does not come back

    @staticmethod
    async def connect(
        mesh: str,
        host: str,
        port: int,
        membership: Membership | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Remote:
        """The coordinator at an address, as a member of its mesh (by default this user of this machine).

        NotTrusted for somebody else's, NoCoordinator if a worker answers there.
        """
        allow_open_files()
        if membership is None:
            where = f"{shown(host)}:{port}"
            membership = await asyncio.to_thread(client_membership, mesh, where=where, timeouts=timeouts)
        where = f"{shown(host)}:{port}"
        expired = await membership.refresh(where)
        shared = await SharedDir.created()
        node_id = process_id(membership.credentials.node_id)
        identity = identity_here(membership.credentials.member.role, mesh, default_name(), shared, node_id)
        remote = Remote(identity, shared, membership, timeouts=timeouts)
        remote._address = (host, port)
        try:
            link = await remote._endpoint.dial(host, port)
            if link.peer.role != "coordinator":
                raise NoCoordinator(
                    f"{host}:{port} is a {link.peer.role}, not a coordinator",
                    next_step="Give the address that mesh-coord serve printed (--coordinator or MESH_ADDRESS)",
                )
        except BaseException as error:
            await remote.close()
            if isinstance(error, ConnectFailed) and error.next_step == STARTED:
                error.next_step = "Is mesh-coord serve running there?"
            if isinstance(error, NotTrusted | ConnectFailed):
                raise expired or await membership.why(where) or error from None
            raise
        remote._link = link
        here = link.peer.addresses or (link.address,)  # with those of a standby, of which it is told in a moment only
        membership.met((*here, where, *membership.coordinator))
        await membership.remembered()  # a command may end at once
        remote._lasting.keep("keeping the certificate", membership.keep)
        remote._lasting.keep("the watch over the link", remote._watch.run)
        return remote

    @staticmethod
    async def find(mesh: str, host: str, port: int, membership: Membership, timeouts: Timeouts) -> Remote:
        """The coordinator at an address.  Where this client knew one there and nobody answers now, the one that took
        over from it: the client remembers the addresses of both."""
        try:
            return await Remote.connect(mesh, host, port, membership, timeouts)
        except ConnectFailed:
            known, named = membership.coordinator, f"{shown(host)}:{port}"
            for other in known if named in known else ():
                with contextlib.suppress(ConnectFailed, NotTrusted, ConfigError, WrongMesh):
                    if other != named:
                        return await Remote.connect(mesh, *parse_address(other), membership, timeouts)
            raise

    # -- Backend

    @property
    def reproducible(self) -> bool:
        return self.asks_reproducible or (self._link is not None and self._link.peer.reproducible)

    async def nodes(self) -> tuple[Node, ...]:
        return tuple(node_from(report) for report in (await self.census(pairs=False)).nodes)

    def describe(self) -> str:
        host, port = self._address
        return f"the workers of the coordinator at {shown(host)}:{port}"

    async def node_timeout_s(self) -> float:
        """The seconds of silence after which the coordinator counts a worker as dead."""
        return (await self._ask(AskNodes(), Nodes)).node_timeout_s

    async def pairs(self) -> tuple[PairReport, ...]:
        """The links between nodes and their speed, as the coordinator had them probed."""
        return (await self.census()).pairs

    async def census(self, pairs: bool = True) -> Nodes:
        """All reports on workers, on pairs of nodes and on the coordinator's own machine, in as many answers as
        needed."""
        return await all_pages(lambda after: self._ask(AskNodes(pairs, after), Nodes))

    @property
    def coordinator(self) -> Identity:
        """The identity of the coordinator that answered."""
        assert self._link is not None
        return self._link.peer

    @property
    def address(self) -> str:
        """The address at which it was dialled, "host:port"."""
        host, port = self._address
        return f"{shown(host)}:{port}"

    def live(self) -> bool:
        return self._link is not None and not self._link.closed

    def comes_back(self) -> bool:
        return not self._farewell

    async def plan(
        self, graph: WireGraph, strategy: str, copies: str = "checkpoint", dies: str = ""
    ) -> Mapping[str, Any]:
        question = PlanGraph(graph.encoded, self._text_of(strategy), copies, dies)
        return parse_json((await self._ask(question, Planned)).plan)

    async def explain(
        self, graph: WireGraph, worker: str, device: int | None, texts: bool, kernel: int | None
    ) -> Explained:
        name = secrets.token_hex(6)
        self._offered[name] = dict(graph.blobs)
        try:
            return await self._ask(ExplainGraph(graph.encoded, worker, device, texts, kernel), Explained)
        finally:
            del self._offered[name]

    def hold(self, handle: Handle) -> None:
        return  # its tensor goes along with every job that names it

    def forget(self, work: Work) -> None:
        return  # others may ask the daemon for the same

    def start(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> Started:
        report: dict[str, Any] = {}
        loop = asyncio.get_running_loop()
        submitting = loop.create_task(
            self.submit(work.graph, inputs, work.bindings, work.strategy, copies=work.copies, force=work.force)
        )
        task = loop.create_task(self._run(work, submitting, report))
        task.add_done_callback(lambda ended: self._stop(submitting) if ended.cancelled() else None)
        return Started(task, lambda: report, task.cancel)

    def session(self, work: Work, state: Stateful, others: Others | None = None) -> Running:
        assert others is None, "only where the coordinator is in this process"
        return self._running((replace(work, strategy=self._text_of(work.strategy)), state))

    async def attach(self, name: str, take: bool) -> Attached:
        token = secrets.token_hex(6)  # chosen here, so that asking again after a lost answer is safe
        answer = await self._ask(AttachSession(name, token, take), SessionAttached)
        params = {value.name: value for value in answer.params}

        async def fixed(names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
            wanted = [params[each] for each in names if each in params]
            arrays = await self._exchange.fetch_all(await self._open(), wanted)
            return {value.name: array for value, array in zip(wanted, arrays, strict=True)}

        running = self._running(None, answer.steps, token)
        return Attached(running, answer.steps, answer.form, await graph_from(answer.graph), fixed)

    def _running(self, opening: Opening | None, steps: int = 0, token: str = "") -> RemoteSession:
        session = RemoteSession(
            self._open, self._open_to_end, self._ask, self._exchange, self._offered, _named, self._tell,
            self._sessions.discard, opening, steps, token,
        )  # fmt: skip
        self._sessions.add(session)
        return session

    async def named_sessions(self) -> tuple[SessionReport, ...]:
        """The named sessions of this client's member."""
        return (await self._ask(AskSessions(), Sessions)).sessions

    async def end_session(self, name: str) -> None:
        """End a named session of this client's member; InputError if there is none."""
        await self._ask(EndSession(name), Done)

    def at_once(self, work: Work, inputs: Mapping[str, NDArray[Any]]) -> None:
        return None  # the coordinator is another process

    def attend(self, started: Started) -> None:
        return

    def watch(self, watcher: Callable[[Mapping[str, Any]], None]) -> None:
        raise ConfigError("events are in the process that holds the workers", next_step="Use mesh-coord logs JOB")

    async def close(self) -> None:
        """End the link, and all that goes on in the background."""
        self._farewell = True
        self._lasting.cancel()
        for task in self._tasks:
            task.cancel()
        async with contextlib.AsyncExitStack() as closing:  # from the last one on, whatever one of them raises
            if self._shared is not None:
                closing.callback(self._shared.close)
            closing.push_async_callback(self._endpoint.close)
            closing.callback(self._membership.close)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._membership.trusted()  # a short command may have heard of a new authority just now
                    await self._membership.refresh()

    def _text_of(self, strategy: str) -> str:
        return text_of(strategy, self.reproducible)

    # -- jobs

    async def submit(
        self, graph: WireGraph, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, NDArray[Any] | Handle],
        strategy: str = "auto", detach: bool = False, job: str = "", copies: str = "checkpoint",
        force: bool = False,
    ) -> str:  # fmt: skip
        """Submit a job and return its id, which may be chosen.  A job submitted twice under one id counts once.

        A job that is not detached ends with this client.
        """
        offered, strategy = dict(graph.blobs), self._text_of(strategy)
        values = await _named({**inputs, **params}, offered)
        name = job or secrets.token_hex(6)  # chosen here, so that asking again after a lost answer is safe
        tensors = values[: len(inputs)], values[len(inputs) :]
        message = SubmitJob(graph.encoded, *tensors, strategy, detach, graph.name, name, copies, force)
        self._offered[name] = offered
        try:
            return (await self._ask(message, JobAccepted)).job
        finally:
            del self._offered[name]

    async def jobs(self, job: str = "") -> tuple[JobReport, ...]:
        """One job with its log, or all without; InputError for an unknown id."""
        return (await self._ask(AskJobs(job), Jobs)).jobs

    async def result(self, job: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Wait for a job: its outputs by name and its report; the job's own error if it failed."""
        waits, breaks = iter(MISSING_WAITS_S), _Breaks(f"as the outputs of job {job} were fetched")
        while True:
            answer = await self._ask(AwaitJob(job), JobResult)
            link = await self._open()
            breaks.asked()
            try:
                arrays = await self._exchange.fetch_all(link, answer.outputs)
            except BlobMissing:  # it may hold only the most recent results
                wait_s = next(waits, None)
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
                continue
            except RemoteError as error:
                if not link.closed:
                    raise
                await breaks.pause(error)
                continue
            names = [value.name for value in answer.outputs]
            return dict(zip(names, arrays, strict=True)), parse_json(answer.report or "{}")

    async def cancel(self, job: str) -> None:
        await self._ask(CancelJob(job), Done)

    async def pause(self, node: str, on: bool) -> None:
        """Pause a worker, by its name or id, or end its pause; InputError for one there is not, Busy if only its own
        machine may end it."""
        await self._ask(PauseNode(node, on), Done)

    async def revoke_node(self, who: str) -> Revoked:
        """Throw a node out, for an operator; InputError if there is none of that name or id."""
        return await self._ask(RevokeNode(who), Revoked)

    async def create_token(self, role: str, uses: int, ttl_s: float, untrusted: bool) -> TokenCreated:
        """Make a join token, for an admin."""
        return await self._ask(CreateToken(role, uses, ttl_s, untrusted), TokenCreated)

    async def tokens(self) -> Tokens:
        """All tokens, for an admin."""
        return await self._ask(AskTokens(), Tokens)

    async def revoke_token(self, key_id: str) -> None:
        """Have a token let nobody in any more, for an admin; InputError if there is none of that id."""
        await self._ask(RevokeToken(key_id), Done)

    async def authority(self) -> AuthorityReport:
        """The mesh's authority, for an admin."""
        return await self._ask(AskAuthority(), AuthorityReport)

    async def rotate_authority(self, overlap_s: float) -> AuthorityReport:
        """Give the mesh a new authority, for an admin."""
        return await self._ask(RotateAuthority(overlap_s), AuthorityReport)

    @property
    def bytes_sent(self) -> int:
        """Bytes this process has sent to the coordinator, by any way."""
        return 0 if self._link is None else sum(self._link.bytes_sent.values())

    # -- wire.link.websocket_carrier.Handler

    async def on_request(self, link: Link, body: Message) -> Message:
        assert isinstance(body, FetchBlob)  # the table of permissions names no other
        return await self._exchange.serve(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        if isinstance(body, Coordinators):
            self._others = body.addresses
            times = self._endpoint.timeouts  # where another may serve by now, to dial anew costs little
            usual_s, soon_s = times.keepalive_program_answer_s, times.keepalive_doubtful_answer_s
            self._watch.program_answer_s = soon_s if self._others else usual_s
            self._membership.met((*(link.peer.addresses or (link.address,)), *body.addresses, self.address))
            return
        assert isinstance(body, Revocations)
        self._membership.trust(self._endpoint, body.data, body.authority, (body.former, body.former_data))

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        assert isinstance(header, BlobStream)
        return self._exchange.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        if isinstance(header, BlobStream):
            self._exchange.stream_done(link, header, buffer, error)

    def on_linked(self, link: Link) -> None:
        return

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self._farewell = self._farewell or error is None
        if self._sessions and not self._farewell:  # the coordinator keeps them for a while
            self._background(self._open())

    # -- helpers

    async def _run(self, work: Work, submitting: asyncio.Task[str], into: dict[str, Any]) -> Sequence[NDArray[Any]]:
        outputs, report = await self.result(await asyncio.shield(submitting))
        into.update(report)
        return [outputs[name] for name in work.graph.output_names]

    def _stop(self, submitting: asyncio.Task[str]) -> None:
        """Cancel a job whose caller gave it up, once its submission is answered."""

        async def stop() -> None:
            with contextlib.suppress(MeshError):  # refused, over, or nobody is there any more
                await self.cancel(await submitting)

        if not self._farewell:
            self._background(stop())

    def _background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def over(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.debug("%s", error)

        task.add_done_callback(over)

    async def _open(self) -> Link:
        """The link to the coordinator.  A broken one is dialled again for a while: a restarted coordinator has its
        jobs.  Whoever asks meanwhile waits for the same end of that, and not for a while of its own after it."""
        before = self._gone
        async with self._dialling:
            if self._link is not None and not self._link.closed:
                return self._link
            self._check_farewell()
            if self._gone is not None and self._gone is not before:
                raise self._gone.copy()
            await self._membership.refresh()  # the machine may have slept for days
            loop, return_s = asyncio.get_running_loop(), self._endpoint.timeouts.coordinator_return_s
            deadline_s = loop.time() + return_s
            for wait_s in itertools.chain(RETURN_WAITS_S, itertools.repeat(RETURN_WAITS_S[-1])):
                try:
                    self._link, self._gone = await self._dial(), None
                    return self._link
                except MeshError as error:
                    if not error.retry or loop.time() + wait_s > deadline_s:
                        self._gone = NodeLost(
                            f"the coordinator is gone, and did not come back within {return_s:g} s",
                            cause=str(error),
                            next_step="Start mesh-coord serve there again; it goes on with its jobs",
                        )
                        raise self._gone.copy() from None
                await asyncio.sleep(wait_s)
                self._check_farewell()
        raise AssertionError("the waits never end")

    async def _open_to_end(self) -> Link:
        """The link, for what is to be ended.  A coordinator that was dialled in vain is not waited for once more with
        each of them: what its clients do not ask for any more, it ends itself."""
        if self._gone is not None and not self.live():
            raise self._gone.copy()
        return await self._open()

    def _check_farewell(self) -> None:
        if self._farewell:
            raise NodeLost("the link to the coordinator is closed", next_step="Connect again; detached jobs go on")

    async def _dial(self) -> Link:
        """Dial the coordinator, or the one that took over from it."""
        if not self._others:
            return await self._endpoint.dial(*self._address)
        link = await self._endpoint.reach([self.address, *self._others])
        if link.address:
            self._address = parse_address(link.address)
        return link

    def _tell(self, message: Message) -> None:
        if self._link is not None and not self._link.closed:
            self._link.notify(message)

    async def _ask(self, message: Message, kind: type[M], open_link: Open | None = None) -> M:
        """Ask the coordinator; ask again if the link breaks before the answer, which is safe for every question here.
        A question that ends each link, or whose answer cannot be read, is asked a few times."""
        unread, breaks = 0, _Breaks("as it was asked the same")
        while True:
            link = await (open_link or self._open)()
            breaks.asked()
            try:
                answer = await link.request(message)
            except MeshError as error:
                unread += isinstance(error, ProtocolError)
                if unread >= UNREAD_MAX:
                    error.next_step = error.next_step or UNREAD_ADVICE
                    raise
                if link.closed and isinstance(error, RemoteError):
                    await breaks.pause(error)
                    continue
                error.node = "" if error.node == link.peer.name else error.node  # only workers are worth naming
                raise
            if not isinstance(answer, kind):
                raise ProtocolError(f"expected {kind.__name__}, got {type(answer).__name__}")
            return answer


def _find(offers: Mapping[str, Mapping[bytes, NDArray[Any]]], address: bytes) -> memoryview | None:
    array = next((offered[address] for offered in offers.values() if address in offered), None)
    return None if array is None else tensor_bytes(array)


async def _named(
    tensors: Mapping[str, NDArray[Any] | Handle], offered: dict[bytes, NDArray[Any]]
) -> tuple[NamedValue, ...]:
    """Values for a message, in order; those too large for it are offered for fetching."""
    arrays, values = [np.asarray(value) for value in tensors.values()], []
    for (name, value), array, far in zip(tensors.items(), arrays, sent_separately(arrays), strict=True):
        address = value.address if isinstance(value, Handle) else None
        if far and address is None:
            address = await off_loop(array.nbytes, hash_array, array)
        named = BlobExchange.named(name, array, far, address)
        if named.blob is not None:
            offered[named.blob] = array
        values.append(named)
    return tuple(values)


def parse_json(text: str) -> dict[str, Any]:
    """Parse a plan or report of a coordinator, which is JSON; ProtocolError if it is not."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the coordinator sent something that is not JSON", cause=str(error)[:200]) from None
    if not isinstance(data, dict):
        raise ProtocolError(f"the coordinator sent a {type(data).__name__} and no plan or report")
    return data
