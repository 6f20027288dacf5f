"""Links over WebSockets: aiohttp's part of an Endpoint (docs/protocol.md).

`WebSockets` listens, dials and makes each connection a Socket; what is said over them is decided elsewhere.  A
connection that has not become part of a link has little time, and there may be few of them.

This file alone knows aiohttp.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from .address import LAST_PORT, PORT
from .endpoint import CLOSE_TIMEOUT_S
from .endpoint import Endpoint as AnyEndpoint
from .errors import ConfigError, ConnectFailed
from .frames import frame_bytes_max
from .limits import DEFAULT, Limits
from .link import Handler, Link
from .protocol import Identity

__all__ = ["Endpoint", "Handler", "Link"]

PATH = "/graph-mesh/link"
HELLO_TIMEOUT_S = 5.0  # from the upgrade until the link stands
HEADER_TIMEOUT_S = 3.0  # from connecting until the request's header is complete
UNLINKED_MAX = 256  # connections that have not become a link; beyond, the oldest goes


class Endpoint(AnyEndpoint):
    """An endpoint whose links are WebSockets."""

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        limits: Limits = DEFAULT,
        admit: Callable[[Identity], None] | None = None,
    ) -> None:
        super().__init__(identity, handler, WebSockets(limits), limits, admit)

    async def listen(self, host: str = "127.0.0.1", port: int = PORT, last_port: int = LAST_PORT) -> int:
        """Listen on the first free port from `port` to `last_port` (0: any); the port.

        ConfigError for an address that is not loopback, or if no port is free.
        """
        return await super().listen(host, port, last_port)


class WebSockets:
    """The Carrier of real networks; loopback only, until nodes can prove who they are."""

    def __init__(self, limits: Limits) -> None:
        self._frame_bytes_max = frame_bytes_max(limits) + 1
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._session: aiohttp.ClientSession | None = None
        self._unlinked: OrderedDict[Any, asyncio.TimerHandle] = OrderedDict()
        self._accept: Callable[[_Socket], Awaitable[None]] | None = None

    async def listen(self, host: str, port: int, last_port: int, accept: Callable[[_Socket], Awaitable[None]]) -> str:
        """As Carrier has it; tries every port from `port` to `last_port`."""
        address = await _loopback(host, "listen on")
        self._accept = accept
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
        return f"{_shown(address)}:{bound}"

    async def connect(self, host: str, port: int) -> _Socket:
        """As Carrier has it."""
        address = await _loopback(host, "dial")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=(_no_redirects,),
                ws_response_class=_ClientWebSocket,
            )
        try:
            websocket = await self._session.ws_connect(
                f"http://{_shown(address)}:{port}{PATH}",
                compress=0,
                max_msg_size=self._frame_bytes_max,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
            )
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectFailed(
                f"no node answers at {host}:{port}", cause=_reason(error), next_step="Is mesh-worker running there?"
            ) from None
        assert isinstance(websocket, _ClientWebSocket)
        return _Socket(websocket)

    async def close(self) -> None:
        """As Carrier has it."""
        if self._server is not None:
            self._server.close()
        for protocol in list(self._unlinked):
            self._drop(protocol)
        if self._web is not None:
            await self._web.shutdown(CLOSE_TIMEOUT_S)
        if self._session is not None:
            await self._session.close()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = _http_refusal(request)
        if refusal is not None:
            refusal.force_close()
            return refusal
        websocket = web.WebSocketResponse(compress=False, max_msg_size=self._frame_bytes_max, timeout=CLOSE_TIMEOUT_S)
        await websocket.prepare(request)
        served = _Socket(websocket, request.transport, lambda: self._settled(request.protocol))
        self._watch(request.protocol, HELLO_TIMEOUT_S)
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
        transport: Any = None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._websocket = websocket
        self._transport = websocket.transport if isinstance(websocket, _ClientWebSocket) else transport
        self.settled = settled

    def write(self, frame: bytes) -> bool:
        """As Socket has it.

        aiohttp writes first and only then waits for a congested socket, so the coroutine is run to its first wait.
        """
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
        """As Socket has it."""
        await self._websocket.send_frame(frame, WSMsgType.BINARY)

    async def receive(self) -> bytes | None:
        """As Socket has it; a text frame is no frame of ours and ends the connection."""
        message = await self._websocket.receive()
        return message.data if message.type is WSMsgType.BINARY else None

    async def close(self) -> None:
        """As Socket has it."""
        try:
            await asyncio.wait_for(self._websocket.close(), 2 * CLOSE_TIMEOUT_S)
        except (TimeoutError, ConnectionError):
            self._transport.abort()


def _shown(address: str) -> str:
    return f"[{address}]" if ":" in address else address


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
