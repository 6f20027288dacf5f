"""The daemon's end of mailboxes: it makes the files, and carries letters between machines.

A rank's host writes to files of its own daemon and reads, on one machine, those of the others.  For a rank elsewhere
there is a *copy* of the mailbox in the directory of that one's daemon.  The host rings; the daemon sends what is new in
its outboxes as Letters over the link, large ones as streams straight into the place of the copy; and it says with
LettersRead how far its host has read the copies, which makes places free in the originals.  So the two rings are the
same ring, and what is under way is bounded by it.

It decides nothing about plans, and does not look into letters.  A letter that was lost with its link is sent again when
a link stands; a mailbox that is unknown here belongs to a plan that is over, and nobody waits for its answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.errors import ConnectFailed, MeshError, ProtocolError, StaleGeneration
from wire.limits import KIB
from wire.link.link import Link
from wire.protocol.messages import Gang, GaveUp, Letter, LettersRead, Meet, Member, Message, PlanKey
from wire.system.shared_memory import SharedDir, new_prefix, remove, remove_all
from wire.system.tasks import Tasks, unheard
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..collectives.ring_buffer import LETTERS, Inbox, Outbox, lay_out, letter_bytes_for, size_of
from ..engine.host_messages import Expecting, Parted, Rang, RankOf, RankPeer
from .collective_rendezvous import Calls

INLINE_BYTES_MAX = 32 * KIB  # a larger letter is a stream: bulk must not stand before beats
RECONNECT_TIMES_MAX = 300  # of `rank_reconnect_s`
TELL_S = 0.001  # after which the writer hears of a letter that was read, if it does not before


@dataclass(slots=True)
class _Original:
    """A mailbox that a host here writes to; `sent` letters of it are on their way to `node`, or were."""

    node: str
    device: int
    buffer: memoryview
    inbox: Inbox | None = None  # its reading end, once the reader turned out to be elsewhere
    sent: int = 0
    gave_up: int = 0
    parted: int = 0  # how often the connection beside it ended, or did not come about


@dataclass(slots=True)
class _Copy:
    """A mailbox that a host here reads and one on `node` writes to."""

    node: str
    device: int
    letter_bytes: int
    back: str  # the mailbox in the other direction
    outbox: Outbox | None = None  # its writing end, once there is a letter, or a host that looks for them
    came: set[int] = field(default_factory=set)  # letters that overtook others
    told: int = 0  # how many the writer knows to be read
    telling: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A rank that is prepared here."""

    plan: PlanKey
    gang: Gang
    names: frozenset[str]
    shelf: str  # what the names of the host's own files begin with


