"""Links over WebSockets: the aiohttp shell around `protocol.py`, which decides everything (docs/protocol.md).

An Endpoint listens and dials for one node; a Link joins it to one other node by two connections.  What a link carries
is handed to the endpoint's Handler on the loop's thread.  Control frames are written the moment they are made while
the socket takes them, so neither a heartbeat nor a reply waits for a task or for bulk data.

This file alone knows aiohttp.  It does not know what messages mean, nor when a silent node is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from .address import LAST_PORT, PORT
from .errors import Busy, ConfigError, ConnectFailed, MeshError, ProtocolError
from .frames import Hello, decode, frame_bytes_max
from .limits import DEFAULT, KIB, Limits
from .link import Handler, Link
from .pairing import Pairing
from .protocol import (
    BULK,
    CONTROL,
    Acknowledged,
    Channel,
    Closed,
    Event,
    HelloReceived,
    Identity,
    Opened,
    Peer,
    State,
)
from .sharedmem import readable

__all__ = ["Endpoint", "Handler", "Link"]

log = logging.getLogger("graph_mesh.transport")

PATH = "/graph-mesh/link"
HELLO_TIMEOUT_S = 5.0  # from the upgrade until the link stands
HEADER_TIMEOUT_S = 3.0  # from connecting until the request's header is complete
CLOSE_TIMEOUT_S = 0.2  # how long a closing handshake may take before the socket is dropped
UNLINKED_MAX = 256  # connections that have not become a link; beyond, the oldest goes
TURN_BYTES = 256 * KIB  # bulk bytes written before other work on the loop gets its turn


class _ServerSocket(web.WebSocketResponse):
    """aiohttp's, with the transport, so that a connection that does not close can be aborted."""

    transport: Any = None


class _ClientSocket(aiohttp.ClientWebSocketResponse):
    """The dialling side's twin."""

    def __init__(self, reader: Any, writer: Any, *args: Any, **named: Any) -> None:
        super().__init__(reader, writer, *args, **named)
        self.transport = writer.transport


Socket = _ServerSocket | _ClientSocket
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class _Connection:
    """One WebSocket of a link: writes at once while it takes data, else in a task that waits until it does."""

    def __init__(self, link: Link, channel: Channel, socket: Socket, spawn: Spawn) -> None:
        self._link = link
        self._spawn = spawn
        self._channel = channel
        self._socket = socket
        self._task: asyncio.Task[None] | None = None

    def pump(self) -> None:
        """Write what there is; never waits."""
        if self._task is not None:
            return
        budget = TURN_BYTES
        while budget > 0:
            frame = self._link.next_frame(self._channel)
            if frame is None:
                return
            budget -= len(frame)
            if not _write_now(self._socket, frame):
                break
        self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        budget = TURN_BYTES
        try:
            while (frame := self._link.next_frame(self._channel)) is not None:
                await self._socket.send_frame(frame, WSMsgType.BINARY)
                self._link.bulk_moved()
                budget -= len(frame)
                if budget <= 0:
                    await asyncio.sleep(0)
                    budget = TURN_BYTES
        except ConnectionError:
            pass  # the reading side sees the end and ends the link
        finally:
            self._task = None

    def close(self) -> None:
        """Drop the connection once what is queued has left, at the latest after CLOSE_TIMEOUT_S."""
        self._spawn(self._close())

    async def _close(self) -> None:
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), CLOSE_TIMEOUT_S)
        await _close(self._socket)


def _write_now(socket: Socket, frame: bytes) -> bool:
    """Write a frame; False if the socket is congested now.  The frame is taken in either case.

    aiohttp writes first and only then waits for a congested socket, so the coroutine is run to its first wait.
    """
    sending = socket.send_frame(frame, WSMsgType.BINARY)
    try:
        sending.send(None)
    except StopIteration:
        return True
    except ConnectionError:
        return True  # the reading side sees the end and ends the link
    sending.close()
    return False


async def _close(socket: Socket) -> None:
    try:
        await asyncio.wait_for(socket.close(), 2 * CLOSE_TIMEOUT_S)
    except (TimeoutError, ConnectionError):
        socket.transport.abort()


# -- the endpoint ------------------------------------------------------------------------------------------


