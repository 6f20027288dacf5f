"""Group: ranks of a script that exchange numpy arrays, by the runtime that graphs' collectives use.

All ranks of a group call the same methods in the same order.  One that calls another method, or with another shape or
dtype, raises on every rank, with both; so does a rank that does not come in time, or whose process ends.  A group on
which that happened is over: messages of it may be in flight.  Groups have ring buffers of their own, so several may be
used at once, each by a thread.

Part of the composition root: it reaches the runtime in `worker/collectives/`.  To add an operation: a method of the
runtime's Group, and one here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import Cancelled, ConfigError, InputError, LimitExceeded, MeshError, ShapeError
from wire.ir.dtypes import dtype_of
from wire.ir.types import HostArray, TensorType
from wire.limits import DEFAULT
from wire.system.shared_memory import SharedDir
from wire.system.steady_log import steady_logger
from wire.timeouts import check_collective_timeout
from worker.collectives.connection import Connection
from worker.collectives.executor import REDUCTIONS
from worker.collectives.group import Group as Runtime
from worker.collectives.group import check_divides, reducible

from .. import tree
from ..util.argument_checks import axis_of, integer, number, pairs_of, value_text
from ..util.did_you_mean import names_checked
from .channels import GroupChannels
from .listening_ports import Door
from .named_groups import agreed, in_buffers
from .rendezvous import Meeting, Note

log = steady_logger("graph_mesh.scripts")
T = TypeVar("T")
LOOK_S = 0.01  # from one look for a rank of another machine that gave up to the next
OPS = ("sum", "mean", *[name for name in REDUCTIONS if name != "sum"])


@dataclass(frozen=True, slots=True)
class Neighbours:
    """This rank's own directory, and where the others are, by their notes; `hosts` has the host of every rank, and is
    empty where all are on one.  To those on others there is a door."""

    own: SharedDir
    meeting: Meeting
    notes: Mapping[int, Note]
    hosts: Sequence[str] = ()
    door: Door | None = None

    def far(self, rank: int) -> bool:
        """Whether a rank is on another machine."""
        return bool(self.hosts) and self.hosts[rank] != self.hosts[self.meeting.rank]

    def connect(self, group: str, ranks: Collection[int], slot_bytes: int, timeout_s: float) -> dict[int, Connection]:
        """Connections to ranks on other machines."""
        if not ranks:
            return {}
        assert self.door is not None
        return self.door.connect(group, {rank: self.notes[rank] for rank in ranks}, slot_bytes, timeout_s)

    def directories(self) -> dict[int, Path]:
        return {rank: Path(note.directory) for rank, note in self.notes.items()}

    def of_this_meeting(self, group: str) -> str:
        """The name of a group that none of an earlier meeting in the same folder has."""
        return f"{next(iter(self.notes.values())).met} {group}"

    def called(self, rank: int) -> str:
        """What errors call a rank, besides its number in a group."""
        return f"rank {rank} of the world" + (f" on {self.hosts[rank]}" if self.hosts else "")


class Group:
    """Ranks of a script that exchange numpy arrays; `mesh.init` returns the group of all, and `split` makes others.

    All ranks of a group call the same methods in the same order.  A method waits for the other ranks for at most
    `timeout_s`, or the group's own time, and raises DeadlineExceeded, which names the missing ranks.  After an error
    the group is over.

    Parameters
    ----------
    name : str
        What the ranks' mailboxes are called.
    ranks : sequence of int
        The members' numbers in the world, in the order of their ranks here.
    number : int
        This process's number in the world.
    neighbours : Neighbours
        Where the other ranks are.
    timeout_s : float
        Seconds to wait in each method.
    ready : callable
        It returns once all ranks have made their mailboxes.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> world = mesh.init()  # of one rank, since no launcher started this process
    >>> world.all_reduce({"w": np.ones(2)}, "mean")
    {'w': array([1., 1.])}
    >>> x = np.arange(2.0)
    >>> world.all_gather(x), world.reduce_scatter(x), world.all_to_all(x)
    (array([0., 1.]), array([0., 1.]), array([0., 1.]))
    >>> world.broadcast(x), world.distributed_broadcast(x)
    (array([0., 1.]), array([0., 1.]))
    >>> world.permute(x, [(0, 0)]), world.ppermute(x, [(0, 0)])
    (array([0., 1.]), array([0., 1.]))
    >>> row = world.split(color=0)
    >>> row.barrier()
    >>> row.close()
    >>> mesh.shutdown()
    """

    def __init__(
        self, name: str, ranks: Sequence[int], number: int, neighbours: Neighbours, timeout_s: float, ready: _Barrier
    ) -> None:
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(number)
        self.size = len(self.ranks)
        self.timeout_s = timeout_s
        self._name = name
        self._neighbours = neighbours
        self._lock = threading.Lock()
        self._splits = 0
        self._over: MeshError | None = None
        self._looked_s = 0.0
        others = [rank for rank in self.ranks if rank != number]
        self._far = [rank for rank in others if neighbours.far(rank)]
        near = [rank for rank in others if not neighbours.far(rank)]
        self._group_channels = GroupChannels(neighbours.own, name, self.ranks, number, near)
        self._group_channels.make()
        ready()
        connections = neighbours.connect(name, self._far, self._group_channels.slot_bytes, timeout_s)
        called = {rank: neighbours.called(rank) for rank in others}
        self._channels = self._group_channels.open(neighbours.directories(), connections, called)
        self._channels.begin(1, self._stopped)
        self._runtime = Runtime(self._channels, self.ranks, self.rank)
        self.barrier()  # from here on all have opened what they read: a rank may end
        finalize(self, self._group_channels.remove).atexit = False  # a script may split in a loop, and close no group

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, ranks {list(self.ranks)} of the world)"

    # -- operations

    @names_checked
    def all_reduce(self, x: Any, op: str = "sum", weight: float | None = None, timeout_s: float | None = None) -> Any:
        """Reduce the values of all ranks; every rank gets the result.

        The leaves of a pytree are reduced by their names, in whatever order a rank has them.

        Parameters
        ----------
        x : array or pytree of arrays
            This rank's value; of the same shapes on all ranks.
        op : {"sum", "mean", "prod", "min", "max", "and", "or"}, optional
            The reduction.
        weight : float, optional
            This rank's weight in a weighted mean.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray or pytree of numpy.ndarray
            The reduction, of the shape of `x`.

        Raises
        ------
        InputError
            If the op is not known, a weight does not belong to a mean, or a rank lacks a name; then it is on all ranks.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        if op not in OPS:
            raise InputError(f"all_reduce has no op {op!r}", next_step=f"Choose one of {', '.join(OPS)}")
        if weight is not None and op != "mean":
            raise InputError(f"a weight belongs to a mean, not to {op!r}")
        weight = None if weight is None else number(weight, "the weight of a rank", 0.0)
        arrays, structure = tree.flatten_with_paths(x)
        leaves = {path: _native(leaf) for path, leaf in arrays}
        for leaf in leaves.values():
            reducible(leaf, _combining(op))
        if structure != tree.LEAF:
            tables = self._do("all_reduce", lambda group: agreed(group, leaves), timeout_s)
            tables.check()
        reduced = in_buffers(leaves, lambda array: self._reduced(array, op, weight, timeout_s))
        return tree.unflatten(structure, [reduced[path] for path, _ in arrays])

    @names_checked
    def all_gather(self, x: Any, axis: int = 0, tiled: bool = True, timeout_s: float | None = None) -> HostArray:
        """Join the arrays of all ranks; every rank gets the result.

        Parameters
        ----------
        x : array, (..., length, ...)
            This rank's block.
        axis : int, optional
            The dimension along which blocks are joined.
        tiled : bool, optional
            Whether blocks are joined along `axis`.  If not, they are stacked along a new one.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray, (..., size * length, ...)
            The blocks in the order of ranks.

        Raises
        ------
        ShapeError
            If there is no such axis, or ranks differ in shape.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        array = _native(x)
        if not tiled:
            at = axis_of(axis, array.ndim + 1, "all_gather", list(array.shape), ShapeError)
            array = _native(np.expand_dims(array, at))
        at = _axis(axis, array)
        return self._do("all_gather", lambda group: group.all_gather(array, at), timeout_s)

    @names_checked
    def reduce_scatter(self, x: Any, axis: int = 0, op: str = "sum", timeout_s: float | None = None) -> HostArray:
        """Reduce the arrays of all ranks; each rank gets its block of the result.

        Parameters
        ----------
        x : array, (..., size * length, ...)
            This rank's array.
        axis : int, optional
            The dimension that is cut into a block for each rank.
        op : {"sum", "mean", "prod", "min", "max", "and", "or"}, optional
            The reduction.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray, (..., length, ...)
            This rank's block.

        Raises
        ------
        InputError
            If the op is not known.
        ShapeError
            If the dimension cannot be cut evenly.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        if op not in OPS:
            raise InputError(f"reduce_scatter has no op {op!r}", next_step=f"Choose one of {', '.join(OPS)}")
        array = _native(x)
        reducible(array, _combining(op))
        at = _axis(axis, array)
        check_divides(array, at, self.size)
        if op != "mean":
            return self._do("reduce_scatter", lambda group: group.reduce_scatter(array, at, op), timeout_s)
        wide = _of_means(array)
        block = self._do("reduce_scatter", lambda group: group.reduce_scatter(array, at, "sum", wide), timeout_s)
        return _divided(block, self.size, array)

    @names_checked
    def all_to_all(
        self, x: Any, split_axis: int = 0, concat_axis: int = 0, tiled: bool = True, timeout_s: float | None = None
    ) -> HostArray:
        """Exchange blocks: block i along `split_axis` goes to rank i.

        Parameters
        ----------
        x : array
            This rank's array.
        split_axis : int, optional
            The dimension that is cut into a block for each rank.
        concat_axis : int, optional
            The dimension along which the received blocks are joined.
        tiled : bool, optional
            Whether blocks keep `split_axis`.  If not, it has one row for each rank and is dropped, and what is received
            is stacked along a new axis.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray
            The received blocks.

        Raises
        ------
        ShapeError
            If the dimension cannot be cut into a block for each rank.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        array = _native(x)
        split, joined = _axis(split_axis, array), _axis(concat_axis, array)
        if tiled:
            check_divides(array, split, self.size)
            return self._do("all_to_all", lambda group: group.all_to_all(array, split, joined), timeout_s)
        if array.shape[split] != self.size:
            raise ShapeError(f"all_to_all with tiled=False sends one row to each of {self.size} ranks: {array.shape}")
        rows = np.moveaxis(array, split, 0)
        received = self._do("all_to_all", lambda group: group.all_to_all(rows, 0, 0), timeout_s)
        return np.moveaxis(received, 0, joined)

    @names_checked
    def broadcast(self, x: Any, root: int = 0, timeout_s: float | None = None) -> HostArray:
        """Give every rank what one of them has.

        Parameters
        ----------
        x : array
            This rank's array; of the same shape and dtype on all ranks.
        root : int, optional
            The rank whose array it is.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray
            The array of the root.

        Raises
        ------
        InputError
            If there is no such rank.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        self._check(root)
        array = _native(x)
        return self._do("broadcast", lambda group: group.broadcast_from(array, root), timeout_s)

    @names_checked
    def permute(self, x: Any, pairs: Sequence[tuple[int, int]], timeout_s: float | None = None) -> HostArray:
        """Send arrays between ranks, by pairs of source and destination.

        Parameters
        ----------
        x : array
            What this rank sends.
        pairs : sequence of (int, int)
            Sources and destinations.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        numpy.ndarray
            What this rank receives; zeros if nothing is sent to it.

        Raises
        ------
        InputError
            If a rank is twice a source or twice a destination.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        array, among = _native(x), pairs_of(pairs, self.size)
        return self._do("permute", lambda group: group.permute(array, among), timeout_s)

    @names_checked
    def send(self, x: Any, to: int, timeout_s: float | None = None) -> None:
        """Give an array to one rank, which calls `recv`.  Other ranks take no part.

        Parameters
        ----------
        x : array
            What to send.
        to : int
            The rank that receives it.
        timeout_s : float, optional
            Seconds to wait until it has it.

        Raises
        ------
        InputError
            If there is no such rank, or it is this one.
        DeadlineExceeded
            If the rank did not come in time.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> world = mesh.init()
        >>> if world.size > 1:
        ...     world.send(np.ones(3), to=1) if world.rank == 0 else world.recv((3,), np.float64, source=0)
        >>> mesh.shutdown()
        """
        self._check(to, own="sent to")
        array = _native(x)
        self._do("send", lambda group: group.send(array, to), timeout_s)

    @names_checked
    def recv(self, shape: Sequence[int], dtype: DTypeLike, source: int, timeout_s: float | None = None) -> HostArray:
        """Receive an array that one rank sends.

        Parameters
        ----------
        shape : sequence of int
            Its shape; if it has another, both ranks raise.
        dtype : dtype
            Its dtype; if it has another, both ranks raise.
        source : int
            The rank that sends it.
        timeout_s : float, optional
            Seconds to wait for it.

        Returns
        -------
        numpy.ndarray
            The array.

        Raises
        ------
        InputError
            If there is no such rank, or it is this one, or what is sent differs in shape or dtype.
        DeadlineExceeded
            If the rank did not come in time.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> world = mesh.init()
        >>> if world.size > 1:
        ...     world.send(np.ones(3), to=1) if world.rank == 0 else world.recv((3,), np.float64, source=0)
        >>> mesh.shutdown()
        """
        self._check(source, own="received from")
        kind = _type(shape, dtype)
        return self._do("recv", lambda group: group.receive(kind, source), timeout_s)

    @names_checked
    def recv_like(self, x: Any, source: int, timeout_s: float | None = None) -> HostArray:
        """Receive an array that one rank sends, of the shape and dtype of another array.

        Parameters
        ----------
        x : array
            An array of the shape and dtype that is sent.
        source : int
            The rank that sends it.
        timeout_s : float, optional
            Seconds to wait for it.

        Returns
        -------
        numpy.ndarray
            The array.

        Raises
        ------
        InputError
            If there is no such rank, or it is this one, or what is sent differs in shape or dtype.
        DeadlineExceeded
            If the rank did not come in time.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> world = mesh.init()
        >>> x = np.ones(3)
        >>> if world.size > 1:
        ...     world.send(x, to=1) if world.rank == 0 else world.recv_like(x, source=0)
        >>> mesh.shutdown()
        """
        like = _native(x)
        return self.recv(like.shape, like.dtype, source, timeout_s)

    @names_checked
    def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until all ranks have called this.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Raises
        ------
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        self._do("barrier", lambda group: group.barrier(), timeout_s)

    @names_checked
    def split(self, color: int | None, key: int = 0, timeout_s: float | None = None) -> Group | None:
        """Make a group of the ranks with the same color.  All ranks of this group call it.

        Parameters
        ----------
        color : int or None
            Which group this rank is in; None for none.
        key : int, optional
            The order of ranks in the new group; where it is equal, that of this group.
        timeout_s : float, optional
            Seconds to wait for the other ranks.

        Returns
        -------
        Group or None
            The new group; None for a rank without a color.

        Raises
        ------
        InputError
            If the color or the key is not possible.
        DeadlineExceeded
            If ranks did not come in time; it names them.
        """
        if not isinstance(color, (int, np.integer, NoneType)) or not isinstance(key, (int, np.integer)):
            raise InputError(f"a colour is an int or None, and a key an int, not {color!r} and {key!r}")
        for what, value in (("a colour", color or 0), ("a key", key)):
            if not -(2**63) <= value < 2**63:
                raise InputError(f"{what} has 64 bits at most, not {value}")
        return self._do("split", lambda group: self._split(group, color, key), timeout_s)

    def close(self) -> None:
        """Free the ring buffers; nothing more can be done with the group."""
        self._over = self._over or ConfigError("this group is closed")
        for channel in self._channels.peers.values():
            if channel.remote is not None:
                channel.remote.close()
        self._group_channels.remove()

    # -- what MLX, JAX and MAX call them (docs/originals.md)

    all_sum = partialmethod(all_reduce, op="sum")
    all_max = partialmethod(all_reduce, op="max")
    all_min = partialmethod(all_reduce, op="min")
    sum_scatter = partialmethod(reduce_scatter, op="sum")
    ppermute = permute
    distributed_broadcast = broadcast

    # -- how

    def _do(self, op: str, work: Callable[[Runtime], T], timeout_s: float | None) -> T:
        """Work on the runtime's group; an error is sent to all ranks, and ends the group."""
        within_s = self.timeout_s if timeout_s is None else check_collective_timeout(timeout_s)
        with self._lock:
            if self._over is not None:
                raise self._ended(self._over)
            self._channels.deadline_s = within_s
            try:
                return work(self._runtime)
            except MeshError as error:
                error.op = error.op or op
                self._give_up(error)
                raise
            except BaseException as error:
                self._give_up(Cancelled(f"rank {self.rank} gave up: {type(error).__name__}", cause=str(error)))
                raise

    def _give_up(self, error: MeshError) -> None:
        self._over = error
        try:
            if self._far:
                self._neighbours.meeting.give_up(self._neighbours.of_this_meeting(self._name), error)
        except ConfigError as unsaid:  # a full disk, say: ranks of this machine hear of it all the same
            log.warning("ranks on other machines do not learn why this one gave up: %s", unsaid)
        finally:
            self._channels.fail(error)

    def _stopped(self) -> bool:
        """Asked while this rank waits: raises why a rank of another machine gave up, which no ring buffer tells."""
        if self._far and time.monotonic() > self._looked_s + LOOK_S:
            self._looked_s = time.monotonic()
            name = self._neighbours.of_this_meeting(self._name)
            error = self._neighbours.meeting.given_up(name, self._far)
            if error is not None:
                raise error
        return False

    @staticmethod
    def _ended(error: MeshError) -> MeshError:
        again = error.copy()
        if not isinstance(error, ConfigError):
            again.message = f"this group is over since an earlier error: {error.message}"
            again.next_step = "Ranks that go on after an error need a group of their own: split one before"
        return again

    def _check(self, rank: int, own: str = "") -> None:
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.size:
            raise InputError(f"a group of {self.size} ranks has no rank {rank!r}")
        if own and rank == self.rank:
            raise InputError(f"nothing can be {own} oneself: this is rank {rank}")

    def _reduced(self, array: HostArray, op: str, weight: float | None, timeout_s: float | None) -> HostArray:
        if op != "mean":
            return self._do("all_reduce", lambda group: group.all_reduce(array, op), timeout_s)
        wide = _of_means(array)
        if weight is None:
            total = self._do("all_reduce", lambda group: group.all_reduce(array, "sum", wide), timeout_s)
            return _divided(total, self.size, array)
        own = np.asarray(weight, np.float64)
        weights = self._do("all_reduce", lambda group: group.all_reduce(own), timeout_s)
        if not weights:
            raise InputError("the weights of all ranks are 0, so there is no mean")
        weighed = array.astype(wide) * own.astype(wide)
        return _divided(self._do("all_reduce", lambda group: group.all_reduce(weighed), timeout_s), weights, array)

    def _split(self, group: Runtime, color: int | None, key: int) -> Group | None:
        self._splits += 1
        asked = np.asarray([[color is not None, color or 0, key]], np.int64)
        colours = group.all_gather(asked).tolist()
        members = sorted((key, rank) for rank, (wanted, its, key) in enumerate(colours) if wanted and its == color)
        if color is None:
            group.barrier()
            return None
        name = f"{self._name}/{self._splits}.{color}"
        ranks = [self.ranks[rank] for _, rank in members]
        return Group(name, ranks, self.ranks[self.rank], self._neighbours, self.timeout_s, group.barrier)


