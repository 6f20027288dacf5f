"""Batches: a function of single elements made one of whole batches.

`VMAPS` has one row per op of the op table.  A row is

  * a rule `(batch, inputs, batched, **attrs)` to the result, where `batch` is the number of elements, the inputs that
    are `batched` have it as their first axis, one at least is, and the result has it first too; or
  * `Whole(rule)`, of the same arguments, to `(results, which of them are batched)`, for ops that have several results.

Operands that do not depend on what is mapped are not repeated, unless an op leaves no other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wire.ir.dtypes import BOOL
from wire.ir.grids import spec_of, spec_text
from wire.ir.ops import ELEMENTWISE

from .. import numpy as mnp
from ..core.array import Array, apply, literal
from ..numpy.contraction import Labelled
from ..numpy.promotion import cast, index_dtype, like
from . import collective_rules, control_rules, conv_rules, linalg_rules, threefry
from .indexing_rules import clamped, flattened, inside
from .step_list import Function, Inner, Whole, call_graph, looked_up, rebuilt, run, run_like
from .vjp_rules import dot_labels, missing, product

Flags = Sequence[bool]
Rule = Callable[..., Array]
Row = Rule | Whole


def batch(
    fn: Function, size: int, arrays: Sequence[Array], batched: Flags, names: Sequence[str] = ()
) -> tuple[list[Array], list[bool]]:
    """`fn` of each of `size` elements of the `arrays` that are `batched` (along axis 0) and of the others as they are:
    the results, and which of them are batched."""
    types = [
        array.type._replace(shape=array.shape[1:]) if flag else array.type
        for array, flag in zip(arrays, batched, strict=True)
    ]
    return batch_of(run(fn, types, [array.weak for array in arrays], names), size, arrays, batched)


def batch_of(inner: Inner, size: int, arrays: Sequence[Array], batched: Flags) -> tuple[list[Array], list[bool]]:
    """`batch` of a function that was run already."""
    environment = {id(tensor): array for tensor, array in zip(inner.arguments, arrays, strict=True)}
    spread = {id(tensor) for tensor, flag in zip(inner.arguments, batched, strict=True) if flag}
    for step in inner.steps:
        inputs = looked_up(step.inputs, environment)
        flags = [id(tensor) in spread for tensor in step.inputs]
        places = [place for place, _ in step.outputs]
        row = VMAPS.get(step.op) if step.mark is None else Whole(step.mark.vmap)
        if not any(flags):
            results, marks = rebuilt(step, inputs), [False] * len(places)
        elif row is None:
            raise missing("vmap", step.op)
        elif isinstance(row, Whole):
            every, spread_results = row.rule(size, inputs, flags, **step.attrs)
            results, marks = [every[place] for place in places], [spread_results[place] for place in places]
        else:
            results, marks = [row(size, inputs, flags, **step.attrs)], [True]
        for (_, tensor), result, is_batched in zip(step.outputs, results, marks, strict=True):
            environment[id(tensor)] = result
            if is_batched:
                spread.add(id(tensor))
    return looked_up(inner.outputs, environment), [id(tensor) in spread for tensor in inner.outputs]


def repeated(array: Array, size: int) -> Array:
    """An operand that is the same for all `size` elements, as a batch."""
    return mnp.broadcast_to(array, (size, *array.shape))


def all_batched(size: int, inputs: Sequence[Array], batched: Flags) -> list[Array]:
    """The inputs with those that are not batched repeated."""
    return [array if flag else repeated(array, size) for array, flag in zip(inputs, batched, strict=True)]


# -- rules ------------------------------------------------------------------------------------------------


def _elementwise(op: str) -> Rule:
    """Batched operands get dimensions of 1 behind the batch, so that all broadcast as the elements did."""

    def rule(size: int, inputs: Sequence[Array], batched: Flags, **attrs: Any) -> Array:
        rank = max(array.ndim - flag for array, flag in zip(inputs, batched, strict=True))
        return apply(
            op,
            *[_of_rank(array, rank) if flag else array for array, flag in zip(inputs, batched, strict=True)],
            **attrs,
        )

    return rule


def _of_rank(array: Array, rank: int) -> Array:
    """A batch of elements with dimensions of 1 in front, so that they have `rank`."""
    ones = (1,) * (rank + 1 - array.ndim)
    return mnp.reshape(array, (array.shape[0], *ones, *array.shape[1:]))


def _along_axes(op: str) -> Rule:
    return lambda size, inputs, batched, axes: apply(op, *inputs, axes=tuple([axis + 1 for axis in axes]))


def _along_axis(op: str) -> Rule:
    return lambda size, inputs, batched, axis: apply(op, *inputs, axis=axis + 1)


def _slice(size: int, inputs: Sequence[Array], batched: Flags, **attrs: tuple[int, ...]) -> Array:
    whole = {"start": 0, "stop": size, "step": 1}
    return apply("slice", *inputs, **{name: (whole[name], *value) for name, value in attrs.items()})


def _pad(size: int, inputs: Sequence[Array], batched: Flags, **attrs: tuple[int, ...]) -> Array:
    array, fill = inputs
    widths = {name: (0, *value) for name, value in attrs.items()}
    if batched[0] and not batched[1]:
        return apply("pad", array, fill, **widths)
    rows = array if batched[0] else repeated(array, size)
    padded = apply("pad", rows, like(0, fill), **widths)
    inner = apply("pad", mnp.ones(rows.shape[1:], dtype="bool"), literal(False, BOOL), **attrs)
    return apply("select", inner, padded, _of_rank(fill, rows.ndim - 1))


def _transfer(size: int, inputs: Sequence[Array], batched: Flags, **attrs: Any) -> Array:
    return apply("transfer", *inputs, **attrs)


def _constraint(size: int, inputs: Sequence[Array], batched: Flags, spec: str, **attrs: Any) -> Array:
    """The batch is not split."""
    return apply("constraint", *inputs, spec=spec_text(((), *spec_of(spec))), **attrs)


def _concat(size: int, inputs: Sequence[Array], batched: Flags, axis: int) -> Array:
    return apply("concat", *all_batched(size, inputs, batched), axis=axis + 1)


def _dot(size: int, inputs: Sequence[Array], batched: Flags, **axes: tuple[int, ...]) -> Array:
    x, y = inputs
    of_x, of_y = (("batch",) if flag else () for flag in batched)
    left, right, kept = dot_labels(x.ndim - batched[0], y.ndim - batched[1], axes)
    return product(Labelled(x, (*of_x, *left)), Labelled(y, (*of_y, *right)), ("batch", *kept))


def _gather(size: int, inputs: Sequence[Array], batched: Flags, axis: int, batch_dims: int) -> Array:
    data, index = inputs
    if not batched[1] and not batch_dims:
        return apply("gather", data, index, axis=axis + 1, batch_dims=0)
    if batched[0]:
        index = index if batched[1] else repeated(index, size)
        return apply("gather", data, index, axis=axis + 1, batch_dims=batch_dims + 1)
    rows = apply("gather", data, mnp.moveaxis(index, 0, batch_dims), axis=axis, batch_dims=batch_dims)
    return mnp.moveaxis(rows, axis, 0)


def _scatter(size: int, inputs: Sequence[Array], batched: Flags, axis: int, mode: str) -> Array:
    """One scatter into all rows in one, where each has indices of its own; what was out of range stays so."""
    data, updates = all_batched(size, (inputs[0], inputs[2]), (batched[0], batched[2]))
    index = inputs[1]
    if not batched[1]:
        return apply("scatter", data, index, updates, axis=axis + 1, mode=mode)
    dim, count = data.shape[axis + 1], math.prod(index.shape[1:])
    before, after = math.prod(data.shape[1 : axis + 1]), math.prod(data.shape[axis + 2 :])
    rows = mnp.reshape(index, (size, count))
    places = mnp.where(mnp.ravel(inside(rows, dim)), flattened(clamped(rows, dim), dim), -1)
    flat = apply(
        "scatter",
        _rows_in_one(data, (size, before, dim, after)),
        places,
        _rows_in_one(updates, (size, before, count, after)),
        axis=0,
        mode=mode,
    )
    return mnp.reshape(mnp.moveaxis(mnp.reshape(flat, (size, dim, before, after)), 1, 2), data.shape)


def _rows_in_one(array: Array, shape: tuple[int, int, int, int]) -> Array:
    size, before, dim, after = shape
    return mnp.reshape(mnp.moveaxis(mnp.reshape(array, shape), 2, 1), (size * dim, before, after))


def _dynamic_slice(size: int, inputs: Sequence[Array], batched: Flags, sizes: tuple[int, ...]) -> Array:
    array, starts = inputs
    if not batched[1]:
        return apply("dynamic_slice", array, _from_first(starts), sizes=(size, *sizes))
    shape = array.shape[1:] if batched[0] else array.shape
    places = _window(starts, shape, sizes)
    if not batched[0]:
        return mnp.reshape(apply("gather", mnp.ravel(array), places, axis=0, batch_dims=0), (size, *sizes))
    rows = mnp.reshape(array, (size, math.prod(shape)))
    return mnp.reshape(apply("gather", rows, places, axis=1, batch_dims=1), (size, *sizes))


def _dynamic_update_slice(size: int, inputs: Sequence[Array], batched: Flags) -> Array:
    array, update = all_batched(size, inputs[:2], batched[:2])
    starts = inputs[2]
    if not batched[2]:
        return apply("dynamic_update_slice", array, update, _from_first(starts))
    places = _window(starts, array.shape[1:], update.shape[1:])
    flat = flattened(places, math.prod(array.shape[1:]))
    result = apply("scatter", mnp.ravel(array), flat, mnp.ravel(update), axis=0, mode="set")
    return mnp.reshape(result, array.shape)


def _from_first(starts: Array) -> Array:
    """Starts that begin at the first element of the batch."""
    return mnp.concat([mnp.zeros((1,), dtype=starts.dtype), starts])


def _window(starts: Array, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """The places (batch, elements) in a flattened `shape` of a window of `sizes` at each of `starts` (batch, rank)."""
    dtype = index_dtype(math.prod(shape))
    places = mnp.zeros((starts.shape[0], *[1] * len(shape)), dtype=dtype.numpy)
    for axis, (dim, count) in enumerate(zip(shape, sizes, strict=True)):
        first = cast(clamped(starts[:, axis], dim - count + 1), dtype)
        line = [count if place == axis else 1 for place in range(len(shape))]
        offsets = mnp.reshape(apply("iota", shape=(count,), dtype=dtype.name, axis=0), line)
        places = places + (mnp.reshape(first, (-1, *[1] * len(shape))) + offsets) * math.prod(shape[axis + 1 :])
    return mnp.reshape(places, (starts.shape[0], math.prod(sizes)))


def _composite(size: int, inputs: Sequence[Array], batched: Flags, **attrs: Any) -> tuple[list[Array], list[bool]]:
    """A composite of one operand stays one, along the same axis; of others the body is batched."""

    def body(*operands: Array) -> list[Array]:
        return batch(lambda *arrays: call_graph(attrs["body"], *arrays), size, operands, batched)[0]

    if len(inputs) > 1:
        return batch(lambda *arrays: call_graph(attrs["body"], *arrays), size, inputs, batched)
    axes = {"axis": attrs["axis"] + 1} if "axis" in attrs else {}
    return [apply("composite", *inputs, **{**attrs, **axes, "body": run_like(body, inputs).graph()})], [True]


VMAPS: dict[str, Row] = {
    **{op: _elementwise(op) for op in ELEMENTWISE},
    "random_bits": lambda size, inputs, batched, shape: threefry.random_bits(inputs[0], shape),
    **{op: _along_axes(op) for op in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reverse")},
    **{op: _along_axis(op) for op in ("argmax", "argsort", "cumsum", "cumprod", "cummax", "cummin")},
    "fft": lambda size, inputs, batched, axis, inverse: apply("fft", *inputs, axis=axis + 1, inverse=inverse),
    "reshape": lambda size, inputs, batched, shape: apply("reshape", *inputs, shape=(size, *shape)),
    "transpose": lambda size, inputs, batched, perm: apply("transpose", *inputs, perm=(0, *[a + 1 for a in perm])),
    "broadcast": lambda size, inputs, batched, shape: mnp.broadcast_to(_of_rank(inputs[0], len(shape)), (size, *shape)),
    "slice": _slice,
    "constraint": _constraint,
    "transfer": _transfer,
    "pad": _pad,
    "concat": _concat,
    "after": Whole(lambda size, inputs, batched: ([apply("after", *inputs)], [batched[0]])),
    "dot": _dot,
    "conv": conv_rules.batched,
    **{op: Whole(partial(linalg_rules.vmap, op)) for op in linalg_rules.TANGENTS},
    "solve": linalg_rules.solve_vmap,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "composite": Whole(_composite),
    "cond": Whole(partial(control_rules.cond_vmap, batch)),
    "while": Whole(partial(control_rules.while_vmap, batch)),
    "scan": Whole(partial(control_rules.scan_vmap, batch)),
    "spmd": Whole(partial(collective_rules.spmd_vmap, batch)),
    "all_reduce": collective_rules.batched("all_reduce"),
    "all_gather": collective_rules.batched("all_gather", "axis"),
    "reduce_scatter": collective_rules.batched("reduce_scatter", "axis"),
    "all_to_all": collective_rules.batched("all_to_all", "split_axis", "concat_axis"),
    "permute": collective_rules.batched("permute"),
    "broadcast_from": collective_rules.batched("broadcast_from"),
}
