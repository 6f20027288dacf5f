"""One link between two nodes as a machine: frames in, events out, frames to send (docs/protocol.md, "Link").

Two rules.  Everything that decides what a link does lives here.  This file does not know sockets, time or chance: the
shell feeds `receive`, acts on the events, and sends what `next_frame` gives while the connection takes it.

    peer = Peer.dialer(identity, limits, link_id)            peer = Peer.acceptor(identity, limits)
    events = peer.receive(CONTROL, data)                     number = peer.request(body)
    while (frame := peer.next_frame(BULK)) is not None: ...  peer.place_stream(number, buffer)

Bodies are opaque.  A link has two connections: control carries short frames in order; bulk carries streams and frames
too long for control, in chunks taken from all streams in turn, at most `window_bytes` ahead of the receiver's credit.
The other side's mistakes raise ProtocolError or FrameError out of `receive` (the link is then over; `next_frame` still
gives the frame that says why); our own raise LocalError and change nothing.  To add a frame, add a row to
_CHANNELS and _OPEN.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import (
    Busy,
    Cancelled,
    ConnectFailed,
    LimitExceeded,
    LocalError,
    MeshError,
    NodeLost,
    ProtocolError,
    RemoteError,
    VersionMismatch,
    WrongMesh,
)
from ..limits import DEFAULT, Limits
from ..plain_data import PlainData
from ..text import printable
from ..units import need_text, room_text
from .flow_control import PacedBuffer, Receiver, Sender
from .frames import (
    HEADER_BYTES_MAX,
    LINK_ID_BYTES,
    Bytes,
    Cancel,
    Credit,
    ErrorReply,
    Frame,
    Goodbye,
    Hello,
    HelloAck,
    HelloBody,
    Notify,
    Piece,
    Ping,
    Pong,
    Refuse,
    Reply,
    Request,
    StreamAbort,
    StreamChunk,
    StreamOpen,
    StreamRefuse,
    decode,
    decode_hello_body,
    decode_long,
    encode,
    encode_hello_body,
    hello_version,
)
from .versions import Version, negotiate


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a node: what hello carries.

    `node_id` stays the same for a state folder and `boot_id` for a process.  `addresses` are all "host:port" where it
    may be dialled, best first; none for a node that does not listen.  `host_id` is equal for processes that may share
    memory (one machine, one user); `shared_memory` is the directory of this node's shared-memory files, "" for none.
    """

    node_id: str
    name: str
    role: str  # of wire/roles.py
    mesh: str
    boot_id: str
    incarnation: int
    version: str
    protocol: Version
    op_rows: Mapping[str, bytes]
    addresses: tuple[str, ...]
    host_id: str
    shared_memory: str
    pid: int
    reproducible: bool = False  # of a coordinator: all its plans give the same bits


class Channel(enum.IntEnum):
    """The two connections of a link."""

    CONTROL = 0
    BULK = 1


CONTROL, BULK = Channel.CONTROL, Channel.BULK


class State(enum.Enum):
    """The state of the hello (docs/protocol.md, "Hello")."""

    HELLO_SENT = "hello sent"  # dialer: waits for the answer on control
    ACKNOWLEDGED = "acknowledged"  # dialer: the shell decides whether to go on
    BULK_SENT = "bulk hello sent"  # dialer: waits for the answer on bulk
    AWAIT_HELLO = "awaiting hello"  # acceptor
    HELLO_SEEN = "hello seen"  # acceptor: the shell accepts or refuses
    AWAIT_BULK = "awaiting bulk"  # acceptor
    OPEN = "open"
    CLOSED = "closed"


# -- events ------------------------------------------------------------------------------------------------


class HelloReceived(PlainData, frozen=True):
    """Acceptor: answer with `accept` or `refuse`."""

    identity: Identity
    link_id: bytes


class Acknowledged(PlainData, frozen=True):
    """Dialer: go on with `start_bulk`, or close.  `existing` is the link the other side keeps instead, or b""."""

    identity: Identity
    existing: bytes


