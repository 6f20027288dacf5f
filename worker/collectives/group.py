"""A group of ranks that perform collectives together, each through a mailbox to and one from every other.

`Wires` are one process's mailboxes of a plan; a `Group` is some of those ranks in an order, and has the programs of
`algorithms.py` performed on numpy arrays (`executor.py`): blocking, in the thread that calls.  All ranks call the same
operations in the same order.  It does not know graphs, steps of plans or who made the mailboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import BF16, BOOL, C64, C128, DTYPES, F16, DType, dtype_of
from wire.ir.types import TensorType

from . import algorithms
from .algorithms import FAR, SHARED, Path, Program, Send, piece_of, steps
from .channels import Wire, Wires
from .executor import OPERATION_CODES, REDUCTION_CODES, REDUCTIONS, Run
from .ring_buffer import Envelope, tagged
from .shared_arena import is_laid
from .shared_reduce import reduced

_HALVES = (F16, BF16)


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
        return FAR if self._bridged else SHARED

    # -- operations

    def all_reduce(self, array: NDArray[Any], reduction: str = "sum") -> NDArray[Any]:
        """All ranks' arrays combined, element by element, on every rank; where `wires` lay tensors it may be memory of
        all ranks, which is read only and lasts for this step."""
        kind = _reducible(array, reduction)
        if self._lies(kind) and (laid := self._reduced_on_shelves(array, kind, reduction)) is not None:
            return laid
        name = self.algorithm or self._choice(array.nbytes, kind.dtype.kind in "biu")
        if name in algorithms.PARTIAL and kind.dtype in _HALVES:
            array = array.astype(np.float32)
        make = partial(algorithms.ALL_REDUCE[name], self.rank, self.size, array.size, self.shares or (1,) * self.size)
        made = self._perform("all_reduce", (name, array.size), make, kind, array, array.shape, reduction)
        return made.astype(kind.dtype.numpy, copy=False)

    def _lies(self, kind: TensorType) -> bool:
        """Whether a tensor is tried to be reduced on shelves: all ranks find the same."""
        whole = self.size == len(self.wires.wires) + 1 > 1 and not self._bridged and not self.algorithm
        return self.wires.lays and whole and is_laid(kind)

    def _reduced_on_shelves(self, array: NDArray[Any], kind: TensorType, reduction: str) -> NDArray[Any] | None:
        given, envelope = np.ascontiguousarray(array).reshape(-1), self._envelope("all_reduce", reduction, kind)
        everybody = ((0, given.size, tuple(range(self.size)), 0, 0, False),)
        run = Run(self.wires, self._wires, self.rank, envelope, given, given, None, everybody)
        with np.errstate(all="ignore"):
            made = reduced(run, self.wires, self.rank, self.size, given, REDUCTIONS[reduction])
        return None if made is None else made.reshape(array.shape)

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
            codes = OPERATION_CODES[operation], REDUCTION_CODES[reduction]
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
        combine = REDUCTIONS.get(reduction)
        run = Run(self.wires, self._wires, self.rank, envelope, given, made.reshape(-1), combine, moves)
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
