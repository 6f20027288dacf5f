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
from ..tree import PyTree
from ..util.argument_checks import integer, number, value_text
from .grid import Grid, PartitionSpec, check_grid
from .shard_map import inside_ranks

_GRID: ContextVar[Grid | None] = ContextVar("mesh_grid_of_whole_tensors", default=None)


@contextmanager
def on_grid(grid: Grid) -> Iterator[Grid]:
    """Set the grid of `shard` within a `with` block.

    Parameters
    ----------
    grid : Grid
        The grid.

    Yields
    ------
    Grid
        The same grid.

    Raises
    ------
    InputError
        If that is no grid.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.on_grid(mesh.Grid((2,), ("dp",))):
    ...     mesh.shard(np.arange(4.0), mesh.PartitionSpec("dp"))
    Array([0., 1., 2., 3.], dtype=float64)
    """
    check_grid(grid)
    token = _GRID.set(grid)
    try:
        yield grid
    finally:
        _GRID.reset(token)


def shard(x: PyTree, spec: Any, grid: Grid | None = None) -> PyTree:
    """Say how x is to be split over a grid.  Its value stays the same.

    A dimension that the spec does not name, or says None of, is whole on every rank.  Dimensions need not divide
    evenly.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.
    spec : PartitionSpec or pytree of PartitionSpec
        Which axes of the grid split each dimension.  A spec stands for all leaves below it, and None leaves a leaf to
        the planner.
    grid : Grid, optional
        The grid; by default that of `on_grid`.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Raises
    ------
    InputError
        If there is no grid, it has no such axis, or the spec has more dimensions than the tensor.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, P = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec
    >>> def layer(x, w):
    ...     return mesh.shard(x, P("dp"), grid) @ mesh.shard(w, P(), grid)
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     preview = m.plan(layer, np.ones((4, 3)), np.ones((3, 2)), strategy="ranks")
    >>> preview.workers
    ('sim-0', 'sim-1')
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
    pairs, structure = tree.flatten_with_paths(x)
    specs = same_structure(structure, spec, "spec", prefix=True)
    leaves = [_lying(as_array(leaf, path or "x"), own, chosen, path or "x")
              for (path, leaf), own in zip(pairs, specs, strict=True)]  # fmt: skip
    return tree.unflatten(structure, leaves)


def _lying(array: Array, spec: Any, grid: Grid, name: str) -> Array:
    if spec is None:
        return array
    if not isinstance(spec, PartitionSpec):
        raise InputError(f"a {type(spec).__name__} for {name!r} is no PartitionSpec")
    text = spec_text(spec.on(grid, array.ndim, f"the tensor {name!r}"))
    return apply("constraint", array, axes=grid.names, sizes=grid.sizes, spec=text)


def reshard(x: PyTree, spec: Any, grid: Grid | None = None) -> PyTree:
    """Say how x is to be split over a grid: the old name of `shard`.

    Parameters
    ----------
    x : Array or pytree of Array
        The tensor.
    spec : PartitionSpec or pytree of PartitionSpec
        Which axes of the grid split each dimension.
    grid : Grid, optional
        The grid; by default that of `on_grid`.

    Returns
    -------
    Array or pytree of Array
        The same value, with what was said.

    Warns
    -----
    DeprecationWarning
        Always.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> import mesh
    >>> with warnings.catch_warnings(action="ignore"):
    ...     mesh.reshard(np.ones(2), mesh.PartitionSpec("dp"), mesh.Grid((2,), ("dp",)))
    Array([1., 1.], dtype=float64)
    """
    warnings.warn("mesh.reshard is called mesh.shard", DeprecationWarning, stacklevel=2)
    return shard(x, spec, grid)


@dataclass(frozen=True, slots=True)
class AutoSharding:
    """The layouts that `auto_sharding` chose for the arguments of a function.

    Parameters
    ----------
    specs : tuple of pytrees of PartitionSpec
        A spec for each leaf of each argument.
    grid : Grid
        The grid.
    seconds : float
        The predicted seconds of a call, for each rank.
    alone_s : float
        The predicted seconds of a call on one device.
    sent_bytes : int
        Bytes that a rank sends in a call.
    held_bytes : int
        Bytes of the arguments that a rank holds.
    tried : int
        How many choices were compared.
    proven : bool
        Whether all choices were compared, so that this is the best of them.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> def layer(x, w):
    ...     return x @ w
    >>> x, w = np.ones((512, 64), np.float32), np.ones((64, 64), np.float32)
    >>> chosen = mesh.auto_sharding(layer, mesh.Grid((2,), ("dp",)), x, w)
    >>> split = chosen.applied(layer)
    >>> chosen.proven, split(x, w).shape
    (True, (512, 64))
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
        """Wrap a function, so that its arguments are laid out as chosen.

        Parameters
        ----------
        fn : callable
            The function that layouts were chosen for.

        Returns
        -------
        callable
            The same function of the same arguments.
        """
        return lambda *args: fn(*[shard(arg, spec, self.grid) for arg, spec in zip(args, self.specs, strict=True)])