class Opened(PlainData, frozen=True):
    """The link is open: both connections stand; requests, notes and streams may flow."""


class RequestReceived(PlainData, frozen=True):
    """Answer with `reply` or `reply_error`, exactly once."""

    number: int
    body: Bytes


class Replied(PlainData, frozen=True):
    """`error` is None when `body` is the answer."""

    number: int
    body: Bytes
    error: MeshError | None


class CancelReceived(PlainData, frozen=True):
    """The other side dropped its request; it still gets one answer, which it ignores."""

    number: int


class NotifyReceived(PlainData, frozen=True):
    body: Bytes


class StreamOpened(PlainData, frozen=True):
    """Answer with `place_stream` or `refuse_stream` before the next `receive`."""

    stream: int
    size: int
    header: Bytes


class StreamDone(PlainData, frozen=True):
    """An incoming stream ended: complete, or with the sender's error."""

    stream: int
    error: MeshError | None


class StreamSent(PlainData, frozen=True):
    """An outgoing stream left: handed over completely, or refused with `error`."""

    stream: int
    error: MeshError | None


class Ponged(PlainData, frozen=True):
    token: int


class Closed(PlainData, frozen=True):
    """The link is over; `error` is None after a goodbye."""

    error: MeshError | None


Event = (
    HelloReceived | Acknowledged | Opened | RequestReceived | Replied | CancelReceived | NotifyReceived
    | StreamOpened | StreamDone | StreamSent | Ponged | Closed
)  # fmt: skip


# -- the machine -------------------------------------------------------------------------------------------


