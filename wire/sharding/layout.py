"""Layout: how one tensor lies on a grid of devices.

A grid has named axes; every rank has a place on each.  A dimension of a tensor is split over no axis (each rank has all
of it), over one, or over several, of which the first counts most.  A dimension of d over k ranks gives each ceil(d / k)
elements, the last ones less or none: local shapes are the same everywhere, and what is behind the end is padding, whose
values mean nothing.  A tensor may also be `partial`: the ranks along these axes hold terms of a sum (or of another
reduction), as GSPMD and PyTorch's DTensor have it; adding them up can wait.

This file knows no op.  Names follow GSPMD (Xu et al., 2021, arXiv 2105.04663) and Shardy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

Dims = tuple[tuple[str, ...], ...]
"""The axes that split each dimension."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a grid and how many ranks each has; ranks are numbered with the last axis running fastest."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def size(self, axes: Collection[str]) -> int:
        """How many ranks there are along these axes together."""
        return math.prod([self.sizes[self.names.index(axis)] for axis in axes]) if axes else 1

    def ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The axes in the grid's order."""
        wanted = frozenset(axes)
        return tuple([axis for axis in self.names if axis in wanted])


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is split, and over which axes it is still to be reduced (in the grid's order)."""

    dims: Dims
    partial: tuple[str, ...] = ()
    reduction: str = "sum"

    @property
    def used(self) -> frozenset[str]:
        """Every axis that splits it or over which it is partial."""
        return frozenset([axis for axes in self.dims for axis in axes]).union(self.partial)

    def complete(self) -> Layout:
        """This layout, reduced."""
        return replace(self, partial=(), reduction="sum") if self.partial else self


def whole(rank: int) -> Layout:
    """Every rank has all of a tensor of this rank."""
    return Layout(((),) * rank)


def local_dim(dim: int, shards: int) -> int:
    """How many elements a rank has of a dimension."""
    return -(-dim // shards)


def local_shape(shape: Sequence[int], dims: Dims, axes: Axes) -> tuple[int, ...]:
    """The shape that every rank has."""
    return tuple([local_dim(dim, axes.size(split)) for dim, split in zip(shape, dims, strict=True)])


def padded_shape(shape: Sequence[int], dims: Dims, axes: Axes) -> tuple[int, ...]:
    """The shape with dimensions that the ranks share out evenly."""
    return tuple([dim + padding(dim, axes.size(split)) for dim, split in zip(shape, dims, strict=True)])


def padding(dim: int, shards: int) -> int:
    """How many elements stand behind the end of a dimension."""
    return local_dim(dim, shards) * shards - dim
