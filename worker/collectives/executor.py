"""The executor: performs one collective operation on one rank, which is a schedule (`schedule.py`) over numpy arrays.

Messages go through ring buffers, or over a connection: then they are sent from the tensor itself, and received where
they are combined.  While it waits for one rank, it keeps sending to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, ConnectFailed, DTypeError, GraphError, MeshError, NodeLost, ProtocolError, ShapeError
from wire.ir.types import TensorType

from .channels import Channel, Channels
from .connection import Connection, wait_for
from .remote_channel import RemoteChannel
from .ring_buffer import BRIDGED_SLEEP_S_MIN, SLEEP_S_MAX, SLEEP_SHARE, Envelope, RingReader, switch_number, tag_of
from .schedule import CombineChunk, Schedule, SendChunk

POLL_S_MIN, POLL_S_MAX = 1e-3, 20e-3  # between two checks whether a rank gave up
REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast_from", "barrier", "send",
)  # fmt: skip
OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}
REDUCTION_CODES = {name: code for code, name in enumerate(("", *REDUCTIONS))}


@dataclass(frozen=True, slots=True)
class Operation:
    """What to perform: the flat `operand` becomes the flat `result`.  Every message begins with `envelope`, and chunks
    are combined with `combine`, if it is a reduction."""

    envelope: bytes
    operand: NDArray[Any]
    result: NDArray[Any]
    schedule: Schedule
    combine: np.ufunc | None = None


class Executor:
    """One operation in progress on rank `rank`.  `peers` are the channels to the other ranks, None for itself."""

    __slots__ = (
        "_channels", "_combine_with", "_envelope", "_operand", "_peers", "_rank", "_received_from",
        "_received_remotely", "_remotes", "_result", "_rings_changed", "_schedule", "_sending", "_sent_locally",
        "_sent_remotely",
    )  # fmt: skip

    def __init__(self, channels: Channels, peers: Sequence[Channel | None], rank: int, operation: Operation) -> None:
        self._channels = channels
        self._peers = peers
        self._rank = rank
        self._envelope = operation.envelope
        self._operand = operation.operand
        self._result = operation.result
        self._schedule = operation.schedule
        self._combine_with = operation.combine
        self._remotes = [peer.remote for peer in peers if peer is not None and peer.remote is not None]
        self._rings_changed = False  # bridged ring buffers, since their daemon was notified
        self._sending: list[tuple[int, int, int]] = []  # rank, start, stop: chunks of the result that may not have left
        self._sent_locally: set[int] = set()  # ranks that got something through a ring buffer
        self._sent_remotely: set[int] = set()  # ranks that got something over a connection
        self._received_remotely: set[int] = set()  # ranks from which something came over a connection
        self._received_from: set[int] = set()

    def perform(self) -> None:
        """Perform the schedule.  Afterwards operand and result may change."""
        with np.errstate(all="ignore"):
            for move in self._schedule.moves:
                if isinstance(move, SendChunk):
                    self._send(move)
                else:
                    self._combine(move)
        if self._schedule.acknowledged:
            self._await_acknowledgements()
        self._notify_daemon()
        if self._sending:
            self._flush(0, 0, everything=True)

    # -- moves

    def _send(self, move: SendChunk) -> None:
        channel = self._channel(move.to)
        start, stop, dtype = move.start, move.stop, self._operand.dtype
        data = (self._result if move.of_result else self._operand)[start:stop]
        self._channels.sent_bytes += (stop - start) * dtype.itemsize
        if channel.remote is not None and channel.remote.outgoing is not None:
            self._sent_remotely.add(move.to)
            self._sending.append((move.to, start, stop) if move.of_result else (move.to, 0, 0))
            values = data.astype(dtype, casting="same_kind", copy=False)
            channel.remote.post(self._envelope, values.view(np.uint8).data)
            return
        writer = channel.writer
        if writer.full:
            self._wait(lambda: not writer.full, (move.to,), for_reader=True)
        if stop > start:
            began_s = time.perf_counter()
            np.copyto(writer.slot(dtype)[: stop - start], data, casting="same_kind")
            self._channels.copy_s += time.perf_counter() - began_s
        writer.publish(self._envelope, (stop - start) * dtype.itemsize)
        self._rings_changed |= channel.bridged
        self._sent_locally.add(move.to)

    def _combine(self, move: CombineChunk) -> None:
        out = self._result[move.start : move.stop]
        if self._sending:
            self._flush(move.start, move.stop)
        total, release_total = self._term(move, 0, out)
        for place in range(1, len(move.sources)):
            values, release = self._term(move, place, out)
            assert self._combine_with is not None
            self._combine_with(total, values, out=out, dtype=out.dtype)
            release_total()
            release()
            total, release_total = out, _nothing
        if total is not out:
            np.copyto(out, total, casting="same_kind")
        release_total()

    def _term(self, move: CombineChunk, place: int, out: NDArray[Any]) -> tuple[NDArray[Any], Callable[[], None]]:
        """The chunk of the source at `place`, and what to call once it was used."""
        source = move.sources[place]
        if source == self._rank:
            return (out if move.of_result else self._operand[move.own_start : move.own_stop]), _nothing
        into_out = not place and not move.of_result and out.dtype == self._operand.dtype
        return self._receive(source, move.sources[place:], out.size, out if into_out else None)

    def _await_acknowledgements(self) -> None:
        """Wait until all that was sent was consumed: the receiver may raise an error.  The two ends of a connection
        exchange empty messages for that.  A ring buffer shows how far it was read."""
        sent_remotely, sent_locally = tuple(self._sent_remotely), tuple(self._sent_locally)
        for source in tuple(self._received_remotely):
            self._send(SendChunk(source, 0, 0, of_result=False))
        for to in sent_remotely:
            _, release = self._receive(to, (to,), 0, None)
            release()
        for to in sent_locally:
            self._await_read(to)

    def _await_read(self, to: int) -> None:
        writer = self._channel(to).writer
        if writer.read != writer.written:
            self._wait(lambda: writer.read == writer.written, (to,), for_reader=True)

    # -- short messages between ranks of one machine, for `shared_reduce.py`

    def send_short(self, to: int, data: bytes, lends: bool = False) -> None:
        """Send a short message; `lends` as RingWriter.write has it."""
        writer = self._channel(to).writer
        if writer.full:
            self._wait(lambda: not writer.full, (to,), for_reader=True)
        writer.write(self._envelope, data, lends)

    def receive_short(self, source: int, size_bytes: int) -> RingReader:
        """Wait for the next message, of `size_bytes` bytes.  Returns the ring buffer that has it, to be released."""
        message = self._arrived(source, (source,))
        self._received_from.add(source)
        assert isinstance(message, RingReader)
        self._check_size(source, message.size_bytes, size_bytes)
        return message

    # -- receiving

    def _receive(
        self, source: int, waited_for: tuple[int, ...], count: int, target: NDArray[Any] | None
    ) -> tuple[NDArray[Any], Callable[[], None]]:
        """The next `count` elements from a rank, and what to call once they were used.  Over a connection they are
        received into `target`, if that is given."""
        message = self._arrived(source, waited_for)
        self._received_from.add(source)
        size_bytes = count * self._operand.itemsize
        if isinstance(message, RingReader):
            if not self._channel(source).bridged:
                self._check_size(source, message.size_bytes, size_bytes)
            return message.payload(self._operand.dtype)[:count], message.release
        self._received_remotely.add(source)
        self._remote(source).mark_received()
        self._check_size(source, message.payload_bytes, size_bytes)
        values = message.scratch()[:size_bytes].view(self._operand.dtype) if target is None else target
        self._fill(source, message, values.view(np.uint8).data)
        return values, message.release

    def _check_size(self, source: int, size_bytes: int, expected_bytes: int) -> None:
        if size_bytes != expected_bytes:
            raise ProtocolError(f"{self._name(source)} sent {size_bytes} bytes, expected {expected_bytes}")

    def _arrived(self, source: int, sources: tuple[int, ...]) -> RingReader | Connection:
        """Wait for the next message of this operation from a rank.  Returns what has it; `sources` are for errors."""
        channel = self._channel(source)
        waited_for, began_s = tuple(rank for rank in sources if rank != self._rank), time.monotonic()
        while True:
            connection = channel.remote.incoming if channel.remote is not None else None
            message = channel.reader if connection is None else connection
            envelope = self._next_envelope(message, waited_for)
            if envelope is None:
                self._connection_ended(source, channel)
            elif envelope == self._envelope:
                self._rings_changed |= connection is None and channel.bridged  # for it will be released
                return message
            elif connection is None and channel.remote is not None and (number := switch_number(envelope)):
                channel.reader.release()
                self._rings_changed = True
                self._switch(source, channel.remote, number, tag_of(envelope))
            else:
                self._skip(source, message, envelope)
            # The time that this takes counts, too: the next wait begins with none.
            self._channels.check(time.monotonic() - began_s, lambda: self._name(source))

    def _next_envelope(self, message: RingReader | Connection, ranks: tuple[int, ...]) -> bytes | None:
        """The next message's envelope; None if the connection has ended."""
        if isinstance(message, RingReader):
            if message.empty:
                self._wait(lambda: not message.empty, ranks)
            return message.envelope
        if message.arrived() is None and not message.ended:
            self._wait(lambda: message.arrived() is not None or message.ended, ranks, connection=message)
        envelope = message.arrived()
        return None if envelope is None else bytes(envelope)

    def _skip(self, source: int, message: RingReader | Connection, envelope: bytes) -> None:
        """Drop a message of a step that was given up; raise for any other."""
        tag, own_tag = tag_of(envelope), self._channels.tag
        if tag == own_tag:
            raise self._mismatch(source, Envelope.unpack(envelope))
        if tag > own_tag:
            raise Cancelled(f"{self._name(source)} went on to another step")
        if isinstance(message, Connection):
            self._fill(source, message, message.scratch()[: message.payload_bytes].data)
        message.release()

    def _switch(self, source: int, remote: RemoteChannel, number: int, tag: int) -> None:
        """Receive over the connection of that number from here on.  This end may not have made it yet.  It may also
        have ended with the earlier step in which the other end switched: then it brings no more."""
        if not remote.is_decided(number):
            self._wait(lambda: remote.is_decided(number), (source,))
        if not remote.switch_incoming(number) and tag == self._channels.tag:
            self._raise_disconnected(source)

    def _fill(self, source: int, connection: Connection, target: memoryview) -> None:
        """Receive a payload.  If the connection ends before, the step fails."""
        if not connection.fill(target):
            self._wait(lambda: connection.fill(target) or connection.ended, (source,), connection=connection)
            if connection.ended and not connection.fill(target):
                self._raise_disconnected(source)

    def _connection_ended(self, source: int, channel: Channel) -> None:
        """A connection ended between two messages.  The next ones are in the ring buffer, unless some of this step may
        be lost with it."""
        assert channel.remote is not None
        if channel.remote.may_have_lost(self._channels.tag):
            self._raise_disconnected(source)
        channel.remote.incoming = None

    def _raise_disconnected(self, rank: int) -> NoReturn:
        """Raise the reason why a connection ended, once it comes; ConnectFailed if it does not."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + self._channels.failure_reason_s:
            self._channels.check(0.0, str)
            time.sleep(POLL_S_MIN)
        peer = self._peers[rank]
        raise ConnectFailed(f"the connection to {self._name(rank)} broke off", node=peer.name if peer else "")

    # -- waiting

    def _notify_daemon(self) -> None:
        """Have the daemon carry what changed in bridged ring buffers."""
        if self._rings_changed:
            self._rings_changed = False
            self._channels.notify()

    def _flush(self, start: int, stop: int, everything: bool = False) -> None:
        """Wait until the chunks of elements [start, stop) of the result have left, or `everything` that was sent."""
        connections = {to: self._connection_to(to) for to, _, _ in self._sending}
        self._sending = [chunk for chunk in self._sending if not connections[chunk[0]].idle]
        blocking = [connections[to] for to, a, b in self._sending if everything or (a < stop and start < b)]
        if blocking:
            self._wait(lambda: all(connection.idle for connection in blocking), ())
            self._flush(start, stop, everything)

    def _connection_to(self, rank: int) -> Connection:
        """The connection over which a rank was sent something.  Raises if it has ended meanwhile."""
        connection = self._remote(rank).outgoing
        if connection is None or connection.ended:
            self._raise_disconnected(rank)
        return connection

    def _wait(
        self,
        ready: Callable[[], bool],
        ranks: tuple[int, ...],
        for_reader: bool = False,
        connection: Connection | None = None,
    ) -> None:
        """Wait until `ready()`.  That takes a message from `ranks`, over `connection` if given, or, `for_reader`, that
        the one rank reads what this one wrote."""
        self._notify_daemon()

        def missing() -> str:
            expected = self._schedule.sources - self._received_from
            silent = [rank for rank in sorted(expected | {*ranks}) if self._is_silent(rank)]
            return ", ".join(self._name(rank) for rank in silent or ranks)

        def check(waited_s: float) -> None:
            self._channels.check(waited_s, missing)
            for rank in ranks:
                peer = self._peers[rank]
                if peer is None or peer.alive() or not (not ready() if for_reader else peer.reader.empty):
                    continue
                self._channels.check(waited_s, missing)  # it may have said why
                raise NodeLost(f"{self._name(rank)} has ended, and others wait for it", node=peer.name)

        if any(remote.outgoing is not None for remote in self._remotes):
            self._wait_and_send(ready, check, connection, bool(ranks))
        else:
            self._channels.spin_wait.wait(ready, check)

    def _wait_and_send(
        self, ready: Callable[[], bool], check: Callable[[float], None], connection: Connection | None, in_rings: bool
    ) -> None:
        """Wait while messages leave over connections.  The one waited for comes over `connection`, or, `in_rings`,
        through a ring buffer; with neither, nothing is waited for but that messages leave."""
        began_s = time.monotonic()
        while True:
            outgoing = [remote.outgoing for remote in self._remotes if remote.outgoing is not None]
            sending = [connection for connection in outgoing if not connection.push()]
            if ready():
                return
            waited_s = time.monotonic() - began_s
            check(waited_s)
            if connection is not None or not in_rings:
                wait_for(connection, sending, min(POLL_S_MIN + waited_s * SLEEP_SHARE, POLL_S_MAX))
            else:
                time.sleep(min(BRIDGED_SLEEP_S_MIN + waited_s * SLEEP_SHARE, SLEEP_S_MAX))

    # -- helpers

    def _channel(self, rank: int) -> Channel:
        channel = self._peers[rank]
        assert channel is not None
        return channel

    def _remote(self, rank: int) -> RemoteChannel:
        remote = self._channel(rank).remote
        assert remote is not None
        return remote

    def _is_silent(self, rank: int) -> bool:
        """Whether there is no message from another rank."""
        peer = self._peers[rank]
        if peer is None:
            return False
        connection = peer.remote.incoming if peer.remote is not None else None
        return peer.reader.empty and (connection is None or connection.arrived() is None)

    def _name(self, rank: int) -> str:
        peer = self._peers[rank]
        return f"rank {rank}" + (f" ({peer.name})" if peer is not None and peer.name else "")

    def _mismatch(self, source: int, theirs: Envelope) -> MeshError:
        """The error for two ranks that perform different operations."""
        mine = Envelope.unpack(self._envelope)
        cls = GraphError
        if (mine.operation, mine.group, mine.reduction) == (theirs.operation, theirs.group, theirs.reduction):
            cls = ShapeError if mine.shape != theirs.shape else DTypeError
        there, here = _text(theirs), _text(mine)
        return cls(f"{self._name(source)} is in {there}, rank {self._rank} in {here}")


def _nothing() -> None:
    pass


def _text(envelope: Envelope) -> str:
    kind = TensorType(envelope.shape, envelope.dtype)
    names = {code: name for name, code in REDUCTION_CODES.items()}
    operation = OPERATIONS[envelope.operation] if envelope.operation < len(OPERATIONS) else "?"
    reduction = names.get(envelope.reduction, "?")
    return f"{operation} {reduction}".strip() + f" of {kind}"