class Peer:
    """One end of one link.  Make it with `dialer` or `acceptor`."""

    def __init__(self, identity: Identity, limits: Limits, link_id: bytes, state: State) -> None:
        self.identity = identity
        self.limits = limits
        self.link_id = link_id
        self.state = state
        self.other: Identity | None = None
        self.version: Version = identity.protocol
        self.shared_ok = False  # both ends could read the other's shared-memory directory
        self._window_bytes = limits.window_bytes
        self._sender = Sender(limits.chunk_bytes_max)
        self._receiver = Receiver()
        self._frames: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._queued_bytes = 0
        self._last_number = 0  # of our requests and streams
        self._asked: dict[int, bool] = {}  # our requests without an answer; whether they went in pieces
        self._dropped: set[int] = set()  # of those, the ones we cancelled
        self._serving: dict[int, int] = {}  # their requests that we have not answered, and the bytes of each
        self._serving_bytes = 0
        self._can_share = False  # the other end could read our shared memory
        self._late_ack = False

    @classmethod
    def dialer(cls, identity: Identity, limits: Limits, link_id: bytes) -> Peer:
        """The end that dialled; `link_id` is 16 random bytes.  Its hello is ready to send."""
        if len(link_id) != LINK_ID_BYTES or link_id == _NO_LINK:
            raise LocalError(f"a link id is {LINK_ID_BYTES} random bytes")
        peer = cls(identity, limits, link_id, State.HELLO_SENT)
        peer._put(CONTROL, Hello(identity.protocol, link_id, False, peer._own_body()))
        return peer

    @classmethod
    def acceptor(cls, identity: Identity, limits: Limits = DEFAULT) -> Peer:
        """The end that was dialled."""
        return cls(identity, limits, _NO_LINK, State.AWAIT_HELLO)

    # -- in

    def receive(self, channel: Channel, data: Bytes) -> list[Event]:
        """What the frame in `data` means.  ProtocolError and FrameError end the link."""
        if self.state is State.CLOSED:
            return []
        try:
            events = self._receive(channel, data)
        except RemoteError as error:
            error.node = error.node or self._other_name()
            self._end(error)
            raise
        self._give_credit()
        return events

    def receive_eof(self, channel: Channel) -> list[Event]:
        """A connection ended without goodbye: so does the link."""
        if self.state is State.CLOSED:
            return []
        self.state = State.CLOSED
        return [Closed(NodeLost("the connection ended"))]

    # -- out

    def next_frame(self, channel: Channel) -> bytes | None:
        """The next frame to send on a connection, or None.  Bulk chunks are only made here, so that nothing queues."""
        queue = self._frames[channel]
        if queue:
            frame = queue.popleft()
            self._queued_bytes -= len(frame) + _QUEUED_FRAME_BYTES
            return frame
        chunk = self._sender.next() if channel is BULK and self.state is State.OPEN else None
        return None if chunk is None else encode(chunk)

    def has_frames(self, channel: Channel) -> bool:
        """Whether `next_frame` may have one."""
        return bool(self._frames[channel]) or (channel is BULK and self._sender.has_bytes)

    def has_to_send(self) -> bool:
        """Whether `next_frame` or `sent_events` may have something."""
        control, bulk = self._frames
        return bool(control or bulk or self._sender.finished) or self._sender.has_bytes

    def sent_events(self) -> list[Event]:
        """StreamSent events that `next_frame` caused; take them after each round of sending."""
        finished, self._sender.finished = self._sender.finished, []
        return [StreamSent(stream, None) for stream in finished]

    @property
    def queued_bytes(self) -> int:
        """Memory of the frames that wait; streams and long frames wait in the caller's and do not count."""
        return self._queued_bytes

    # -- hello

    def accept(self, existing: bytes = b"", shared_ok: bool = False) -> None:
        """Acceptor: answer the hello.  `existing` names another link to the node, kept if the dialer knows it too."""
        self._expect(State.HELLO_SEEN)
        self._can_share = shared_ok
        self._put(CONTROL, HelloAck(self.identity.protocol, existing or _NO_LINK, shared_ok, self._own_body()))
        self.state = State.AWAIT_BULK

    def refuse(self, error: MeshError) -> None:
        """Say why and end, in any state."""
        self._end(error)

    def start_bulk(self, shared_ok: bool = False) -> None:
        """Dialer: go on with the second connection."""
        self._expect(State.ACKNOWLEDGED)
        self.shared_ok = self._can_share and shared_ok
        self._put(BULK, Hello(self.identity.protocol, self.link_id, shared_ok))
        self.state = State.BULK_SENT

    def close(self, reason: str = "") -> None:
        """End in good order: what is queued on control still goes out, then a goodbye."""
        if self.state is not State.CLOSED:
            self._put(CONTROL, Goodbye(reason))
            self.state = State.CLOSED

    # -- requests and notes

    def request(self, body: Bytes) -> int:
        """Ask; the number that the Replied event will carry.  LocalError over the limits, NodeLost when closed."""
        self._expect_open()
        if len(self._asked) >= self.limits.requests_per_peer_max:
            raise LocalError(f"{len(self._asked)} requests to {self._other_name()} are open, the limit")
        number = self._next_number()
        self._asked[number] = self._send_body(Request(number, body), number)
        return number

    def reply(self, number: int, body: Bytes) -> None:
        """Answer a request; ignored when the link is over.  An answer that is too long becomes an error, so that nobody
        waits for ever for it."""
        if len(body) > self.limits.message_bytes_max:
            self.reply_error(number, LimitExceeded(f"the answer has {need_text(len(body))}, {self._too_long}"))
        elif self._is_serving(number):
            self._send_body(Reply(number, body))
            self._served(number)

    def reply_error(self, number: int, error: MeshError) -> None:
        """Answer a request with an error."""
        if self._is_serving(number):
            self._put(CONTROL, ErrorReply(number, error))
            self._served(number)

    def cancel(self, number: int) -> None:
        """Drop a request; no Replied event will come.  A finished one is left alone."""
        if self.state is not State.OPEN or number not in self._asked or number in self._dropped:
            return
        in_pieces = self._asked[number]
        if in_pieces and self._sender.stop_long(number):  # the other side will never see it complete
            del self._asked[number]
            return
        self._dropped.add(number)
        self._put(BULK if in_pieces else CONTROL, Cancel(number))  # behind the request, wherever that went

    def notify(self, body: Bytes, in_order: bool = False) -> None:
        """Say something that has no answer; `in_order` behind all long messages that were said before."""
        self._expect_open()
        self._send_body(Notify(body), long=in_order)

    def ping(self, token: int) -> None:
        """Ask for a Ponged event with this token (0 to 2^64 - 1)."""
        self._expect_open()
        self._put(CONTROL, Ping(token))

    # -- streams

    def open_stream(self, header: Bytes, data: Sequence[memoryview]) -> int:
        """Send the bytes of `data` after `header`; a StreamSent event ends it.  `data` must not change until then."""
        self._expect_open()
        size = sum(len(part) for part in data)
        if len(header) > HEADER_BYTES_MAX:
            raise LocalError(f"a stream's header has at most {HEADER_BYTES_MAX} bytes, got {len(header)}")
        if size > self.limits.stream_bytes_max:
            raise LocalError(f"a stream has at most {self.limits.stream_bytes_max} bytes, got {size}")
        if len(self._sender) >= self.limits.streams_per_peer_max:
            raise LocalError(f"{len(self._sender)} streams to {self._other_name()} are open, the limit")
        number = self._next_number()
        self._put(BULK, StreamOpen(number, size, header))
        self._sender.add_stream(number, data)
        return number

    def abort_stream(self, stream: int, error: MeshError) -> None:
        """Give up sending; a finished stream is left alone.  No StreamSent event follows."""
        if self._sender.stop_stream(stream) and self.state is State.OPEN:
            self._put(BULK, StreamAbort(stream, error))

    def place_stream(self, stream: int, buffer: memoryview | PacedBuffer) -> list[Event]:
        """Give the buffer for an incoming stream's bytes: writable and of exactly its size."""
        return [StreamDone(stream, None)] if self._receiver.place(stream, buffer) else []

    def emptied(self, buffer: PacedBuffer, size: int) -> None:
        """Let the sender send as many bytes as were taken out of a buffer."""
        self._receiver.emptied(buffer, size)
        self._give_credit()

    def give_up(self, buffer: PacedBuffer) -> None:
        """Let the sender go on: nobody takes any more out of a buffer."""
        self._receiver.give_up(buffer)
        self._give_credit()

    def refuse_stream(self, stream: int, error: MeshError) -> None:
        """Tell the sender to stop; what still comes is dropped and no StreamDone event follows."""
        self._receiver.drop(stream)
        self._put(CONTROL, StreamRefuse(stream, error))

    # -- receiving, by state

    def _receive(self, channel: Channel, data: Bytes) -> list[Event]:
        if self.state in _HELLO:
            return self._receive_hello(channel, data)
        frame = decode(data, self.limits)
        if _CHANNELS[type(frame)] is not channel and type(frame) not in _BOTH:
            raise ProtocolError(f"{type(frame).__name__} does not belong on {channel.name.lower()}")
        if self._late_ack and type(frame) is HelloAck and channel is BULK:
            self._late_ack = False
            return []
        return self._handle(frame)

    def _handle(self, frame: Frame) -> list[Event]:
        handler = _OPEN.get(type(frame))
        if handler is None:
            raise ProtocolError(f"{type(frame).__name__} cannot come in state {self.state.value!r}")
        return handler(self, frame)

    def _receive_hello(self, channel: Channel, data: Bytes) -> list[Event]:
        version = hello_version(data)
        if version is not None:
            self.version = negotiate(self.identity.protocol, version)
        frame = decode(data, self.limits)
        row = (self.state, channel, type(frame))
        if row in _HELLO_TABLE:
            return _HELLO_TABLE[row](self, frame)
        if self.state is State.BULK_SENT and type(frame) in _OPEN and type(frame) not in _BOTH:
            # The other side is open; its first frames on one connection may overtake its answer on the other.
            self._late_ack = True
            return [*self._open(), *self._receive(channel, data)]
        what = f"{type(frame).__name__} on {channel.name.lower()}"
        raise ProtocolError(f"{what} cannot come in state {self.state.value!r}")

    def _on_hello(self, frame: Hello) -> list[Event]:
        if frame.link_id == _NO_LINK:
            raise ProtocolError("a hello needs a link id")
        if not len(frame.body):  # of a bulk connection, whose link this node does not know, or no longer
            raise ConnectFailed("the other connection of the link ended before this one came")
        self.link_id = frame.link_id
        self.other = self._read_identity(frame.version, frame.body)
        self.state = State.HELLO_SEEN
        return [HelloReceived(self.other, frame.link_id)]

    def _on_hello_ack(self, frame: HelloAck) -> list[Event]:
        self.other = self._read_identity(frame.version, frame.body)
        self._can_share = frame.flag
        self.state = State.ACKNOWLEDGED
        return [Acknowledged(self.other, b"" if frame.link_id == _NO_LINK else frame.link_id)]

    def _on_bulk_hello(self, frame: Hello) -> list[Event]:
        if frame.link_id != self.link_id or len(frame.body):
            raise ProtocolError("the bulk connection names another link")
        self.shared_ok = self._can_share and frame.flag
        self._put(BULK, HelloAck(self.identity.protocol, self.link_id, False))
        return self._open()

    def _on_bulk_ack(self, frame: HelloAck) -> list[Event]:
        if frame.link_id != self.link_id:
            raise ProtocolError("the bulk connection's answer names another link")
        return self._open()

    def _open(self) -> list[Event]:
        self.state = State.OPEN
        self._sender.open(self._window_bytes)
        self._receiver.open(self._window_bytes)
        return [Opened()]

    def _read_identity(self, version: Version, data: Bytes) -> Identity:
        body = decode_hello_body(data)
        fields = {name: getattr(body, name) for name in HelloBody.__struct_fields__ if name != "window_bytes"}
        fields |= {name: printable(fields[name]) for name in ("name", "role", "version")}  # are shown to people
        other = Identity(**fields, protocol=version)
        if other.mesh != self.identity.mesh:
            raise WrongMesh(
                f"{other.role} {other.name!r} belongs to mesh {other.mesh!r}, "
                f"{self.identity.role} {self.identity.name!r} to {self.identity.mesh!r}",
                next_step="Give both the same --mesh NAME",
            )
        if other.node_id == self.identity.node_id:
            raise ProtocolError(f"{other.name!r} has this node's own id", next_step="Do not copy a node's state folder")
        self._window_bytes = min(self.limits.window_bytes, body.window_bytes)
        return other

    # -- receiving, once open

    def _on_request(self, frame: Request) -> list[Event]:
        if frame.number in self._serving:
            raise ProtocolError(f"request {frame.number} is already open")
        full, size = "", len(frame.body)
        if len(self._serving) >= self.limits.requests_per_peer_max:
            full = f"more than {len(self._serving)} requests at once"
        elif self._serving_bytes + size > self.limits.request_bytes_per_peer_max:
            full = f"requests of more than {room_text(self.limits.request_bytes_per_peer_max)} at once"
        if full:
            self._put(CONTROL, ErrorReply(frame.number, Busy(full, node=self.identity.name)))
            return []
        self._serving[frame.number] = size
        self._serving_bytes += size
        return [RequestReceived(frame.number, frame.body)]

    def _on_reply(self, frame: Reply) -> list[Event]:
        return self._answered(frame.number, frame.body, None)

    def _on_error_reply(self, frame: ErrorReply) -> list[Event]:
        return self._answered(frame.number, b"", self._named(frame.error))

    def _answered(self, number: int, body: Bytes, error: MeshError | None) -> list[Event]:
        if number not in self._asked:
            raise ProtocolError(f"an answer came to request {number}, which is not open")
        if self._asked.pop(number):
            self._sender.stop_long(number)
        if number in self._dropped:
            self._dropped.remove(number)
            return []
        return [Replied(number, body, error)]

    def _on_cancel(self, frame: Cancel) -> list[Event]:
        # An unknown number was answered while the cancel was in flight.
        return [CancelReceived(frame.number)] if frame.number in self._serving else []

    def _on_notify(self, frame: Notify) -> list[Event]:
        return [NotifyReceived(frame.body)]

    def _on_piece(self, frame: Piece) -> list[Event]:
        message = self._receiver.piece(frame)
        return [] if message is None else self._handle(decode_long(message, self.limits))

    def _on_stream_open(self, frame: StreamOpen) -> list[Event]:
        if len(self._receiver) >= 2 * self.limits.streams_per_peer_max:  # it does not stop those that were refused
            raise ProtocolError(f"{len(self._receiver)} streams are open at once")
        self._receiver.add_stream(frame.stream, frame.size)
        if len(self._receiver) > self.limits.streams_per_peer_max:
            self.refuse_stream(frame.stream, Busy("too many streams at once", node=self.identity.name))
            return []
        return [StreamOpened(frame.stream, frame.size, frame.header)]

    def _on_stream_chunk(self, frame: StreamChunk) -> list[Event]:
        return [StreamDone(frame.stream, None)] if self._receiver.chunk(frame) else []

    def _on_stream_abort(self, frame: StreamAbort) -> list[Event]:
        return [StreamDone(frame.stream, self._named(frame.error))] if self._receiver.abort(frame.stream) else []

    def _on_stream_refuse(self, frame: StreamRefuse) -> list[Event]:
        if not self._sender.stop_stream(frame.stream):
            return []  # its last byte had left
        self._put(BULK, StreamAbort(frame.stream, Cancelled("refused")))
        return [StreamSent(frame.stream, self._named(frame.error))]

    def _on_credit(self, frame: Credit) -> list[Event]:
        self._sender.add_credit(frame.size)
        return []

    def _on_ping(self, frame: Ping) -> list[Event]:
        self._put(CONTROL, Pong(frame.token))
        return []

    def _on_pong(self, frame: Pong) -> list[Event]:
        return [Ponged(frame.token)]

    def _on_goodbye(self, frame: Goodbye) -> list[Event]:
        self.state = State.CLOSED
        return [Closed(None)]

    def _on_refuse(self, frame: Refuse) -> list[Event]:
        error = frame.error
        if isinstance(error, VersionMismatch):
            try:
                negotiate(self.identity.protocol, frame.version)
            except VersionMismatch as seen_from_here:
                error = seen_from_here
        self.state = State.CLOSED
        return [Closed(self._named(error))]

    # -- sending

    def _give_credit(self) -> None:
        if self.state is State.OPEN and (credit := self._receiver.credit_due()):
            self._put(CONTROL, Credit(credit))

    def _put(self, channel: Channel, frame: Frame) -> None:
        data = encode(frame)
        self._frames[channel].append(data)
        self._queued_bytes += len(data) + _QUEUED_FRAME_BYTES

    def _send_body(self, frame: Request | Reply | Notify, request: int = 0, long: bool = False) -> bool:
        """Send a frame on control, or in pieces on bulk if it is long, or to go as such; whether it was."""
        size = len(frame.body)
        if size <= self.limits.chunk_bytes_max and not long:
            self._put(CONTROL, frame)
            return False
        if size > self.limits.message_bytes_max:
            raise LocalError(
                f"a message of {need_text(size)} is too long, {self._too_long}; send it as a stream or a blob"
            )
        self._sender.add_long(request, encode(frame))
        return True

    # -- small things

    def _end(self, error: MeshError) -> None:
        if self.state is State.CLOSED:
            return
        self._put(CONTROL, Refuse(self.identity.protocol, error))
        self.state = State.CLOSED

    def _served(self, number: int) -> None:
        self._serving_bytes -= self._serving.pop(number)

    def _is_serving(self, number: int) -> bool:
        if self.state is not State.OPEN:
            return False
        if number not in self._serving:
            raise LocalError(f"request {number} is not open")
        return True

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _own_body(self) -> bytes:
        fields = {name: getattr(self.identity, name) for name in HelloBody.__struct_fields__ if name != "window_bytes"}
        fields["op_rows"] = dict(self.identity.op_rows)
        return encode_hello_body(HelloBody(**fields, window_bytes=self.limits.window_bytes))

    def _expect(self, state: State) -> None:
        if self.state is not state:
            raise LocalError(f"the link is in state {self.state.value!r}, not {state.value!r}")

    def _expect_open(self) -> None:
        if self.state is State.CLOSED:
            raise NodeLost("the link is closed")
        self._expect(State.OPEN)

    @property
    def _too_long(self) -> str:
        return f"at most {room_text(self.limits.message_bytes_max)} fit into a message"

    def _other_name(self) -> str:
        return self.other.name if self.other else ""

    def _named(self, error: MeshError) -> MeshError:
        error.node = error.node or self._other_name()
        return error


