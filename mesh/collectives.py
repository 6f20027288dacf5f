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
from typing import Any

from wire.errors import InputError, ShapeError
from wire.ir.collective_rules import REDUCTIONS

from . import numpy as mnp
from . import tree
from .core.array import Array, Operand, apply
from .numpy.promotion import asarray
from .spmd.grid import Names, PartitionSpec
from .spmd.shard_map import current_grid
from .transforms.pytree_functions import as_array
from .util.annotation_checks import checked
from .util.argument_checks import axis_of, integer, items, number, pairs_of

OPS = ("sum", "mean", *[name for name in REDUCTIONS if name != "sum"])


@checked
def all_reduce(
    x: Any, axes: Names, op: str = "sum", weight: Operand | None = None, names: Iterable[str] | None = None
) -> Any:
    """The reduction of the group's values, on every rank of it: `op` is one of sum, mean, prod, min, max, and, or.

    `weight`, a number of this rank's, makes a mean the weighted one: of unequal shards, by how many rows each has.
    `names` are the paths that a pytree must have, such as those of the parameters: InputError names what is missing or
    too many.
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
        return _each(x, lambda value: mnp.divide(reduced(value, "sum"), count))
    own = asarray(weight)
    if own.shape:
        raise InputError(f"the weight of a rank is one number, got {own.type}")
    total = reduced(own, "sum")
    return _each(x, lambda value: mnp.divide(reduced(mnp.multiply(value, own), "sum"), total))


@checked
def all_gather(x: Operand, axes: Names | PartitionSpec, axis: int | None = None, tiled: bool = True) -> Array:
    """The group's arrays joined along `axis` (the first, unless said otherwise), on every rank of it.

    With tiled=False they are stacked along a new axis.  With a PartitionSpec in place of names every dimension that it
    splits is gathered, or `axis` alone: what was split by it is whole again.
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


@checked
def reduce_scatter(x: Operand, axes: Names, axis: int = 0, op: str = "sum") -> Array:
    """The reduction of the group's arrays, of which each rank gets its block along `axis`."""
    if not isinstance(op, str) or op not in OPS:
        raise InputError(f"reduce_scatter has no op {op!r}", next_step=f"Choose one of {', '.join(OPS)}")
    value, group = asarray(x), _group("reduce_scatter", axes)
    at = _normal(axis, value, "reduce_scatter")
    _check_divides("reduce_scatter", value, at, axis_size(axes))
    found = apply("reduce_scatter", value, **group, axis=at, reduction="sum" if op == "mean" else op)
    return mnp.divide(found, axis_size(axes)) if op == "mean" else found


@checked
def all_to_all(x: Operand, axes: Names, split_axis: int, concat_axis: int, tiled: bool = True) -> Array:
    """Block i along `split_axis` goes to rank i of the group; what comes is joined along `concat_axis`.

    With tiled=False `split_axis` has one row for each rank, and is gone afterwards; what comes is stacked along a new
    axis.  Doing it again with the two axes exchanged gives back x.
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


def permute(x: Any, axes: Names, pairs: Sequence[tuple[int, int]]) -> Any:
    """By `pairs` of source and destination, on each destination what its source has; zeros where nobody sends.

    InputError if a rank is a source, or a destination, twice.
    """
    group, ranks = _group("permute", axes), axis_size(axes)
    flat = tuple([rank for pair in pairs_of(pairs, ranks) for rank in pair])
    return _each(x, lambda value: apply("permute", value, **group, pairs=flat))


def shift(x: Any, axes: Names, by: int = 1) -> Any:
    """What the rank `by` places before this one has, around the ring of the group."""
    ranks, by = axis_size(axes), integer(by, "how far shift goes")
    return permute(x, axes, [(rank, (rank + by) % ranks) for rank in range(ranks)])


def send(x: Any, axes: Names, source: int, destination: int) -> Any:
    """On the rank `destination` what `source` has, and zeros elsewhere; all ranks of the group call it."""
    return permute(x, axes, [(source, destination)])


def broadcast(x: Any, axes: Names, root: int = 0) -> Any:
    """What the rank `root` of the group has, on every rank of it."""
    group, ranks = _group("broadcast", axes), axis_size(axes)
    if not 0 <= integer(root, "the root of broadcast") < ranks:
        raise InputError(f"broadcast from rank {root}: the group has {ranks} ranks")
    return _each(x, lambda value: apply("broadcast_from", value, **group, root=int(root)))


def axis_index(axes: Names) -> Array:
    """This rank's number in its group: an int32 without dimensions."""
    return apply("axis_index", **_group("axis_index", axes))


def axis_size(axes: Names) -> int:
    """How many ranks the group has."""
    return current_grid("axis_size").size(axes)


# -- helpers ----------------------------------------------------------------------------------------------


def _group(asker: str, axes: Names) -> dict[str, tuple[Any, ...]]:
    grid = current_grid(asker)
    names = grid.axes(axes)
    return {"axes": names, "sizes": tuple([grid.shape[name] for name in names])}


def _each(x: Any, fn: Callable[[Array], Array]) -> Any:
    """`fn` of every leaf."""
    found, structure = tree.flatten_with_paths(x)
    return tree.unflatten(structure, [fn(as_array(leaf, path or "the value")) for path, leaf in found])


def _check_names(found: Sequence[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - set(found)), ("has, and nobody expects,", set(found) - wanted)):
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
    "permute",
    "reduce_scatter",
    "send",
    "shift",
]