_Barrier = Callable[[], None]
"""Returns once all ranks of a group have made their ring buffers."""


def _native(x: Any) -> HostArray:
    """The array in this machine's order of bytes, which others take for theirs."""
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InputError(f"ranks exchange arrays, not {value_text(x)}", cause=str(error)) from None
    dtype_of(array)
    _check_rank(array.shape)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_rank(shape: Sequence[int]) -> None:
    if len(shape) > DEFAULT.rank_max:
        raise LimitExceeded(
            f"ranks exchange arrays of {DEFAULT.rank_max} dimensions at most, not {len(shape)}",
            next_step="Reshape it: dimensions of size 1 may be left out",
        )


def _combining(op: str) -> str:
    """The reduction of the runtime that an op is made of."""
    return "sum" if op == "mean" else op


def _of_means(array: HostArray) -> np.dtype[Any]:
    """The dtype in which a mean is computed, as numpy does it: the sum of all ranks may not fit into that of an integer
    or a half."""
    if array.dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if array.dtype.itemsize < 4 else array.dtype


def _divided(total: HostArray, by: Any, like: HostArray) -> HostArray:
    """The quotient as numpy has it: that of integers is a float, and a float keeps its dtype."""
    mean = np.asarray(total / np.asarray(by).astype(total.dtype))
    return mean if like.dtype.kind in "biu" else mean.astype(like.dtype, copy=False)


def _type(shape: Sequence[int], dtype: DTypeLike) -> TensorType:
    try:
        sizes, kind = tuple(map(int, shape)), np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InputError("what is received has a shape, a tuple of ints, and a dtype", cause=str(error)) from None
    if min(sizes, default=0) < 0:
        raise InputError(f"no array has the shape {sizes}")
    _check_rank(sizes)
    return TensorType(sizes, dtype_of(kind))


def _axis(axis: int, array: HostArray) -> int:
    at = integer(axis, "an axis")
    if not -array.ndim <= at < array.ndim:
        raise ShapeError(f"axis {at} of an array of shape {list(array.shape)}")
    return at % array.ndim
