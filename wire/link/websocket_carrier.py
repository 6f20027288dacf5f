"""Links over WebSockets: aiohttp's part of an Endpoint (docs/protocol.md).

`WebSockets` listens, dials and makes each connection a Socket; what is said over them is decided elsewhere.  A
connection that has not become part of a link has little time, and there may be few of them.

This file and `mesh/serving/http_server.py` alone know aiohttp.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import WSMsgType

from ..addresses import LAST_PORT, PORT, shown
from ..bounds import UNLINKED
from ..errors import ConfigError, ConnectFailed, MeshError, NotTrusted
from ..joining.credentials import Credentials
from ..limits import DEFAULT, Limits
from ..protocol.frames import frame_bytes_max
from ..protocol.peer import Identity
from ..security.certificates import Member, any_server_name
from ..security.connection_limiter import ConnectionLimiter, ConnectionLimits, origin_of
from ..security.tls import drop, explain, explain_caller, gave_up, is_tls_error, peer_member
from ..security.tls_listener import TLS_RECORD, Caller, FirstWord, Listener, addresses_of
from ..security.user_proof import opening_size
from ..security.user_secret import user_secret
from ..system.file_lock import behind_lock
from ..system.lost_connections import end_when_lost
from ..system.steady_log import steady_logger
from ..timeouts import DEFAULT_TIMEOUTS, Timeouts
from .address_policy import ANYWHERE, LOOPBACK_ONLY, AddressPolicy, is_address, is_loopback
from .endpoint import Carrier
from .endpoint import Endpoint as AnyEndpoint
from .link import Handler, Link
from .name_lookup import NameLookup
from .user_handshake import hung_up, prove_as_acceptor, prove_as_dialer
from .websocket_buffers import BinaryWebSocket

if TYPE_CHECKING:
    from aiohttp import web

log = steady_logger("graph_mesh.transport")

__all__ = ["STARTED", "Endpoint", "Handler", "Link"]

PATH = "/graph-mesh/link"
STARTED = "Is mesh-coord serve, or mesh-worker, running there?"  # for one that needs a coordinator, another question
STRANGERS_PER_ORIGIN_MAX = 32  # one host may have many workers that come back at once
STRANGERS_LOGGED_S = 10.0  # from one line about callers that were turned away to the next
KNOWN_S = 10.0  # from a member's arrival on
OPENING = FirstWord(opening_size)
UNLINKED_MAX = UNLINKED.most


class Endpoint(AnyEndpoint):
    """An endpoint whose links are WebSockets: with `credentials` all over mutual TLS, without on loopback alone.

    There both ends of a connection prove that they know the same `secret`, by default this user's.  `over` puts another
    Carrier over that of the WebSockets.
    """

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        limits: Limits = DEFAULT,
        admit: Callable[[Identity], None] | None = None,
        credentials: Credentials | None = None,
        over: Callable[[Carrier], Carrier] = lambda sockets: sockets,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        secret: bytes = b"",
    ) -> None:
        self._sockets = WebSockets(limits, credentials, timeouts, secret)
        carrier = over(self._sockets)
        super().__init__(identity, handler, carrier, limits, admit, self._sockets.allowed, timeouts=timeouts)

    async def listen(self, host: str = "127.0.0.1", port: int = PORT, last_port: int = LAST_PORT) -> int:
        """Listen on the first free port from `port` to `last_port` (0: any); the port.

        ConfigError for an address that is not allowed, or if no port is free.
        """
        return await super().listen(host, port, last_port)

    def audit_strangers(self, turned_away: Callable[[str, str], None]) -> None:
        """Tell `turned_away(host, why)` from now on of callers that proved not to be members; it may write files."""
        self._sockets.audit = turned_away


class WebSockets:
    """The Carrier of real networks."""

    def __init__(
        self,
        limits: Limits,
        credentials: Credentials | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        secret: bytes = b"",
    ) -> None:
        self._timeouts = timeouts
        self._secret = secret  # without credentials; b"": this user's, once it is needed
        self.allowed = LOOPBACK_ONLY if credentials is None else ANYWHERE
        self._frame_bytes_max = frame_bytes_max(limits) + 1
        self._credentials = credentials
        self._listener: Listener | None = None
        self.audit: Callable[[str, str], None] | None = None
        self._strangers = 0  # callers that were turned away
        self._logged_s = float("-inf")
        self._came_from: dict[str, float] = {}  # when a member last did, by origin
        self._web: web.Server | None = None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._unlinked: OrderedDict[Any, asyncio.TimerHandle] = OrderedDict()
        self._accept: Callable[[_Socket], Awaitable[None]] | None = None
        self._names = NameLookup()

    async def listen(
        self, host: str, port: int, last_port: int, accept: Callable[[_Socket], Awaitable[None]]
    ) -> tuple[str, int]:
        """Listen on the first free port; tries every one from `port` to `last_port`."""
        from aiohttp import web  # here, as in what answers: a node that only dials needs no server half

        address = (await self._addresses(host, "listen on"))[0]
        self._accept = accept
        await self._know_secret()
        self._web = web.Server(self._serve, access_log=None, logger=_http_log, auto_decompress=False, lingering_time=0)
        for candidate in range(port, max(port, last_port if port else 0) + 1):
            try:
                return address, self._bind(address, candidate)
            except ConfigError as error:
                failure = error
        tried = f"ports {port} to {last_port}" if last_port > port else f"port {port}"
        step = failure.next_step
        raise ConfigError(f"{tried} on {host} cannot be used", cause=failure.cause, next_step=step)

    def _bind(self, address: str, port: int) -> int:
        """Listen on a port, for "::" of both families.  A caller reaches the HTTP parser once it has proved that it is
        a member, or without credentials that this user runs it."""
        limits = ConnectionLimits(strangers_per_origin_max=STRANGERS_PER_ORIGIN_MAX)
        admit, first_word = self._admit_member, TLS_RECORD
        if self._credentials is None:  # a proof takes no memory to speak of
            limits, admit, first_word = ConnectionLimits(strangers_max=UNLINKED_MAX), self._admit_user, OPENING
        gate = ConnectionLimiter(limits)
        listener = Listener(admit, self._turned_away, gate, self._timeouts.first_word_s, first_word)
        bound = listener.listen(addresses_of(address), port)
        self._listener = listener
        return bound

    async def _know_secret(self) -> bytes:
        """The secret that both ends of a connection prove to know."""
        if not self._secret and self._credentials is None:
            self._secret = await asyncio.to_thread(user_secret)
        return self._secret

    async def _admit_user(self, connection: socket.socket, caller: Caller) -> None:
        try:
            async with asyncio.timeout(self._timeouts.first_word_s):
                await prove_as_acceptor(connection, self._secret)
        except (NotTrusted, TimeoutError) as error:
            connection.close()
            await self._turned_away(caller.host, getattr(error, "message", "it took too long to prove who runs it"))
        except BaseException:
            connection.close()
            raise
        else:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, connection)

    async def _admit_member(self, connection: socket.socket, caller: Caller) -> None:
        assert self._credentials is not None
        try:
            transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._credentials.server_context(),
                ssl_handshake_timeout=self._timeouts.tls_handshake_s,
                ssl_shutdown_timeout=self._timeouts.link_close_s,
            )
        except OSError as error:
            if not (gave_up(error) and self._is_known(caller.host)):
                await self._turned_away(caller.host, explain_caller(error, self._timeouts.tls_handshake_s))
            return
        if protocol not in self._unlinked:  # it had to go while TLS began, when there was no transport to drop
            drop(transport)
        self._came_from[origin_of(caller.host)] = asyncio.get_running_loop().time()

    def _is_known(self, host: str) -> bool:
        """Whether a member came from there just now: a node that dials all our addresses at once drops all but one."""
        since_s = asyncio.get_running_loop().time() - KNOWN_S
        self._came_from = {origin: at_s for origin, at_s in self._came_from.items() if at_s > since_s}
        return origin_of(host) in self._came_from

    async def _turned_away(self, host: str, why: str) -> None:
        """One line for the first of many: a flood of strangers must fill no log."""
        if self.audit is not None:
            await behind_lock(self.audit, host, why)
            return
        now_s = asyncio.get_running_loop().time()
        self._strangers += 1
        if now_s - self._logged_s >= STRANGERS_LOGGED_S:
            log.warning("turned away a caller from %s: %s (%d so far)", host, why, self._strangers)
            self._logged_s = now_s

    async def resolve(self, host: str) -> Sequence[str]:
        """Resolve a host to the addresses that may be dialled."""
        return await self._addresses(host, "dial")

    async def _addresses(self, host: str, what: str) -> list[str]:
        """The addresses that `host` means; ConfigError if there is none, or one that is not allowed."""
        name = host.strip("[]")
        if name == "localhost":
            return ["127.0.0.1"]
        if is_address(name):
            return [self.allowed.check(name, what)]
        try:
            addresses = await self._names.addresses(host)
        except (OSError, UnicodeError) as error:  # UnicodeError: no resolver could be asked for it
            raise ConfigError(f"{host!r} is not the name of any address", cause=str(error)) from None
        if len(self.allowed.among(addresses)) < len(addresses):
            self.allowed.check(host, what)
        return addresses

    async def connect(self, address: str, port: int) -> _Socket:
        """Connect to an address."""
        self.allowed.check(address, "dial")
        secret = await self._know_secret()
        if self._closed:
            raise ConnectFailed(f"this node has closed its links, and does not dial {shown(address)}:{port} any more")
        if self._session is None:
            proving = self._credentials is None
            self._session = aiohttp.ClientSession(
                connector=_ProvingConnector(secret) if proving else aiohttp.TCPConnector(limit=0, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=(_no_redirects,),
                ws_response_class=_ClientWebSocket,
            )
        try:
            websocket = await self._session.ws_connect(
                f"http{'s' if self._credentials else ''}://{shown(address)}:{port}{PATH}",
                **self._tls(),
                compress=0,
                max_msg_size=self._frame_bytes_max,
                timeout=aiohttp.ClientWSTimeout(ws_close=self._timeouts.link_close_s),
            )
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(error, f"{shown(address)}:{port}") from None
        assert isinstance(websocket, _ClientWebSocket)
        member = self._member(websocket.transport)
        return _Socket(websocket, websocket.transport, member, self._frame_bytes_max, self._timeouts)

    def _tls(self) -> dict[str, Any]:
        """How to dial as a member: any member may answer, and its certificate says which."""
        if self._credentials is None:
            return {}
        name = any_server_name(self._credentials.mesh)
        return {"ssl": self._credentials.client_context(), "server_hostname": name}

    def _failure(self, error: Exception, where: str) -> MeshError:
        """What a dial that failed means."""
        cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
        reset = getattr(cause, "errno", None) in (errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE)
        gone = reset or isinstance(error, aiohttp.ServerDisconnectedError)
        if self._credentials is not None:
            if isinstance(cause, OSError) and is_tls_error(cause):
                return explain(cause, where)
            if gone:
                return explain(ConnectionResetError(errno.ECONNRESET, _reason(error)) if reset else EOFError(), where)
        elif gone:
            return hung_up(where)
        if isinstance(error, aiohttp.ClientResponseError):
            return ConnectFailed(
                f"{where} answered, but not as a graph-mesh node",
                cause="it does not speak HTTP",
                next_step="Check the port: nodes listen on 7100 to 7131, and nothing but joining is 1000 above",
            )
        return nobody_at(where, _reason(error))

    async def close(self) -> None:
        """Stop listening and dialling, and drop connections that belong to no link."""
        self._closed = True
        if self._listener is not None:
            await self._listener.close()
        for protocol in list(self._unlinked):
            self._drop(protocol)
        if self._web is not None:
            await self._web.shutdown(self._timeouts.link_close_s)
        if self._session is not None:
            await self._session.close()

    def _member(self, transport: asyncio.BaseTransport) -> Member | None:
        return None if self._credentials is None else peer_member(transport)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        refusal = _http_refusal(request, self.allowed)
        if refusal is not None:
            refusal.force_close()
            return refusal
        close_s = self._timeouts.link_close_s
        websocket = web.WebSocketResponse(compress=False, max_msg_size=self._frame_bytes_max, timeout=close_s)
        try:
            await websocket.prepare(request)
        except ConnectionError:  # the caller tried several addresses of ours, and another one was quicker
            return web.Response()
        assert request.transport is not None
        member, limit, times = self._member(request.transport), self._frame_bytes_max, self._timeouts
        served = _Socket(websocket, request.transport, member, limit, times, lambda: self._settled(request.protocol))
        self._watch(request.protocol, self._timeouts.link_setup_s)
        assert self._accept is not None
        try:
            await self._accept(served)
        finally:
            served.settled()
            await served.close()
        return websocket

    # -- connections that are not yet part of a link

    def _make_protocol(self) -> asyncio.BaseProtocol:
        assert self._web is not None
        protocol = self._web()
        self._watch(protocol, self._timeouts.request_header_s)
        if len(self._unlinked) > UNLINKED_MAX:
            self._drop(next(iter(self._unlinked)))
        return protocol

    def _watch(self, protocol: Any, time_s: float) -> None:
        self._settled(protocol)
        self._unlinked[protocol] = asyncio.get_running_loop().call_later(time_s, self._drop, protocol)

    def _settled(self, protocol: Any) -> None:
        timer = self._unlinked.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def _drop(self, protocol: Any) -> None:
        self._settled(protocol)
        if protocol.transport is None:  # one of many that were accepted at once: it has a transport in the next turn
            asyncio.get_running_loop().call_soon(_drop_accepted, protocol)
        else:
            drop(protocol.transport)


def _drop_accepted(protocol: Any) -> None:
    if protocol.transport is not None:  # None: TLS is still beginning, and its waiter drops it
        drop(protocol.transport)


class _ProvingConnector(aiohttp.BaseConnector):
    """Connects to nodes on loopback, once each has proved that it knows the secret."""

    def __init__(self, secret: bytes) -> None:
        super().__init__(limit=0)
        self._secret = secret

    async def _create_connection(self, req: aiohttp.ClientRequest, traces: Any, timeout: Any) -> Any:
        host, port = str(req.url.raw_host), req.url.port
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, (host, port))
            await prove_as_dialer(connection, self._secret)
            return (await loop.create_connection(self._factory, sock=connection))[1]
        except BaseException:
            connection.close()
            raise


class _ClientWebSocket(aiohttp.ClientWebSocketResponse):
    """aiohttp's, with the transport, so that a connection that does not close can be aborted."""

    def __init__(self, reader: Any, writer: Any, *args: Any, **named: Any) -> None:
        super().__init__(reader, writer, *args, **named)
        self.transport = writer.transport


