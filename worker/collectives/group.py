"""A group of ranks that perform collectives together, each through a mailbox to and one from every other.

`Wires` are one process's mailboxes of a plan; a `Group` is some of those ranks in an order, and performs the programs
of `algorithms.py` on numpy arrays: blocking, in the thread that calls.  All ranks call the same operations in the same
order.  It does not know graphs, steps of plans or who made the mailboxes.

Whoever gives up tells all others why (`Wires.fail`), so no rank waits for one that will not come; nothing of a step
that was given up can be taken for the next one's, since every letter carries the step's tag.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import BF16, BOOL, C64, C128, DTYPES, F16, DType, dtype_of
from wire.errors import (
    Cancelled,
    DeadlineExceeded,
    DTypeError,
    GraphError,
    InputError,
    MeshError,
    NodeLost,
    ShapeError,
    from_fields,
)
from wire.types import TensorType

from . import algorithms
from .algorithms import BRIDGED, SHARED, Path, Program, Send, piece_of, steps
from .mailbox import LETTER_BYTES, Envelope, Inbox, Outbox, Patience, tag_of, tagged

DEADLINE_S = 120.0  # a rank may compile, or compute, long before it comes
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
    """Both mailboxes between this rank and another; `bridged` where the daemons carry what is in them."""

    outbox: Outbox
    inbox: Inbox
    name: str = ""  # of the worker at the other end
    bridged: bool = False
    alive: Callable[[], bool] = lambda: True  # whether the process at the other end runs, where that can be seen


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

    def fail(self, error: MeshError) -> None:
        """Tell everybody that this end gives the step up."""
        text = json.dumps({**error.to_fields(), "cause": error.cause[:500], "next_step": error.next_step[:500]})
        if len(text.encode()) > 2500:
            text = json.dumps({"code": error.code, "message": error.message[:500], "node": error.node})
        for wire in self.wires.values():
            wire.outbox.fail(self.tag, text.encode())
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
    _plans: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    _choices: dict[tuple[int, bool], str] = field(default_factory=dict)
    _envelopes: dict[tuple[str, str, TensorType], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._wires = [None if rank == self.rank else self.wires.wires[key] for rank, key in enumerate(self.keys)]
        self._bridged = any(wire is not None and wire.bridged for wire in self._wires)

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
        run.ring()
        if settle:
            run.settle()
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

    __slots__ = ("_changed", "_combine", "_envelope", "_given", "_group", "_made", "_used", "_wires")

    def __init__(
        self, group: Group, envelope: bytes, given: NDArray[Any], made: NDArray[Any], combine: np.ufunc | None
    ) -> None:
        self._group = group
        self._wires = group._wires
        self._envelope = envelope
        self._given = given
        self._made = made
        self._combine = combine
        self._used: set[int] = set()
        self._changed = False

    def send(self, to: int, made: bool, start: int, stop: int) -> None:
        wire = self._wires[to]
        assert wire is not None
        outbox = wire.outbox
        if outbox.full:
            self._wait(lambda: not outbox.full, (to,), reading=True)
        if stop > start:
            data = self._made if made else self._given
            np.copyto(outbox.letter(self._given.dtype)[: stop - start], data[start:stop], casting="same_kind")
        outbox.publish(self._envelope, (stop - start) * self._given.itemsize)
        self._changed |= wire.bridged
        self._used.add(to)

    def combine(self, start: int, stop: int, of: tuple[int, ...], own_start: int, own_stop: int, made: bool) -> None:
        out = self._made[start:stop]
        first: Any = None
        behind: Inbox | None = None  # whose letter `first` is
        combine, rank = self._combine, self._group.rank
        for place, each in enumerate(of):
            if each == rank:
                inbox, values = None, out if made else self._given[own_start:own_stop]
            else:
                inbox = self._arrived(each, of)
                values = inbox.payload(self._given.dtype)[: stop - start]
            if place == 0:
                first, behind = values, inbox
                continue
            assert combine is not None
            combine(first, values, out=out, dtype=out.dtype)
            if behind is not None:
                behind.release()
            if inbox is not None:
                inbox.release()
            first, behind = out, None
        if len(of) == 1:
            if first is not out:
                np.copyto(out, first, casting="same_kind")
            if behind is not None:
                behind.release()

    def ring(self) -> None:
        """Have what changed in bridged mailboxes carried."""
        if self._changed:
            self._changed = False
            self._group.wires.ring()

    def settle(self) -> None:
        """Wait until all that was sent is taken: whoever takes it may object."""
        for to in self._used:
            wire = self._wires[to]
            assert wire is not None
            outbox = wire.outbox
            if outbox.read != outbox.written:
                self._wait(lambda outbox=outbox: outbox.read == outbox.written, (to,), reading=True)  # type: ignore[misc]

    def _arrived(self, source: int, of: tuple[int, ...]) -> Inbox:
        """The mailbox from a rank once there is a letter of this operation in it."""
        wire = self._wires[source]
        assert wire is not None
        inbox = wire.inbox
        while True:
            if inbox.empty:
                self._wait(lambda: not inbox.empty, tuple(each for each in of if each != self._group.rank))
            envelope = inbox.envelope
            if envelope == self._envelope:
                self._changed |= wire.bridged  # for it will be released
                return inbox
            tag, mine = tag_of(envelope), self._group.wires.tag
            if tag == mine:
                raise self._differs(source, Envelope.unpack(envelope))
            if tag > mine:
                raise Cancelled(f"{self._called(source)} went on to another step")
            inbox.release()  # of a step that was given up

    def _wait(self, ready: Callable[[], bool], ranks: tuple[int, ...], reading: bool = False) -> None:
        """Until `ready()`, which takes letters from these ranks, or that the one of them has been `reading` ours."""
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

        group.wires.patience.wait(ready, look)

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
