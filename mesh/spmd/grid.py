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

    Parameters
    ----------
    sizes : sequence of int, or int
        The number of ranks along each axis.
    names : sequence of str, or str
        The names of the axes.
    ranks : int, optional
        The number of all ranks.  One of the sizes may then be -1, for what is left.

    Raises
    ------
    InputError
        If sizes and names do not go together, or the sizes do not multiply to `ranks`.

    Examples
    --------
    >>> import mesh
    >>> grid = mesh.Grid((2, -1), ("dp", "tp"), ranks=8)
    >>> grid, grid.ranks, grid.size("tp"), grid.axes("dp")
    (Grid((2, 4), ('dp', 'tp')), 8, 4, ('dp',))
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
        """The number of ranks."""
        return math.prod(self.sizes)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    def size(self, axes: Names) -> int:
        """Count the ranks along some axes.

        Parameters
        ----------
        axes : str or sequence of str
            The names of the axes.

        Returns
        -------
        int
            The product of their sizes.

        Raises
        ------
        InputError
            If the grid has no such axis.
        """
        return math.prod(self.shape[name] for name in self.axes(axes))

    def axes(self, axes: Names) -> tuple[str, ...]:
        """Check names of axes.

        Parameters
        ----------
        axes : str or sequence of str
            The names.

        Returns
        -------
        tuple of str
            The same names.

        Raises
        ------
        InputError
            If the grid has no such axis, or a name is given twice.
        """
        chosen = _names(axes)
        for name in chosen:
            _check_name(name)
            if name not in self.names:
                raise InputError(f"the grid has no axis {name!r}", next_step=f"It has {', '.join(self.names)}")
        if not chosen or len(set(chosen)) != len(chosen):
            raise InputError(f"expected distinct names of axes, got {chosen}")
        return chosen

    def __repr__(self) -> str:
        return f"Grid({self.sizes!r}, {self.names!r})"


@dataclass(frozen=True, slots=True, init=False)
class PartitionSpec:
    """The axes of a grid that split each dimension of a tensor.

    Parameters
    ----------
    *dims : str, sequence of str, or None
        For each dimension the axis that splits it; several, the first coarsest; or None if it is whole.  Dimensions at
        the end may be left out.

    Raises
    ------
    InputError
        If an axis is named twice, or a name is not an identifier.

    Examples
    --------
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> spec = mesh.PartitionSpec("dp", None, ("tp", "pp"))
    >>> grid = mesh.Grid((2, 2, 2), ("dp", "tp", "pp"))
    >>> spec.axes, spec.on(grid, 4, "x")
    (('dp', 'tp', 'pp'), (('dp',), (), ('tp', 'pp'), ()))
    >>> print(spec.local(grid, mnp.zeros((4, 3, 8)).type, "x"))
    f32[2,3,2]
    """

    __tree_leaf__: ClassVar[bool] = True
    dims: tuple[tuple[str, ...], ...]

    def __init__(self, *dims: Names | None) -> None:
        split = tuple(() if dim is None else tuple(dim) if isinstance(dim, tuple | list) else (dim,) for dim in dims)
        named = [name for dim in split for name in dim]
        for name in named:
            _check_name(name)
        if len(set(named)) != len(named):
            raise InputError(f"an axis is used twice in PartitionSpec({', '.join(map(_dim_text, split))})")
        object.__setattr__(self, "dims", split)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of all axes that it has."""
        return tuple(name for dim in self.dims for name in dim)

    @checked
    def on(self, grid: Grid, rank: int, what: str) -> grids.Spec:
        """Return the axes that split each dimension of a tensor.

        Parameters
        ----------
        grid : Grid
            The grid.
        rank : int
            The number of dimensions of the tensor.
        what : str
            What errors call the tensor.

        Returns
        -------
        tuple of tuple of str
            The axes of each dimension.

        Raises
        ------
        InputError
            If it does not fit the grid or the tensor.
        """
        if len(self.dims) > rank:
            raise InputError(f"{self} is of {counted(len(self.dims), 'dimension')}, and {what} has {rank}")
        for name in self.axes:
            grid.axes(name)
        return (*self.dims, *[()] * (rank - len(self.dims)))

    @checked
    def local(self, grid: Grid, type: TensorType, what: str) -> TensorType:
        """Return the type of a rank's block of a tensor.

        Parameters
        ----------
        grid : Grid
            The grid.
        type : TensorType
            The type of the tensor.
        what : str
            What errors call the tensor.

        Returns
        -------
        TensorType
            The type of a block.

        Raises
        ------
        InputError
            If it does not fit the grid or the tensor.
        ShapeError
            If a dimension does not divide evenly.
        """
        try:
            shape = grids.local_shape(type.shape, self.on(grid, len(type.shape), what), grid.names, grid.sizes)
        except ShapeError as error:
            raise ShapeError(
                f"{what}: {error.message}", next_step="Pad it to a multiple, or leave the dimension whole"
            ) from error
        return TensorType(shape, type.dtype)

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(_dim_text, self.dims))})"


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(items(names, "the axes of a grid go by a name, or"))


def _dim_text(dim: tuple[str, ...]) -> str:
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
    """Raise InputError unless that is a Grid."""
    if not isinstance(grid, Grid):
        raise InputError(f"{grid!r} is no Grid", next_step='Make one: mesh.Grid((2, 2), ("dp", "tp"))')


__all__ = ["Grid", "PartitionSpec", "check_grid"]
