"""One node's end of all its links: dials, accepts, and keeps one Link per other node.

How connections come about is a Carrier's business: WebSockets in `websocket_carrier.py`, a simulated network elsewhere.
What a link carries is handed to the endpoint's Handler on the loop's thread.  Control frames are written the moment
they are made while the socket takes them, so neither a heartbeat nor a reply waits for a task or for bulk data.

It does not know what messages mean, nor when a silent node is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..addresses import EVERY, parse_address, shown
from ..errors import Busy, ConfigError, ConnectFailed, MeshError, NoCoordinator, NodeLost, NotTrusted, ProtocolError
from ..limits import DEFAULT, KIB, Limits
from ..protocol.dial_collision import DialCollisions
from ..protocol.frames import Hello, decode, is_chunk
from ..protocol.messages import Message
from ..protocol.peer import (
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
from ..protocol.permissions import LINKS
from ..roles import CLIENT, MORE, member_id
from ..security.certificates import Member
from ..system.shared_memory import readable
from ..system.shared_memory_handoff import HandoffFiles
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks, as_error, unheard
from ..timeouts import DEFAULT_TIMEOUTS, Timeouts
from .address_policy import LOOPBACK_ONLY, AddressPolicy
from .happy_eyeballs import HEAD_START_S, STAGGER_S, race
from .link import Handler, Link

log = steady_logger("graph_mesh.transport")

CLEAR_S = 1.0  # between two checks whether processes have died that were to take files
FULL_S = 0.002  # a socket that takes a frame only after so long was full
_CHANCE = random.SystemRandom().random  # Python's own numbers are the program's, which may have seeded them
TURN_BYTES = 256 * KIB  # bulk bytes written before other work on the loop gets its turn


class Socket(Protocol):
    """One connection: whole frames in order, or its end.

    `member` is who a certificate says is at the other end; None where connections prove nothing.
    """

    @property
    def member(self) -> Member | None: ...

    def write(self, frame: bytes) -> bool:
        """Send a frame now; False if the socket is congested.  The frame is taken in either case."""

    async def send(self, frame: bytes) -> None:
        """Send a frame and wait until the socket takes more; ConnectionError if it ended."""

    async def receive(self) -> bytes | None:
        """The next frame; None when the connection has ended."""

    async def pour(self, take: Callable[[bytes | memoryview], None]) -> None:
        """Hand every frame to `take`, which must not keep a view, until the connection has ended."""

    def settled(self) -> None:
        """The connection is part of a link: no time limit holds for it any more."""

    async def close(self) -> None:
        """Let what is written leave, then drop the connection."""


class Carrier(Protocol):
    """A carrier makes connections.  It uses only addresses that its rules allow, and raises ConfigError for others."""

    async def listen(
        self, host: str, port: int, last_port: int, accept: Callable[[Socket], Awaitable[None]]
    ) -> tuple[str, int]:
        """Hand every connection that comes to `accept`, until `close`; the address and the port that were bound."""

    async def resolve(self, host: str) -> Sequence[str]:
        """The addresses that a name or an address stands for; ConfigError if there is none, or one is not allowed."""

    async def connect(self, address: str, port: int) -> Socket:
        """A connection to one of them; ConnectFailed if nobody is there."""

    async def close(self) -> None:
        """Stop listening and drop connections that belong to no link."""


class Endpoint:
    """One node's end of all its links.

    `admit(identity)` may raise a MeshError (Busy, say) to refuse a node that dialled.  `chance` gives numbers from 0 up
    to 1, to spread what several nodes would do at the same moment.
    """

    def __init__(
        self,
        identity: Identity,
        handler: Handler,
        carrier: Carrier,
        limits: Limits = DEFAULT,
        admit: Callable[[Identity], None] | None = None,
        allowed: AddressPolicy = LOOPBACK_ONLY,
        chance: Callable[[], float] = _CHANCE,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.identity = identity
        self.handler = handler
        self.limits = limits
        self.timeouts = timeouts
        self.allowed = allowed  # what it may listen on, dial and announce
        self.chance = chance
        self.links: dict[str, Link] = {}
        self.handed = HandoffFiles()
        self._clearing: asyncio.TimerHandle | None = None
        self._carrier = carrier
        self._admit = admit
        self._pairing = DialCollisions(identity.node_id)
        self._tasks = Tasks()
        self._worked: dict[str, str] = {}  # node id -> the address that answered last
        self._accepted: dict[bytes, _Accepted] = {}  # nodes that dialled, until their bulk connection comes
        self._awaited: dict[bytes, list[asyncio.Future[Link]]] = {}  # links that a dial of ours gave way to
        self._closing = False

    async def listen(self, host: str, port: int, last_port: int) -> int:
        """Listen on the first free port from `port` to `last_port` (0: any); the port.

        ConfigError for an address that is not allowed, or if no port is free.  Who listens on every address ("0.0.0.0"
        or "::") has to `advertise` those that others can dial.
        """
        address, bound = await self._carrier.listen(host, port, last_port, self._accept)
        self.advertise(() if address in EVERY else (f"{shown(address)}:{bound}",))
        return bound

    def advertise(self, addresses: Sequence[str]) -> None:
        """Tell every node that links to this one from now on to dial it at any of these, best first."""
        self.identity = replace(self.identity, addresses=tuple(addresses))

    async def dial(self, host: str, port: int, timeout_s: float | None = None) -> Link:
        """The link to the node at an address, made now or there already, within `timeouts.dial_s` or `timeout_s`.

        Raises ConnectFailed, VersionMismatch, WrongMesh, Busy, or ConfigError for an address that is not allowed.
        """
        return await self.reach([f"{shown(host)}:{port}"], timeout_s=timeout_s)

    async def reach(self, addresses: Sequence[str], node_id: str = "", timeout_s: float | None = None) -> Link:
        """The link to the node that listens on any of these "host:port", made now or there already, in time as `dial`.

        All of them are tried side by side; the one that worked last for `node_id` goes first.  Raises what `dial` does,
        and ConnectFailed if only other nodes than `node_id` answer there.
        """
        within_s = self.timeouts.dial_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(within_s):
                return await self._reach(addresses, node_id)
        except TimeoutError:
            raise ConnectFailed(f"{' and '.join(addresses)} did not answer within {within_s:g} s") from None

    async def close(self, error: MeshError | None = None) -> None:
        """Say goodbye on every link and stop listening.  With an error instead of the goodbye, other nodes keep what
        they hold for this one, as if it had died."""
        self._closing = True
        if self._clearing is not None:
            self._clearing.cancel()
        for link_id in list(self._awaited):
            self._gone(link_id)
        for link in list(self.links.values()):
            if error is None:
                link.close("the node is shutting down")
            else:
                link.fail(error, logging.INFO)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2 * self.timeouts.link_close_s)
        await self._carrier.close()
        self.handler = _ClosedHandler()  # for the owner holds this, and there are no links that it could hear of

    def unlinked(self, link: Link) -> None:
        """A link ended."""
        self._pairing.gone(link.link_id)
        if self.links.get(link.peer.node_id) is link:
            del self.links[link.peer.node_id]
        if link.same_host:
            self._clear_handed()

    def _clear_handed(self) -> None:
        """Remove the files that dead processes were to take, and look again while one lives to which there is no
        link."""
        if self._clearing is not None:
            self._clearing.cancel()
            self._clearing = None
        linked = {link.peer.shared_memory for link in self.links.values()}
        if self.handed.clear(linked) and not self._closing:
            self._clearing = asyncio.get_running_loop().call_later(CLEAR_S, self._clear_handed)

    def _closes(self, socket: Socket) -> None:
        """Close a connection; `close` waits for it."""
        self._tasks.run("closing a connection", socket.close(), unheard)

    def _reads(self, link: Link, channel: Channel, socket: Socket) -> None:
        self._tasks.run("reading", _read(link, channel, socket), link.fail)

    # -- dialling

    async def _reach(self, addresses: Sequence[str], node_id: str) -> Link:
        left = await self._resolved(addresses)
        worked = self._worked.pop(node_id, "")
        head_start_s = HEAD_START_S if worked in left else STAGGER_S
        left.sort(key=lambda address: address != worked)
        refusal: MeshError | None = None
        while True:
            try:
                where, control = await race(left, self._connect, self._discard, head_start_s)
            except MeshError as error:
                raise refusal or error from None
            try:
                link = await self._dial(control, where, node_id)
            except MeshError as error:  # it may be another node than the one that listens elsewhere
                refusal = refusal or error
                left.remove(where)
                if not left:
                    raise refusal from None
            else:
                self._remember(link.peer.node_id, where)
                return link

    async def _resolved(self, addresses: Sequence[str]) -> list[str]:
        resolved: dict[str, None] = {}
        failure: ConfigError | None = None
        for address in addresses:
            host, port = parse_address(address)
            try:
                resolved |= {f"{shown(ip)}:{port}": None for ip in await self._carrier.resolve(host)}
            except ConfigError as error:
                failure = failure or error
        if failure is not None and not resolved:
            raise failure
        return list(resolved)

    def _remember(self, node_id: str, address: str) -> None:
        self._worked.pop(node_id, None)
        self._worked[node_id] = address
        while len(self._worked) > self.limits.nodes_max:
            del self._worked[next(iter(self._worked))]

    async def _connect(self, where: str) -> Socket:
        return await self._carrier.connect(*parse_address(where))

    def _discard(self, socket: Socket) -> None:
        self._closes(socket)

    async def _dial(self, control: Socket, where: str, node_id: str) -> Link:
        peer = Peer.dialer(self.identity, self.limits, secrets.token_bytes(16))
        kept = False
        try:
            acknowledged = await _handshake(peer, CONTROL, control, where)
            assert isinstance(acknowledged, Acknowledged)
            other = acknowledged.identity
            _check_member(control, other)
            if node_id not in ("", other.node_id):
                raise ConnectFailed(f"{where} is {other.role} {other.name}, another node than the one that was there")
            waits_for = self._pairing.acknowledged(peer.link_id, other.node_id, other.boot_id, acknowledged.existing)
            if waits_for:
                return await self._await_link(waits_for, other)
            bulk = await self._connect(where)
            try:
                _check_member(bulk, other)
                peer.start_bulk(_can_share(self.identity, other))
                opened = await _handshake(peer, BULK, bulk, where)
                assert isinstance(opened, Opened)
                link = Link(self, peer)
                link.address = where
                kept = True
            finally:
                if not kept:
                    self._closes(bulk)
        finally:
            if not kept:
                self._gone(peer.link_id)
                peer.close()
                _write_all(peer, CONTROL, control)
                self._closes(control)
        self._establish(link, control, bulk)
        self._reads(link, CONTROL, control)
        self._reads(link, BULK, bulk)
        return link

    async def _await_link(self, link_id: bytes, other: Identity) -> Link:
        link = self.links.get(other.node_id)
        if link is not None and link.link_id == link_id:
            return link
        waiting: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(link_id, []).append(waiting)
        return await waiting

    # -- accepting

    async def _accept(self, socket: Socket) -> None:
        """Take the first frame, which says whether this is a new link or the second connection of one."""
        data = await socket.receive()
        if data is None or self._closing:
            return
        accepted = self._accepted.pop(_link_named(data, self.limits), None)
        if accepted is None:
            peer = Peer.acceptor(self.identity, self.limits)
            await self._accept_control(_Accepted(peer, socket), data)
        else:
            await self._accept_bulk(accepted, socket, data)

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
            frame = await accepted.socket.receive()
            if frame is not None and accepted.link is not None:
                await _read(accepted.link, CONTROL, accepted.socket, frame)
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
        _check_member(accepted.socket, other)
        if link_id in self._accepted:
            raise ProtocolError("a link id stands twice", node=other.name)
        if other.node_id not in self.links and len(self.links) >= self.limits.nodes_max:
            raise Busy(f"{self.identity.name} is linked to {len(self.links)} nodes, the limit")
        if other.role not in LINKS.get(self.identity.role, (other.role,)):
            mine = self.identity
            refusal = NoCoordinator if peer.version >= (1, 1) else NotTrusted  # 1.0 goes on only after one it knows
            raise refusal(
                f"{mine.name} is a {mine.role}, not a coordinator: it takes no links from {other.role}s",
                next_step="Give the address that mesh-coord serve printed (--coordinator or MESH_ADDRESS)",
            )
        if self._admit is not None:
            self._admit(other)
        peer.accept(self._pairing.accept(link_id, other.node_id, other.boot_id), _can_share(self.identity, other))
        self._accepted[link_id] = accepted

    async def _accept_bulk(self, accepted: _Accepted, socket: Socket, data: bytes) -> None:
        peer = accepted.peer
        try:
            peer.receive(BULK, data)
            assert peer.other is not None
            _check_member(socket, peer.other)
        except MeshError as error:
            log.info("refused a bulk connection: %s", error)
            peer.refuse(error)
            _write_all(peer, CONTROL, accepted.socket)
            self._closes(accepted.socket)
            return
        link = accepted.link = Link(self, peer)
        _write_all(peer, BULK, socket)
        accepted.socket.settled()
        socket.settled()
        self._establish(link, accepted.socket, socket)
        await _read(link, BULK, socket)

    def _establish(self, link: Link, control: Socket, bulk: Socket) -> None:
        """Make a link, both of whose connections stand, the one to its node."""
        replaced = self._pairing.opened(link.link_id)
        old = self.links.get(link.peer.node_id)
        if old is not None and old.link_id == replaced:
            old.replaced()
        self.links[link.peer.node_id] = link
        sockets = {CONTROL: control, BULK: bulk}
        shared = self._tasks, self.timeouts.link_close_s
        link.attach({channel: _Connection(link, channel, ws, *shared) for channel, ws in sockets.items()})
        for waiting in self._awaited.pop(link.link_id, ()):
            if not waiting.done():
                waiting.set_result(link)

    def _gone(self, link_id: bytes) -> None:
        """A link did not come about."""
        self._accepted.pop(link_id, None)
        self._pairing.gone(link_id)
        for waiting in self._awaited.pop(link_id, ()):
            if not waiting.done():
                waiting.set_exception(ConnectFailed("the other node dialled at the same time and then gave up"))


@dataclass(slots=True)
class _Accepted:
    """A node that dialled: its control connection, and the link once the bulk connection came."""

    peer: Peer
    socket: Socket
    link: Link | None = None


class _ClosedHandler:
    """Hears for an endpoint that is closed."""

    async def on_request(self, link: Link, body: Message) -> Message:
        raise NodeLost("the node is shutting down")

    def on_notify(self, link: Link, body: Message) -> None:
        return

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        raise NodeLost("the node is shutting down")

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        return

    def on_linked(self, link: Link) -> None:
        return

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        return


class _Connection:
    """One connection of a link: writes at once while it takes data, else in a task that waits until it does."""

    def __init__(self, link: Link, channel: Channel, socket: Socket, tasks: Tasks, close_s: float) -> None:
        self._link = link
        self._close_s = close_s
        self._tasks = tasks
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
            if not self._socket.write(frame):
                break
        self._task = Tasks().run("writing", self._drain(), self._link.fail)

    async def _drain(self) -> None:
        budget, loop = TURN_BYTES, asyncio.get_running_loop()
        try:
            while (frame := self._link.next_frame(self._channel)) is not None:
                began_s = loop.time()
                await self._socket.send(frame)
                self._link.bulk_moved(loop.time() - began_s > FULL_S)
                budget -= len(frame)
                if budget <= 0:
                    await asyncio.sleep(0)
                    budget = TURN_BYTES
        except ConnectionError:
            pass  # the reading side sees the end and ends the link
        finally:
            self._task = None

    def close(self) -> None:
        """Drop the connection once what is queued has left, at the latest after `close_s`."""
        self._tasks.run("closing a connection", self._close(), unheard)

    async def _close(self) -> None:
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), self._close_s)
        await self._socket.close()


async def _handshake(peer: Peer, channel: Channel, socket: Socket, where: str) -> Event:
    """Send our hello and take the answer."""
    frame = peer.next_frame(channel)
    assert frame is not None
    socket.write(frame)
    answer = await socket.receive()
    if answer is None:
        raise ConnectFailed(f"{where} closed the connection before it said who it is")
    event = peer.receive(channel, answer)[0]
    if isinstance(event, Closed):
        raise event.error or ConnectFailed(f"{where} closed the connection")
    return event


async def _read(link: Link, channel: Channel, socket: Socket, first: bytes | None = None) -> None:
    """Hand every frame to the link until the connection ends; `first` came already."""

    def take(frame: bytes | memoryview) -> None:
        link.received(channel, frame if is_chunk(frame) else bytes(frame))

    try:
        if first is not None:
            link.received(channel, first)
        await socket.pour(take)
    except Exception as fault:
        link.fail(as_error("reading", fault))
    link.ended(channel)


def _write_all(peer: Peer, channel: Channel, socket: Socket) -> None:
    while (frame := peer.next_frame(channel)) is not None:
        socket.write(frame)


def _check_member(socket: Socket, said: Identity) -> None:
    """Check that a node is the one that its certificate names; NotTrusted if not.

    A client may have an operator's or an admin's certificate, as one of an older release does that knows neither role.
    On its link it is a client, no more.
    """
    member = socket.member
    if member is None:
        return
    less = said.role == CLIENT and member.role in MORE
    if member.node_id != member_id(said.node_id) or (member.role != said.role and not less):
        raise NotTrusted(
            f"{said.name} says it is {said.role} {said.node_id[:8]}, but shows the certificate of "
            f"{member.role} {member.node_id[:8]}"
        )


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
