"""A group of ranks that perform collectives together, with a channel between every two of them.

`Channels` are those of one process for a plan.  A `Group` is some of the ranks in an order.  It chooses the program
(`algorithms.py`), makes its schedule (`schedule.py`) and has that performed on numpy arrays (`executor.py`), in the
thread that calls.  All ranks call the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import BF16, BOOL, C64, C128, DTYPES, F16, DType, dtype_of
from wire.ir.types import HostArray, TensorType

from . import algorithms
from .algorithms import REMOTE, SHARED, Program, Transport
from .channels import Channel, Channels
from .executor import OPERATION_CODES, REDUCTION_CODES, REDUCTIONS, Executor, Operation
from .ring_buffer import Envelope, with_tag
from .schedule import Schedule, schedule_of
from .shared_arena import fits_arena
from .shared_reduce import reduce_in_arenas

_HALVES = (F16, BF16)
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operation.  `key` and `make` are the program: equal keys have the same one on this rank.

    `kind` is the type that all ranks must agree on, and `shape` the shape of the result.  With `acknowledged` the call
    returns only when the other ranks have taken what was sent.
    """

    operation: str
    key: tuple[Hashable, ...]
    make: Callable[[], Program]
    kind: TensorType
    shape: tuple[int, ...]
    reduction: str = ""
    acknowledged: bool = False


