"""Position ops: ops of which a rank's share depends on which share it is: positions, random words, rows by index.

A row of SPECIAL takes the `Share` of a node that a rank computes, with its operands in the builder, and gives the node
that is the rank's result.  `factors.py` says which factors of an op are special; where none of them is split, the op
itself is a rank's share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.dtypes import I32, U32
from ..ir.types import Attrs, TensorType
from .layout import Dims, local_shape
from .rank_emitter import Rank

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@dataclass(frozen=True, slots=True)
class Share:
    """A node of the whole program, and a rank's operands of it: how they and the result are split."""

    attrs: Attrs
    types: Sequence[TensorType]
    result: TensorType
    operands: Sequence[int]
    operand_dims: Sequence[Dims]
    result_dims: Dims


Row = Callable[[Rank, Share], int]


def _iota(rank: Rank, share: Share) -> int:
    kind, dims = share.result, share.result_dims
    places = rank.positions(kind, dims, share.attrs["axis"])
    typed = places if kind.dtype is I32 else rank.add("cast", places, dtype=kind.dtype.name)
    return rank.add("broadcast", typed, shape=local_shape(kind.shape, dims, rank.axes))


def _random_bits(rank: Rank, share: Share) -> int:
    """Threefry2x32 (Salmon et al., 2011) at the places that the elements have in the whole tensor."""
    (key,) = share.operands
    first, second = (
        rank.add("reshape", rank.add("slice", key, start=(at,), stop=(at + 1,), step=(1,)), shape=()) for at in (0, 1)
    )
    parity = rank.add("xor", rank.add("xor", first, second), rank.const(PARITY, U32))
    schedule = (first, second, parity)
    left, right = first, rank.add("add", _counter(rank, share), second)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = rank.add("add", left, right)
            turned = rank.add("shl", right, rank.const(rotation, U32))
            back = rank.add("shr", right, rank.const(32 - rotation, U32))
            right = rank.add("xor", rank.add("or", turned, back), left)
        left = rank.add("add", left, schedule[(group + 1) % 3])
        more = rank.add("add", schedule[(group + 2) % 3], rank.const(group + 1, U32))
        right = rank.add("add", right, more)
    return left


def _counter(rank: Rank, share: Share) -> int:
    """The place of each element in the whole tensor, counted in row-major order: u32, which wraps."""
    kind, dims = share.result, share.result_dims
    counter, stride = rank.const(0, U32), 1
    for axis in reversed(range(len(kind.shape))):
        places = rank.add("cast", rank.positions(kind, dims, axis), dtype="u32")
        counter = rank.add("add", counter, rank.add("mul", places, rank.const(stride % (1 << 32), U32)))
        stride *= kind.shape[axis]
    return rank.add("broadcast", counter, shape=local_shape(kind.shape, dims, rank.axes))


def _gather(rank: Rank, share: Share) -> int:
    """The rows that this rank has, and zeros for the others."""
    data, index = share.operands
    axis, batch = share.attrs["axis"], share.attrs["batch_dims"]
    table = share.types[0]
    index = _narrow(rank, index)
    kind = rank.type(index)
    last = rank.const(table.shape[axis] - 1, kind.dtype)
    index = _as_i32(rank, rank.add("max", rank.add("min", index, last), rank.const(0, kind.dtype)))
    index = _from_first(rank, index, table, share.operand_dims[0], axis)
    local = rank.type(data).shape
    inside = _within(rank, index, local[axis])
    rows = rank.add("gather", data, index, **share.attrs)
    ones = (*kind.shape[:batch], *[1] * (axis - batch), *kind.shape[batch:], *[1] * (len(local) - axis - 1))
    zero = rank.const(0, table.dtype)
    return rank.add("select", rank.add("reshape", inside, shape=ones), rows, zero)


def _scatter(rank: Rank, share: Share) -> int:
    """Scatter a rank's share; of updates that ranks share out, one rank adds to the data and the others to nothing."""
    data, index, updates = share.operands
    axis = share.attrs["axis"]
    table, kind = share.types[0], share.types[1]
    index = _narrow(rank, index)
    valid = _within(rank, index, table.shape[axis])
    index = _as_i32(rank, index)
    if share.operand_dims[0][axis]:
        index = _from_first(rank, index, table, share.operand_dims[0], axis)
    index = rank.add("select", valid, index, rank.const(-1, I32))
    split = share.operand_dims[1]
    index = rank.masked(index, kind, split, range(len(split)), -1)
    axes = tuple([axis for axes_of_dim in split for axis in axes_of_dim])
    if axes and share.attrs["mode"] == "add":
        is_first = rank.add("eq", rank.place(axes), rank.const(0, I32))
        data = rank.add("select", is_first, data, rank.const(0, table.dtype))
    return rank.add("scatter", data, index, updates, **share.attrs)


def _narrow(rank: Rank, index: int) -> int:
    """An index of a dtype that holds every size of an axis: those of 8 and 16 bits become i32."""
    return _as_i32(rank, index) if rank.type(index).dtype.itemsize < 4 else index


def _as_i32(rank: Rank, index: int) -> int:
    return index if rank.type(index).dtype is I32 else rank.add("cast", index, dtype="i32")


def _from_first(rank: Rank, index: int, table: TensorType, dims: Dims, axis: int) -> int:
    """An index into the rank's own rows."""
    first = rank.add("mul", rank.first(table, dims, axis), rank.const(-1, I32))
    return rank.add("add", index, first)


def _within(rank: Rank, index: int, size: int) -> int:
    """Whether an index is one of `size` rows."""
    dtype = rank.type(index).dtype
    below = rank.add("lt", index, rank.const(size, dtype))
    return below if dtype.kind == "u" else rank.add("and", below, rank.add("ge", index, rank.const(0, dtype)))


SPECIAL: dict[str, Row] = {
    "iota": _iota,
    "random_bits": _random_bits,
    "gather": _gather,
    "scatter": _scatter,
}