class Endpoint:
    """One node's end of all its links: listens, dials, and keeps one Link per other node.

    `admit(identity)` may raise a MeshError (Busy, say) to refuse a node that dialled.
    """

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        limits: Limits = DEFAULT,
        admit: Callable[[Identity], None] | None = None,
    ) -> None:
        self.identity = identity
        self.handler = handler
        self.limits = limits
        self.links: dict[str, Link] = {}
        self._admit = admit
        self._pairing = Pairing(identity.node_id)
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._accepted: dict[bytes, _Accepted] = {}  # nodes that dialled, until their bulk connection comes
        self._awaited: dict[bytes, list[asyncio.Future[Link]]] = {}  # links that a dial of ours gave way to
        self._unlinked: OrderedDict[Any, asyncio.TimerHandle] = OrderedDict()
        self._closing = False

    async def listen(self, host: str = "127.0.0.1", port: int = PORT, last_port: int = LAST_PORT) -> int:
        """Listen on the first free port from `port` to `last_port` (0: any); the port.

        ConfigError for an address that is not loopback, or if no port is free.
        """
        address = await _loopback(host, "listen on")
        self._web = web.Server(self._serve, access_log=None, logger=_http_log, auto_decompress=False, lingering_time=0)
        loop = asyncio.get_running_loop()
        for candidate in range(port, max(port, last_port if port else 0) + 1):
            try:
                self._server = await loop.create_server(self._make_protocol, address, candidate, backlog=1024)
                break
            except OSError as error:
                failure = error
        else:
            tried = f"ports {port} to {last_port}" if last_port > port else f"port {port}"
            raise ConfigError(
                f"{tried} on {host} cannot be used", cause=str(failure), next_step="Choose another with --port"
            )
        bound: int = self._server.sockets[0].getsockname()[1]
        shown = f"[{address}]" if ":" in address else address
        self.identity = replace(self.identity, address=f"{shown}:{bound}")
        return bound

    async def dial(self, host: str, port: int, timeout_s: float = 5.0) -> Link:
        """The link to the node at an address, made now or there already.

        Raises ConnectFailed, VersionMismatch, WrongMesh, Busy, or ConfigError for an address that is not loopback.
        """
        address = await _loopback(host, "dial")
        where = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._dial(address, port, where)
        except TimeoutError:
            raise ConnectFailed(f"{where} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectFailed(
                f"no node answers at {where}", cause=_reason(error), next_step="Is mesh-worker running there?"
            ) from None

    async def close(self) -> None:
        """Say goodbye on every link and stop listening."""
        self._closing = True
        for link_id in list(self._awaited):
            self._gone(link_id)
        for link in list(self.links.values()):
            link.close("the node is shutting down")
        if self._server is not None:
            self._server.close()
        for protocol in list(self._unlinked):
            self._drop(protocol)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2 * CLOSE_TIMEOUT_S)
        if self._web is not None:
            await self._web.shutdown(CLOSE_TIMEOUT_S)
        if self._session is not None:
            await self._session.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that ends by itself; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def unlinked(self, link: Link) -> None:
        """A link ended."""
        self._pairing.gone(link.link_id)
        if self.links.get(link.peer.node_id) is link:
            del self.links[link.peer.node_id]

    # -- dialling

    async def _dial(self, address: str, port: int, where: str) -> Link:
        peer = Peer.dialer(self.identity, self.limits, secrets.token_bytes(16))
        control = await self._connect(address, port)
        kept = False
        try:
            acknowledged = await self._handshake(peer, CONTROL, control, where)
            assert isinstance(acknowledged, Acknowledged)
            other = acknowledged.identity
            waits_for = self._pairing.acknowledged(peer.link_id, other.node_id, other.boot_id, acknowledged.existing)
            if waits_for:
                return await self._await_link(waits_for, other)
            bulk = await self._connect(address, port)
            try:
                peer.start_bulk(_can_share(self.identity, other))
                opened = await self._handshake(peer, BULK, bulk, where)
                assert isinstance(opened, Opened)
                link = Link(self, peer)
                kept = True
            finally:
                if not kept:
                    self._spawn(_close(bulk))
        finally:
            if not kept:
                self._gone(peer.link_id)
                peer.close()
                _write_all(peer, CONTROL, control)
                self._spawn(_close(control))
        self._establish(link, control, bulk)
        self._spawn(self._read(link, CONTROL, control))
        self._spawn(self._read(link, BULK, bulk))
        return link

    async def _connect(self, address: str, port: int) -> _ClientSocket:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=(_no_redirects,),
                ws_response_class=_ClientSocket,
            )
        shown = f"[{address}]" if ":" in address else address
        socket = await self._session.ws_connect(
            f"http://{shown}:{port}{PATH}",
            compress=0,
            max_msg_size=frame_bytes_max(self.limits) + 1,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
        )
        assert isinstance(socket, _ClientSocket)
        return socket

    async def _handshake(self, peer: Peer, channel: Channel, socket: Socket, where: str) -> Event:
        """Send our hello and take the answer."""
        frame = peer.next_frame(channel)
        assert frame is not None
        _write_now(socket, frame)
        message = await socket.receive()
        if message.type is not WSMsgType.BINARY:
            raise ConnectFailed(f"{where} closed the connection before it said who it is")
        event = peer.receive(channel, message.data)[0]
        if isinstance(event, Closed):
            raise event.error or ConnectFailed(f"{where} closed the connection")
        return event

    async def _await_link(self, link_id: bytes, other: Identity) -> Link:
        link = self.links.get(other.node_id)
        if link is not None and link.link_id == link_id:
            return link
        waiting: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(link_id, []).append(waiting)
        return await waiting

    # -- accepting

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = _http_refusal(request)
        if refusal is not None:
            refusal.force_close()
            return refusal
        socket = _ServerSocket(compress=False, max_msg_size=frame_bytes_max(self.limits) + 1, timeout=CLOSE_TIMEOUT_S)
        socket.transport = request.transport
        await socket.prepare(request)
        try:
            await self._accept(request, socket)
        finally:
            self._settled(request.protocol)
            await _close(socket)
        return socket

    async def _accept(self, request: web.BaseRequest, socket: Socket) -> None:
        """Take the first frame, which says whether this is a new link or the second connection of one."""
        self._watch(request.protocol, HELLO_TIMEOUT_S)
        message = await socket.receive()
        if message.type is not WSMsgType.BINARY or self._closing:
            return
        accepted = self._accepted.pop(_link_named(message.data, self.limits), None)
        if accepted is None:
            peer = Peer.acceptor(self.identity, self.limits)
            await self._accept_control(_Accepted(peer, socket, request.protocol), message.data)
        else:
            await self._accept_bulk(accepted, request.protocol, socket, message.data)

    async def _accept_control(self, accepted: _Accepted, data: bytes) -> None:
        peer = accepted.peer
        try:
            self._answer_hello(accepted, data)
        except MeshError as error:
            log.info("refused a connection: %s", error)
            peer.refuse(error)
        _write_all(peer, CONTROL, accepted.socket)
        if peer.state is State.CLOSED:
            return
        try:
            message = await accepted.socket.receive()
            while message.type is WSMsgType.BINARY and accepted.link is not None:
                accepted.link.received(CONTROL, message.data)
                message = await accepted.socket.receive()
        finally:
            if accepted.link is None:
                self._gone(peer.link_id)
            else:
                accepted.link.ended(CONTROL)

    def _answer_hello(self, accepted: _Accepted, data: bytes) -> None:
        peer = accepted.peer
        (event,) = peer.receive(CONTROL, data)
        assert isinstance(event, HelloReceived)
        other, link_id = event.identity, event.link_id
        if link_id in self._accepted:
            raise ProtocolError("a link id stands twice", node=other.name)
        if other.node_id not in self.links and len(self.links) >= self.limits.nodes_max:
            raise Busy(f"{self.identity.name} is linked to {len(self.links)} nodes, the limit")
        if self._admit is not None:
            self._admit(other)
        peer.accept(self._pairing.accept(link_id, other.node_id, other.boot_id), _can_share(self.identity, other))
        self._accepted[link_id] = accepted

    async def _accept_bulk(self, accepted: _Accepted, protocol: Any, socket: Socket, data: bytes) -> None:
        peer = accepted.peer
        try:
            peer.receive(BULK, data)
        except MeshError as error:
            log.info("refused a bulk connection: %s", error)
            _write_all(peer, CONTROL, accepted.socket)
            self._spawn(_close(accepted.socket))
            return
        link = accepted.link = Link(self, peer)
        _write_all(peer, BULK, socket)
        self._settled(accepted.protocol)
        self._settled(protocol)
        self._establish(link, accepted.socket, socket)
        await self._read(link, BULK, socket)

    def _establish(self, link: Link, control: Socket, bulk: Socket) -> None:
        """Both connections stand: this is the link to its node now."""
        replaced = self._pairing.opened(link.link_id)
        old = self.links.get(link.peer.node_id)
        if old is not None and old.link_id == replaced:
            old.replaced()
        self.links[link.peer.node_id] = link
        sockets = {CONTROL: control, BULK: bulk}
        link.attach({channel: _Connection(link, channel, ws, self._spawn) for channel, ws in sockets.items()})
        for waiting in self._awaited.pop(link.link_id, ()):
            if not waiting.done():
                waiting.set_result(link)

    async def _read(self, link: Link, channel: Channel, socket: Socket) -> None:
        """Hand every frame to the link until the connection ends."""
        message = await socket.receive()
        while message.type is WSMsgType.BINARY:
            link.received(channel, message.data)
            message = await socket.receive()
        link.ended(channel)

    def _gone(self, link_id: bytes) -> None:
        """A link did not come about."""
        self._accepted.pop(link_id, None)
        self._pairing.gone(link_id)
        for waiting in self._awaited.pop(link_id, ()):
            if not waiting.done():
                waiting.set_exception(ConnectFailed("the other node dialled at the same time and then gave up"))

    # -- connections that are not yet a link

    def _make_protocol(self) -> asyncio.BaseProtocol:
        assert self._web is not None
        protocol = self._web()
        self._watch(protocol, HEADER_TIMEOUT_S)
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
        if protocol.transport is not None:
            protocol.transport.abort()