@dataclass(slots=True)
class Group:
    """Rank `rank` of `keys`, which are the ranks' keys in `channels`, in order.  `number` tells groups apart.

    `algorithm` is the one to use for all_reduce ("": the cheapest), and `shares` how much each rank combines in
    "direct".
    """

    channels: Channels
    keys: Sequence[Any]
    rank: int
    number: int = 0
    algorithm: str = ""
    shares: Sequence[float] = ()
    _peers: list[Channel | None] = field(init=False)
    _bridged: bool = field(init=False)
    _schedules: dict[tuple[Hashable, ...], Schedule] = field(default_factory=dict)
    _choices: dict[tuple[int, bool], str] = field(default_factory=dict)
    _envelopes: dict[tuple[str, str, TensorType], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._peers = [None if rank == self.rank else self.channels.peers[key] for rank, key in enumerate(self.keys)]
        self._bridged = any(channel is not None and channel.bridged for channel in self._peers)

    @property
    def size(self) -> int:
        return len(self.keys)

    @property
    def transport(self) -> Transport:
        return REMOTE if self._bridged else SHARED

    # -- operations

    def all_reduce(self, array: HostArray, reduction: str = "sum", wide: DTypeLike | None = None) -> HostArray:
        """All ranks' arrays combined, element by element, on every rank.  With `wide` that is done in this dtype, which
        the result has, since sums may not fit into that of the arrays.  If the channels use shared arenas the result
        may be memory of all ranks, which is read only and lasts for this step."""
        kind = reducible(array, reduction)
        if wide is not None:
            array = array.astype(wide, copy=False)
        elif self._uses_arenas(kind) and (shared := self._reduce_in_arenas(array, kind, reduction)) is not None:
            return shared
        name = self.algorithm or self._choice(array.nbytes, array.dtype.kind in "biu")
        if name in algorithms.PARTIAL and kind.dtype in _HALVES:
            array = array.astype(np.float32)
        make = partial(algorithms.ALL_REDUCE[name], self.rank, self.size, array.size, self.shares or (1,) * self.size)
        result = self._perform(
            _Call("all_reduce", (name, array.size), make, kind, array.shape, reduction=reduction), array
        )
        return result.astype(kind.dtype.numpy if wide is None else wide, copy=False)

    def _uses_arenas(self, kind: TensorType) -> bool:
        """Whether to try a reduction in shared arenas.  All ranks decide alike."""
        everybody = self.size == len(self.channels.peers) + 1 > 1 and not self._bridged and not self.algorithm
        return self.channels.uses_arena and everybody and fits_arena(kind)

    def _reduce_in_arenas(self, array: HostArray, kind: TensorType, reduction: str) -> HostArray | None:
        operand, envelope = np.ascontiguousarray(array).reshape(-1), self._envelope("all_reduce", reduction, kind)
        everybody = Schedule((), frozenset(range(self.size)))
        executor = Executor(self.channels, self._peers, self.rank, Operation(envelope, operand, operand, everybody))
        with np.errstate(all="ignore"):
            result = reduce_in_arenas(executor, self.channels, self.rank, self.size, operand, REDUCTIONS[reduction])
        return None if result is None else result.reshape(array.shape)

    def reduce_scatter(
        self, array: HostArray, axis: int = 0, reduction: str = "sum", wide: DTypeLike | None = None
    ) -> HostArray:
        """All ranks' arrays combined and split along `axis`: this rank's piece.  With `wide` that is done in this
        dtype, as in `all_reduce`.  ShapeError if n does not divide it."""
        kind = reducible(array, reduction)
        array = array if wide is None else array.astype(wide, copy=False)
        check_divides(array, axis, self.size)
        front = np.moveaxis(array, axis, 0)
        shape = (front.shape[0] // self.size, *front.shape[1:])
        make = partial(algorithms.reduce_scatter, self.rank, self.size, array.size)
        result = self._perform(_Call("reduce_scatter", (array.size,), make, kind, shape, reduction=reduction), front)
        return np.moveaxis(result.astype(kind.dtype.numpy if wide is None else wide, copy=False), 0, axis)

    def all_gather(self, array: HostArray, axis: int = 0) -> HostArray:
        """All ranks' arrays, joined along `axis`."""
        front = np.moveaxis(array, axis, 0)
        shape = (front.shape[0] * self.size, *front.shape[1:])
        make = partial(algorithms.all_gather, self.rank, self.size, array.size)
        result = self._perform(_Call("all_gather", (array.size,), make, _kind(array), shape), front)
        return np.moveaxis(result, 0, axis)

    def all_to_all(self, array: HostArray, split_axis: int = 0, concat_axis: int = 0) -> HostArray:
        """Split along `split_axis` and send piece j to rank j.  The pieces received are joined along `concat_axis`."""
        check_divides(array, split_axis, self.size)
        blocks = np.stack(np.split(array, self.size, split_axis))
        make = partial(algorithms.all_to_all, self.rank, self.size, array.size)
        result = self._perform(_Call("all_to_all", (array.size,), make, _kind(array), blocks.shape), blocks)
        return np.concatenate(list(result), concat_axis)

    def permute(self, array: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray:
        """The array of the rank that is paired with this one as (source, target); zeros if no pair has it as target."""
        targets, sources = [to for _, to in pairs], [source for source, _ in pairs]
        if len({*targets}) != len(pairs) or len({*sources}) != len(pairs):
            raise InputError(f"a permutation names a rank twice: {list(pairs)}")
        if any(not 0 <= rank < self.size for rank in (*targets, *sources)):
            raise InputError(f"a permutation of {self.size} ranks names others: {list(pairs)}")
        make = partial(algorithms.permute, self.rank, self.size, array.size, tuple(pairs))
        key = (array.size, tuple(pairs))
        result = self._perform(_Call("permute", key, make, _kind(array), array.shape, acknowledged=True), array)
        if self.rank not in targets:
            result.fill(0)
        return result

    def broadcast_from(self, array: HostArray, root: int) -> HostArray:
        """The array of rank `root`, on every rank."""
        if not 0 <= root < self.size:
            raise InputError(f"a group of {self.size} ranks has no rank {root}")
        make = partial(algorithms.broadcast, self.rank, self.size, array.size, root)
        call = _Call("broadcast_from", (array.size, root), make, _kind(array), array.shape, acknowledged=True)
        return self._perform(call, array)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        make, nothing = partial(algorithms.barrier, self.rank, self.size), np.zeros(0, np.bool_)
        self._perform(_Call("barrier", (), make, _kind(nothing), (0,)), nothing)

    def send(self, array: HostArray, to: int) -> None:
        """Send `array` to rank `to`, which calls `receive`.  Returns when that rank has it."""
        self._pass(array, _kind(array), self.rank, to)

    def receive(self, kind: TensorType, source: int) -> HostArray:
        """Receive the array that rank `source` sends.  Both ranks raise if it is not of type `kind`."""
        return self._pass(np.empty(kind.shape, kind.dtype.numpy), kind, source, self.rank)

    def _pass(self, array: HostArray, kind: TensorType, source: int, to: int) -> HostArray:
        if source == to or not (0 <= source < self.size and 0 <= to < self.size):
            raise InputError(f"nothing can be sent from rank {source} to rank {to} of {self.size}")
        make = partial(algorithms.permute, self.rank, self.size, array.size, ((source, to),))
        return self._perform(_Call("send", (array.size, source, to), make, kind, array.shape, acknowledged=True), array)

    # -- how a call is performed

    def _perform(self, call: _Call, operand: HostArray) -> HostArray:
        """The result of this rank's program.  It is f32 if halves are summed."""
        operand = np.ascontiguousarray(operand).reshape(-1)
        wide = bool(call.reduction) and call.kind.dtype in _HALVES
        result = np.empty(call.shape, np.float32 if wide else operand.dtype)
        operation = Operation(
            self._envelope(call.operation, call.reduction, call.kind),
            operand,
            result.reshape(-1),
            self._schedule(call, operand.itemsize),
            REDUCTIONS.get(call.reduction),
        )
        Executor(self.channels, self._peers, self.rank, operation).perform()
        return result

    def _choice(self, size_bytes: int, exact: bool) -> str:
        choice = self._choices.get((size_bytes, exact))
        if choice is None:
            choice = algorithms.choose(self.size, size_bytes, self.transport, exact)
            _remember(self._choices, (size_bytes, exact), choice)
        return choice

    def _envelope(self, operation: str, reduction: str, kind: TensorType) -> bytes:
        key = operation, reduction, kind
        envelope = self._envelopes.get(key)
        if envelope is None:
            codes = OPERATION_CODES[operation], REDUCTION_CODES[reduction]
            envelope = Envelope(0, self.number, *codes, kind.dtype, kind.shape).pack()
            _remember(self._envelopes, key, envelope)
        return with_tag(envelope, self.channels.tag)

    def _schedule(self, call: _Call, itemsize: int) -> Schedule:
        key = call.operation, *call.key, itemsize
        schedule = self._schedules.get(key)
        if schedule is None:
            schedule = schedule_of(call.make(), self.channels.slot_bytes // itemsize, call.acknowledged)
            _remember(self._schedules, key, schedule)
        return schedule


REMEMBERED_MAX = 64  # schedules and the like of a group: the same calls come again


def _remember(cache: dict[Any, _V], key: Hashable, value: _V) -> None:
    if len(cache) >= REMEMBERED_MAX:
        cache.clear()
    cache[key] = value


def _kind(array: HostArray) -> TensorType:
    return TensorType(array.shape, _DTYPES.get(array.dtype) or dtype_of(array))


_DTYPES = {dtype.numpy: dtype for dtype in DTYPES}


def reducible(array: HostArray, reduction: str) -> TensorType:
    """The type of an array that is to be reduced; DTypeError if the reduction does not combine its dtype."""
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


def check_divides(array: HostArray, axis: int, n: int) -> None:
    """Check that `n` ranks can share an axis."""
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError(f"{_kind(array)} has no axis {axis}")
    if array.shape[axis] % n:
        raise ShapeError(f"{n} ranks cannot share axis {axis} of {_kind(array)}: it has {array.shape[axis]} elements")
