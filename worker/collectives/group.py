"""A group of ranks that perform collectives together, each through a mailbox to and one from every other.

`Wires` are one process's mailboxes of a plan; a `Group` is some of those ranks in an order, and performs the programs
of `algorithms.py` on numpy arrays: blocking, in the thread that calls.  All ranks call the same operations in the same
order.  It does not know graphs, steps of plans or who made the mailboxes.

Whoever gives up tells all others why (`Wires.fail`), so no rank waits for one that will not come; nothing of a step
that was given up can be taken for the next one's, since every letter carries the step's tag.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import BF16, BOOL, C64, C128, DTYPES, F16, DType, dtype_of
from wire.errors import (
    Cancelled,
    ConnectFailed,
    DeadlineExceeded,
    DTypeError,
    GraphError,
    InputError,
    MeshError,
    NodeLost,
    ProtocolError,
    ShapeError,
    from_fields,
)
from wire.types import TensorType

from . import algorithms
from .algorithms import BRIDGED, SHARED, Path, Program, Send, piece_of, steps
from .connection import Connection, wait_for
from .lines import Line
from .mailbox import (
    CARRIED_SLEEP_S_MIN,
    LETTER_BYTES,
    SLEEP_S_MAX,
    SLEEP_SHARE,
    Envelope,
    Inbox,
    Outbox,
    Patience,
    crossing,
    tag_of,
    tagged,
)

DEADLINE_S = 120.0  # a rank may compile, or compute, long before it comes
REASON_S = 1.0  # for why a connection ended: the daemons bring it
POLL_S_MIN, POLL_S_MAX = 1e-3, 20e-3  # from one look for a rank that gave up to the next
REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast_from", "barrier", "send",
)  # fmt: skip
_CODES = {name: code for code, name in enumerate(OPERATIONS)}
_REDUCTION_CODES = {name: code for code, name in enumerate(("", *REDUCTIONS))}
_HALVES = (F16, BF16)


@dataclass(slots=True)
class Wire:
    """Both mailboxes between this rank and another; `bridged` where the daemons carry what is in them, unless there is
    a connection on the `line`."""

    outbox: Outbox
    inbox: Inbox
    name: str = ""  # of the worker at the other end
    bridged: bool = False
    alive: Callable[[], bool] = lambda: True  # whether the process at the other end runs, where that can be seen
    line: Line | None = None


@dataclass(slots=True)
class Wires:
    """A process's mailboxes, by any key of the other end, and the step they are used for."""

    wires: Mapping[Any, Wire]
    ring: Callable[[], None] = lambda: None  # tell the daemon that bridged mailboxes have changed
    tag: int = 0
    stopped: Callable[[], bool] = lambda: False
    letter_bytes: int = LETTER_BYTES  # the same on all ranks: tensors are cut by it
    deadline_s: float = DEADLINE_S
    patience: Patience = field(default_factory=Patience)

    def begin(self, tag: int, stopped: Callable[[], bool]) -> None:
        """A new step: tags grow, from 1."""
        self.tag, self.stopped = tag, stopped
        for wire in self.wires.values():
            wire.outbox.resume()
            wire.inbox.resume()
        lines = [(wire.line, wire.outbox) for wire in self.wires.values() if wire.line is not None]
        if sum(line.begin(tag, outbox) for line, outbox in lines):
            self.ring()

    def fail(self, error: MeshError) -> None:
        """Tell everybody that this end gives the step up."""
        text = json.dumps({**error.to_fields(), "cause": error.cause[:500], "next_step": error.next_step[:500]})
        if len(text.encode()) > 2500:
            text = json.dumps({"code": error.code, "message": error.message[:500], "node": error.node})
        for wire in self.wires.values():
            wire.outbox.fail(self.tag, text.encode())
            if wire.line is not None:
                wire.line.hang_up()
        self.ring()

    def check(self, waited_s: float, missing: Callable[[], str]) -> None:
        """Raise if it is no use to wait any longer: cancelled, given up elsewhere, or past the deadline."""
        if self.stopped():
            raise Cancelled("the run was stopped while it waited for other ranks")
        for wire in self.wires.values():
            told = wire.inbox.failure(self.tag)
            if told is not None:
                raise _theirs(told, wire.name)
        if waited_s > self.deadline_s:
            raise DeadlineExceeded(
                f"waited {self.deadline_s:g} s for {missing()}",
                next_step="See whether that worker is well, or give the plan a longer deadline",
            )