@dataclass(slots=True)
class _Accepted:
    """A node that dialled: its control connection, and the link once the bulk connection came."""

    peer: Peer
    socket: Socket
    protocol: Any
    link: Link | None = None


def _write_all(peer: Peer, channel: Channel, socket: Socket) -> None:
    while (frame := peer.next_frame(channel)) is not None:
        _write_now(socket, frame)


def _link_named(data: bytes, limits: Limits) -> bytes:
    """The link a first frame names, to find the control connection it belongs to; b"" for anything else."""
    try:
        frame = decode(data, limits)
    except MeshError:
        return b""
    return frame.link_id if isinstance(frame, Hello) else b""


def _can_share(mine: Identity, theirs: Identity) -> bool:
    """Whether this process can read the other's shared-memory directory."""
    return mine.host_id == theirs.host_id and bool(mine.shared_memory) and readable(theirs.shared_memory)


# -- who may connect ---------------------------------------------------------------------------------------

_http_log = logging.getLogger("graph_mesh.http")


def _in_one_line(record: logging.LogRecord) -> bool:
    """What strangers send is worth a line, not aiohttp's traceback."""
    if record.exc_info:
        reason = " ".join(str(record.exc_info[1]).split())[:200]
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {reason}", (), None
    return True


_http_log.addFilter(_in_one_line)