# -- tables ------------------------------------------------------------------------------------------------

_NO_LINK = bytes(LINK_ID_BYTES)
_QUEUED_FRAME_BYTES = 64  # what Python needs for a frame beside its bytes: millions of tiny ones may wait

_HELLO = frozenset(set(State) - {State.OPEN, State.CLOSED})

# (state, connection, frame) -> what it does; anything absent is an error
_HELLO_TABLE: dict[tuple[State, Channel, type[Any]], Callable[[Peer, Any], list[Event]]] = {
    (State.AWAIT_HELLO, CONTROL, Hello): Peer._on_hello,
    (State.AWAIT_BULK, BULK, Hello): Peer._on_bulk_hello,
    (State.AWAIT_BULK, CONTROL, Goodbye): Peer._on_goodbye,
    (State.AWAIT_BULK, CONTROL, Refuse): Peer._on_refuse,
    (State.HELLO_SENT, CONTROL, HelloAck): Peer._on_hello_ack,
    (State.HELLO_SENT, CONTROL, Refuse): Peer._on_refuse,
    (State.ACKNOWLEDGED, CONTROL, Goodbye): Peer._on_goodbye,
    (State.ACKNOWLEDGED, CONTROL, Refuse): Peer._on_refuse,
    (State.BULK_SENT, BULK, HelloAck): Peer._on_bulk_ack,
    (State.BULK_SENT, BULK, Refuse): Peer._on_refuse,
    (State.BULK_SENT, CONTROL, Refuse): Peer._on_refuse,
    (State.BULK_SENT, CONTROL, Goodbye): Peer._on_goodbye,
}

