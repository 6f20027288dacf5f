"""Rank emitter: the nodes with which a rank moves, cuts and masks its share of a tensor.

`Rank` is a builder of the graph that every rank runs; what differs between ranks is what `axis_index` gives.  This
file knows layouts and moves (`reshard.py`), and no op that is sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.dtypes import I32, DType
from ..ir.graph import GraphBuilder
from ..ir.types import TensorType
from .layout import Axes, Dims, Layout, local_dim, local_shape, padding
from .reshard import Cut, Exchange, Gather, Move, Permute, Reduce, ReduceScatter, Step, path


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's share of a tensor of the whole program: a node of the rank's graph, and how it lies.

    `is_clean` says that what is behind the end of a dimension is 0.
    """

    index: int
    layout: Layout
    is_clean: bool = False


class Rank:
    """What a rank computes, node by node."""

    def __init__(self, axes: Axes, builder: GraphBuilder | None = None) -> None:
        self.axes = axes
        self.builder = builder or GraphBuilder()

    def add(self, op: str, *inputs: int, **attrs: Any) -> int:
        return self.builder.add(op, *inputs, **attrs)

    def const(self, value: Any, dtype: DType) -> int:
        return self.builder.const(np.asarray(value, dtype.numpy))

    def type(self, index: int) -> TensorType:
        return self.builder.types[index]

    # -- moving -------------------------------------------------------------------------------------------

    def moved(self, held: Held, kind: TensorType, target: Layout) -> Held:
        """The tensor, of `kind` in the whole program, in another layout."""
        for step in path(kind.shape, kind.dtype.itemsize, self.axes, held.layout, target).steps:
            held = self._step(held, kind, step)
        return held

    def _step(self, held: Held, kind: TensorType, step: Step) -> Held:
        before, after = held.layout, step.after
        match step.move:
            case Cut(dim, axes):
                index = self._cut(self._padded(held.index, kind, before.dims, after.dims, dim), dim, axes)
            case Gather(dim, axes):
                gathered = self._collective("all_gather", held.index, axes, axis=dim)
                index = self._trimmed(gathered, kind, after.dims, dim)
            case Exchange(source, target, axes):
                index = self._padded(held.index, kind, before.dims, after.dims, target)
                index = self._collective("all_to_all", index, axes, split_axis=target, concat_axis=source)
                index = self._trimmed(index, kind, after.dims, source)
            case Reduce(axes):
                index = self._collective("all_reduce", held.index, axes, reduction=_reduction(before, kind))
            case ReduceScatter(dim, axes):
                index = self._padded(held.index, kind, before.dims, after.dims, dim)
                reduction = _reduction(before, kind)
                index = self._collective("reduce_scatter", index, axes, axis=dim, reduction=reduction)
            case Permute(pairs):
                flat = tuple([rank for pair in pairs for rank in pair])
                index = self._collective("permute", held.index, self.axes.names, pairs=flat)
        return Held(index, after, self._stays_clean(held, kind, step.move))

    def _stays_clean(self, held: Held, kind: TensorType, move: Move) -> bool:
        """Zeros stay zeros, sums of them too; what is padded on the way is padded with zeros."""
        was = held.is_clean or not self.is_padded(kind, held.layout.dims)
        return was and (not held.layout.partial or held.layout.reduction == "sum")

    def _collective(self, op: str, index: int, axes: tuple[str, ...], **attrs: Any) -> int:
        sizes = tuple([self.axes.size((axis,)) for axis in axes])
        return self.add(op, index, axes=axes, sizes=sizes, **attrs)

    def _padded(self, index: int, kind: TensorType, before: Dims, after: Dims, dim: int) -> int:
        """Pad with zeros behind `dim`, so that the ranks which split it from now on have equal shares."""
        has = local_dim(kind.shape[dim], self.axes.size(before[dim]))
        more = self.axes.size(after[dim]) // self.axes.size(before[dim])
        return self.padded(index, dim, local_dim(kind.shape[dim], self.axes.size(after[dim])) * more - has)

    def padded(self, index: int, dim: int, count: int) -> int:
        """Pad with `count` zeros behind dimension `dim`."""
        if not count:
            return index
        kind = self.type(index)
        none = (0,) * len(kind.shape)
        high = (*none[:dim], count, *none[dim + 1 :])
        return self.add("pad", index, self.const(0, kind.dtype), low=none, high=high, interior=none)

    def _trimmed(self, index: int, kind: TensorType, dims: Dims, dim: int) -> int:
        """Drop what is behind the share that the layout has of `dim`."""
        return self.trimmed(index, dim, local_dim(kind.shape[dim], self.axes.size(dims[dim])))

    def trimmed(self, index: int, dim: int, count: int) -> int:
        """The first `count` elements of dimension `dim`."""
        shape = self.type(index).shape
        if shape[dim] == count:
            return index
        stop = (*shape[:dim], count, *shape[dim + 1 :])
        return self.add("slice", index, start=(0,) * len(shape), stop=stop, step=(1,) * len(shape))

    def _cut(self, index: int, dim: int, axes: tuple[str, ...]) -> int:
        """This rank's part of a dimension whose size the axes divide."""
        shape = self.type(index).shape
        count = shape[dim] // self.axes.size(axes)
        along = np.zeros(len(shape), np.int32)
        along[dim] = count
        starts = self.add("mul", self.place(axes), self.const(along, I32))
        return self.add("dynamic_slice", index, starts, sizes=(*shape[:dim], count, *shape[dim + 1 :]))

    def place(self, axes: tuple[str, ...]) -> int:
        """The number of this rank among those along `axes`, an i32."""
        sizes = tuple([self.axes.size((axis,)) for axis in axes])
        return self.add("axis_index", axes=axes, sizes=sizes)

    # -- masking ------------------------------------------------------------------------------------------

    def is_padded(self, kind: TensorType, dims: Dims) -> bool:
        """Whether some rank has elements behind the end."""
        return any(padding(dim, self.axes.size(split)) for dim, split in zip(kind.shape, dims, strict=True))

    def first(self, kind: TensorType, dims: Dims, dim: int) -> int:
        """The place in the whole tensor of a rank's first element along `dim`, an i32."""
        if not dims[dim]:
            return self.const(0, I32)
        share = local_dim(kind.shape[dim], self.axes.size(dims[dim]))
        return self.add("mul", self.place(dims[dim]), self.const(share, I32))

    def positions(self, kind: TensorType, dims: Dims, dim: int) -> int:
        """The places in the whole tensor of a rank's elements along `dim`: i32, 1 long in all other dimensions."""
        local = local_shape(kind.shape, dims, self.axes)
        line = tuple([size if axis == dim else 1 for axis, size in enumerate(local)])
        return self.add("add", self.add("iota", shape=line, dtype="i32", axis=dim), self.first(kind, dims, dim))

    def masked(self, index: int, kind: TensorType, dims: Dims, wanted: Sequence[int], fill: Any) -> int:
        """Put `fill` in place of what is behind the end of the dimensions `wanted`."""
        value = self.const(fill, self.type(index).dtype)
        for dim in wanted:
            if padding(kind.shape[dim], self.axes.size(dims[dim])):
                inside = self.add("lt", self.positions(kind, dims, dim), self.const(kind.shape[dim], I32))
                index = self.add("select", inside, index, value)
        return index


def _reduction(layout: Layout, kind: TensorType) -> str:
    """The reduction for a dtype: the sum of truths is `or`."""
    return "or" if kind.dtype.kind == "b" and layout.reduction == "sum" else layout.reduction


def identity(how: str, dtype: DType) -> Any:
    """What changes no reduction: of sum, prod, max or min."""
    if how in ("sum", "prod"):
        return int(how == "prod")
    if dtype.kind == "b":
        return how == "min"
    if dtype.kind == "f":
        return -np.inf if how == "max" else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if how == "max" else limits.max
