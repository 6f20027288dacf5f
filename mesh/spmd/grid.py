"""Grid and PartitionSpec: workers arranged along named axes, and how a tensor lies on them.

    grid = mesh.Grid((2, 2), ("dp", "tp"))
    mesh.PartitionSpec("dp", None, ("tp", "pp"))

A spec says for each dimension which axes split it, the first coarsest; axes that it does not name have copies, and so
have dimensions that it leaves out at the end.  This file knows no arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wire.errors import GraphError, InputError, ShapeError
from wire.ir import grids
from wire.ir.types import TensorType

from ..util.annotation_checks import checked
from ..util.argument_checks import integer, items
from ..util.units import counted

Names = str | Sequence[str]


@dataclass(frozen=True, slots=True, init=False)
class Grid:
    """Ranks along named axes, numbered row-major: the last axis is the fastest.

    InputError if sizes and names do not belong together, or with `ranks` if the sizes do not multiply to that; one size
    may then be -1, for what is left.
    """

    sizes: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(self, sizes: Sequence[int] | int, names: Names, ranks: int | None = None) -> None:
        lengths: list[int] = [sizes] if isinstance(sizes, int) else [*items(sizes, "of the sizes of a grid")]
        axes = _names(names)
        ranks = None if ranks is None else integer(ranks, "the number of ranks of a grid", 1)
        for name in axes:
            _check_name(name)
        if any(type(size) is not int for size in lengths):
            raise InputError(f"the sizes of a grid are ints, got {tuple(lengths)}")
        known = math.prod(size for size in lengths if size != -1)
        if ranks is not None and lengths.count(-1) == 1 and known:
            lengths[lengths.index(-1)] = ranks // known
        try:
            grids.check_axes(axes, tuple(lengths))
        except GraphError as error:
            raise InputError(error.message) from error
        if ranks is not None and math.prod(lengths) != ranks:
            raise InputError(f"a grid of {' x '.join(map(str, lengths))} has {math.prod(lengths)} ranks, not {ranks}")
        object.__setattr__(self, "sizes", tuple(lengths))
        object.__setattr__(self, "names", axes)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(self.sizes)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    def size(self, axes: Names) -> int:
        """The number of ranks along some axes; InputError names one that is not there."""
        return math.prod(self.shape[name] for name in self.axes(axes))

    def axes(self, axes: Names) -> tuple[str, ...]:
        """Names of axes as a tuple; InputError if one is not there, or stands twice."""
        found = _names(axes)
        for name in found:
            _check_name(name)
            if name not in self.names:
                raise InputError(f"the grid has no axis {name!r}", next_step=f"It has {', '.join(self.names)}")
        if not found or len(set(found)) != len(found):
            raise InputError(f"expected distinct names of axes, got {found}")
        return found

    def __repr__(self) -> str:
        return f"Grid({self.sizes!r}, {self.names!r})"


@dataclass(frozen=True, slots=True, init=False)
class PartitionSpec:
    """Which axes of a grid split each dimension: a name, several, or None for a dimension that is whole.

    InputError if an axis is used twice, or named in a way that only sub-axes have.
    """

    __tree_leaf__: ClassVar[bool] = True
    dims: tuple[tuple[str, ...], ...]

    def __init__(self, *dims: Names | None) -> None:
        found = tuple(() if dim is None else tuple(dim) if isinstance(dim, tuple | list) else (dim,) for dim in dims)
        named = [name for dim in found for name in dim]
        for name in named:
            _check_name(name)
        if len(set(named)) != len(named):
            raise InputError(f"an axis is used twice in PartitionSpec({', '.join(map(_said, found))})")
        object.__setattr__(self, "dims", found)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that it names."""
        return tuple(name for dim in self.dims for name in dim)

    @checked
    def on(self, grid: Grid, rank: int, what: str) -> grids.Spec:
        """The axes of every one of `rank` dimensions; InputError if it does not fit the grid or the tensor `what`."""
        if len(self.dims) > rank:
            raise InputError(f"{self} is of {counted(len(self.dims), 'dimension')}, and {what} has {rank}")
        for name in self.axes:
            grid.axes(name)
        return (*self.dims, *[()] * (rank - len(self.dims)))

    @checked
    def local(self, grid: Grid, type: TensorType, what: str) -> TensorType:
        """The type of a rank's block of a tensor; ShapeError names `what` and the dimension that does not divide."""
        try:
            shape = grids.local_shape(type.shape, self.on(grid, len(type.shape), what), grid.names, grid.sizes)
        except ShapeError as error:
            raise ShapeError(
                f"{what}: {error.message}", next_step="Pad it to a multiple, or leave the dimension whole"
            ) from error
        return TensorType(shape, type.dtype)

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(_said, self.dims))})"


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(items(names, "the axes of a grid go by a name, or"))


def _said(dim: tuple[str, ...]) -> str:
    return repr(dim[0]) if len(dim) == 1 else repr(dim or None)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise InputError(f"the name of an axis is a str, got {type(name).__name__}")
    if ":" in name:
        raise InputError(
            f"{name!r} is a part of an axis, which is not supported", next_step="Make a grid that has it as an axis"
        )
    if not name.isidentifier():
        raise InputError(f"the name of an axis is an identifier, got {name!r}")


def check_grid(grid: Any) -> None:
    """InputError for what is no Grid."""
    if not isinstance(grid, Grid):
        raise InputError(f"{grid!r} is no Grid", next_step='Make one: mesh.Grid((2, 2), ("dp", "tp"))')


__all__ = ["Grid", "PartitionSpec", "check_grid"]