def auto_sharding(
    fn: Callable[..., Any], grid: Grid, /, *examples: PyTree, rates: Rates | None = None,
    memory_bytes: int | None = None, tries_max: int = TRIES_MAX, **named: PyTree,
) -> AutoSharding:  # fmt: skip
    """Choose the layouts of a function's arguments that make it fastest on a grid.

    The prediction is made of the bytes that a rank sends and the operations that it does.  What `fn` says by `shard`
    itself is kept.

    Parameters
    ----------
    fn : callable
        A function of arrays.
    grid : Grid
        The grid.
    *examples : pytree
        Arguments like those of the calls to come.
    rates : wire.sharding.op_cost.Rates, optional
        How fast a rank computes and sends.
    memory_bytes : int, optional
        How many bytes of the arguments a rank may hold.
    tries_max : int, optional
        With at most this number of choices all are compared, which proves the best.  Otherwise it is searched for.
    **named : pytree
        Arguments by name.

    Returns
    -------
    AutoSharding
        The choice, with what it is predicted to cost.

    Raises
    ------
    InputError
        If an argument is not possible.
    PlacementError
        If no choice fits `memory_bytes`; it says how much is needed.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid = mesh.Grid((2,), ("dp",))
    >>> chosen = mesh.auto_sharding(lambda x: x * 2, grid, np.ones((512, 512), np.float32))
    >>> chosen.specs, chosen.proven
    ((PartitionSpec('dp', None),), True)
    """
    check_grid(grid)
    integer(tries_max, "tries_max", 0)
    if memory_bytes is not None:
        integer(memory_bytes, "memory_bytes", 0)
    if rates is not None:
        _check_rates(rates)
    traced = trace_full(fn, *positional(fn, examples, named))
    choice = choose(traced.graph, Axes(grid.names, grid.sizes), rates, None, memory_bytes, tries_max)
    specs = [PartitionSpec(*choice.specs[argument.name]) if argument.name in choice.specs else PartitionSpec()
             for argument in traced.arguments]  # fmt: skip
    cost = choice.cost
    return AutoSharding(
        tree.unflatten(traced.in_tree, specs),
        grid,
        choice.seconds,
        choice.alone_s,
        cost.sent_bytes,
        cost.held_bytes,
        choice.tried,
        choice.proven,
    )


def _check_rates(rates: Rates) -> None:
    if not isinstance(rates, Rates):
        raise InputError(
            f"{value_text(rates)} are no rates of a rank",
            next_step="Make them: wire.sharding.op_cost.Rates(flops_per_s=2e10, bytes_per_s=1e8, collective_s=1e-4)",
        )
    for name, least in (("flops_per_s", 1e-9), ("bytes_per_s", 1e-9), ("collective_s", 0.0)):
        number(getattr(rates, name), f"{name} of the rates", least)


__all__ = ["AutoSharding", "auto_sharding", "on_grid", "reshard", "shard"]
