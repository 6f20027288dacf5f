"""Links over WebSockets: the aiohttp shell around `protocol.py`, which decides everything (docs/protocol.md).

An Endpoint listens and dials for one node; a Link joins it to one other node by two connections.  What a link carries
is handed to the endpoint's Handler on the loop's thread.  Control frames are written the moment they are made while
the socket takes them, so neither a heartbeat nor a reply waits for a task or for bulk data.

This file alone knows aiohttp.  It does not know what messages mean, nor when a silent node is dead (coordinator/health).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
from aiohttp import WSMsgType, web

from .errors import (
    Busy,
    Cancelled,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    MeshError,
    NodeLost,
    ProtocolError,
    RemoteError,
)
from .frames import Hello, decode, frame_bytes_max
from .limits import DEFAULT, KIB, Limits
from .messages import Message, decode_message, encode_message
from .pairing import Pairing
from .protocol import (
    BULK,
    CONTROL,
    Acknowledged,
    CancelReceived,
    Channel,
    Closed,
    Event,
    HelloReceived,
    Identity,
    NotifyReceived,
    Opened,
    Peer,
    Ponged,
    Replied,
    RequestReceived,
    State,
    StreamDone,
    StreamOpened,
    StreamSent,
)
from .sharedmem import readable

log = logging.getLogger("graph_mesh.transport")

PATH = "/graph-mesh/link"
PORT, LAST_PORT = 7100, 7131
HELLO_TIMEOUT_S = 5.0  # from the upgrade until the link stands
HEADER_TIMEOUT_S = 3.0  # from connecting until the request's header is complete
CLOSE_TIMEOUT_S = 0.2  # how long a closing handshake may take before the socket is dropped
UNLINKED_MAX = 256  # connections that have not become a link; beyond, the oldest goes
TURN_BYTES = 256 * KIB  # bulk bytes written before other work on the loop gets its turn

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Handler(Protocol):
    """What an endpoint's owner does with what arrives; every method is called on the loop's thread."""

    async def on_request(self, link: Link, body: Message) -> Message:
        """Answer a request.  A MeshError is sent back as it is, anything else is logged and sent as RemoteError."""

    def on_notify(self, link: Link, body: Message) -> None:
        """Take a one-way message."""

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        """Where a stream's bytes go: writable, exactly `size_bytes`.  Raise a MeshError to refuse it."""

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        """The stream placed in `buffer` (the very object given) is complete, or broke off with `error`."""

    def on_linked(self, link: Link) -> None:
        """A link stands."""

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        """A link ended; `error` is None if either side closed it in good order."""


