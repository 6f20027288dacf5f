"""The bridge: the daemon's end of the ring buffers of collectives.  It makes the files, and carries messages between
machines.

A rank's host writes to files of its own daemon.  On one machine, the other ranks' hosts read these files.  For a rank
on another machine there is a *copy* of the ring buffer in the directory of that rank's daemon.  The host says that its
buffers changed.  The daemon sends the new messages over the link as Letters, large ones as streams straight into a slot
of the copy.  The other daemon says with LettersRead how far its host has read the copy, which frees slots of the
original.  So original and copy are one ring buffer, whose size bounds what is in flight.

A message that was lost with its link is sent again over the next one.  A ring buffer that is unknown here belongs to a
plan that is over, and nobody waits for an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from wire.errors import ConnectFailed, MeshError, ProtocolError, StaleGeneration
from wire.limits import KIB
from wire.link.link import Link
from wire.protocol.messages import Gang, GaveUp, Letter, LettersRead, Meet, Member, Message, PlanKey
from wire.system.shared_memory import SharedDir, new_prefix, remove, remove_all
from wire.system.tasks import Tasks, unheard
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..collectives.ring_buffer import (
    SLOT_BYTES,
    SLOTS,
    RingReader,
    RingWriter,
    initialise,
    size_of,
    slot_bytes_for,
)
from ..engine.host_messages import BuffersChanged, Disconnected, Listening, RankOf, RankPeer
from .collective_rendezvous import HostConnections
from .link_handler import Take

INLINE_BYTES_MAX = 32 * KIB  # a larger message is a stream, so that no bulk delays heartbeats
RECONNECT_TIMES_MAX = 300  # of `rank_reconnect_s`
TELL_S = 0.001  # the longest delay before the writer learns which messages were read


@dataclass(slots=True)
class _Original:
    """A ring buffer that a host here writes to.  Its first `sent` messages were sent to `node`."""

    node: str
    device: int
    buffer: memoryview
    reader: RingReader | None = None  # the reading end, once it is known that the reader is on another machine
    sent: int = 0
    failed: int = 0  # the last step whose failure was sent
    disconnects: int = 0  # connections beside it that ended, or could not be made
    offering: asyncio.TimerHandle | None = None  # another one, later


@dataclass(slots=True)
class _Copy:
    """A ring buffer that a host here reads and one on `node` writes to."""

    node: str
    device: int
    slot_bytes: int
    back: str  # the ring buffer in the other direction
    writer: RingWriter | None = None  # the writing end, once there is a message, or a host that waits for one
    arrived: set[int] = field(default_factory=set)  # numbers of messages that overtook others
    reported: int = 0  # how many the writer knows to be read
    reporting: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A rank that is prepared here."""

    plan: PlanKey
    gang: Gang
    names: frozenset[str]
    arena_prefix: str