def _http_refusal(request: web.BaseRequest) -> web.Response | None:
    """What to answer to a request that is not a node's, or None.

    A browser page can reach loopback: its requests carry an Origin, or (after DNS rebinding) a foreign Host.  Both are
    checked on every method and path.
    """
    if "Origin" in request.headers or not _is_loopback_host(request.headers.getall("Host", [])):
        return web.Response(status=403, text="this port is for graph-mesh nodes, not for browsers")
    if request.path != PATH:
        return web.Response(status=404)
    if request.method != "GET":
        return web.Response(status=405, headers={"Allow": "GET"})
    if not web.WebSocketResponse().can_prepare(request):
        return web.Response(status=426, headers={"Upgrade": "websocket"})
    return None


def _is_loopback_host(hosts: Sequence[str]) -> bool:
    if len(hosts) != 1:
        return False
    try:
        name = _host_name(hosts[0])
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


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


async def _loopback(host: str, what: str) -> str:
    """The loopback address that `host` means; ConfigError for any other."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        found = [str(ipaddress.ip_address(host.strip("[]")))]
    except ValueError:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(f"{host!r} is not the name of any address", cause=str(error)) from None
        found = [str(info[4][0]) for info in infos]
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found):
        raise ConfigError(
            f"will not {what} {host}: it is not a loopback address, and there is no join token yet "
            "that would keep strangers from running work here",
            next_step="Use 127.0.0.1; other machines can join with a token from the next version on",
        )
    return found[0]