class Link:
    """The link to one other node.  Made by Endpoint; use it on the loop's thread."""

    def __init__(self, endpoint: Endpoint, peer: Peer) -> None:
        assert peer.other is not None
        self.peer: Identity = peer.other
        self.link_id = peer.link_id
        self.same_host = False
        self.closed = False
        self.bytes_sent: Counter[str] = Counter(control=0, bulk=0, shared=0)
        self.bytes_received: Counter[str] = Counter(control=0, bulk=0, shared=0)
        self._endpoint = endpoint
        self._machine = peer
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Channel, _Connection] = {}
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._sending: dict[int, asyncio.Future[None]] = {}
        self._arriving: dict[int, tuple[Message, memoryview]] = {}
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Link to {self.peer.role} {self.peer.name}{' (closed)' if self.closed else ''}>"

    # -- what callers use

    async def request(self, body: Message, timeout_s: float | None = None) -> Message:
        """Ask and wait for the answer.

        Raises the other side's MeshError, DeadlineExceeded after `timeout_s`, or NodeLost when the link ends.
        Cancelling the awaiting task tells the other side to stop.
        """
        number = self._machine.request(encode_message(body))
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answers[number] = answer
        self._flush()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._expire, number, timeout_s)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            if self._answers.pop(number, None) is not None:
                self._machine.cancel(number)
                self._flush()

    def notify(self, body: Message) -> None:
        """Send a one-way message, at once where the socket takes it.  NodeLost when the link has ended."""
        self._machine.notify(encode_message(body))
        self._flush()

    async def send_stream(self, header: Message, data: memoryview | Sequence[memoryview]) -> None:
        """Send `data` in chunks and return when the last has left; until then it must not change.

        Raises the receiver's MeshError if it refuses, NodeLost when the link ends.
        """
        parts = [data] if isinstance(data, memoryview) else data
        stream = self._machine.open_stream(encode_message(header), [_flat(part) for part in parts])
        sent = self._sending[stream] = self._loop.create_future()
        self._flush()
        try:
            await sent
        finally:
            if self._sending.pop(stream, None) is not None:
                self._machine.abort_stream(stream, Cancelled("the sender gave up"))
                self._flush()

    async def ping(self, timeout_s: float = 5.0) -> float:
        """Seconds for a frame to get there and back; DeadlineExceeded or NodeLost."""
        token = next(self._endpoint.tokens)
        ponged = self._pings[token] = self._loop.create_future()
        began_s = self._loop.time()
        try:
            self._machine.ping(token)
            self._flush()
            async with asyncio.timeout(timeout_s):
                await ponged
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s", node=self.peer.name) from None
        finally:
            self._pings.pop(token, None)
        return self._loop.time() - began_s

    def close(self, reason: str = "") -> None:
        """End the link in good order; on_unlinked follows."""
        if not self.closed:
            self._machine.close(reason)
            self._flush()
            self._end(None)

    async def wait_closed(self) -> None:
        """Return when the link has ended."""
        await self._over.wait()

    # -- the endpoint's side

    def attach(self, control: Socket, bulk: Socket) -> None:
        """Both connections stand: the link may be used."""
        self.same_host = self._machine.shared_ok
        for channel, socket_ in ((CONTROL, control), (BULK, bulk)):
            self._connections[channel] = _Connection(self, channel, socket_)
        with self._guarded("on_linked"):
            self._endpoint.handler.on_linked(self)
        self._flush()

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        self.bytes_received[_KIND[channel]] += len(data)
        try:
            for event in self._machine.receive(channel, data):
                self._handle(event)
            self._flush()
        except MeshError as error:
            self._broken(error)

    def handle(self, events: Sequence[Event]) -> None:
        """Act on events that did not come from `received`."""
        for event in events:
            self._handle(event)

    def ended(self, channel: Channel) -> None:
        """A connection is gone."""
        self.handle(self._machine.receive_eof(channel))

    def replaced(self) -> None:
        """Another link to the same node took over."""
        self._machine.close("replaced by a newer link")
        self._flush()
        self._end(NodeLost("the node came back on a new link", node=self.peer.name))

    # -- events

    def _handle(self, event: Event) -> None:
        _REACTIONS[type(event)](self, event)

    def _on_request(self, event: RequestReceived) -> None:
        body = decode_message(event.body)
        task = self._loop.create_task(self._serve(event.number, body))
        self._serving[event.number] = task

    async def _serve(self, number: int, body: Message) -> None:
        try:
            reply = encode_message(await self._endpoint.handler.on_request(self, body))
            self._machine.reply(number, reply)
        except MeshError as error:
            self._machine.reply_error(number, error)
        except asyncio.CancelledError:
            self._machine.reply_error(number, Cancelled("the asker no longer waits"))
        except Exception as error:  # a bug in the handler must reach the asker and the log, not end the link
            log.exception("answering %s from %s failed", type(body).__name__, self.peer.name)
            self._machine.reply_error(number, RemoteError(f"{type(body).__name__} failed", node=self._endpoint.identity.name, cause=repr(error)))
        finally:
            self._serving.pop(number, None)
            self._flush()

    def _on_replied(self, event: Replied) -> None:
        answer = self._answers.pop(event.number, None)
        if answer is None or answer.done():
            return
        if event.error is not None:
            answer.set_exception(event.error)
        else:
            try:
                answer.set_result(decode_message(event.body))
            except ProtocolError as error:
                answer.set_exception(error)
                raise

    def _on_cancel(self, event: CancelReceived) -> None:
        task = self._serving.get(event.number)
        if task is not None:
            task.cancel()

    def _on_notify(self, event: NotifyReceived) -> None:
        body = decode_message(event.body)
        with self._guarded(type(body).__name__):
            self._endpoint.handler.on_notify(self, body)

    def _on_stream_open(self, event: StreamOpened) -> None:
        header = decode_message(event.header)
        try:
            buffer = self._endpoint.handler.on_stream_open(self, header, event.size)
        except ProtocolError:
            raise
        except MeshError as error:
            self._machine.refuse_stream(event.stream, error)
            return
        except Exception as error:  # as in _serve
            log.exception("placing a stream from %s failed", self.peer.name)
            self._machine.refuse_stream(event.stream, RemoteError("placing the stream failed", cause=repr(error)))
            return
        self._arriving[event.stream] = header, buffer
        self.handle(self._machine.place_stream(event.stream, buffer))

    def _on_stream_done(self, event: StreamDone) -> None:
        header, buffer = self._arriving.pop(event.stream)
        with self._guarded(type(header).__name__):
            self._endpoint.handler.on_stream_done(self, header, buffer, event.error)

    def _on_stream_sent(self, event: StreamSent) -> None:
        sent = self._sending.pop(event.stream, None)
        if sent is None or sent.done():
            return
        if event.error is None:
            sent.set_result(None)
        else:
            sent.set_exception(event.error)

    def _on_pong(self, event: Ponged) -> None:
        ponged = self._pings.get(event.token)
        if ponged is not None and not ponged.done():
            ponged.set_result(None)

    def _on_closed(self, event: Closed) -> None:
        self._end(event.error)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """A handler's bug must reach the log, not end the link; a ProtocolError says that the other side is at fault."""
        try:
            yield
        except ProtocolError:
            raise
        except Exception:
            log.exception("handling %s from %s failed", what, self.peer.name)

    # -- sending

    def _flush(self) -> None:
        for connection in self._connections.values():
            connection.pump()
        for event in self._machine.sent_events():
            self._handle(event)
        if self._machine.queued_bytes > self._machine.limits.queue_bytes_max:
            self._broken(NodeLost("it does not read what is sent to it", node=self.peer.name))

    def next_frame(self, channel: Channel) -> bytes | None:
        """The next frame to write, for the connection that has room."""
        frame = self._machine.next_frame(channel)
        if frame is not None:
            self.bytes_sent[_KIND[channel]] += len(frame)
        return frame

    def bulk_moved(self) -> None:
        """Chunks left in the background; streams may be complete."""
        self.handle(self._machine.sent_events())

    def _expire(self, number: int, timeout_s: float) -> None:
        answer = self._answers.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(DeadlineExceeded(f"no answer within {timeout_s:g} s", node=self.peer.name))

    # -- the end

    def _broken(self, error: MeshError) -> None:
        """The link cannot go on: say why, and end it."""
        if self.closed:
            return
        log.warning("link to %s %s: %s", self.peer.role, self.peer.name, error)
        self._machine.refuse(error)
        for connection in self._connections.values():
            connection.pump()
        self._end(error)

    def _end(self, error: MeshError | None) -> None:
        if self.closed:
            return
        self.closed = True
        lost = error if isinstance(error, RemoteError) else NodeLost("the link was closed", node=self.peer.name)
        for waiting in (self._answers, self._sending, self._pings):
            for future in waiting.values():
                if not future.done():
                    future.set_exception(_copy(lost))
            waiting.clear()
        for task in self._serving.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._endpoint.unlinked(self)
        self._over.set()
        for header, buffer in self._arriving.values():
            with self._guarded(type(header).__name__):
                self._endpoint.handler.on_stream_done(self, header, buffer, _copy(lost))
        self._arriving.clear()
        with self._guarded("on_unlinked"):
            self._endpoint.handler.on_unlinked(self, error)