def name_of(plan: PlanKey, source: Member, to: Member, slot_bytes: int = SLOT_BYTES) -> str:
    """The name of the ring buffer from one rank's device to another's: the same for all gangs of a plan whose slots
    have the same size.  Both ends make theirs of that size, whichever gang they prepare first."""
    text = f"{plan.epoch}.{plan.generation} {source.node}/{source.device} {to.node}/{to.device}"
    if slot_bytes != SLOT_BYTES:
        text += f" {slot_bytes}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Bridge:
    """The ring buffers of this worker's ranks.  `links` are the node's links by node id.  `connections` has hosts
    connect to each other, if they may."""

    def __init__(
        self,
        links: Mapping[str, Link],
        shared: SharedDir,
        connections: HostConnections | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._timeouts = timeouts
        self._links = links
        self._shared = shared
        self._connections = connections
        self._parts: dict[int, _Part] = {}
        self._originals: dict[str, _Original] = {}
        self._copies: dict[str, _Copy] = {}
        self._directories: dict[tuple[PlanKey, str], str] = {}  # of the nodes of a plan, as first seen
        self._sending = Tasks()

    # -- called by the daemon

    def prepare(self, prepared: int, plan: PlanKey, gang: Gang) -> RankOf:
        """Make the ring buffers of a rank.  Returns what its host has to know.  OutOfMemory."""
        me = gang.members[gang.rank]
        others = [member for member in gang.members if member != me]
        slot_bytes = slot_bytes_for(len(gang.members))
        boxes = {
            other: (name_of(plan, me, other, slot_bytes), name_of(plan, other, me, slot_bytes)) for other in others
        }
        for old in [number for number, part in self._parts.items() if (part.plan, part.gang) == (plan, gang)]:
            remove_all(self._shared.path, self._parts.pop(old).arena_prefix)  # of a host that is gone
        prefix = new_prefix()
        self._parts[prepared] = _Part(plan, gang, frozenset(chain.from_iterable(boxes.values())), prefix)
        for other, (original, copy) in boxes.items():
            self._make(original, other, me.device, slot_bytes)
            self._copies.setdefault(copy, _Copy(other.node, me.device, slot_bytes, original))
            self._offer_connection(original)
        peers = tuple(
            None if other == me else RankPeer(*boxes[other], self._worker_name(other)) for other in gang.members
        )
        waits = gang.timeout_s, prefix, self._timeouts.rank_failure_reason_s
        return RankOf(gang.axes, gang.sizes, gang.rank, peers, gang.bytes_per_s, *waits)

    def directories(self, prepared: int) -> tuple[str, ...]:
        """The directory of the ring buffer from each rank; "" if the daemons carry it.  ConnectFailed if there is no
        link to a rank's worker."""
        part = self._parts.get(prepared)
        if part is None:
            return ()
        me, slot_bytes = part.gang.members[part.gang.rank], slot_bytes_for(len(part.gang.members))
        directories = []
        for member in part.gang.members:
            directory = str(self._shared.path) if member.node == me.node else self._directory(part.plan, member.node)
            directories.append(directory)
            if not directory:
                copy = name_of(part.plan, member, me, slot_bytes)
                self._open(self._copies[copy], copy)
                original = self._originals[name_of(part.plan, me, member, slot_bytes)]
                original.reader = original.reader or RingReader(original.buffer)
        return tuple(directories)

    def unprepare(self, prepared: int) -> None:
        """Forget a rank.  Its ring buffers are removed, unless another part has the same ones."""
        part = self._parts.pop(prepared, None)
        if part is None:
            return
        remove_all(self._shared.path, part.arena_prefix)
        used = {name for other in self._parts.values() for name in other.names}
        for name in part.names - used:
            copy = self._copies.pop(name, None)
            if copy is not None and copy.reporting is not None:
                copy.reporting.cancel()
            if self._originals.pop(name, None) is not None or (copy is not None and copy.writer is not None):
                remove(self._shared.path, name)
        if not any(other.plan == part.plan for other in self._parts.values()):
            for key in [key for key in self._directories if key[0] == part.plan]:
                del self._directories[key]

    def host_said(self, device: int, message: BuffersChanged | Listening | Disconnected) -> None:
        """Handle a message of a device's host."""
        match message:
            case BuffersChanged():
                self.buffers_changed(device)
            case Listening(buffer, key, port):
                self._send_meet(buffer, Meet(buffer, False, port, key))
            case Disconnected(buffer):
                self._disconnected(buffer)

    def buffers_changed(self, device: int) -> None:
        """Carry on what the host of a device wrote, and report what it read.  A link that cannot take it ends, and a
        plan with it."""
        for name, original in list(self._originals.items()):
            if original.device == device and original.reader is not None:
                self._send_new(name, original, original.reader)
        for name, copy in list(self._copies.items()):
            if copy.device == device and copy.writer is not None:
                self._report_soon(name, copy)

    def linked(self, node: str) -> None:
        """Send again what may have been lost with the link before."""
        for name, original in list(self._originals.items()):
            if original.node == node and original.reader is not None:
                original.sent, original.failed = original.reader.read, 0
                self._send_new(name, original, original.reader)
        for name, copy in list(self._copies.items()):
            if copy.node == node:
                self._offer_connection(copy.back)
                if copy.writer is not None:
                    copy.reported = 0
                    self._report(name, copy, copy.writer.read)

    def close(self) -> None:
        self._sending.cancel()
        if self._connections is not None:
            self._connections.close()
        for copy in self._copies.values():
            if copy.reporting is not None:
                copy.reporting.cancel()

    # -- what comes over a link

    def notifications(self) -> dict[type[Message], Take]:
        return dict.fromkeys((Letter, LettersRead, GaveUp, Meet), self.take)

    def is_between(self, message: Letter | LettersRead | GaveUp | Meet, node: str) -> bool:
        """Whether a mailbox is between a rank here and one of `node`, or of a plan that is over."""
        ours = self._originals if isinstance(message, LettersRead) else self._copies
        mailbox = ours.get(message.mailbox)
        return mailbox is None or mailbox.node == node

    def take(self, link: Link, message: Letter | LettersRead | GaveUp | Meet) -> None:
        """Handle a message of another worker's daemon."""
        node = link.peer.node_id
        if isinstance(message, LettersRead):
            original = self._originals.get(message.mailbox)
            if original is not None and original.node == node and original.reader is not None:
                original.reader.release_until(message.count)
            return
        copy = self._copies.get(message.mailbox)
        if copy is None or copy.node != node:
            return  # of a plan that is over
        if isinstance(message, Meet):
            self._meet(link, copy, message)
            return
        writer = self._open(copy, message.mailbox)
        if isinstance(message, GaveUp):
            writer.fail(message.tag, message.error)
        elif message.data is not None:
            slot = writer.slot_for(message.number, len(message.data))
            if slot is not None:
                slot[:] = message.data
                self._arrived(copy, writer, message.number)

    def open_stream(self, link: Link, header: Letter, size_bytes: int) -> memoryview:
        """The slot for a message.  StaleGeneration if its plan is over, ProtocolError if there is no slot."""
        copy = self._copies.get(header.mailbox)
        if copy is None or copy.node != link.peer.node_id:
            raise StaleGeneration("a letter for no rank of this worker")
        slot = self._open(copy, header.mailbox).slot_for(header.number, size_bytes)
        if slot is None:
            raise ProtocolError(f"there is no place for letter {header.number} of {size_bytes} bytes")
        return slot

    def stream_done(self, link: Link, header: Letter, buffer: memoryview, error: MeshError | None) -> None:
        copy = self._copies.get(header.mailbox)
        if copy is not None and copy.writer is not None and error is None:
            self._arrived(copy, copy.writer, header.number)

    # -- connections between hosts

    def _disconnected(self, buffer: str) -> None:
        """Offer to connect again, the later the more often it came to nothing."""
        original = self._originals.get(buffer)
        if original is not None and original.offering is None:
            times = min(2 ** min(original.disconnects, 16), RECONNECT_TIMES_MAX)
            original.disconnects += 1
            wait_s = self._timeouts.rank_reconnect_s * times
            original.offering = asyncio.get_running_loop().call_later(wait_s, self._offer_again, buffer, original)

    def _offer_again(self, buffer: str, original: _Original) -> None:
        original.offering = None
        if self._originals.get(buffer) is original:
            self._offer_connection(buffer)

    def _offer_connection(self, buffer: str) -> None:
        """Offer to connect to the host at the other end of a ring buffer, unless it is on this machine."""
        original = self._originals.get(buffer)
        link = self._links.get(original.node) if original is not None else None
        if self._connections is not None and link is not None and not link.same_host:
            self._send_meet(buffer, Meet(buffer, calls=bool(link.address)))

    def _meet(self, link: Link, copy: _Copy, message: Meet) -> None:
        """Have the hosts connect in the direction in which the link was dialled, since that has worked before."""
        if self._connections is None or link.same_host:
            return
        device, buffer = copy.device, copy.back
        if message.calls:
            self._connections.listen(device, buffer, copy.slot_bytes, partial(self._disconnected, buffer))
        elif link.address and message.port:
            failed = partial(self._disconnected, buffer)
            self._connections.connect(device, buffer, copy.slot_bytes, link, message, failed)
        elif link.address:
            self._offer_connection(buffer)

    def _send_meet(self, buffer: str, message: Meet) -> None:
        original = self._originals.get(buffer)
        link = self._links.get(original.node) if original is not None else None
        if link is not None and not link.closed:
            link.notify(message)

    # -- helpers

    def _worker_name(self, member: Member) -> str:
        """The name of another rank's worker, as far as it is known."""
        link = self._links.get(member.node)
        return link.peer.name if link is not None else member.node[:8]

    def _make(self, name: str, other: Member, device: int, slot_bytes: int) -> None:
        if name not in self._originals:
            buffer = self._allocate(name, slot_bytes)
            self._originals[name] = _Original(other.node, device, buffer)

    def _allocate(self, name: str, slot_bytes: int) -> memoryview:
        buffer = self._shared.allocate(size_of(SLOTS, slot_bytes), name).buffer
        initialise(buffer, SLOTS, slot_bytes)
        return buffer

    def _open(self, copy: _Copy, name: str) -> RingWriter:
        if copy.writer is None:
            copy.writer = RingWriter(self._allocate(name, copy.slot_bytes))
        return copy.writer

    def _directory(self, plan: PlanKey, node: str) -> str:
        """A node's shared memory, "" if it is on another machine.  What was found once holds for the plan."""
        directory = self._directories.get((plan, node))
        if directory is None:
            link = self._links.get(node)
            if link is None:
                raise ConnectFailed(
                    "no link to a worker that has another rank of the gang",
                    node=node,
                    next_step="Ranks exchange tensors directly: let their workers reach each other",
                )
            directory = self._directories[plan, node] = link.peer.shared_memory if link.same_host else ""
        return directory

    def _send_new(self, name: str, original: _Original, reader: RingReader) -> None:
        link = self._links.get(original.node)
        if link is None or link.closed:
            return  # `linked` sends it
        fits = min(reader.read, original.sent) + reader.slots  # whatever a broken host counts
        for number in range(original.sent, min(reader.written, fits)):
            if link.closed:  # by what was sent just now
                return
            data = reader.message(number)
            if len(data) <= INLINE_BYTES_MAX:
                link.notify(Letter(name, number, bytes(data)))
            else:
                self._stream(link, Letter(name, number), data)
            original.sent = number + 1
        if original.failed != reader.failed and not link.closed:
            original.failed = reader.failed
            link.notify(GaveUp(name, reader.failed, reader.failure(reader.failed) or b""))

    def _stream(self, link: Link, header: Message, data: memoryview) -> None:
        # Nobody needs to hear of a failure: ranks wait with a deadline, and `linked` sends again.
        self._sending.run("sending a letter", link.send_stream(header, data), unheard)

    def _arrived(self, copy: _Copy, writer: RingWriter, number: int) -> None:
        """Message `number` is in its slot.  It is published once all before it are."""
        copy.arrived.add(number)
        written = writer.written
        while written in copy.arrived:
            copy.arrived.discard(written)
            written += 1
        copy.arrived = {later for later in copy.arrived if later > written}
        if written > writer.written:
            writer.publish_copies(written)

    def _report_soon(self, name: str, copy: _Copy) -> None:
        """Tell the writer how far its messages were read: at once if they are many, else after TELL_S."""
        writer = copy.writer
        if writer is None:
            return
        read = writer.read
        if read - copy.reported >= SLOTS // 2:
            self._report(name, copy, read)
        elif read > copy.reported and copy.reporting is None:
            loop = asyncio.get_running_loop()
            copy.reporting = loop.call_later(TELL_S, lambda: self._report(name, copy, writer.read))

    def _report(self, name: str, copy: _Copy, read: int) -> None:
        if copy.reporting is not None:
            copy.reporting.cancel()
            copy.reporting = None
        link = self._links.get(copy.node)
        if link is not None and not link.closed and read > copy.reported:
            copy.reported = read
            link.notify(LettersRead(name, read))
