"""Grids: ranks arranged along named axes, how a spec cuts a tensor over them, and which ranks form a group.

A grid is axis names and their sizes; its ranks are numbered row-major, the last axis fastest.  A spec says of each
dimension of a tensor which axes split it, the first of them coarsest; a rank has one block of it, and axes that it does
not name have copies.  As text, which is how graphs hold it, `dp+tp - tp` are three dimensions of which the second is
whole.  A collective's group is the ranks that differ along its axes only, in row-major order over these axes as the
collective names them.

Pure and small: the verifier, the single-device meaning of a body (`wire/passes/unroll_spmd.py`) and the planner all
count by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from ..errors import AttrError, ShapeError
from ..limits import DEFAULT
from ..units import counted

Axes = tuple[str, ...]
Sizes = tuple[int, ...]
Spec = tuple[Axes, ...]
"""For each dimension the axes that split it."""

WHOLE = "-"  # a dimension that no axis splits


def check_axes(axes: Axes, sizes: Sizes) -> None:
    """Check that these are distinct names with sizes of a grid that may exist; AttrError if not."""
    if not axes or len(axes) != len(sizes):
        raise AttrError(f"a grid has one size per axis and an axis at least, got axes {axes} and sizes {sizes}")
    for name in axes:
        if not name.isidentifier():
            raise AttrError(f"the name of an axis is an identifier, got {name!r}")
    if len(set(axes)) != len(axes):
        raise AttrError(f"an axis stands twice in {axes}")
    if min(sizes) < 1 or math.prod(sizes) > DEFAULT.nodes_max:
        raise AttrError(f"a grid has 1 to {DEFAULT.nodes_max} ranks, got sizes {sizes}")


def spec_text(spec: Spec) -> str:
    """A spec as graphs hold it."""
    return " ".join("+".join(axes) or WHOLE for axes in spec)


def spec_of(text: str) -> Spec:
    """The spec that a text says."""
    return tuple(() if dim == WHOLE else tuple(dim.split("+")) for dim in text.split(" ")) if text else ()


def check_spec(spec: Spec, rank: int, axes: Axes) -> None:
    """Check that the spec fits a tensor of `rank` dimensions on a grid with these axes; AttrError if not."""
    if len(spec) != rank:
        raise AttrError(f"the spec {spec_text(spec)!r} is of {counted(len(spec), 'dimension')}, the tensor has {rank}")
    named = [axis for dim in spec for axis in dim]
    for axis in named:
        if axis not in axes:
            raise AttrError(f"the spec {spec_text(spec)!r} names the axis {axis!r}; the grid has {', '.join(axes)}")
    if len(set(named)) != len(named):
        raise AttrError(f"an axis stands twice in the spec {spec_text(spec)!r}")


def parts(spec: Spec, axes: Axes, sizes: Sizes) -> tuple[int, ...]:
    """The number of blocks that each dimension is split into."""
    return tuple(math.prod(sizes[axes.index(axis)] for axis in dim) for dim in spec)


def local_shape(shape: Sequence[int], spec: Spec, axes: Axes, sizes: Sizes) -> tuple[int, ...]:
    """The shape of one block; ShapeError names the dimension that does not divide."""
    for place, (dim, count) in enumerate(zip(shape, parts(spec, axes, sizes), strict=True)):
        if dim % count:
            raise ShapeError(
                f"dimension {place} of {tuple(shape)} is split over {'+'.join(spec[place])} into {count} blocks, "
                f"and {dim} is no multiple of {count}"
            )
    return tuple(dim // count for dim, count in zip(shape, parts(spec, axes, sizes), strict=True))


def whole_shape(shape: Sequence[int], spec: Spec, axes: Axes, sizes: Sizes) -> tuple[int, ...]:
    """The shape of the tensor of which one block has `shape`."""
    return tuple(dim * count for dim, count in zip(shape, parts(spec, axes, sizes), strict=True))


def coordinates(sizes: Sizes) -> list[tuple[int, ...]]:
    """The place along each axis of every rank, in order."""
    return list(product(*map(range, sizes)))


def block(spec: Spec, axes: Axes, sizes: Sizes, at: Sequence[int]) -> tuple[int, ...]:
    """The number of the block that the rank with the coordinates `at` has, for each dimension."""
    return tuple(_number(dim, axes, sizes, at) for dim in spec)


def groups(axes: Axes, sizes: Sizes, over: Axes) -> list[tuple[int, ...]]:
    """The ranks of every group over some axes of a grid; a rank's place in its group is its number there."""
    by_place: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, at in enumerate(coordinates(sizes)):
        others = tuple(place for axis, place in zip(axes, at, strict=True) if axis not in over)
        by_place.setdefault(others, []).append((_number(over, axes, sizes, at), rank))
    return [tuple(rank for _, rank in sorted(members)) for members in by_place.values()]


def _number(over: Axes, axes: Axes, sizes: Sizes, at: Sequence[int]) -> int:
    """Row-major over some axes."""
    number = 0
    for axis in over:
        number = number * sizes[axes.index(axis)] + at[axes.index(axis)]
    return number