# frame -> what it does on an open link
_OPEN: dict[type[Any], Callable[[Peer, Any], list[Event]]] = {
    Request: Peer._on_request,
    Reply: Peer._on_reply,
    ErrorReply: Peer._on_error_reply,
    Cancel: Peer._on_cancel,
    Notify: Peer._on_notify,
    Piece: Peer._on_piece,
    StreamOpen: Peer._on_stream_open,
    StreamChunk: Peer._on_stream_chunk,
    StreamAbort: Peer._on_stream_abort,
    StreamRefuse: Peer._on_stream_refuse,
    Credit: Peer._on_credit,
    Ping: Peer._on_ping,
    Pong: Peer._on_pong,
    Goodbye: Peer._on_goodbye,
    Refuse: Peer._on_refuse,
}

# frame -> the connection it travels on
_CHANNELS: dict[type[Any], Channel] = {
    Hello: CONTROL,
    HelloAck: CONTROL,
    Refuse: CONTROL,
    Goodbye: CONTROL,
    Request: CONTROL,
    Reply: CONTROL,
    ErrorReply: CONTROL,
    Cancel: CONTROL,
    Notify: CONTROL,
    Credit: CONTROL,
    Ping: CONTROL,
    Pong: CONTROL,
    StreamRefuse: CONTROL,
    Piece: BULK,
    StreamOpen: BULK,
    StreamChunk: BULK,
    StreamAbort: BULK,
}
_BOTH = frozenset({Hello, HelloAck, Refuse, Cancel})