class _Socket:
    """A WebSocket as a Socket."""

    def __init__(
        self,
        websocket: web.WebSocketResponse | _ClientWebSocket,
        transport: Any,
        member: Member | None,
        message_bytes_max: int,
        timeouts: Timeouts,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._websocket = websocket
        self._close_s = timeouts.link_close_s
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is not None:
            # Pings go over one of a link's two connections.  The other one may be lost alone, as where a router on the
            # way forgets a connection that was idle for minutes.
            end_when_lost(connection, timeouts.keepalive_program_answer_s)
        self._transport = transport
        self._binary = _binary_before(websocket, transport, message_bytes_max)
        self.member = member
        self.settled = settled

    def write(self, frame: bytes) -> bool:
        """Write a frame now; False if the socket is congested.

        aiohttp writes first and only then waits for a congested socket, so the coroutine is run to its first wait.
        """
        if (binary := self._alone) is not None:
            return binary.write(frame)
        sending = self._websocket.send_frame(frame, WSMsgType.BINARY)
        try:
            congested = sending.send(None)
        except StopIteration:
            return True
        except ConnectionError:
            return True  # the reading side sees the end and ends the link
        congested._asyncio_future_blocking = False  # as a task would: others wait for the same future
        sending.close()
        return False

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait until the socket takes more."""
        if (binary := self._alone) is not None:
            binary.write(frame)
            await binary.drain()
        else:
            await self._websocket.send_frame(frame, WSMsgType.BINARY)

    @property
    def _alone(self) -> BinaryWebSocket | None:
        """What moves the messages, while aiohttp has nothing to do with the connection."""
        binary = self._binary
        return None if binary is None or binary.handed_over or self._websocket.closed else binary

    async def receive(self) -> bytes | None:
        """The next frame; None when the connection has ended.  A text frame is no frame of ours and ends it."""
        if self._binary is not None:
            frame = await self._binary.receive()
            if frame is not None or not self._binary.handed_over:
                return frame
        message = await self._websocket.receive()
        return message.data if message.type is WSMsgType.BINARY else None

    async def pour(self, take: Callable[[bytes | memoryview], None]) -> None:
        """Hand every frame to `take` until the connection has ended."""
        if self._binary is not None:
            await self._binary.pour(take)
        while (frame := await self.receive()) is not None:
            take(frame)
            del frame  # a chunk would be held for as long as the next does not come

    async def close(self) -> None:
        """Let what is written leave, then drop the connection."""
        try:
            await asyncio.wait_for(self._websocket.close(), 2 * self._close_s)
        except (TimeoutError, ConnectionError):
            drop(self._transport)
        if (error := self._websocket.exception()) is not None:
            error.__traceback__ = None  # it would hold the WebSocket that holds it, and TLS with both


def _binary_before(
    websocket: web.WebSocketResponse | _ClientWebSocket, transport: Any, message_bytes_max: int
) -> BinaryWebSocket | None:
    """What moves the messages of a WebSocket that stands since just now, unless aiohttp has read some already."""
    accepted = not isinstance(websocket, _ClientWebSocket)
    queue: Any = websocket._reader
    if transport is None or transport.is_closing() or queue is None or queue._buffer or queue.exception() is not None:
        return None
    return BinaryWebSocket(transport, accepted, message_bytes_max)


# -- who may connect ---------------------------------------------------------------------------------------

_http_log = steady_logger("graph_mesh.http")


def _in_one_line(record: logging.LogRecord) -> bool:
    """What strangers send is worth a line, not aiohttp's traceback."""
    if record.exc_info:
        reason = " ".join(str(record.exc_info[1]).split())[:200]
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {reason}", (), None
    return True


_http_log.addFilter(_in_one_line)


def _http_refusal(request: web.BaseRequest, allowed: AddressPolicy) -> web.Response | None:
    """What to answer to a request that is not a node's, or None.

    A browser page can reach loopback: its requests carry an Origin, Sec-Fetch headers, which no page can leave out, or
    (after DNS rebinding) a foreign Host.  All are checked on every method and path.  A node dials addresses, so no Host
    of a node's is a name.
    """
    from aiohttp import web

    by_browser = any(name.lower() == "origin" or name.lower().startswith("sec-fetch-") for name in request.headers)
    if by_browser or not _is_host(request.headers.getall("Host", []), allowed):
        return web.Response(status=403, text="this port is for graph-mesh nodes, not for browsers")
    if request.path != PATH:
        return web.Response(status=404)
    if request.method != "GET":
        return web.Response(status=405, headers={"Allow": "GET"})
    if not web.WebSocketResponse().can_prepare(request):
        return web.Response(status=426, headers={"Upgrade": "websocket"})
    return None


def _is_host(hosts: Sequence[str], allowed: AddressPolicy) -> bool:
    """Whether a request names one host, by an address that a node could have dialled."""
    if len(hosts) != 1:
        return False
    name = _host_name(hosts[0])
    return bool(allowed.among([name])) and (is_loopback(name) or is_address(name))


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def nobody_at(where: str, cause: str) -> ConnectFailed:
    """The error for a "host:port" at which nobody answers."""
    assumed = f" ({PORT} is the port of an address that names none)" if where.endswith(f":{PORT}") else ""
    return ConnectFailed(f"no node answers at {where}{assumed}", cause=cause, next_step=STARTED)


async def _no_redirects(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
    """A node never sends another node elsewhere."""
    response: aiohttp.ClientResponse = await handler(request)
    if response.status != 101:
        response.close()
        where = request.url.authority
        raise ConnectFailed(f"{where} answered, but not as a graph-mesh node", cause=f"HTTP {response.status}")
    return response


def _reason(error: Exception) -> str:
    """What the system said, without aiohttp's own words around it."""
    cause = getattr(error, "os_error", error)
    return str(getattr(cause, "strerror", None) or cause)
