"""The join port and calls to it: sockets and TLS around `join_protocol.py`, which decides (docs/protocol.md,
"Joining").

Neither side speaks HTTP here.  This file does not know tokens' tables or files; who is let in, an Admission says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from ..addresses import shown
from ..errors import ConfigError, ConnectFailed, MeshError, NotTrusted, ProtocolError
from ..roles import ASKING, WORKER
from ..security.certificates import JOIN_NAME, NodeKey, is_authority_of
from ..security.connection_limiter import ConnectionLimiter, origin_of
from ..security.tls import (
    TLSContext,
    drop,
    explain,
    explain_caller,
    join_client_context,
    peer_certificate,
    unverified_context,
)
from ..security.tls_listener import Caller, Listener
from ..system.file_lock import behind_lock
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks, unheard
from ..timeouts import DEFAULT_TIMEOUTS, Timeouts
from .credentials import Credentials
from .join_protocol import (
    Admitted,
    Authority,
    Grant,
    JoiningCoordinator,
    JoiningNode,
    JoinRequested,
    Listening,
    NodeAction,
    Refusal,
    RenewingNode,
    Send,
    Verify,
)
from .join_tokens import NONCE_BYTES, Token

log = steady_logger("graph_mesh.join")

T = TypeVar("T")

PORT_OFFSET = 1000  # of the join port from the coordinator's port
HIGHEST_PORT = (1 << 16) - 1
READ_BYTES = 4096
AGAIN_S = 0.05  # between calls at a port that hangs up
NOT_ASKED = "it heard who we are and did not ask: its token is of another mesh, or it has none"
TELL_S = 2.0  # until a line in the log says why a caller waits
TOO_MANY_CALLERS = "It may have too many callers; try again later, and look at the coordinator's log"
JOIN_AGAIN = {WORKER: "mesh-worker join here"} | dict.fromkeys(ASKING, "mesh-coord join here")


def join_port_of(port: int) -> int:
    """The join port of a coordinator whose port this is; ConfigError if it would be beyond the last one."""
    if port > HIGHEST_PORT - PORT_OFFSET:
        raise ConfigError(
            f"a coordinator cannot listen on port {port}: nodes join {PORT_OFFSET} above, where there is no port",
            next_step=f"Its port is at most {HIGHEST_PORT - PORT_OFFSET}",
        )
    return port + PORT_OFFSET


class Admission(Protocol):
    """The authority decides who is let in.  Its methods write files and so are called in a thread."""

    def admit(self, request: JoinRequested, host: str) -> Grant | Refusal:
        """Answer a node with a token."""

    def renew(self, certificate: bytes, host: str) -> Grant | Refusal:
        """Answer a member; TLS has verified that it has this certificate of ours, which may have run out."""

    def turned_away(self, host: str, why: str) -> None:
        """Someone called who did not get as far as a question.  A flood of them must fill no log."""


# -- the coordinator's side --------------------------------------------------------------------------------


async def serve_joining(
    hosts: Sequence[str],
    port: int,
    credentials: Credentials,
    admission: Admission,
    gate: ConnectionLimiter | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> tuple[JoinPort, int]:
    """Open the join port of the coordinator with these credentials; what to close, and the port it got."""
    opened = JoinPort(credentials, admission, gate or ConnectionLimiter(), timeouts)
    return opened, opened.listener.listen(hosts, port)


class JoinPort:
    """A port at which nodes become members and renew their certificates; see `serve_joining`."""

    def __init__(
        self, credentials: Credentials, admission: Admission, gate: ConnectionLimiter, timeouts: Timeouts
    ) -> None:
        self._credentials = credentials
        self._admission = admission
        self._gate = gate
        self._timeouts = timeouts
        # Calls that heard who we are and to which no question has come yet, by origin, the oldest first.
        self._greeted: dict[str, deque[asyncio.Task[None]]] = {}
        self._tasks = Tasks()
        self.listener = Listener(self._serve, self._turned_away, gate, timeouts.first_word_s)

    async def close(self) -> None:
        """Stop listening, and end what callers there are."""
        await self.listener.close()
        tasks = list(itertools.chain.from_iterable(self._greeted.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: socket.socket, caller: Caller) -> None:
        """One call, from its handshake to its end."""
        call_s = self._timeouts.join_call_s
        try:
            shown, context = self._credentials.admitted, self._credentials.join_server_context()
            accepted = _accepted(connection, context, self._timeouts)
            async with asyncio.timeout(call_s), accepted as (reader, writer):
                caller.answered()
                await self._answer(shown, reader, writer, caller)
        except TimeoutError:
            await self._turned_away(caller.host, f"a call took more than {call_s:g} s")
        except OSError as error:  # TLS's errors, too
            await self._turned_away(caller.host, explain_caller(error, self._timeouts.tls_handshake_s))
        except ProtocolError as error:
            await self._turned_away(caller.host, error.message)

    async def _answer(
        self, shown: Admitted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller
    ) -> None:
        call = JoiningCoordinator(shown.authority, shown.grant.certificate, shown.former)
        _write(writer, call.connected())
        question = None
        while question is None:
            data = await reader.read(READ_BYTES)
            if not data:
                self._heard_who_we_are(caller.host)
                return
            question = call.received(data)
        caller.asked()
        host = caller.host
        if greeted := self._greeted.get(origin_of(host)):
            greeted.popleft().cancel()
        await asyncio.sleep(self._gate.delay_s(host, asyncio.get_running_loop().time()))
        if isinstance(question, JoinRequested):
            decision = await behind_lock(self._admission.admit, question, host)
        else:
            certificate = peer_certificate(writer)
            if not certificate:
                raise ProtocolError("a caller without a certificate asks to renew it")
            decision = await behind_lock(self._admission.renew, certificate, host)
        _write(writer, call.answer(decision))
        await writer.drain()

    def _heard_who_we_are(self, host: str) -> None:
        """The first of a node's two calls ends so; and so does the only one of a node whose token is another mesh's."""
        waiting = self._tasks.run("waiting for a question", self._gives_up(host), unheard)
        origin = origin_of(host)
        self._greeted.setdefault(origin, deque()).append(waiting)
        waiting.add_done_callback(partial(self._over, origin))

    async def _gives_up(self, host: str) -> None:
        await asyncio.sleep(self._timeouts.join_second_call_s)
        await self._turned_away(host, NOT_ASKED)

    def _over(self, origin: str, waiting: asyncio.Task[None]) -> None:
        calls = self._greeted.get(origin, deque())
        if waiting in calls:
            calls.remove(waiting)
        if not calls:
            self._greeted.pop(origin, None)

    async def _turned_away(self, host: str, why: str) -> None:
        await behind_lock(self._admission.turned_away, host, why)


@contextlib.asynccontextmanager
async def _accepted(
    connection: socket.socket, context: TLSContext, timeouts: Timeouts
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=context,
        ssl_handshake_timeout=timeouts.tls_handshake_s,
        ssl_shutdown_timeout=timeouts.join_close_s,
    )
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        await _close(writer, timeouts.join_close_s)


# -- the node's side ---------------------------------------------------------------------------------------


async def join(
    host: str,
    port: int,
    token: Token,
    key: NodeKey,
    role: str,
    name: str,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> Admitted:
    """Ask the coordinator at this join port to be let in.

    A coordinator that has many callers hangs up on some, so it is called again then, for a while.  Raises JoinRefused
    with the reason, NotTrusted for anyone but the token's coordinator (who gets no proof of it), ConnectFailed,
    VersionMismatch or ProtocolError.
    """
    where = f"{shown(host)}:{port}"
    node = JoiningNode(where, token, role, name, key.request(), secrets.token_bytes(NONCE_BYTES))

    async def ask_who() -> NodeAction | Authority:
        async with _call(where, host, port, unverified_context(), timeouts) as (reader, _):
            return await _until_end(node, reader)

    verify = await _insist(where, ask_who, timeouts)
    assert isinstance(verify, Verify)
    context = join_client_context(verify.authority)

    async def ask_in() -> NodeAction | Authority:
        node.again(secrets.token_bytes(NONCE_BYTES))
        async with _call(where, host, port, context, timeouts) as (reader, writer):
            _write(writer, node.connected(peer_certificate(writer)))
            return await _until_end(node, reader)

    joined = await _insist(where, ask_in, timeouts)
    assert isinstance(joined, Admitted)
    return joined


async def renew(host: str, port: int, member: Credentials, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Admitted:
    """Ask the coordinator at this join port for a new certificate, as a member whose own may have run out.

    Raises as `join` does; NotTrusted if the member was revoked, or was away while its mesh got a new authority.
    """
    where = f"{shown(host)}:{port}"
    node = RenewingNode(where, member.admitted.authority)

    async def ask() -> NodeAction | Authority:
        async with _call(where, host, port, member.client_context(), timeouts) as (reader, writer):
            _write(writer, node.connected())
            return await _until_end(node, reader)

    try:
        joined = await _insist(where, ask, timeouts)
    except NotTrusted as error:
        raise await _left_behind(where, host, port, member, timeouts) or error from None
    assert isinstance(joined, Admitted)
    return joined


async def _left_behind(where: str, host: str, port: int, member: Credentials, timeouts: Timeouts) -> NotTrusted | None:
    """The error for a join port that names another authority of the same mesh than the member knows."""
    node = Listening(where)
    try:
        call = _call(where, host, port, unverified_context(), timeouts)
        async with asyncio.timeout(timeouts.join_call_s), call as (reader, _):
            named = await _until_end(node, reader)
    except (MeshError, TimeoutError, _HungUp):
        return None
    assert isinstance(named, Authority)
    known = member.admitted.authority
    if named.certificate == known or not is_authority_of(named.certificate, member.mesh):
        return None
    return NotTrusted(
        f"{where} says that mesh {member.mesh!r} has a new authority, which this node did not learn of in time",
        next_step=f"Join again with a new token: mesh-coord token create there, then {JOIN_AGAIN[member.member.role]}",
    )


class _HungUp(Exception):
    """The other side ended a call early, and may be in better spirits soon; `failure` is the error if not."""

    def __init__(self, failure: MeshError) -> None:
        super().__init__(str(failure))
        self.failure = failure


async def _insist(where: str, call: Callable[[], Awaitable[T]], timeouts: Timeouts) -> T:
    """What a call ends with, made again for `join_insist_s` where the other side hangs up on it."""
    loop, call_s, insist_s = asyncio.get_running_loop(), timeouts.join_call_s, timeouts.join_insist_s
    began_s, until_s, logged = loop.time(), loop.time() + insist_s, False
    while True:
        try:
            async with asyncio.timeout(call_s):
                return await call()
        except TimeoutError:
            raise ConnectFailed(f"{where} did not answer within {call_s:g} s") from None
        except _HungUp as error:
            if loop.time() > until_s:
                error.failure.next_step = error.failure.next_step or TOO_MANY_CALLERS
                raise error.failure from None
            if not logged and loop.time() - began_s > TELL_S:
                logged = True
                log.warning("%s hangs up, as with many callers; asking again for %.0f s", where, insist_s - TELL_S)
        await asyncio.sleep(random.SystemRandom().uniform(0.5, 1.5) * AGAIN_S)


@contextlib.asynccontextmanager
async def _call(
    where: str, host: str, port: int, context: TLSContext, timeouts: Timeouts
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        reader, writer = await asyncio.open_connection(
            host,
            port,
            ssl=context,
            server_hostname=JOIN_NAME,
            ssl_handshake_timeout=timeouts.tls_handshake_s,
            ssl_shutdown_timeout=timeouts.join_close_s,
        )
        try:
            yield reader, writer
        finally:
            await _close(writer, timeouts.join_close_s)
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
        raise _HungUp(explain(error, where)) from None
    except OSError as error:
        raise explain(error, where) from None
    except UnicodeError as error:
        raise ConfigError(f"{host!r} is not the name of any address", cause=str(error)) from None


async def _until_end(
    node: JoiningNode | RenewingNode | Listening, reader: asyncio.StreamReader
) -> NodeAction | Authority:
    while True:
        try:
            data = await reader.read(READ_BYTES)
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
            data = b""
        if not data:
            ended = node.ended()
            raise ended if isinstance(ended, NotTrusted) else _HungUp(ended)
        for action in node.received(data):
            return action


def _write(writer: asyncio.StreamWriter, sends: Sequence[NodeAction | Send]) -> None:
    for send in sends:
        assert isinstance(send, Send)
        writer.write(send.data)


async def _close(writer: asyncio.StreamWriter, close_s: float) -> None:
    """End a connection: what was written leaves, and a caller that takes nothing is not waited for."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2 * close_s):
            await writer.wait_closed()
    drop(writer.transport)
