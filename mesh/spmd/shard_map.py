"""shard_map: a function of blocks, run by every rank of a grid, as a function of whole arrays.

    def loss(w, x):                                      # w is whole, x this rank's rows
        return mesh.collectives.all_reduce(mnp.sum((x @ w) ** 2), "dp")

    total = mesh.shard_map(loss, grid, in_specs=(P(), P("dp")), out_specs=P())(w, x)

What the function refers to from outside is the same on every rank.  This file only builds a node, `spmd`; on one device
it means its unrolled form (`wire/passes/unroll_spmd.py`).  docs/sharding.md has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from wire.errors import InputError
from wire.ir.grids import spec_text
from wire.passes.replication import varying

from .. import tree
from ..core.array import Array
from ..core.multi_output import several
from ..transforms.collective_rules import is_made_again
from ..transforms.pytree_functions import Flat, same_structure
from ..transforms.step_list import captured_by
from ..tree import PyTree
from ..util.annotation_checks import truth
from ..util.argument_checks import check_function
from ..util.units import counted
from .grid import Grid, PartitionSpec, check_grid

_GRID: ContextVar[Grid | None] = ContextVar("mesh_grid", default=None)


def current_grid(asker: str) -> Grid:
    """Return the grid whose ranks run the function that is being traced; InputError if there is none."""
    current = _GRID.get()
    if current is None:
        whole = "; mesh.shard(x, PartitionSpec()) gives every device all of x" if asker in TO_ALL else ""
        raise InputError(
            f"{asker} is what ranks of a grid do together, and there is no grid here: outside of mesh.shard_map a "
            "value is one tensor, also where mesh.shard has split it",
            next_step=f"Call it in a function of blocks: mesh.shard_map(lambda block: mesh.collectives.{asker}(block, "
            f"...), grid, in_specs, out_specs)(x){whole}",
        )
    return current


TO_ALL = ("all_gather", "broadcast")  # after which every rank has the same, whole


def inside_ranks() -> bool:
    """Whether a function is being traced that the ranks of a grid run."""
    return _GRID.get() is not None


@contextmanager
def _ranks_of(grid: Grid) -> Iterator[None]:
    if _GRID.get() is not None:
        raise InputError("a shard_map within another one", next_step="Name the axes of both in one grid")
    token = _GRID.set(grid)
    try:
        yield
    finally:
        _GRID.reset(token)


def shard_map(
    f: Callable[..., Any], grid: Grid, in_specs: Any, out_specs: Any, check: bool = True
) -> Callable[..., Any]:
    """Make a function of whole arrays of a function of blocks, which each rank of a grid computes.

    Parameters
    ----------
    f : callable
        A function of one rank's blocks.  It may call `mesh.collectives`.
    grid : Grid
        The ranks.
    in_specs : PartitionSpec, or tuple of pytrees of PartitionSpec
        How each argument is cut into blocks, or one spec for all.  A spec, or None for copies, stands for all leaves
        below it.
    out_specs : pytree of PartitionSpec
        How blocks of the result are put together.
    check : bool, optional
        Whether a result must be proven to be the same along axes that its spec does not name.  If not, the first rank's
        counts.

    Returns
    -------
    callable
        The function of whole arrays.

    Raises
    ------
    InputError
        If specs do not fit the grid or the arguments, or a result may differ along an axis that its spec does not name.
    ShapeError
        If a dimension does not divide evenly.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> import mesh.numpy as mnp
    >>> grid, P = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec
    >>> def loss(w, x):  # w is whole, and x is this rank's rows
    ...     return mesh.collectives.all_reduce(mnp.sum((x @ w) ** 2), "dp")
    >>> mesh.shard_map(loss, grid, in_specs=(P(), P("dp")), out_specs=P())(np.ones(3), np.ones((4, 3)))
    Array(36., dtype=float64)
    """

    check_grid(grid)
    check_function(f, "what ranks run")
    truth(check, "check of shard_map")

    @wraps(f)
    def mapped(*args: PyTree) -> PyTree:
        flat = Flat(f, args)
        per_argument = in_specs if isinstance(in_specs, tuple | list) else (in_specs,) * len(args)
        if len(per_argument) != len(args):
            raise InputError(f"in_specs is for {counted(len(per_argument), 'argument')}, and the call has {len(args)}")
        specs = _specs(
            same_structure(flat.in_tree, tuple(per_argument), "in_specs", prefix=True), flat.names, "in_specs"
        )
        placed_arguments = list(zip(specs, flat.arrays, flat.names, strict=True))
        types = [spec.local(grid, array.type, f"the argument {name!r}") for spec, array, name in placed_arguments]
        with _ranks_of(grid):
            inner = flat.run(types)
        captured = captured_by(inner, again=is_made_again)
        body = inner.taking(captured).graph()
        placed = _specs(same_structure(flat.out_tree, out_specs, "out_specs", prefix=True), flat.out_names, "out_specs")
        over = varying(body, [*[frozenset(spec.axes) for spec in specs], *[frozenset[str]()] * len(captured)])
        texts = []
        for tensor, spec, name, differs in zip(inner.outputs, placed, flat.out_names, over, strict=True):
            texts.append(spec_text(spec.on(grid, len(tensor.type.shape), f"the result {name!r}")))
            if check and not differs <= frozenset(spec.axes):
                raise _may_differ(name, spec, sorted(differs - frozenset(spec.axes)))
        whole = [spec_text(spec.on(grid, array.ndim, name)) for spec, array, name in placed_arguments]
        whole += [spec_text(((),) * len(tensor.type.shape)) for tensor in captured]
        results = several(
            "spmd",
            [*flat.arrays, *map(Array, captured)],
            body=body,
            axes=grid.names,
            sizes=grid.sizes,
            in_specs=tuple(whole),
            out_specs=tuple(texts),
        )
        return tree.unflatten(flat.out_tree, results)

    return mapped


def _specs(specs: Sequence[Any], names: Sequence[str], what: str) -> list[PartitionSpec]:
    for spec, name in zip(specs, names, strict=True):
        if spec is not None and not isinstance(spec, PartitionSpec):
            raise InputError(f"{what} has a {type(spec).__name__} for {name!r}: expected a PartitionSpec")
    return [PartitionSpec() if spec is None else spec for spec in specs]


def _may_differ(name: str, spec: PartitionSpec, over: list[str]) -> InputError:
    return InputError(
        f"the result {name!r} has the spec {spec}, which does not name {', '.join(over)}, along which it may differ",
        next_step="Name the axis in out_specs, make the result the same on all ranks (all_reduce, all_gather, "
        "broadcast), or pass check=False to take the first rank's",
    )


__all__ = ["current_grid", "inside_ranks", "shard_map"]
