"""Collectives: what the ranks of a grid do together, within a function that is given to `mesh.shard_map`.

    from mesh import collectives
    gradients = collectives.all_reduce(gradients, "dp", "mean")

A collective names axes of the grid.  The ranks that differ along these only are a group, numbered row-major over them;
all of a group take part.  Values are arrays, or pytrees of them.  Each has a derivative in both directions and a batch
(`transforms/collective_rules.py`); docs/sharding.md tells what derivatives mean here.

Axis names, shapes and reductions that do not fit raise where they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from wire.errors import InputError, ShapeError
from wire.ir.collective_rules import REDUCTIONS
from wire.ir.dtypes import BF16, BOOL, F16, F32, DType

from . import numpy as mnp
from . import tree
from .core.array import Array, Operand, apply
from .numpy.promotion import asarray, inexact
from .numpy.promotion import cast as cast_to
from .spmd.grid import Names, PartitionSpec
from .spmd.shard_map import current_grid
from .transforms.pytree_functions import as_array
from .tree import PyTree
from .util.annotation_checks import checked
from .util.argument_checks import axis_of, integer, items, number, pairs_of
from .util.did_you_mean import names_checked
from .util.missing_names import missing_name_error

OPS = ("sum", "mean", *[name for name in REDUCTIONS if name != "sum"])
F = TypeVar("F", bound=Callable[..., Any])


def _by_ranks(function: F) -> F:
    """A function that ranks call together.  Who is no rank gets an error that says what to write, before any other."""
    within = checked(names_checked(function))

    @wraps(function)
    def called(*args: PyTree, **named: PyTree) -> PyTree:
        current_grid(function.__name__)
        return within(*args, **named)

    return cast(F, called)


@_by_ranks
def all_reduce(
    x: PyTree, axes: Names, op: str = "sum", weight: Operand | None = None, names: Iterable[str] | None = None
) -> PyTree:
    """Reduce the values of a group of ranks; every rank of it gets the result.

    Parameters
    ----------
    x : Array or pytree of Array
        This rank's value; of the same shape on all ranks.
    axes : str or sequence of str
        The axes of the grid along which the ranks of a group differ.
    op : {"sum", "mean", "prod", "min", "max", "and", "or"}, optional
        The reduction.
    weight : number or Array, optional
        This rank's weight in a weighted mean, such as the number of its rows where shards differ in size.
    names : iterable of str, optional
        The paths that a pytree must have, such as those of the params.

    Returns
    -------
    Array or pytree of Array
        The reduction, of the shape of `x`.

    Raises
    ------
    InputError
        If there is no grid here, it has no such axis, the op is not known, a weight does not belong to a mean, or a
        path is missing or not expected.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> total = mesh.shard_map(lambda x: mesh.collectives.all_reduce(x.sum(), "dp"), grid, rows, mesh.PartitionSpec())
    >>> total(np.arange(4.0))
    Array(6., dtype=float64)
    """
    if not isinstance(op, str) or op not in OPS:
        raise InputError(f"all_reduce has no op {op!r}", next_step=f"Choose one of {', '.join(OPS)}")
    if weight is not None and op != "mean":
        raise InputError(f"a weight belongs to a mean, not to {op!r}")
    if isinstance(weight, int | float) and number(weight, "the weight of a rank", 0.0) == 0:
        raise InputError("the weight of every rank is 0, so there is no mean", next_step="Give each what it counts for")
    group = _group("all_reduce", axes)
    if names is not None:
        _check_names(tree.paths(tree.structure(x)), set(items(names, "of the names of a tree")))

    def reduced(value: Array, name: str) -> Array:
        return apply("all_reduce", value, **group, reduction=name)

    if op != "mean":
        return _each(x, lambda value: reduced(value, op))
    if weight is None:
        count = axis_size(axes)
        return _each(x, lambda value: _mean(value, lambda wide: reduced(wide, "sum"), count))
    own = asarray(weight)
    if own.shape:
        raise InputError(f"the weight of a rank is one number, got {own.type}")

    def weighted(value: Array) -> Array:
        dtype = inexact(value, weight)[0].type.dtype  # a number of Python's leaves it as it is
        counts = cast_to(own, _dtype_of_sums(dtype))
        total = reduced(mnp.multiply(cast_to(value, counts.type.dtype), counts), "sum")
        return cast_to(mnp.divide(total, reduced(counts, "sum")), dtype)

    return _each(x, weighted)


@_by_ranks
def all_gather(x: Operand, axes: Names | PartitionSpec, axis: int | None = None, tiled: bool = True) -> Array:
    """Join the arrays of a group of ranks; every rank of it gets the result.

    Parameters
    ----------
    x : Array, (..., length, ...)
        This rank's block.
    axes : str, sequence of str or PartitionSpec
        The axes along which the ranks of a group differ.  With a spec, each dimension that it splits is joined, or
        `axis` alone.
    axis : int, optional
        The dimension along which blocks are joined; the first by default.
    tiled : bool, optional
        Whether blocks are joined along `axis`.  If not, they are stacked along a new one.

    Returns
    -------
    Array, (..., ranks * length, ...)
        The blocks in the order of ranks.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> gather = mesh.shard_map(lambda x: mesh.collectives.all_gather(x, "dp"), grid, rows, mesh.PartitionSpec())
    >>> gather(np.arange(4.0))
    Array([0., 1., 2., 3.], dtype=float64)
    """
    value = asarray(x)
    if isinstance(axes, PartitionSpec):
        spec = axes.on(current_grid("all_gather"), value.ndim, "the array")
        chosen = range(value.ndim) if axis is None else (_normal(axis, value, "all_gather"),)
        for dim in chosen:
            value = all_gather(value, spec[dim], dim) if spec[dim] else value
        return value
    group = _group("all_gather", axes)
    if not tiled:
        at = _normal(0 if axis is None else axis, value, "all_gather", 1)
        return apply("all_gather", mnp.expand_dims(value, axis=at), **group, axis=at)
    return apply("all_gather", value, **group, axis=_normal(0 if axis is None else axis, value, "all_gather"))


@_by_ranks
def reduce_scatter(x: Operand, axes: Names, axis: int = 0, op: str = "sum") -> Array:
    """Reduce the arrays of a group of ranks; each rank of it gets its block of the result.

    Parameters
    ----------
    x : Array, (..., ranks * length, ...)
        This rank's array.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    axis : int, optional
        The dimension that is cut into a block for each rank.
    op : {"sum", "mean", "prod", "min", "max", "and", "or"}, optional
        The reduction.

    Returns
    -------
    Array, (..., length, ...)
        This rank's block.

    Raises
    ------
    InputError
        If there is no grid here, it has no such axis, or the op is not known.
    ShapeError
        If the dimension cannot be cut evenly.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> sums = mesh.shard_map(lambda x: mesh.collectives.reduce_scatter(x, "dp"), grid, rows, rows)
    >>> sums(np.arange(8.0))
    Array([ 4.,  6.,  8., 10.], dtype=float64)
    """
    if not isinstance(op, str) or op not in OPS:
        raise InputError(f"reduce_scatter has no op {op!r}", next_step=f"Choose one of {', '.join(OPS)}")
    value, group = asarray(x), _group("reduce_scatter", axes)
    at = _normal(axis, value, "reduce_scatter")
    _check_divides("reduce_scatter", value, at, axis_size(axes))
    if op == "mean":
        return _mean(
            value, lambda wide: apply("reduce_scatter", wide, **group, axis=at, reduction="sum"), axis_size(axes)
        )
    return apply("reduce_scatter", value, **group, axis=at, reduction=op)


@_by_ranks
def all_to_all(x: Operand, axes: Names, split_axis: int, concat_axis: int, tiled: bool = True) -> Array:
    """Exchange blocks: block i along `split_axis` goes to rank i of the group.

    Doing it again with the two axes exchanged gives back x.

    Parameters
    ----------
    x : Array
        This rank's array.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    split_axis : int
        The dimension that is cut into a block for each rank.
    concat_axis : int
        The dimension along which the received blocks are joined.
    tiled : bool, optional
        Whether blocks keep `split_axis`.  If not, it has one row for each rank and is dropped, and what is received is
        stacked along a new axis.

    Returns
    -------
    Array
        The received blocks.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis.
    ShapeError
        If the dimension cannot be cut into a block for each rank.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, P = mesh.Grid((2,), ("sp",)), mesh.PartitionSpec
    >>> swap = lambda x: mesh.collectives.all_to_all(x, "sp", split_axis=1, concat_axis=0)
    >>> mesh.shard_map(swap, grid, P("sp"), P(None, "sp"))(np.arange(4.0).reshape(2, 2))
    Array([[0., 1.],
           [2., 3.]], dtype=float64)
    """
    value, group, ranks = asarray(x), _group("all_to_all", axes), axis_size(axes)
    split = _normal(split_axis, value, "all_to_all")
    joined = _normal(concat_axis, value, "all_to_all")
    if tiled:
        _check_divides("all_to_all", value, split, ranks)
        return apply("all_to_all", value, **group, split_axis=split, concat_axis=joined)
    if value.shape[split] != ranks:
        raise ShapeError(
            f"all_to_all with tiled=False sends one row along axis {split} to each of {ranks} ranks, got {value.type}"
        )
    new, old = (joined, split + 1) if joined <= split else (joined + 1, split)
    spread = mnp.expand_dims(value, axis=new)
    return mnp.squeeze(apply("all_to_all", spread, **group, split_axis=old, concat_axis=new), axis=old)


@_by_ranks
def permute(x: PyTree, axes: Names, pairs: Sequence[tuple[int, int]]) -> PyTree:
    """Send values between ranks of a group, by pairs of source and destination.

    Parameters
    ----------
    x : Array or pytree of Array
        What this rank sends.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    pairs : sequence of (int, int)
        Sources and destinations, numbered within the group.

    Returns
    -------
    Array or pytree of Array
        What this rank receives; zeros if nothing is sent to it.

    Raises
    ------
    InputError
        If there is no grid here, it has no such axis, or a rank is twice a source or twice a destination.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((3,), ("dp",)), mesh.PartitionSpec("dp")
    >>> send = lambda x: mesh.collectives.permute(x, "dp", [(0, 1), (1, 2)])
    >>> mesh.shard_map(send, grid, rows, rows)(np.array([1.0, 2.0, 3.0]))
    Array([0., 1., 2.], dtype=float64)
    """
    group, ranks = _group("permute", axes), axis_size(axes)
    flat = tuple([rank for pair in pairs_of(pairs, ranks) for rank in pair])
    return _each(x, lambda value: apply("permute", value, **group, pairs=flat))


@_by_ranks
def shift(x: PyTree, axes: Names, by: int = 1) -> PyTree:
    """Send values around the ring of a group.

    Parameters
    ----------
    x : Array or pytree of Array
        What this rank sends.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    by : int, optional
        How many ranks further each value goes.

    Returns
    -------
    Array or pytree of Array
        What the rank `by` places before this one sent.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((3,), ("dp",)), mesh.PartitionSpec("dp")
    >>> mesh.shard_map(lambda x: mesh.collectives.shift(x, "dp"), grid, rows, rows)(np.array([1.0, 2.0, 3.0]))
    Array([3., 1., 2.], dtype=float64)
    """
    ranks, by = axis_size(axes), integer(by, "how far shift goes")
    return permute(x, axes, [(rank, (rank + by) % ranks) for rank in range(ranks)])


@_by_ranks
def send(x: PyTree, axes: Names, source: int, destination: int) -> PyTree:
    """Send a value from one rank of a group to another.  All ranks of the group call it.

    Parameters
    ----------
    x : Array or pytree of Array
        What the source sends; of the same shapes on all ranks.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    source : int
        The rank that sends.
    destination : int
        The rank that receives.

    Returns
    -------
    Array or pytree of Array
        On the destination what was sent, and zeros on the other ranks.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis or rank.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> mesh.shard_map(lambda x: mesh.collectives.send(x, "dp", 0, 1), grid, rows, rows)(np.array([5.0, 6.0]))
    Array([0., 5.], dtype=float64)
    """
    return permute(x, axes, [(source, destination)])


@_by_ranks
def broadcast(x: PyTree, axes: Names, root: int = 0) -> PyTree:
    """Give every rank of a group what one of them has.

    Parameters
    ----------
    x : Array or pytree of Array
        This rank's value; of the same shapes on all ranks.
    axes : str or sequence of str
        The axes along which the ranks of a group differ.
    root : int, optional
        The rank whose value it is.

    Returns
    -------
    Array or pytree of Array
        The value of the root.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis or rank.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> mesh.shard_map(lambda x: mesh.collectives.broadcast(x, "dp", root=1), grid, rows, rows)(np.array([5.0, 6.0]))
    Array([6., 6.], dtype=float64)
    """
    group, ranks = _group("broadcast", axes), axis_size(axes)
    if not 0 <= integer(root, "the root of broadcast") < ranks:
        raise InputError(f"broadcast from rank {root}: the group has {ranks} ranks")
    return _each(x, lambda value: apply("broadcast_from", value, **group, root=int(root)))


@_by_ranks
def axis_index(axes: Names) -> Array:
    """Return this rank's number in its group.

    Parameters
    ----------
    axes : str or sequence of str
        The axes along which the ranks of a group differ.

    Returns
    -------
    Array, ()
        An int32; row-major over several axes.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> mesh.shard_map(lambda x: x + mesh.collectives.axis_index("dp"), grid, rows, rows)(np.zeros(4, np.int32))
    Array([0, 0, 1, 1], dtype=int32)
    """
    return apply("axis_index", **_group("axis_index", axes))


@_by_ranks
def axis_size(axes: Names) -> int:
    """Return the number of ranks in a group.

    Parameters
    ----------
    axes : str or sequence of str
        The axes along which the ranks of a group differ.

    Returns
    -------
    int
        The number of ranks.

    Raises
    ------
    InputError
        If there is no grid here, or it has no such axis.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> grid, rows = mesh.Grid((2,), ("dp",)), mesh.PartitionSpec("dp")
    >>> mesh.shard_map(lambda x: x / mesh.collectives.axis_size("dp"), grid, rows, rows)(np.ones(2))
    Array([0.5, 0.5], dtype=float64)
    """
    return current_grid("axis_size").size(axes)


ppermute = permute  # what JAX and MAX call them (docs/originals.md)
distributed_broadcast = broadcast


if not TYPE_CHECKING:  # which would take any name then

    def __getattr__(name: str) -> Any:
        raise missing_name_error(__name__, name)


# -- helpers ----------------------------------------------------------------------------------------------


def _group(asker: str, axes: Names) -> dict[str, tuple[Any, ...]]:
    grid = current_grid(asker)
    names = grid.axes(axes)
    return {"axes": names, "sizes": tuple([grid.shape[name] for name in names])}


def _each(x: PyTree, fn: Callable[[Array], Array]) -> PyTree:
    """Apply `fn` to every leaf."""
    leaves, structure = tree.flatten_with_paths(x)
    return tree.unflatten(structure, [fn(as_array(leaf, path or "the value")) for path, leaf in leaves])


def _mean(value: Array, summed: Callable[[Array], Array], count: int) -> Array:
    """The mean of `count` ranks from what sums them up.  The sum has room for all: that of 200 and 200 is above every
    uint8, and that of 40,000 and 40,000 above every float16."""
    if value.type.dtype is BOOL:
        return summed(value)  # which refuses it
    (own,) = inexact(value)
    dtype = own.type.dtype
    return cast_to(mnp.divide(summed(cast_to(own, _dtype_of_sums(dtype))), count), dtype)


def _dtype_of_sums(dtype: DType) -> DType:
    return F32 if dtype in (F16, BF16) else dtype


def _check_names(paths: Sequence[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - set(paths)), ("has, and nobody expects,", set(paths) - wanted)):
        if names:
            raise InputError(f"the tree to reduce {what} {', '.join(map(repr, sorted(names)))}")


def _normal(axis: int, array: Array, asker: str, more: int = 0) -> int:
    return axis_of(axis, array.ndim + more, asker, array.type)


def _check_divides(asker: str, array: Array, axis: int, ranks: int) -> None:
    if array.shape[axis] % ranks:
        raise ShapeError(
            f"{asker} cuts axis {axis} of {array.type} into {ranks} blocks, and {array.shape[axis]} does not divide",
            next_step="Pad it to a multiple",
        )


__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "axis_size",
    "broadcast",
    "distributed_broadcast",
    "permute",
    "ppermute",
    "reduce_scatter",
    "send",
    "shift",
]
