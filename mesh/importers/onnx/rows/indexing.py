"""Indexing: gathering, scattering, one-hot, top-k, and ops whose result's shape depends on values.

Negative indices count from the end.  Compress, NonZero and Unique need their operand's values while tracing: whatever
they depend on becomes a static input.
"""

from __future__ import annotations

import math

import numpy as np

from wire.ir.dtypes import BOOL, I32, I64, DType

from .... import numpy as mnp
from ....core.array import Array, apply, value_array
from ....numpy.promotion import INT_BOUNDS, cast, index_dtype, like
from ....numpy.reductions import normal_axis
from ..constant_folding import value_of
from ..evaluate import Call, Row


def _wrapped(indices: Array, dim: int) -> Array:
    """Indices counted from the front."""
    narrow = cast(indices, index_dtype(dim))
    return mnp.where(mnp.less(narrow, 0), mnp.add(narrow, dim), narrow)


# -- gathering --------------------------------------------------------------------------------------------


def _gather(call: Call, x: Array, indices: Array) -> Array:
    axis = normal_axis(call.attr("axis", 0), x.ndim)
    return apply("gather", x, _wrapped(indices, x.shape[axis]), axis=axis, batch_dims=0)


def _gather_elements(call: Call, x: Array, indices: Array) -> Array:
    axis = normal_axis(call.attr("axis", 0), x.ndim)
    cut = tuple([slice(None) if place == axis else slice(dim) for place, dim in enumerate(indices.shape)])
    return mnp.take_along_axis(x[cut], _wrapped(indices, x.shape[axis]), axis)


def _gather_nd(call: Call, x: Array, indices: Array) -> Array:
    batch = call.attr("batch_dims", 0)
    depth = indices.shape[-1]
    dims = x.shape[batch : batch + depth]
    flat = _flat(indices, dims)
    rows = mnp.reshape(x, (*x.shape[:batch], math.prod(dims), *x.shape[batch + depth :]))
    return apply("gather", rows, flat, axis=batch, batch_dims=batch)


def _flat(indices: Array, dims: tuple[int, ...]) -> Array:
    """Positions in the flattened `dims` of index vectors along the last axis."""
    dtype = index_dtype(math.prod(dims))
    places = mnp.zeros(indices.shape[:-1], dtype=dtype)
    for axis, dim in enumerate(dims):
        column = cast(_wrapped(indices[..., axis], dim), dtype)
        places = mnp.add(mnp.multiply(places, dim), column)
    return places


# -- scattering -------------------------------------------------------------------------------------------

_MODES = {"none": "set", "add": "add", "max": "max", "min": "min"}


def _scattered(call: Call, x: Array, places: Array, updates: Array) -> Array:
    """The 1-d x with `updates` at `places` (both 1-d), by the node's reduction."""
    reduction = call.attr("reduction", "none")
    if reduction == "mul":
        raise call.unsupported("the reduction mul at positions that may repeat")
    dtype = x.type.dtype
    if dtype is BOOL and reduction != "none":
        done = apply("scatter", cast(x, I32), places, cast(updates, I32), axis=0, mode=_MODES[reduction])
        return cast(done, BOOL)
    return apply("scatter", x, places, like(updates, x), axis=0, mode=_MODES[reduction])


def _scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    axis = normal_axis(call.attr("axis", 0), x.ndim)
    dtype = index_dtype(x.size)
    if call.attr("reduction", "none") == "mul":
        return _multiplied_elements(x, indices, updates, axis)
    places = _element_places(indices, x.shape, axis, dtype)
    done = _scattered(call, mnp.ravel(x), mnp.ravel(places), mnp.ravel(updates))
    return mnp.reshape(done, x.shape)