_KIND = {CONTROL: "control", BULK: "bulk"}
_REACTIONS: dict[type[Any], Callable[[Link, Any], None]] = {
    RequestReceived: Link._on_request,
    Replied: Link._on_replied,
    CancelReceived: Link._on_cancel,
    NotifyReceived: Link._on_notify,
    StreamOpened: Link._on_stream_open,
    StreamDone: Link._on_stream_done,
    StreamSent: Link._on_stream_sent,
    Ponged: Link._on_pong,
    Closed: Link._on_closed,
}


class _Connection:
    """One WebSocket of a link: writes at once while it takes data, else in a task that waits until it does."""

    def __init__(self, link: Link, channel: Channel, socket: Socket) -> None:
        self._link = link
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
        self._link._endpoint.spawn(self._close())

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
    with contextlib.suppress(TimeoutError, ConnectionError, RuntimeError):
        await asyncio.wait_for(socket.close(), CLOSE_TIMEOUT_S)


def _flat(part: memoryview) -> memoryview:
    return part.cast("B") if part.nbytes else memoryview(b"")


def _copy(error: MeshError) -> MeshError:
    """Its own object for every waiter: a traceback is kept on the exception."""
    return type(error)(error.message, node=error.node, op=error.op, cause=error.cause, next_step=error.next_step)


