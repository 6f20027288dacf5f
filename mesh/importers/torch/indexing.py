"""ATen ops that read and write elements by their places, and those that put them in order."""

from __future__ import annotations

from typing import Any

from wire.errors import Unsupported
from wire.ir.dtypes import BOOL, I64

from ... import numpy as mnp
from ...core.array import Array, apply, literal
from ...numpy.promotion import asarray, cast, extreme
from .call import Call, Op


def index(call: Call) -> Array:
    places = [slice(None) if entry is None else asarray(entry) for entry in call["indices"]]
    if any(isinstance(entry, Array) and entry.type.dtype is BOOL for entry in places):
        raise Unsupported("indexing by a mask, whose result's shape depends on values", op=call.name)
    return call.x[tuple(places)]


def index_put(call: Call) -> Array:
    """Values at positions, or one for all under a mask; `accumulate` adds."""
    places = [slice(None) if entry is None else asarray(entry) for entry in call["indices"]]
    adds = bool(call.get("accumulate", False))
    if not any(isinstance(entry, Array) and entry.type.dtype is BOOL for entry in places):
        place = call.x.at[tuple(places)]
        result: Array = place.add(call["values"]) if adds else place.set(call["values"])
        return result
    x, values = call.x, cast(call.array("values"), call.x.type.dtype)
    mask = places[0]
    if len(places) > 1 or not isinstance(mask, Array) or values.ndim > x.ndim - mask.ndim:
        raise Unsupported("setting elements under a mask to values of their own", op=call.name)
    aligned = mnp.reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
    return mnp.where(aligned, x + values if adds else values, x)


def gather(call: Call) -> Array:
    """The index may be shorter than x along the other axes."""
    axis, shape = call.axis(), call.array("index").shape
    x = call.x[tuple([slice(None) if place == axis else slice(0, dim) for place, dim in enumerate(shape)])]
    return mnp.take_along_axis(x, call["index"], axis=axis)


_MODES = {"sum": "add", "add": "add", "mean": "add", "amax": "max", "amin": "min"}


def scattered(mode: str) -> Op:
    """Every element of the source to a place along one axis, the other coordinates being its own."""

    def op(call: Call) -> Array:
        x, axis, how = call.x, call.axis(), call.get("reduce")
        if how is not None and (how not in _MODES or (how == "mean" and x.type.dtype.kind != "f")):
            raise Unsupported(f"scatter with the reduction {how!r} of {x.type.dtype.name}", op=call.name)
        places = _places(x, call.array("index"), axis)
        source, shape = asarray(call.get("src", call.get("value"))), call.array("index").shape
        source_rows = (
            source[tuple([slice(0, dim) for dim in shape])] if source.ndim else mnp.broadcast_to(source, shape)
        )
        rows = mnp.reshape(cast(source_rows, x.type.dtype), (-1,))
        which = mode if how is None else _MODES[how]

        def done(into: Array, updates: Array, mode: str) -> Array:
            return apply("scatter", into, places, updates, axis=0, mode=mode)

        flat = mnp.reshape(x, (-1,))
        alone = not call.get("include_self", True)
        if not alone and how != "mean":
            return mnp.reshape(done(flat, rows, which), x.shape)
        hits = done(mnp.zeros_like(flat), mnp.ones_like(rows), "add")
        if alone:  # what is written to begins with what changes nothing
            nothing = {"add": 0, "max": extreme(x.type.dtype, high=False), "min": extreme(x.type.dtype, high=True)}
            flat = mnp.where(hits > 0, mnp.full_like(flat, nothing[which]), flat)
        result = done(flat, rows, which)
        if how == "mean":
            result = result / mnp.where(hits > 0, hits if alone else hits + 1, 1)
        return mnp.reshape(result, x.shape)

    return op


def _places(x: Array, index: Array, axis: int) -> Array:
    """The places in the flattened x to which the elements of `index` point, in a row."""
    flat, stride = literal(0, I64), 1
    for dim in reversed(range(x.ndim)):
        shape = tuple(size if place == dim else 1 for place, size in enumerate(index.shape))
        own = apply("iota", shape=shape, dtype="i64", axis=dim)
        flat = flat + (cast(index, I64) if dim == axis else own) * stride
        stride *= x.shape[dim]
    return mnp.reshape(mnp.broadcast_to(flat, index.shape), (-1,))


def slice_scatter(call: Call) -> Array:
    """x with a slice of one axis replaced."""
    x, axis = call.x, call.axis()
    start, stop, step = call.get("start", 0), call.get("end", x.shape[axis]), int(call.get("step", 1))
    key = (slice(None),) * axis + (slice(int(start), min(int(stop), x.shape[axis]), step),)
    result: Array = x.at[key].set(call["src"])
    return result


def index_select(call: Call) -> Array:
    return mnp.take(call.x, call["index"], axis=call.axis())


# -- in order ---------------------------------------------------------------------------------------------


def median(call: Call) -> Any:
    """The lower one of the two in the middle, or the first NaN."""
    x, axis = (call.x, call.axis()) if "dim" in call else (mnp.reshape(call.x, (-1,)), 0)
    middle = (slice(None),) * axis + (slice((x.shape[axis] - 1) // 2, (x.shape[axis] - 1) // 2 + 1),)
    unknown = mnp.not_equal(x, x)
    first = mnp.argmax(unknown, axis=axis, keepdims=True)
    place = mnp.where(mnp.any(unknown, axis=axis, keepdims=True), first, mnp.argsort(x, axis=axis, stable=True)[middle])
    results = [mnp.take_along_axis(x, place, axis=axis), cast(place, I64)]
    if "dim" not in call:
        return mnp.reshape(results[0], ())
    return results if call.get("keepdim", False) else [mnp.squeeze(result, axis) for result in results]


def sort(call: Call) -> list[Array]:
    axis = call.axis("dim", -1) if call.x.ndim else 0
    order = mnp.argsort(call.x, axis=axis, descending=bool(call.get("descending", False)), stable=True)
    return [mnp.take_along_axis(call.x, order, axis=axis), cast(order, I64)]


def topk(call: Call) -> list[Array]:
    axis = call.axis("dim", -1)
    order = mnp.argsort(call.x, axis=axis, descending=bool(call.get("largest", True)), stable=True)
    best = order[(slice(None),) * axis + (slice(0, int(call["k"])),)]
    return [mnp.take_along_axis(call.x, best, axis=axis), cast(best, I64)]
