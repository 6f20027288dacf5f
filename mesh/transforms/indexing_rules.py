"""Derivatives of gather and scatter: each is the other's, with care for indices out of range and for equal ones.

`gather` clamps indices into range; `scatter` drops updates out of range, and of equal indices the last sets.
"""

from __future__ import annotations

import math
from typing import Any

from wire.ir.dtypes import I32

from .. import numpy as mnp
from ..core.array import Array, apply, literal
from ..numpy.promotion import INT_BOUNDS, cast, index_dtype
from .elementwise_rules import choose, zero_like


def clamped(index: Array, dim: int) -> Array:
    """`index` as gather reads it in an axis of `dim`, as i32 (i64 where it must)."""
    last = max(dim - 1, 0)
    low, high = INT_BOUNDS[index.type.dtype.name]
    known = index.value
    if known is None or (known.size and (known.min() < 0 or known.max() > last)):
        index = mnp.maximum(index, 0) if low < 0 else index
        index = mnp.minimum(index, last) if high > last else index
    return cast(index, index_dtype(dim))


def gathered(g: Array, z: Array, data: Array, index: Array, axis: int, batch_dims: int) -> Array:
    """The cotangent of the data of a gather: g added up where it was read."""
    dim = data.shape[axis]
    zeros = mnp.zeros_like(data)
    index = clamped(index, dim)
    if not batch_dims:
        return apply("scatter", zeros, index, g, axis=axis, mode="add")
    rows, middle, rest = (
        math.prod(data.shape[:batch_dims]),
        math.prod(data.shape[batch_dims:axis]),
        math.prod(data.shape[axis + 1 :]),
    )
    reads = math.prod(index.shape[batch_dims:])
    picks = flattened(mnp.reshape(index, (rows, reads)), dim)
    updates = mnp.permute_dims(mnp.reshape(g, (rows, middle, reads, rest)), (0, 2, 1, 3))
    flat = apply(
        "scatter",
        mnp.zeros((rows * dim, middle, rest), dtype=g.type.dtype),
        picks,
        mnp.reshape(updates, (rows * reads, middle, rest)),
        axis=0,
        mode="add",
    )
    return mnp.reshape(mnp.permute_dims(mnp.reshape(flat, (rows, dim, middle, rest)), (0, 2, 1, 3)), data.shape)


def flattened(index: Array, dim: int) -> Array:
    """Indices (rows, n) within rows of `dim`, none out of range, as indices (rows * n,) into all rows in one."""
    dtype = index_dtype(index.shape[0] * dim)
    first = apply("iota", shape=index.shape, dtype=dtype.name, axis=0) * dim
    return mnp.ravel(cast(index, dtype) + first)


def scattered_data(g: Array, z: Array, data: Array, index: Array, updates: Array, axis: int, mode: str) -> Array:
    """The cotangent of what a scatter was into."""
    if mode == "add":
        return g
    if mode == "set":
        return apply("scatter", g, index, mnp.zeros_like(updates), axis=axis, mode="set")
    shared = g / ties(z, data, index, updates, axis)
    return choose(mnp.equal(data, z), shared, zero_like(g))


def scattered_updates(g: Array, z: Array, data: Array, index: Array, updates: Array, axis: int, mode: str) -> Array:
    """The cotangent of a scatter's updates."""
    if not data.shape[axis]:
        return mnp.zeros_like(updates)
    if mode == "set":
        return choose(_along(_last(index, data.shape[axis]), data, axis), read(g, index, axis), zero_like(g))
    if mode == "add":
        return choose(_along(inside(index, data.shape[axis]), data, axis), read(g, index, axis), zero_like(g))
    shared = g / ties(z, data, index, updates, axis)
    return choose(tied(z, data, index, updates, axis), read(shared, index, axis), zero_like(g))


def scattered_tangent(
    z: Array, tangents: tuple[Array, Array], data: Array, index: Array, updates: Array, axis: int, mode: str
) -> Array:
    """The tangent of a scatter's result, from those of data and updates."""
    of_data, of_updates = tangents
    if mode in ("set", "add"):
        return apply("scatter", of_data, index, of_updates, axis=axis, mode=mode)
    kept = choose(mnp.equal(data, z), of_data, zero_like(of_data))
    chosen = choose(tied(z, data, index, updates, axis), of_updates, zero_like(of_updates))
    return apply("scatter", kept, index, chosen, axis=axis, mode="add") / ties(z, data, index, updates, axis)


def ties(z: Array, data: Array, index: Array, updates: Array, axis: int) -> Array:
    """How many of data and updates are the extreme at each position."""
    own = cast(mnp.equal(data, z), z.type.dtype)
    if not data.shape[axis]:
        return own
    theirs = cast(tied(z, data, index, updates, axis), z.type.dtype)
    return apply("scatter", own, index, theirs, axis=axis, mode="add")


def tied(z: Array, data: Array, index: Array, updates: Array, axis: int) -> Array:
    """A mask of the updates that are the extreme at their position."""
    if not data.shape[axis]:
        return mnp.zeros_like(updates, dtype="bool")
    hits = mnp.equal(updates, read(z, index, axis))
    return mnp.logical_and(hits, _along(inside(index, data.shape[axis]), data, axis))


def read(array: Array, index: Array, axis: int) -> Array:
    return apply("gather", array, index, axis=axis, batch_dims=0)


def inside(index: Array, dim: int) -> Array:
    """A mask of the indices that are within an axis of `dim`."""
    return mnp.logical_and(mnp.greater_equal(index, 0), mnp.less(index, dim))


def _last(index: Array, dim: int) -> Array:
    """A mask of the indices that are in range and the last of their value."""
    order = mnp.reshape(apply("iota", shape=(index.size,), dtype="i32", axis=0), index.shape)
    board = apply("scatter", mnp.full((dim,), literal(-1, I32)), index, order, axis=0, mode="set")
    return mnp.equal(read(board, index, 0), order)


def _along(mask: Array, data: Array, axis: int) -> Array:
    """A mask over indices, with the dimensions of the updates that they place."""
    ones: Any = (1,) * axis, (1,) * (data.ndim - axis - 1)
    return mnp.reshape(mask, (*ones[0], *mask.shape, *ones[1]))
