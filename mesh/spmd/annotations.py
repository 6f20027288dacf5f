"""shard: how tensors are to lie on a grid, said within a program about whole tensors.

    with mesh.on_grid(mesh.Grid((2, 2), ("dp", "tp"))):
        hidden = mnp.tanh(mesh.shard(x, P("dp")) @ mesh.shard(w, P(None, "tp")))

`shard(x, spec)` is x.  Whoever splits the program over the grid's ranks lays the tensor out so, finds layouts for all
others, and puts collectives where they are needed (`wire/sharding`); dimensions need not divide.  On one device nothing
happens.  This file only builds nodes; docs/sharding.md has the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from wire.errors import InputError
from wire.ir.grids import spec_text
from wire.sharding.auto import TRIES_MAX, choose
from wire.sharding.layout import Axes
from wire.sharding.op_cost import Rates

from .. import tree
from ..core.array import Array, apply
from ..core.call_arguments import positional
from ..tracing.trace import trace_full
from ..transforms.pytree_functions import as_array, same_structure
from ..util.argument_checks import integer, said
from .grid import Grid, PartitionSpec, check_grid
from .shard_map import inside_ranks

_GRID: ContextVar[Grid | None] = ContextVar("mesh_grid_of_whole_tensors", default=None)


@contextmanager
def on_grid(grid: Grid) -> Iterator[Grid]:
    """Within the block, `shard` is about this grid."""
    check_grid(grid)
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
    chosen = _GRID.get() if grid is None else grid
    if chosen is None:
        raise InputError("shard needs a grid", next_step="Pass grid=, or call it within mesh.on_grid(grid)")
    check_grid(chosen)
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


@dataclass(frozen=True, slots=True)
class AutoSharding:
    """Layouts that were chosen for the arguments of a function, in their structure: one PartitionSpec per leaf.

    `seconds` is predicted for a rank, `alone_s` for one device; a rank sends `sent_bytes` and holds `held_bytes` of the
    arguments.  `proven` says that all choices were tried, and this is the best of them; else it is the best that a
    search found, which tried as many as `tried`.
    """

    specs: tuple[Any, ...]
    grid: Grid
    seconds: float
    alone_s: float
    sent_bytes: int
    held_bytes: int
    tried: int
    proven: bool

    def applied(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` with its arguments laid out so."""
        return lambda *args: fn(*[shard(arg, spec, self.grid) for arg, spec in zip(args, self.specs, strict=True)])


def auto_sharding(
    fn: Callable[..., Any], grid: Grid, /, *examples: Any, rates: Rates | None = None,
    memory_bytes: int | None = None, tries_max: int = TRIES_MAX, **named: Any,
) -> AutoSharding:  # fmt: skip
    """Which layouts of its arguments make `fn` quickest on the grid, by bytes sent and operations of each rank.

    If there are at most `tries_max` choices all of them are tried, which proves the best; else it is searched for.
    `rates` are a rank's; `memory_bytes` is what it may hold of the arguments, and PlacementError says how much is
    needed if nothing fits.  What `fn` asks for by `shard` itself is kept to.
    """
    check_grid(grid)
    integer(tries_max, "tries_max", 0)
    if memory_bytes is not None:
        integer(memory_bytes, "memory_bytes", 0)
    if rates is not None and not isinstance(rates, Rates):
        raise InputError(f"{said(rates)} are no rates of a rank", next_step="Make them: wire.sharding.Rates(...)")
    traced = trace_full(fn, *positional(fn, examples, named))
    found = choose(traced.graph, Axes(grid.names, grid.sizes), rates, None, memory_bytes, tries_max)
    specs = [PartitionSpec(*found.specs[each.name]) if each.name in found.specs else PartitionSpec()
             for each in traced.arguments]  # fmt: skip
    cost = found.cost
    return AutoSharding(
        tree.unflatten(traced.in_tree, specs),
        grid,
        found.seconds,
        found.alone_s,
        cost.sent_bytes,
        cost.held_bytes,
        found.tried,
        found.proven,
    )


__all__ = ["AutoSharding", "auto_sharding", "on_grid", "reshard", "shard"]
