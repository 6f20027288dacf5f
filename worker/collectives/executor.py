"""One operation of a group on one rank: the moves of a program, performed on numpy arrays.

Letters go through mailboxes, or over a connection: then from the tensor itself, and to where they are combined.  While
it waits for one rank, it keeps sending to all.  It does not know algorithms, nor how tensors are cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wire.errors import Cancelled, ConnectFailed, DTypeError, GraphError, MeshError, NodeLost, ProtocolError, ShapeError
from wire.ir.types import TensorType

from .channels import Wire, Wires
from .connection import Connection, wait_for
from .remote_channel import Line
from .ring_buffer import CARRIED_SLEEP_S_MIN, SLEEP_S_MAX, SLEEP_SHARE, Envelope, Inbox, crossing, tag_of

POLL_S_MIN, POLL_S_MAX = 1e-3, 20e-3  # from one look for a rank that gave up to the next
REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast_from", "barrier", "send",
)  # fmt: skip
OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}
REDUCTION_CODES = {name: code for code, name in enumerate(("", *REDUCTIONS))}


class Run:
    """One operation under way on rank `rank` of those that `ranks` lead to: what is `given` becomes what is `made`."""

    __slots__ = (
        "_all", "_came", "_changed", "_combine", "_envelope", "_given", "_heard", "_lines", "_made", "_moves",
        "_posted", "_rank", "_told", "_used", "_wires",
    )  # fmt: skip

    def __init__(
        self,
        wires: Wires,
        ranks: Sequence[Wire | None],
        rank: int,
        envelope: bytes,
        given: NDArray[Any],
        made: NDArray[Any],
        combine: np.ufunc | None,
        moves: Sequence[tuple[Any, ...]] = (),
    ) -> None:
        self._moves = moves  # of which those that combine say from whom letters come
        self._came: set[int] = set()
        self._all = wires
        self._wires = ranks
        self._rank = rank
        self._lines = [wire.line for wire in ranks if wire is not None and wire.line is not None]
        self._envelope = envelope
        self._given = given
        self._made = made
        self._combine = combine
        self._used: set[int] = set()  # by mailbox
        self._changed = False
        self._posted: list[tuple[int, int, int]] = []  # what may not have left: to whom, and which part of the result
        self._told: set[int] = set()  # to whom over a connection
        self._heard: set[int] = set()  # from whom over a connection

    def send(self, to: int, made: bool, start: int, stop: int) -> None:
        wire = self._wires[to]
        assert wire is not None
        data = (self._made if made else self._given)[start:stop]
        self._all.sent_bytes += (stop - start) * self._given.itemsize
        if wire.line is not None and wire.line.out is not None:
            self._told.add(to)
            self._posted.append((to, start, stop) if made else (to, 0, 0))
            values = data.astype(self._given.dtype, casting="same_kind", copy=False)
            wire.line.post(self._envelope, values.view(np.uint8).data)
            return
        outbox = wire.outbox
        if outbox.full:
            self._wait(lambda: not outbox.full, (to,), reading=True)
        if stop > start:
            began_s = time.perf_counter()
            np.copyto(outbox.letter(self._given.dtype)[: stop - start], data, casting="same_kind")
            self._all.packed_s += time.perf_counter() - began_s
        outbox.publish(self._envelope, (stop - start) * self._given.itemsize)
        self._changed |= wire.bridged
        self._used.add(to)

    def say(self, to: int, said: bytes, lends: bool = False) -> None:
        """A short letter to a rank of this machine; `lends` as Outbox.say has it."""
        wire = self._wires[to]
        assert wire is not None
        outbox = wire.outbox
        if outbox.full:
            self._wait(lambda: not outbox.full, (to,), reading=True)
        outbox.say(self._envelope, said, lends)

    def hear(self, source: int, size_bytes: int) -> Inbox:
        """The mailbox that has the next letter, so long, of a rank of this machine; it is to be released."""
        letter = self._arrived(source, (source,))
        self._came.add(source)
        assert isinstance(letter, Inbox)
        self._check_size(source, letter.size_bytes, size_bytes)
        return letter

    def combine(self, start: int, stop: int, of: tuple[int, ...], own_start: int, own_stop: int, made: bool) -> None:
        out = self._made[start:stop]
        if self._posted:
            self._let_go(start, stop)
        first: Any = None
        behind: Callable[[], None] | None = None  # of whose letter `first` is
        combine, rank = self._combine, self._rank
        for place, each in enumerate(of):
            done: Callable[[], None] | None = None
            if each == rank:
                values = out if made else self._given[own_start:own_stop]
            else:
                fits = not place and not made and out.dtype == self._given.dtype
                values, done = self._values(each, of[place:], stop - start, out if fits else None)
            if place == 0:
                first, behind = values, done
                continue
            assert combine is not None
            combine(first, values, out=out, dtype=out.dtype)
            if behind is not None:
                behind()
            if done is not None:
                done()
            first, behind = out, None
        if len(of) == 1:
            if first is not out:
                np.copyto(out, first, casting="same_kind")
            if behind is not None:
                behind()

    def ring(self) -> None:
        """Have what changed in bridged mailboxes carried."""
        if self._changed:
            self._changed = False
            self._all.ring()

    def leave(self) -> None:
        """What was sent leaves: the tensors may change from now on."""
        self.ring()
        if self._posted:
            self._let_go(0, 0, everything=True)

    def settle(self) -> None:
        """Wait until all that was sent is taken: whoever takes it may object.  Over a connection an empty letter says
        so; the daemons tell of mailboxes themselves."""
        told, used = tuple(self._told), tuple(self._used)
        for source in tuple(self._heard):
            self.send(source, False, 0, 0)
        for to in told:
            self._values(to, (to,), 0, None)[1]()
        for to in used:
            wire = self._wires[to]
            assert wire is not None
            outbox = wire.outbox
            if outbox.read != outbox.written:
                self._wait(lambda outbox=outbox: outbox.read == outbox.written, (to,), reading=True)  # type: ignore[misc]

    def _values(
        self, source: int, of: tuple[int, ...], count: int, place: NDArray[Any] | None
    ) -> tuple[NDArray[Any], Callable[[], None]]:
        """So many elements that a rank sent, and what to do once they were used; where they come over a connection, in
        `place` if that is given."""
        letter = self._arrived(source, of)
        self._came.add(source)
        if isinstance(letter, Inbox):
            wire = self._wires[source]
            if wire is not None and not wire.bridged:
                self._check_size(source, letter.size_bytes, count * self._given.itemsize)
            return letter.payload(self._given.dtype)[:count], letter.release
        self._heard.add(source)
        self._line(source).took()
        size = count * self._given.itemsize
        self._check_size(source, letter.payload_bytes, size)
        values = letter.scratch()[:size].view(self._given.dtype) if place is None else place
        self._fill(source, letter, values.view(np.uint8).data)
        return values, letter.release

    def _check_size(self, source: int, found: int, expected: int) -> None:
        if found != expected:
            raise ProtocolError(f"{self._called(source)} sent {found} bytes, expected {expected}")

    def _arrived(self, source: int, of: tuple[int, ...]) -> Inbox | Connection:
        """Where the next letter of this operation from a rank is, once it is there."""
        wire = self._wires[source]
        assert wire is not None
        waited_for = tuple(each for each in of if each != self._rank)
        while True:
            over = wire.line.into if wire.line is not None else None
            letter = wire.inbox if over is None else over
            envelope = self._next_envelope(letter, waited_for)
            if envelope is None:
                self._ended(source, wire)
            elif envelope == self._envelope:
                self._changed |= over is None and wire.bridged  # for it will be released
                return letter
            elif wire.line is not None and (number := crossing(envelope)):
                wire.inbox.release()
                self._changed = True
                self._cross(source, wire.line, number, tag_of(envelope))
            else:
                self._skip(source, letter, envelope)

    def _next_envelope(self, letter: Inbox | Connection, ranks: tuple[int, ...]) -> bytes | None:
        """None if the connection has ended."""
        if isinstance(letter, Inbox):
            if letter.empty:
                self._wait(lambda: not letter.empty, ranks)
            return letter.envelope
        if letter.arrived() is None and not letter.ended:
            self._wait(lambda: letter.arrived() is not None or letter.ended, ranks, over=letter)
        found = letter.arrived()
        return None if found is None else bytes(found)

    def _skip(self, source: int, letter: Inbox | Connection, envelope: bytes) -> None:
        """Drop a letter of a step that was given up; raise for any other."""
        tag, mine = tag_of(envelope), self._all.tag
        if tag == mine:
            raise self._differs(source, Envelope.unpack(envelope))
        if tag > mine:
            raise Cancelled(f"{self._called(source)} went on to another step")
        if isinstance(letter, Connection):
            self._fill(source, letter, letter.scratch()[: letter.payload_bytes].data)
        letter.release()

    def _cross(self, source: int, line: Line, number: int, tag: int) -> None:
        """From here on letters come over the connection of that number, which may be about to stand at this end.  One
        that ended with an earlier step, when the marker was made, has no more of them."""
        if not line.knows(number):
            self._wait(lambda: line.knows(number), (source,))
        if not line.cross(number) and tag == self._all.tag:
            self._broken(source)

    def _fill(self, source: int, connection: Connection, target: memoryview) -> None:
        """Take a payload; what ends the connection before its end ends the step."""
        if not connection.fill(target):
            self._wait(lambda: connection.fill(target) or connection.ended, (source,), over=connection)
            if connection.ended and not connection.fill(target):
                self._broken(source)

    def _ended(self, source: int, wire: Wire) -> None:
        """The connection that letters came over ended between two of them: the mailbox has the others, unless some of
        this step are lost with it."""
        assert wire.line is not None
        if wire.line.used(self._all.tag):
            self._broken(source)
        wire.line.into = None

    def _broken(self, rank: int) -> NoReturn:
        """Raise why a connection ended, once that is heard; ConnectFailed if it is not."""
        wires, began_s = self._all, time.monotonic()
        while time.monotonic() < began_s + wires.failure_reason_s:
            wires.check(0.0, str)
            time.sleep(POLL_S_MIN)
        wire = self._wires[rank]
        raise ConnectFailed(f"the connection to {self._called(rank)} broke off", node=wire.name if wire else "")

    def _let_go(self, start: int, stop: int, everything: bool = False) -> None:
        """Wait until what was sent of a part of the result, or everything, has left."""
        connections = {to: self._line(to).out for to, _, _ in self._posted}
        left = [to for to, connection in connections.items() if connection is None or connection.ended]
        if left:
            self._broken(left[0])
        busy = {to for to, connection in connections.items() if connection is not None and not connection.idle}
        self._posted = [each for each in self._posted if each[0] in busy]
        held = [connections[to] for to, a, b in self._posted if everything or (a < stop and start < b)]
        if held:
            self._wait(lambda: all(each is None or each.idle for each in held), ())
            self._let_go(start, stop, everything)

    def _line(self, rank: int) -> Line:
        wire = self._wires[rank]
        assert wire is not None and wire.line is not None
        return wire.line

    def _wait(
        self,
        ready: Callable[[], bool],
        ranks: tuple[int, ...],
        reading: bool = False,
        over: Connection | None = None,
    ) -> None:
        """Until `ready()`, which takes letters from these ranks, `over` a connection, or that the one of them has been
        `reading` ours."""
        self.ring()

        def missing() -> str:
            expected = {each for move in self._moves if len(move) == 6 for each in move[2]} - self._came
            silent = [rank for rank in sorted(expected | {*ranks}) if self._silent(rank)]
            return ", ".join(self._called(rank) for rank in silent or ranks)

        def look(waited_s: float) -> None:
            self._all.check(waited_s, missing)
            for rank in ranks:
                wire = self._wires[rank]
                if wire is None or wire.alive() or not (not ready() if reading else wire.inbox.empty):
                    continue
                self._all.check(waited_s, missing)  # it may have said why
                raise NodeLost(f"{self._called(rank)} has ended, and others wait for it", node=wire.name)

        if any(line.out is not None for line in self._lines):
            self._wait_by_socket(ready, look, over, bool(ranks))
        else:
            self._all.patience.wait(ready, look)

    def _wait_by_socket(
        self, ready: Callable[[], bool], look: Callable[[float], None], over: Connection | None, mailboxes: bool
    ) -> None:
        """The same where letters leave by connections meanwhile.  What is waited for comes `over` one of these or is in
        `mailboxes`, or it is that they leave."""
        began_s = time.monotonic()
        while True:
            writing = [line.out for line in self._lines if line.out is not None and not line.out.push()]
            if ready():
                return
            waited_s = time.monotonic() - began_s
            look(waited_s)
            if over is not None or not mailboxes:
                wait_for(over, writing, min(POLL_S_MIN + waited_s * SLEEP_SHARE, POLL_S_MAX))
            else:
                time.sleep(min(CARRIED_SLEEP_S_MIN + waited_s * SLEEP_SHARE, SLEEP_S_MAX))

    def _silent(self, rank: int) -> bool:
        """Whether there is no letter from a rank."""
        wire = self._wires[rank]
        over = wire.line.into if wire is not None and wire.line is not None else None
        return wire is not None and wire.inbox.empty and (over is None or over.arrived() is None)

    def _called(self, rank: int) -> str:
        wire = self._wires[rank]
        return f"rank {rank}" + (f" ({wire.name})" if wire is not None and wire.name else "")

    def _differs(self, source: int, theirs: Envelope) -> MeshError:
        mine = Envelope.unpack(self._envelope)
        cls = GraphError
        if (mine.operation, mine.group, mine.reduction) == (theirs.operation, theirs.group, theirs.reduction):
            cls = ShapeError if mine.shape != theirs.shape else DTypeError
        there, here = _shown(theirs), _shown(mine)
        return cls(f"{self._called(source)} is in {there}, rank {self._rank} in {here}")


def _shown(envelope: Envelope) -> str:
    kind = TensorType(envelope.shape, envelope.dtype)
    names = {code: name for name, code in REDUCTION_CODES.items()}
    operation = OPERATIONS[envelope.operation] if envelope.operation < len(OPERATIONS) else "?"
    reduction = names.get(envelope.reduction, "?")
    return f"{operation} {reduction}".strip() + f" of {kind}"