# -- the endpoint ------------------------------------------------------------------------------------------


class Endpoint:
    """One node's end of all its links: listens, dials, and keeps one Link per other node.

    `admit(identity)` may raise a MeshError (Busy, say) to refuse a node that dialled.
    """

    def __init__(
        self, identity: Identity, handler: Handler, limits: Limits = DEFAULT, admit: Callable[[Identity], None] | None = None
    ) -> None:
        self.identity = identity
        self.handler = handler
        self.limits = limits
        self.links: dict[str, Link] = {}
        self.tokens = itertools.count(1)
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
            raise ConfigError(f"{tried} on {host} cannot be used", cause=str(failure), next_step="Choose another with --port")
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
            raise ConnectFailed(f"no node answers at {where}", cause=str(error), next_step="Is mesh-worker running there?") from None

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

    def spawn(self, work: Any) -> None:
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
                    self.spawn(_close(bulk))
        finally:
            if not kept:
                self._gone(peer.link_id)
                peer.close()
                _write_all(peer, CONTROL, control)
                self.spawn(_close(control))
        self._establish(link, control, bulk)
        self.spawn(self._read(link, CONTROL, control))
        self.spawn(self._read(link, BULK, bulk))
        return link

    async def _connect(self, address: str, port: int) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=(_no_redirects,),
            )
        shown = f"[{address}]" if ":" in address else address
        return await self._session.ws_connect(
            f"http://{shown}:{port}{PATH}",
            compress=0,
            max_msg_size=frame_bytes_max(self.limits) + 1,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
        )

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
        socket = web.WebSocketResponse(
            compress=False, max_msg_size=frame_bytes_max(self.limits) + 1, timeout=CLOSE_TIMEOUT_S
        )
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
            await self._accept_control(_Accepted(Peer.acceptor(self.identity, self.limits), socket, request.protocol), message.data)
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
            self.spawn(_close(accepted.socket))
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
        link.attach(control, bulk)
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
        raise ConnectFailed(f"{request.url.authority} answered, but not as a graph-mesh node", cause=f"HTTP {response.status}")
    return response


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
            f"will not {what} {host}: it is not a loopback address, and without a join token anybody who reaches it could run work here",
            next_step="Use 127.0.0.1; other machines can join with a token from the next version on",
        )
    return found[0]
