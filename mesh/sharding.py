"""shard: how tensors are to lie on a grid, said within a program about whole tensors.

    with mesh.on_grid(mesh.Grid((2, 2), ("dp", "tp"))):
        hidden = mnp.tanh(mesh.shard(x, P("dp")) @ mesh.shard(w, P(None, "tp")))

`shard(x, spec)` is x.  Whoever splits the program over the grid's ranks lays the tensor out so, finds layouts for all
others, and puts collectives where they are needed (`wire/sharding`); dimensions need not divide.  On one device nothing
happens.  This file only builds nodes; docs/sharding.md has the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from wire.errors import InputError
from wire.grids import spec_text

from . import tree
from .array import Array, apply
from .grid import Grid, PartitionSpec
from .shard_map import inside_ranks
from .transforms.flat import as_array, same_structure

_GRID: ContextVar[Grid | None] = ContextVar("mesh_grid_of_whole_tensors", default=None)


@contextmanager
def on_grid(grid: Grid) -> Iterator[Grid]:
    """Within the block, `shard` is about this grid."""
    token = _GRID.set(grid)
    try:
        yield grid
    finally:
        _GRID.reset(token)


def shard(x: Any, spec: Any, grid: Grid | None = None) -> Any:
    """x, which is to be split over `grid` (by default that of `on_grid`) as the PartitionSpec says.

    x may be a pytree, and `spec` one of specs, each of which stands for all leaves below it; None leaves a leaf to
    whoever splits the program.  A dimension that the spec does not name, or says None of, is whole on every rank.
    InputError for an axis that the grid does not have, or a spec of more dimensions than the tensor has.
    """
    chosen = grid or _GRID.get()
    if chosen is None:
        raise InputError("shard needs a grid", next_step="Pass grid=, or call it within mesh.on_grid(grid)")
    if inside_ranks():
        raise InputError(
            "shard is about whole tensors, and in shard_map there are the blocks of one rank",
            next_step="Say it in in_specs, or call shard around shard_map",
        )
    found, structure = tree.flatten_with_paths(x)
    specs = same_structure(structure, spec, "spec", prefix=True)
    leaves = [_lying(as_array(leaf, path or "x"), each, chosen, path or "x")
              for (path, leaf), each in zip(found, specs, strict=True)]  # fmt: skip
    return tree.unflatten(structure, leaves)


def _lying(array: Array, spec: Any, grid: Grid, name: str) -> Array:
    if spec is None:
        return array
    if not isinstance(spec, PartitionSpec):
        raise InputError(f"a {type(spec).__name__} for {name!r} is no PartitionSpec")
    text = spec_text(spec.on(grid, array.ndim, f"the tensor {name!r}"))
    return apply("constraint", array, axes=grid.names, sizes=grid.sizes, spec=text)


def reshard(x: Any, spec: Any, grid: Grid | None = None) -> Any:
    """The old name of `shard`."""
    warnings.warn("mesh.reshard is called mesh.shard", DeprecationWarning, stacklevel=2)
    return shard(x, spec, grid)


__all__ = ["on_grid", "reshard", "shard"]