def _element_places(indices: Array, shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    """The places in the flattened `shape` to which the elements of `indices` (positions along `axis`) point."""
    places = mnp.zeros(indices.shape, dtype=dtype)
    for place, dim in enumerate(shape):
        along = (
            cast(_wrapped(indices, dim), dtype)
            if place == axis
            else apply("iota", shape=indices.shape, dtype=dtype.name, axis=place)
        )
        places = mnp.add(mnp.multiply(places, dim), along)
    return places


def _multiplied_elements(x: Array, indices: Array, updates: Array, axis: int) -> Array:
    """One product per step along `axis`: within a step no position stands twice."""
    flat = mnp.ravel(x)
    places = _element_places(indices, x.shape, axis, index_dtype(x.size))
    for step in range(indices.shape[axis]):
        at, by = (mnp.ravel(mnp.take(array, [step], axis=axis)) for array in (places, updates))
        product = mnp.multiply(apply("gather", flat, at, axis=0, batch_dims=0), by)
        flat = apply("scatter", flat, at, product, axis=0, mode="set")
    return mnp.reshape(flat, x.shape)


def _scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[-1]
    dims, rest = x.shape[:depth], x.shape[depth:]
    places = mnp.ravel(_flat(indices, dims))
    rows = mnp.reshape(x, (math.prod(dims), *rest))
    rows_of_updates = mnp.reshape(updates, (places.shape[0], *rest))
    if call.attr("reduction", "none") == "mul":
        for step in range(places.shape[0]):
            at = places[step : step + 1]
            product = mnp.multiply(apply("gather", rows, at, axis=0, batch_dims=0), rows_of_updates[step : step + 1])
            rows = apply("scatter", rows, at, product, axis=0, mode="set")
        return mnp.reshape(rows, x.shape)
    mode = _MODES[call.attr("reduction", "none")]
    return mnp.reshape(apply("scatter", rows, places, like(rows_of_updates, rows), axis=0, mode=mode), x.shape)


def _tensor_scatter(call: Call, past: Array, update: Array, write: Array | None = None) -> Array:
    axis = normal_axis(call.attr("axis", -2), past.ndim)
    size, batch = past.shape[axis], past.shape[0]
    start = mnp.zeros((batch,), dtype=I32) if write is None else cast(write, I32)
    shape = update.shape
    steps = apply("iota", shape=(1, shape[axis]), dtype=I32.name, axis=1)
    places = mnp.add(mnp.reshape(start, (batch, 1)), steps)
    if call.attr("mode", "linear") == "circular":
        places = mnp.remainder(places, size)
    places = mnp.reshape(places, [shape[a] if a in (0, axis) else 1 for a in range(past.ndim)])
    flat = _element_places(mnp.broadcast_to(places, shape), past.shape, axis, index_dtype(past.size))
    done = apply("scatter", mnp.ravel(past), mnp.ravel(flat), mnp.ravel(update), axis=0, mode="set")
    return mnp.reshape(done, past.shape)


# -- one-hot, counting ------------------------------------------------------------------------------------


def _one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    count = int(value_of(depth).reshape(-1)[0])
    axis = normal_axis(call.attr("axis", -1), indices.ndim + 1)
    index = mnp.expand_dims(_outside_kept(indices, count), axis)
    shape = [count if place == axis else 1 for place in range(indices.ndim + 1)]
    classes = mnp.reshape(mnp.arange(count, dtype=index.type.dtype), shape)
    hit = mnp.logical_or(mnp.equal(index, classes), mnp.equal(mnp.add(index, count), classes))
    return mnp.where(hit, values[1], values[0])


def _outside_kept(indices: Array, count: int) -> Array:
    """Indices as signed integers, of which those that are far outside stay outside."""
    kind = indices.type.dtype
    if kind is I64:
        return indices
    unsigned = kind.kind == "u" and count <= INT_BOUNDS[kind.name][1]
    return cast(mnp.minimum(indices, count) if unsigned else indices, index_dtype(count))


def _hardmax(call: Call, x: Array) -> Array:
    axis = normal_axis(call.attr("axis", -1 if call.version >= 13 else 1), x.ndim)
    if call.version < 13:  # everything from `axis` on is one axis
        rows = mnp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return mnp.reshape(_first_largest(rows, 1), x.shape)
    return _first_largest(x, axis)


def _first_largest(x: Array, axis: int) -> Array:
    place = mnp.argmax(x, axis, keepdims=True)
    counter = apply("iota", shape=x.shape, dtype=place.type.dtype.name, axis=axis)
    return cast(mnp.equal(counter, place), x.type.dtype)


# -- shapes that depend on values -------------------------------------------------------------------------


def _compress(call: Call, x: Array, condition: Array) -> Array:
    axis = call.attr("axis")
    rows = mnp.ravel(x) if axis is None else x
    (kept,) = np.nonzero(value_of(condition))
    return mnp.take(rows, kept.astype(np.int32), axis=0 if axis is None else axis)


def _non_zero(call: Call, x: Array) -> Array:
    places = np.nonzero(np.atleast_1d(value_of(x)))  # of a number, too, whose place has no coordinates
    return value_array(np.asarray(places, np.int64)[: x.ndim])


def _unique(call: Call, x: Array) -> tuple[Array, ...]:
    axis = call.attr("axis")
    distinct, first, inverse, counts = np.unique(
        value_of(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call.attr("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        distinct = np.take(distinct, order, axis=0 if axis is None else axis)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    return value_array(distinct), *[value_array(column.astype(np.int64)) for column in (first, inverse, counts)]


ROWS: dict[str, Row] = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Hardmax": _hardmax,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