def name_of(plan: PlanKey, source: Member, to: Member) -> str:
    """The mailbox from one rank's device to another's: the same for all gangs of a plan."""
    text = f"{plan.epoch}.{plan.generation} {source.node}/{source.device} {to.node}/{to.device}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Bridge:
    """Mailboxes of this worker's ranks.  `links` are the node's links, by node id; `calls` how its hosts connect to
    others, if they may."""

    def __init__(
        self,
        links: Mapping[str, Link],
        shared: SharedDir,
        calls: Calls | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._timeouts = timeouts
        self._links = links
        self._shared = shared
        self._calls = calls
        self._parts: dict[int, _Part] = {}
        self._originals: dict[str, _Original] = {}
        self._copies: dict[str, _Copy] = {}
        self._near: dict[tuple[PlanKey, str], str] = {}  # the directories of the nodes of a plan, as first seen
        self._sending = Tasks()

    # -- what the daemon does

    def prepare(self, prepared: int, plan: PlanKey, gang: Gang) -> RankOf:
        """Make the mailboxes of a rank; what its host is told of them.  OutOfMemory."""
        me = gang.members[gang.rank]
        others = [member for member in gang.members if member != me]
        names = {name_of(plan, *pair) for other in others for pair in ((me, other), (other, me))}
        for old in [number for number, part in self._parts.items() if (part.plan, part.gang) == (plan, gang)]:
            remove_all(self._shared.path, self._parts.pop(old).shelf)  # of a host that is gone
        shelf = new_prefix()
        self._parts[prepared] = _Part(plan, gang, frozenset(names), shelf)
        letter_bytes = letter_bytes_for(len(gang.members))
        for other in others:
            self._make(name_of(plan, me, other), other, me.device, letter_bytes)
            copy, original = name_of(plan, other, me), name_of(plan, me, other)
            self._copies.setdefault(copy, _Copy(other.node, me.device, letter_bytes, original))
            self._introduce(original)
        peers = tuple(
            None if other == me else RankPeer(name_of(plan, me, other), name_of(plan, other, me), self._called(other))
            for other in gang.members
        )
        waits = gang.timeout_s, shelf, self._timeouts.rank_failure_reason_s
        return RankOf(gang.axes, gang.sizes, gang.rank, peers, gang.bytes_per_s, *waits)

    def inboxes(self, prepared: int) -> tuple[str, ...]:
        """In whose directory the mailbox from each rank is; "" where it has to be carried.  ConnectFailed if a rank's
        worker is linked to by nobody."""
        part = self._parts.get(prepared)
        if part is None:
            return ()
        me = part.gang.members[part.gang.rank]
        found = []
        for member in part.gang.members:
            directory = str(self._shared.path) if member.node == me.node else self._directory(part.plan, member.node)
            found.append(directory)
            if not directory:
                self._open(self._copies[name_of(part.plan, member, me)], name_of(part.plan, member, me))
                self._carry(self._originals[name_of(part.plan, me, member)])
        return tuple(found)

    def unprepare(self, prepared: int) -> None:
        """A rank is no longer used; its mailboxes go, unless another part has the same."""
        part = self._parts.pop(prepared, None)
        if part is None:
            return
        remove_all(self._shared.path, part.shelf)
        used = {name for other in self._parts.values() for name in other.names}
        for name in part.names - used:
            copy = self._copies.pop(name, None)
            if copy is not None and copy.telling is not None:
                copy.telling.cancel()
            if self._originals.pop(name, None) is not None or (copy is not None and copy.outbox is not None):
                remove(self._shared.path, name)
        if not any(other.plan == part.plan for other in self._parts.values()):
            for key in [key for key in self._near if key[0] == part.plan]:
                del self._near[key]

    def host_said(self, device: int, message: Rang | Expecting | Parted) -> None:
        """What the host of a device tells of mailboxes and of what is beside them."""
        match message:
            case Rang():
                self.rang(device)
            case Expecting(mailbox, key, port):
                self._say(mailbox, Meet(mailbox, False, port, key))
            case Parted(mailbox):
                original = self._originals.get(mailbox)
                if original is not None:
                    wait_s = self._timeouts.rank_reconnect_s * min(2 ** min(original.parted, 16), RECONNECT_TIMES_MAX)
                    original.parted += 1
                    asyncio.get_running_loop().call_later(wait_s, self._introduce, mailbox)

    def rang(self, device: int) -> None:
        """The host of a device wrote letters, or read some."""
        for name, original in self._originals.items():
            if original.device == device and original.inbox is not None:
                self._send(name, original, original.inbox)
        for name, copy in self._copies.items():
            if copy.device == device and copy.outbox is not None:
                self._tell(name, copy)

    def linked(self, node: str) -> None:
        """What may have been lost with the link before is sent again."""
        for name, original in self._originals.items():
            if original.node == node and original.inbox is not None:
                original.sent, original.gave_up = original.inbox.read, 0
                self._send(name, original, original.inbox)
        for name, copy in self._copies.items():
            if copy.node == node:
                self._introduce(copy.back)
                if copy.outbox is not None:
                    copy.told = 0
                    self._tell_now(name, copy, copy.outbox.read)

    def close(self) -> None:
        self._sending.cancel()
        for copy in self._copies.values():
            if copy.telling is not None:
                copy.telling.cancel()

    # -- what comes over a link

    def take(self, link: Link, message: Letter | LettersRead | GaveUp | Meet) -> None:
        """A note from another worker's daemon."""
        node = link.peer.node_id
        if isinstance(message, LettersRead):
            original = self._originals.get(message.mailbox)
            if original is not None and original.node == node and original.inbox is not None:
                original.inbox.released(message.count)
            return
        copy = self._copies.get(message.mailbox)
        if copy is None or copy.node != node:
            return  # of a plan that is over
        if isinstance(message, Meet):
            self._meet(link, copy, message)
            return
        outbox = self._open(copy, message.mailbox)
        if isinstance(message, GaveUp):
            outbox.fail(message.tag, message.error)
        elif message.data is not None:
            place = outbox.place(message.number, len(message.data))
            if place is not None:
                place[:] = message.data
                self._arrived(copy, outbox, message.number)

    def open_stream(self, link: Link, header: Letter, size_bytes: int) -> memoryview:
        """Where a letter goes; StaleGeneration if it is of a plan that is over, ProtocolError if there is no place."""
        copy = self._copies.get(header.mailbox)
        if copy is None or copy.node != link.peer.node_id:
            raise StaleGeneration("a letter for no rank of this worker")
        place = self._open(copy, header.mailbox).place(header.number, size_bytes)
        if place is None:
            raise ProtocolError(f"there is no place for letter {header.number} of {size_bytes} bytes")
        return place

    def stream_done(self, header: Letter, error: MeshError | None) -> None:
        copy = self._copies.get(header.mailbox)
        if copy is not None and copy.outbox is not None and error is None:
            self._arrived(copy, copy.outbox, header.number)

    # -- connections between hosts

    def _introduce(self, mailbox: str) -> None:
        """Offer the host at the other end of a mailbox to connect, unless both are on one machine."""
        original = self._originals.get(mailbox)
        link = self._links.get(original.node) if original is not None else None
        if self._calls is not None and link is not None and not link.same_host:
            self._say(mailbox, Meet(mailbox, calls=bool(link.address)))

    def _meet(self, link: Link, copy: _Copy, message: Meet) -> None:
        """The host of the node that dialled the link calls the other one: that way a call came through before."""
        if self._calls is None or link.same_host:
            return
        device, mailbox = copy.device, copy.back
        if message.calls:
            self._calls.expect(device, mailbox, copy.letter_bytes, link.peer.node_id)
        elif link.address and message.port:
            self._calls.call(device, mailbox, copy.letter_bytes, link, message)
        elif link.address:
            self._introduce(mailbox)

    def _say(self, mailbox: str, message: Meet) -> None:
        original = self._originals.get(mailbox)
        link = self._links.get(original.node) if original is not None else None
        if link is not None and not link.closed:
            link.notify(message)

    # -- helpers

    def _called(self, member: Member) -> str:
        """What people call another rank's worker, as far as that is known."""
        link = self._links.get(member.node)
        return link.peer.name if link is not None else member.node[:8]

    def _make(self, name: str, other: Member, device: int, letter_bytes: int) -> None:
        if name not in self._originals:
            buffer = self._allocate(name, letter_bytes)
            self._originals[name] = _Original(other.node, device, buffer)

    def _allocate(self, name: str, letter_bytes: int) -> memoryview:
        buffer = self._shared.allocate(size_of(LETTERS, letter_bytes), name).buffer
        lay_out(buffer, LETTERS, letter_bytes)
        return buffer

    def _open(self, copy: _Copy, name: str) -> Outbox:
        if copy.outbox is None:
            copy.outbox = Outbox(self._allocate(name, copy.letter_bytes))
        return copy.outbox

    def _carry(self, original: _Original) -> None:
        if original.inbox is None:
            original.inbox = Inbox(original.buffer)

    def _directory(self, plan: PlanKey, node: str) -> str:
        """A node's shared memory, if both can use it; what was found once holds for the plan."""
        found = self._near.get((plan, node))
        if found is None:
            link = self._links.get(node)
            if link is None:
                raise ConnectFailed(
                    "no link to a worker that has another rank of the gang",
                    node=node,
                    next_step="Ranks exchange tensors directly: let their workers reach each other",
                )
            found = self._near[plan, node] = link.peer.shared_memory if link.same_host else ""
        return found

    def _send(self, name: str, original: _Original, inbox: Inbox) -> None:
        link = self._links.get(original.node)
        if link is None or link.closed:
            return  # `linked` comes back to it
        for number in range(original.sent, inbox.written):
            data = inbox.copied(number)
            if len(data) <= INLINE_BYTES_MAX:
                link.notify(Letter(name, number, bytes(data)))
            else:
                self._spawn(link, Letter(name, number), data)
            original.sent = number + 1
        if original.gave_up != inbox.failed:
            original.gave_up = inbox.failed
            link.notify(GaveUp(name, inbox.failed, inbox.failure(inbox.failed) or b""))

    def _spawn(self, link: Link, header: Message, data: memoryview) -> None:
        # Ranks wait with a deadline, and `linked` sends again.
        self._sending.run("sending a letter", link.send_stream(header, data), unheard)

    def _arrived(self, copy: _Copy, outbox: Outbox, number: int) -> None:
        copy.came.add(number)
        written = outbox.written
        while written in copy.came:
            copy.came.discard(written)
            written += 1
        copy.came = {each for each in copy.came if each > written}
        if written > outbox.written:
            outbox.placed(written)

    def _tell(self, name: str, copy: _Copy) -> None:
        """Let the writer know at once if many letters were read, else soon."""
        outbox = copy.outbox
        if outbox is None:
            return
        read = outbox.read
        if read - copy.told >= LETTERS // 2:
            self._tell_now(name, copy, read)
        elif read > copy.told and copy.telling is None:
            loop = asyncio.get_running_loop()
            copy.telling = loop.call_later(TELL_S, lambda: self._tell_now(name, copy, outbox.read))

    def _tell_now(self, name: str, copy: _Copy, read: int) -> None:
        if copy.telling is not None:
            copy.telling.cancel()
            copy.telling = None
        link = self._links.get(copy.node)
        if link is not None and not link.closed and read > copy.told:
            copy.told = read
            link.notify(LettersRead(name, read))
