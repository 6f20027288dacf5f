"""Reshard: the cheapest way from one layout of a tensor to another, as a list of moves.

A rank may cut its part out of what it has (which moves nothing), gather, reduce, reduce and scatter, exchange one split
dimension for another, or take another rank's block.  `path` tries them all, in order of bytes that the busiest rank
sends (Dijkstra over layouts): gathering everything is one of the ways, so no way found costs more.  The moves are those
of Zhuang et al., 2022, "On optimizing the communication of model parallelism" (arXiv 2211.05322), and of GSPMD's
resharding; the bytes are those of bandwidth-optimal algorithms (Thakur et al., 2005, doi 10.1177/1094342005051521).

Where a dimension does not divide, ranks of different layouts have blocks that do not nest; then all of the dimension is
gathered and cut anew.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, permutations

from ..ir.grids import block, coordinates
from ..ir.ops import SENT
from .layout import Axes, Dims, Layout, local_dim, local_shape, padding


@dataclass(frozen=True, slots=True)
class Cut:
    """Each rank keeps its part of `dim`."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Each rank gets the parts of `dim` of all along `axes`."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Each rank gets the sum over `axes`, or another reduction."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Each rank gets its part of `dim` of the sum over `axes`."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What `axes` split goes from one dimension to the other."""

    source: int
    target: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Permute:
    """Each rank gets the whole block of another: pairs of sender and receiver, of all ranks."""

    pairs: tuple[tuple[int, int], ...]


Move = Cut | Gather | Reduce | ReduceScatter | Exchange | Permute


@dataclass(frozen=True, slots=True)
class Step:
    """One move, the layout it leaves, and the bytes that the busiest rank sends."""

    move: Move
    after: Layout
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Path:
    """Moves from one layout to another."""

    steps: tuple[Step, ...]

    @property
    def sent_bytes(self) -> int:
        """The bytes that the busiest rank sends."""
        return sum(step.sent_bytes for step in self.steps)

    @property
    def collectives(self) -> int:
        """How many moves need other ranks."""
        return sum(not isinstance(step.move, Cut) for step in self.steps)


@lru_cache(maxsize=8192)
def path(shape: tuple[int, ...], item_bytes: int, axes: Axes, source: Layout, target: Layout) -> Path:
    """The moves of fewest bytes, and of those the fewest collectives, from `source` to `target`.

    A target that is partial is reached from layouts that are so over the same axes."""
    if source == target:
        return Path(())
    search = _Search(shape, item_bytes, axes, target)
    turn = count()  # so that layouts are never compared
    best: dict[Layout, tuple[int, int]] = {source: (0, 0)}
    queue: list[tuple[int, int, int, Layout, tuple[Step, ...]]] = [(0, 0, next(turn), source, ())]
    while queue:
        sent, moves, _, layout, steps = heapq.heappop(queue)
        if layout == target:
            return Path(steps)
        if (sent, moves) > best[layout]:
            continue
        for step in search.steps(layout):
            cost = (sent + step.sent_bytes, moves + (not isinstance(step.move, Cut)))
            if step.after not in best or cost < best[step.after]:
                best[step.after] = cost
                heapq.heappush(queue, (*cost, next(turn), step.after, (*steps, step)))
    raise AssertionError(f"no way from {source} to {target}")


@dataclass(frozen=True, slots=True)
class _Search:
    shape: tuple[int, ...]
    item_bytes: int
    axes: Axes
    target: Layout

    def steps(self, layout: Layout) -> Iterator[Step]:
        """Every move from a layout."""
        for dim in range(len(self.shape)):
            yield from self._gathers(layout, dim)
            for axes in self._free(layout):
                if self._nests(dim, layout.dims[dim], axes):
                    yield Step(Cut(dim, axes), self._split(layout, dim, axes), 0)
        yield from self._reductions(layout)
        yield from self._permutation(layout)

    def _gathers(self, layout: Layout, dim: int) -> Iterator[Step]:
        split, local = layout.dims[dim], self._local_bytes(layout)
        for kept in range(len(split)):
            axes = split[kept:]
            if not self._nests(dim, split[:kept], axes):
                continue
            ranks, after = self.axes.size(axes), _with(layout, dim, split[:kept])
            yield Step(Gather(dim, axes), after, SENT["all_gather"](local, ranks))
            for target in range(len(self.shape)):
                if target != dim and self._nests(target, layout.dims[target], axes):
                    moved = self._split(after, target, axes)
                    yield Step(Exchange(dim, target, axes), moved, self._scattered_bytes(layout, target, axes))

    def _reductions(self, layout: Layout) -> Iterator[Step]:
        local = self._local_bytes(layout)
        for axes in _some(layout.partial):
            rest = tuple([axis for axis in layout.partial if axis not in axes])
            after = replace(layout, partial=rest) if rest else layout.complete()
            ranks = self.axes.size(axes)
            yield Step(Reduce(axes), after, SENT["all_reduce"](local, ranks))
            for dim in range(len(self.shape)):
                if self._nests(dim, layout.dims[dim], axes):
                    scattered = self._split(after, dim, axes)
                    yield Step(ReduceScatter(dim, axes), scattered, self._scattered_bytes(layout, dim, axes))

    def _permutation(self, layout: Layout) -> Iterator[Step]:
        """Straight to the target, where it has blocks of the same sizes."""
        if (
            layout.partial
            or self.target.partial
            or [self.axes.size(split) for split in layout.dims] != [self.axes.size(split) for split in self.target.dims]
        ):
            return
        pairs = _pairs(layout.dims, self.target.dims, self.axes)
        yield Step(Permute(pairs), self.target, self._local_bytes(layout))

    def _free(self, layout: Layout) -> list[tuple[str, ...]]:
        """Axes that do nothing yet, alone and together in any order."""
        free = [axis for axis in self.axes.names if axis not in layout.used]
        return [axes for many in range(1, len(free) + 1) for axes in permutations(free, many)]

    def _nests(self, dim: int, split: tuple[str, ...], more: tuple[str, ...]) -> bool:
        """Whether blocks of a dimension split over `split` consist of those split over `more` besides."""
        size, before = self.shape[dim], self.axes.size(split)
        return before == 1 or padding(size, before) == padding(size, before * self.axes.size(more))

    def _scattered_bytes(self, layout: Layout, dim: int, more: tuple[str, ...]) -> int:
        """What a rank sends that keeps its share of `dim`, padded so that ranks along `more` can share it out."""
        before, ranks = self.axes.size(layout.dims[dim]), self.axes.size(more)
        local = list(local_shape(self.shape, layout.dims, self.axes))
        local[dim] = local_dim(self.shape[dim], before * ranks) * ranks
        return SENT["reduce_scatter"](math.prod(local) * self.item_bytes, ranks)

    def _split(self, layout: Layout, dim: int, more: tuple[str, ...]) -> Layout:
        return _with(layout, dim, (*layout.dims[dim], *more))

    def _local_bytes(self, layout: Layout) -> int:
        return math.prod(local_shape(self.shape, layout.dims, self.axes)) * self.item_bytes


def _with(layout: Layout, dim: int, split: tuple[str, ...]) -> Layout:
    return replace(layout, dims=(*layout.dims[:dim], split, *layout.dims[dim + 1 :]))


def _some(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All of them, and each alone."""
    if axes:
        yield axes
    if len(axes) > 1:
        for axis in axes:
            yield (axis,)


def _pairs(source: Dims, target: Dims, axes: Axes) -> tuple[tuple[int, int], ...]:
    """The rank from which each rank gets its block: from itself if it has it, else from one that need not keep it."""
    places = coordinates(axes.sizes)
    ranks = range(len(places))
    have, need = ([block(dims, axes.names, axes.sizes, at) for at in places] for dims in (source, target))
    senders: dict[tuple[int, ...], list[int]] = {}
    for rank in ranks:
        if have[rank] != need[rank]:
            senders.setdefault(have[rank], []).append(rank)
    pairs = [(rank if have[rank] == need[rank] else senders[need[rank]].pop(0), rank) for rank in ranks]
    return tuple(sorted(pairs))