@dataclass(slots=True)
class Group:
    """Rank `rank` of `keys`, which are the ranks' keys in `wires`, in order; `number` tells groups apart.

    `algorithm` is the one to use for all_reduce ("": the cheapest), `shares` how much each rank combines in "direct".
    """

    wires: Wires
    keys: Sequence[Any]
    rank: int
    number: int = 0
    algorithm: str = ""
    shares: Sequence[float] = ()
    _wires: list[Wire | None] = field(init=False)
    _bridged: bool = field(init=False)
    lines: tuple[Line, ...] = field(init=False)
    _plans: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    _choices: dict[tuple[int, bool], str] = field(default_factory=dict)
    _envelopes: dict[tuple[str, str, TensorType], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._wires = [None if rank == self.rank else self.wires.wires[key] for rank, key in enumerate(self.keys)]
        self._bridged = any(wire is not None and wire.bridged for wire in self._wires)
        self.lines = tuple(wire.line for wire in self._wires if wire is not None and wire.line is not None)

    @property
    def size(self) -> int:
        return len(self.keys)

    @property
    def path(self) -> Path:
        return BRIDGED if self._bridged else SHARED

    # -- operations

    def all_reduce(self, array: NDArray[Any], reduction: str = "sum") -> NDArray[Any]:
        """All ranks' arrays combined, element by element, on every rank."""
        kind = _reducible(array, reduction)
        name = self.algorithm or self._choice(array.nbytes, kind.dtype.kind in "biu")
        if name in algorithms.PARTIAL and kind.dtype in _HALVES:
            array = array.astype(np.float32)
        make = partial(algorithms.ALL_REDUCE[name], self.rank, self.size, array.size, self.shares or (1,) * self.size)
        made = self._perform("all_reduce", (name, array.size), make, kind, array, array.shape, reduction)
        return made.astype(kind.dtype.numpy, copy=False)

    def reduce_scatter(self, array: NDArray[Any], axis: int = 0, reduction: str = "sum") -> NDArray[Any]:
        """The own n-th, along `axis`, of all ranks' arrays combined; ShapeError where the axis does not divide."""
        kind = _reducible(array, reduction)
        _divides(array, axis, self.size)
        front = np.moveaxis(array, axis, 0)
        shape = (front.shape[0] // self.size, *front.shape[1:])
        make = partial(algorithms.reduce_scatter, self.rank, self.size, array.size)
        made = self._perform("reduce_scatter", (array.size,), make, kind, front, shape, reduction)
        return np.moveaxis(made.astype(kind.dtype.numpy, copy=False), 0, axis)

    def all_gather(self, array: NDArray[Any], axis: int = 0) -> NDArray[Any]:
        """All ranks' arrays, joined along `axis`."""
        front = np.moveaxis(array, axis, 0)
        shape = (front.shape[0] * self.size, *front.shape[1:])
        make = partial(algorithms.all_gather, self.rank, self.size, array.size)
        made = self._perform("all_gather", (array.size,), make, _kind(array), front, shape)
        return np.moveaxis(made, 0, axis)

    def all_to_all(self, array: NDArray[Any], split_axis: int = 0, concat_axis: int = 0) -> NDArray[Any]:
        """The j-th n-th along `split_axis` goes to rank j; what comes is joined along `concat_axis`."""
        _divides(array, split_axis, self.size)
        blocks = np.stack(np.split(array, self.size, split_axis))
        make = partial(algorithms.all_to_all, self.rank, self.size, array.size)
        made = self._perform("all_to_all", (array.size,), make, _kind(array), blocks, blocks.shape)
        return np.concatenate(list(made), concat_axis)

    def permute(self, array: NDArray[Any], pairs: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """What the rank that is paired with this one has; zeros where nobody sends."""
        targets, sources = [to for _, to in pairs], [source for source, _ in pairs]
        if len({*targets}) != len(pairs) or len({*sources}) != len(pairs):
            raise InputError(f"a permutation names a rank twice: {list(pairs)}")
        if any(not 0 <= each < self.size for each in (*targets, *sources)):
            raise InputError(f"a permutation of {self.size} ranks names others: {list(pairs)}")
        make = partial(algorithms.permute, self.rank, self.size, array.size, tuple(pairs))
        key = (array.size, tuple(pairs))
        made = self._perform("permute", key, make, _kind(array), array, array.shape, settle=True)
        if self.rank not in targets:
            made.fill(0)
        return made

    def broadcast_from(self, array: NDArray[Any], root: int) -> NDArray[Any]:
        """What rank `root` has."""
        if not 0 <= root < self.size:
            raise InputError(f"a group of {self.size} ranks has no rank {root}")
        make = partial(algorithms.broadcast, self.rank, self.size, array.size, root)
        return self._perform("broadcast_from", (array.size, root), make, _kind(array), array, array.shape, settle=True)

    def barrier(self) -> None:
        """Return when all ranks have come."""
        make, nothing = partial(algorithms.barrier, self.rank, self.size), np.zeros(0, np.bool_)
        self._perform("barrier", (), make, _kind(nothing), nothing, (0,))

    def send(self, array: NDArray[Any], to: int) -> None:
        """Give `array` to rank `to`, which calls `receive`; returns when it has it."""
        self._pass(array, _kind(array), self.rank, to)

    def receive(self, kind: TensorType, source: int) -> NDArray[Any]:
        """What rank `source` sends, which must be `kind`: both ranks raise where it is not."""
        return self._pass(np.empty(kind.shape, kind.dtype.numpy), kind, source, self.rank)

    def _pass(self, array: NDArray[Any], kind: TensorType, source: int, to: int) -> NDArray[Any]:
        if source == to or not (0 <= source < self.size and 0 <= to < self.size):
            raise InputError(f"nothing can be sent from rank {source} to rank {to} of {self.size}")
        make = partial(algorithms.permute, self.rank, self.size, array.size, ((source, to),))
        return self._perform("send", (array.size, source, to), make, kind, array, array.shape, settle=True)

    # -- how a program is performed

    def _choice(self, size_bytes: int, exact: bool) -> str:
        found = self._choices.get((size_bytes, exact))
        if found is None:
            found = algorithms.choose(self.size, size_bytes, self.path, exact)
            _remember(self._choices, (size_bytes, exact), found)
        return found

    def _envelope(self, operation: str, reduction: str, kind: TensorType) -> bytes:
        key = operation, reduction, kind
        found = self._envelopes.get(key)
        if found is None:
            codes = _CODES[operation], _REDUCTION_CODES[reduction]
            found = Envelope(0, self.number, *codes, kind.dtype, kind.shape).pack()
            _remember(self._envelopes, key, found)
        return tagged(found, self.wires.tag)

    def _perform(
        self,
        operation: str,
        key: tuple[Any, ...],
        make: Callable[[], Program],
        kind: TensorType,
        given: NDArray[Any],
        shape: Sequence[int],
        reduction: str = "",
        settle: bool = False,
    ) -> NDArray[Any]:
        """The result, of `shape`, of one rank's program; of f32 where halves are summed."""
        given = np.ascontiguousarray(given).reshape(-1)
        wide = bool(reduction) and kind.dtype in _HALVES
        made = np.empty(tuple(shape), np.float32 if wide else given.dtype)
        moves = self._moves((operation, *key, given.itemsize), make)
        envelope = self._envelope(operation, reduction, kind)
        run = _Run(self, envelope, given, made.reshape(-1), REDUCTIONS.get(reduction))
        with np.errstate(all="ignore"):
            for move in moves:
                run.send(*move) if len(move) == 4 else run.combine(*move)
        if settle:
            run.settle()
        run.leave()
        return made

    def _moves(self, key: tuple[Any, ...], make: Callable[[], Program]) -> tuple[Any, ...]:
        """The steps of a program with all its elements counted; remembered, since the same ones come again."""
        found = self._plans.get(key)
        if found is None:
            found = _counted(make(), self.wires.letter_bytes // key[-1])
            _remember(self._plans, key, found)
        return found


REMEMBERED_MAX = 64  # of what is found out for a tensor's size: the same ones come again


def _remember(found: dict[Any, Any], key: Any, value: Any) -> None:
    if len(found) >= REMEMBERED_MAX:
        found.clear()
    found[key] = value


_Move = tuple[int, bool, int, int] | tuple[int, int, tuple[int, ...], int, int, bool]


def _counted(program: Program, piece_max: int) -> tuple[_Move, ...]:
    """Sends as (to, made, start, stop); combinations as (start, stop, of, own start, own stop, made)."""
    moves: list[_Move] = []
    pieces = program.pieces(piece_max)
    for step, piece in steps(program, pieces):
        if isinstance(step, Send):
            start, stop = piece_of((program.result if step.made else program.given)[step.region], piece, pieces)
            if start < stop or not piece:
                moves.append((step.to, step.made, start, stop))
        else:
            start, stop = piece_of(program.result[step.region], piece, pieces)
            own = piece_of(program.given[step.own], piece, pieces)
            if start < stop or not piece:
                moves.append((start, stop, step.of, *own, step.made))
    return tuple(moves)


class _Run:
    """One operation under way on one rank."""

    __slots__ = (
        "_changed", "_combine", "_envelope", "_given", "_group", "_heard", "_made", "_posted", "_told", "_used",
        "_wires",
    )  # fmt: skip

    def __init__(
        self, group: Group, envelope: bytes, given: NDArray[Any], made: NDArray[Any], combine: np.ufunc | None
    ) -> None:
        self._group = group
        self._wires = group._wires
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
            np.copyto(outbox.letter(self._given.dtype)[: stop - start], data, casting="same_kind")
        outbox.publish(self._envelope, (stop - start) * self._given.itemsize)
        self._changed |= wire.bridged
        self._used.add(to)

    def combine(self, start: int, stop: int, of: tuple[int, ...], own_start: int, own_stop: int, made: bool) -> None:
        out = self._made[start:stop]
        if self._posted:
            self._let_go(start, stop)
        first: Any = None
        behind: Callable[[], None] | None = None  # of whose letter `first` is
        combine, rank = self._combine, self._group.rank
        for place, each in enumerate(of):
            done: Callable[[], None] | None = None
            if each == rank:
                values = out if made else self._given[own_start:own_stop]
            else:
                fits = not place and not made and out.dtype == self._given.dtype
                values, done = self._values(each, of, stop - start, out if fits else None)
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
            self._group.wires.ring()

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
        if isinstance(letter, Inbox):
            return letter.payload(self._given.dtype)[:count], letter.release
        self._heard.add(source)
        self._line(source).took()
        size = count * self._given.itemsize
        if letter.payload_bytes != size:
            raise ProtocolError(f"{self._called(source)} sent {letter.payload_bytes} bytes, expected {size}")
        values = letter.scratch()[:size].view(self._given.dtype) if place is None else place
        self._fill(source, letter, values.view(np.uint8).data)
        return values, letter.release

    def _arrived(self, source: int, of: tuple[int, ...]) -> Inbox | Connection:
        """Where the next letter of this operation from a rank is, once it is there."""
        wire = self._wires[source]
        assert wire is not None
        waited_for = tuple(each for each in of if each != self._group.rank)
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
        tag, mine = tag_of(envelope), self._group.wires.tag
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
        if not line.cross(number) and tag == self._group.wires.tag:
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
        if wire.line.used(self._group.wires.tag):
            self._broken(source)
        wire.line.into = None

    def _broken(self, rank: int) -> NoReturn:
        """Raise why a connection ended, once that is heard; ConnectFailed if it is not."""
        wires, began_s = self._group.wires, time.monotonic()
        while time.monotonic() < began_s + REASON_S:
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
        group = self._group
        self.ring()

        def missing() -> str:
            wires = [(rank, self._wires[rank]) for rank in ranks]
            silent = [rank for rank, wire in wires if wire is not None and wire.inbox.empty]
            return ", ".join(self._called(rank) for rank in silent or ranks)

        def look(waited_s: float) -> None:
            group.wires.check(waited_s, missing)
            for rank in ranks:
                wire = self._wires[rank]
                if wire is None or wire.alive() or not (not ready() if reading else wire.inbox.empty):
                    continue
                group.wires.check(waited_s, missing)  # it may have said why
                raise NodeLost(f"{self._called(rank)} has ended, and others wait for it", node=wire.name)

        if any(line.out is not None for line in group.lines):
            self._wait_by_socket(ready, look, over, bool(ranks))
        else:
            group.wires.patience.wait(ready, look)

    def _wait_by_socket(
        self, ready: Callable[[], bool], look: Callable[[float], None], over: Connection | None, mailboxes: bool
    ) -> None:
        """The same where letters leave by connections meanwhile.  What is waited for comes `over` one of these or is in
        `mailboxes`, or it is that they leave."""
        began_s = time.monotonic()
        while True:
            writing = [line.out for line in self._group.lines if line.out is not None and not line.out.push()]
            if ready():
                return
            waited_s = time.monotonic() - began_s
            look(waited_s)
            if over is not None or not mailboxes:
                wait_for(over, writing, min(POLL_S_MIN + waited_s * SLEEP_SHARE, POLL_S_MAX))
            else:
                time.sleep(min(CARRIED_SLEEP_S_MIN + waited_s * SLEEP_SHARE, SLEEP_S_MAX))

    def _called(self, rank: int) -> str:
        wire = self._wires[rank]
        return f"rank {rank}" + (f" ({wire.name})" if wire is not None and wire.name else "")

    def _differs(self, source: int, theirs: Envelope) -> MeshError:
        mine = Envelope.unpack(self._envelope)
        cls = GraphError
        if (mine.operation, mine.group, mine.reduction) == (theirs.operation, theirs.group, theirs.reduction):
            cls = ShapeError if mine.shape != theirs.shape else DTypeError
        there, here = _shown(theirs), _shown(mine)
        return cls(f"{self._called(source)} is in {there}, rank {self._group.rank} in {here}")


def _shown(envelope: Envelope) -> str:
    kind = TensorType(envelope.shape, envelope.dtype)
    names = {code: name for name, code in _REDUCTION_CODES.items()}
    operation = OPERATIONS[envelope.operation] if envelope.operation < len(OPERATIONS) else "?"
    reduction = names.get(envelope.reduction, "?")
    return f"{operation} {reduction}".strip() + f" of {kind}"


def _theirs(told: bytes, name: str) -> MeshError:
    """The error of a rank that gave up, for one that waited for it."""
    error = from_fields(json.loads(told))
    error.node = error.node or name
    return error


def _kind(array: NDArray[Any]) -> TensorType:
    return TensorType(array.shape, _DTYPES.get(array.dtype) or dtype_of(array))


_DTYPES = {dtype.numpy: dtype for dtype in DTYPES}


def _reducible(array: NDArray[Any], reduction: str) -> TensorType:
    kind = _kind(array)
    if reduction not in REDUCTIONS:
        raise InputError(f"unknown reduction {reduction!r}", next_step=f"Known: {', '.join(REDUCTIONS)}")
    if kind.dtype.name not in REDUCES[reduction]:
        raise DTypeError(f"{reduction} does not combine {kind.dtype}")
    return kind


def _reduces(reduction: str) -> frozenset[str]:
    def fits(dtype: DType) -> bool:
        if reduction in ("and", "or"):
            return dtype.kind in "biu"
        if dtype in (C64, C128):
            return reduction in ("sum", "prod")
        return dtype is not BOOL or reduction in ("min", "max")

    return frozenset(dtype.name for dtype in DTYPES if fits(dtype))


REDUCES = {reduction: _reduces(reduction) for reduction in REDUCTIONS}


def _divides(array: NDArray[Any], axis: int, n: int) -> None:
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError(f"{_kind(array)} has no axis {axis}")
    if array.shape[axis] % n:
        raise ShapeError(f"{n} ranks cannot share axis {axis} of {_kind(array)}: it has {array.shape[axis]} elements")
