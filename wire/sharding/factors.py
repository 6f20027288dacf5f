"""Factors: what of an op can be split, one row per op of the table.

A factor is a loop of the computation that ranks can share out: `dot` of (m, k) and (k, n) has the factors m, k and n.
A rule says for every dimension of operands and results of which factors it is made, the outermost first:

  * a factor of the result is free: ranks that split it compute different elements of it;
  * a factor that is `reduced` gives each rank a term, and the result is partial;
  * what a dimension has besides its factors cannot be split: each rank has all of it.  So `()` is a dimension that is
    whole, such as the axis of a sort;
  * a factor that is `exact` must be shared out evenly, as it is when it is not alone in its dimension;
  * a factor that is `special` needs to know which part of it a rank has (`position_ops.py`).

Halos are not exchanged: windows, reversed, sliced, padded and joined axes are whole.  Ops with graphs inside can be
split in what all of a graph's nodes can be split in without a word between ranks (`region_dims.py`).

The form is that of Shardy's sharding rules (openxla.org/shardy, "Sharding representation": pass-through, reduction and
need-replication factors; compound factors of reshapes), which generalise the per-operator tables of GSPMD (Xu et al.,
2021, arXiv 2105.04663, section 3.2) and the parallel algorithms of Alpa (Zheng et al., 2022, arXiv 2201.12023, 4.1).

To add an op: a row of ROWS, or of WITHOUT with the reason; `tests/wire/sharding/test_factors.py` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..errors import UnknownOp
from ..ir.graph import Node, WireGraph, infer
from ..ir.ops import COLLECTIVES, ELEMENTWISE
from ..ir.types import Attrs, TensorType
from .region_dims import Classes, UnifiedDims
from .rule import WHOLE, Body, Dimensions, Draft, Rule

Types = Sequence[TensorType]


class Sides(NamedTuple):
    """The factors of the dimensions of operands and results."""

    operands: Sequence[Dimensions]
    results: Sequence[Dimensions]
    bodies: Mapping[str, Body] = {}


Row = Callable[[Draft, Attrs, Types, Types], Sides]


def rule_of(op: str, attrs: Attrs, types: Types, results: int = 1) -> Rule | None:
    """The rule of a node over operands of these types, of an op with several results for its first `results`.

    None for an op of WITHOUT.
    """
    row = ROWS.get(op)
    if row is None:
        if op not in WITHOUT:
            raise UnknownOp(f"{op!r} has no sharding rule", op=op, next_step="Add a row to wire/sharding/factors.py")
        return None
    outs = _result_types(op, attrs, types, results)
    draft = Draft()
    sides = row(draft, attrs, types, outs)
    return draft.rule(types, sides.operands, outs, sides.results, sides.bodies)


def rules_within(graph: WireGraph) -> list[Rule | None]:
    """The rule of each node of a graph; nodes that are computed together share one, which may hold whole graphs."""
    rules: list[Rule | None] = [None] * len(graph.nodes)
    for group in computed_together(graph).values():
        op, inputs, attrs = graph.nodes[group[0]]
        results = 1 + max(graph.nodes[index].attrs.get("output", 0) for index in group)
        rule = rule_of(op, attrs, [graph.types[source] for source in inputs], results)
        for index in group:
            rules[index] = rule
    return rules


def computed_together(graph: WireGraph) -> dict[int, tuple[int, ...]]:
    """The nodes that are computed together, those that are results of one op or a node alone, by the first of them."""
    groups: dict[Node | int, list[int]] = {}
    for index, (op, inputs, attrs) in enumerate(graph.nodes):
        shared = Attrs({name: value for name, value in attrs.items() if name != "output"})
        groups.setdefault(Node(op, inputs, shared) if "output" in attrs else index, []).append(index)
    return {group[0]: tuple(group) for group in groups.values()}


def _result_types(op: str, attrs: Attrs, types: Types, results: int) -> list[TensorType]:
    if "output" not in attrs:
        return [infer(Node(op, (), attrs), types)]
    return [infer(Node(op, (), Attrs({**attrs, "output": place})), types) for place in range(results)]


# -- leaves and elementwise -------------------------------------------------------------------------------


def _iota(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    shape = outs[0].shape
    return Sides([], [[(draft.new(dim, special=axis == attrs["axis"]),) for axis, dim in enumerate(shape)]])


def _random_bits(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    return Sides([[WHOLE]], [[(draft.new(dim, special=True),) for dim in outs[0].shape]])


def _elementwise(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """Operands broadcast: what is repeated is whole."""
    shape = outs[0].shape
    result = draft.each(shape)
    return Sides([_aligned(kind.shape, shape, result) for kind in types], [result])


def _aligned(shape: Sequence[int], target: Sequence[int], result: Dimensions) -> list[tuple[int, ...]]:
    ahead = len(target) - len(shape)
    return [result[ahead + axis] if dim == target[ahead + axis] else WHOLE for axis, dim in enumerate(shape)]


# -- along axes -------------------------------------------------------------------------------------------


def _reduce(how: str) -> Row:
    def row(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
        gone = attrs["axes"]
        operand = [(draft.new(dim, how if axis in gone else ""),) for axis, dim in enumerate(types[0].shape)]
        return Sides([operand], [[factors for axis, factors in enumerate(operand) if axis not in gone]])

    return row


def _whole_axis(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """Sorts, running reductions, and what is joined: all but the axis."""
    dims = [WHOLE if axis == attrs["axis"] else (draft.new(dim),) for axis, dim in enumerate(types[0].shape)]
    return Sides([dims] * len(types), [dims])


def _argmax(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    (dims,), _, _ = _whole_axis(draft, attrs, types, outs)
    return Sides([dims], [[dim for axis, dim in enumerate(dims) if axis != attrs["axis"]]])


def _whole_axes(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    dims = [WHOLE if axis in attrs["axes"] else (draft.new(dim),) for axis, dim in enumerate(types[0].shape)]
    return Sides([dims], [dims])


# -- views ------------------------------------------------------------------------------------------------


def _reshape(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """Runs of dimensions of equal size, and in each what both sides begin with in common.

    (6, 4) to (3, 8) share the factor 3 of 6 and 3; what follows, 2 and 4 of 8, share 2, and so on; where there is no
    common divisor the rest of a run is whole.
    """
    before, after = types[0].shape, outs[0].shape
    made: tuple[list[list[int]], list[list[int]]] = ([[] for _ in before], [[] for _ in after])
    if 0 in before:
        return Sides([[WHOLE] * len(before)], [[WHOLE] * len(after)])
    places, left = [-1, -1], [1, 1]
    while True:
        for side, shape in enumerate((before, after)):
            while left[side] == 1 and places[side] + 1 < len(shape):
                places[side] += 1
                left[side] = shape[places[side]]
        common = math.gcd(*left)
        if left == [1, 1]:
            break
        if common == 1:
            _skip_run(before, after, places, left)
            continue
        factor = draft.new(common)
        for side in (0, 1):
            made[side][places[side]].append(factor)
            left[side] //= common
    operand, result = ([tuple(dims) for dims in side] for side in made)
    return Sides([operand], [result])


def _skip_run(before: Sequence[int], after: Sequence[int], places: list[int], left: list[int]) -> None:
    """Go on to the next place behind which as many elements lie on both sides."""
    while left[0] != left[1]:
        side = 0 if left[0] < left[1] else 1
        places[side] += 1
        left[side] *= (before, after)[side][places[side]]
    left[:] = [1, 1]


def _transpose(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    dims = draft.each(types[0].shape)
    return Sides([dims], [[dims[axis] for axis in attrs["perm"]]])


def _slice(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    return _kept(draft, types[0].shape, outs[0].shape)


def _pad(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    (dims,), results, _ = _kept(draft, types[0].shape, outs[0].shape)
    return Sides([dims, []], results)


def _kept(draft: Draft, before: Sequence[int], after: Sequence[int]) -> Sides:
    """A slice as long as its axis is all of it, and so is what is padded by nothing."""
    dims = [(draft.new(dim),) if dim == size else WHOLE for dim, size in zip(before, after, strict=True)]
    return Sides([dims], [dims])


def _after(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """What the others are split in does not matter."""
    dims, *others = [draft.each(kind.shape) for kind in types]
    return Sides([dims, *others], [dims])


# -- contraction ------------------------------------------------------------------------------------------


def _dot(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    left = [
        (draft.new(dim, "sum" if axis in attrs["lhs_contract"] else ""),) for axis, dim in enumerate(types[0].shape)
    ]
    here, there = (*attrs["lhs_batch"], *attrs["lhs_contract"]), (*attrs["rhs_batch"], *attrs["rhs_contract"])
    paired = dict(zip(there, here, strict=True))
    right = [left[paired[axis]] if axis in paired else (draft.new(dim),) for axis, dim in enumerate(types[1].shape)]
    free = [factors for axis, factors in enumerate(left) if axis not in here]
    result = [left[axis] for axis in attrs["lhs_batch"]] + free
    return Sides([left, right], [result + [factors for axis, factors in enumerate(right) if axis not in there]])


def _conv(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """Batch, groups, channels in and out; windows are whole."""
    (batch, _, *dims), (channels, inside, *_), groups = types[0].shape, types[1].shape, attrs["groups"]
    windows = [WHOLE] * len(dims)
    n, out, inner = (draft.new(batch),), (draft.new(channels // groups),), (draft.new(inside, "sum"),)
    group = (draft.new(groups),) if groups > 1 else ()
    return Sides([[n, group + inner, *windows], [group + out, inner, *windows]], [[n, group + out, *windows]])


# -- matrices ---------------------------------------------------------------------------------------------


def _matrices(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """A batch of matrices, each whole."""
    batch = draft.each(types[0].shape[:-2])
    operands, results = (
        [[*batch, *[WHOLE] * (len(kind.shape) - len(batch))] for kind in kinds] for kinds in (types, outs)
    )
    return Sides(operands, results)


# -- indexing ---------------------------------------------------------------------------------------------


def _gather(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """A rank with some of the rows gives those that it has and zeros for the others: terms of a sum."""
    axis, batch = attrs["axis"], attrs["batch_dims"]
    data = draft.each(types[0].shape)
    data[axis] = (draft.new(types[0].shape[axis], "sum", special=True),)
    index = [*data[:batch], *draft.each(types[1].shape[batch:])]
    return Sides([data, index], [[*data[:axis], *index[batch:], *data[axis + 1 :]]])


SCATTERED = {"add": "sum", "max": "max", "min": "min"}  # modes in which updates may come in any order


def _scatter(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """A rank with some of the rows drops the updates of others; one with some of the updates gives terms."""
    axis, how = attrs["axis"], SCATTERED.get(attrs["mode"])
    data = draft.each(types[0].shape)
    data[axis] = (draft.new(types[0].shape[axis], special=True),)
    index = [(draft.new(dim, how, special=True),) if how else WHOLE for dim in types[1].shape]
    return Sides([data, index, [*data[:axis], *index, *data[axis + 1 :]]], [data])


def _dynamic_slice(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    dims = _of_window(draft, types[0].shape, outs[0].shape)
    return Sides([dims, [WHOLE]], [dims])


def _dynamic_update_slice(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    dims = _of_window(draft, types[0].shape, types[1].shape)
    return Sides([dims, dims, [WHOLE]], [dims])


def _of_window(draft: Draft, shape: Sequence[int], window: Sequence[int]) -> list[tuple[int, ...]]:
    """The factors of a window: a dimension of its own size has one, since there its start is 0 whatever is asked."""
    return [(draft.new(dim),) if size == dim else WHOLE for dim, size in zip(shape, window, strict=True)]


# -- structure --------------------------------------------------------------------------------------------


def _composite(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    unified = UnifiedDims(rules_within)
    body = _Graph(unified, attrs["body"])
    operands, results = ([unified.dim_factors(draft, node) for node in side] for side in (body.inputs, body.outputs))
    return Sides(operands, results, {"body": body.finished(draft)})


def _cond(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    unified = UnifiedDims(rules_within)
    then, otherwise = (_Graph(unified, attrs[name]) for name in ("then", "otherwise"))
    unified.join(then.inputs, otherwise.inputs)
    unified.join(then.outputs, otherwise.outputs)
    operands, results = ([unified.dim_factors(draft, node) for node in side] for side in (then.inputs, then.outputs))
    bodies = {"then": then.finished(draft), "otherwise": otherwise.finished(draft)}
    return Sides([[], *operands], results[: len(outs)], bodies)


def _while(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    unified = UnifiedDims(rules_within)
    test, body = (_Graph(unified, attrs[name]) for name in ("test", "body"))
    unified.join(test.inputs, body.inputs)
    unified.join(body.inputs[: len(body.outputs)], body.outputs)
    operands, results = ([unified.dim_factors(draft, node) for node in side] for side in (body.inputs, body.outputs))
    return Sides(operands, results[: len(outs)], {"test": test.finished(draft), "body": body.finished(draft)})


def _scan(draft: Draft, attrs: Attrs, types: Types, outs: Types) -> Sides:
    """Turns follow each other; what a turn does to its row can be shared out."""
    unified = UnifiedDims(rules_within)
    body, carry = _Graph(unified, attrs["body"]), attrs["carry"]
    unified.join(body.inputs[:carry], body.outputs[:carry])
    operands, results = ([unified.dim_factors(draft, node) for node in side] for side in (body.inputs, body.outputs))
    before = carry + attrs["consts"]
    region_operands = [*operands[:before], *[(WHOLE, *dims) for dims in operands[before:]]]
    region_results = [*results[:carry], *[(WHOLE, *dims) for dims in results[carry:]]]
    return Sides(region_operands, region_results[: len(outs)], {"body": body.finished(draft)})


class _Graph:
    """A graph inside a node, with the classes of its values."""

    def __init__(self, unified: UnifiedDims, graph: WireGraph) -> None:
        self._unified, self._graph, self._nodes = unified, graph, unified.add(graph)

    @property
    def inputs(self) -> list[Classes]:
        return [self._nodes[index] for index in self._graph.inputs]

    @property
    def outputs(self) -> list[Classes]:
        return [self._nodes[index] for index in self._graph.outputs]

    def finished(self, draft: Draft) -> Body:
        return Body(self._graph, tuple([self._unified.dim_factors(draft, classes) for classes in self._nodes]))


# -- the table --------------------------------------------------------------------------------------------

ROWS: dict[str, Row] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("broadcast", "constraint", "transfer"), _elementwise),
    "iota": _iota,
    "random_bits": _random_bits,
    "reduce_sum": _reduce("sum"),
    "reduce_prod": _reduce("prod"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "argmax": _argmax,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "fft", "argsort", "concat"), _whole_axis),
    "reverse": _whole_axes,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "after": _after,
    "dot": _dot,
    "conv": _conv,
    **dict.fromkeys(("cholesky", "solve", "lu", "qr", "eigh", "svd"), _matrices),
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "composite": _composite,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
WITHOUT: dict[str, str] = {
    "input": "enters with the layout that was found for it",
    "param": "enters with the layout that was found for it",
    "const": "every rank has it",
    "spmd": "says itself how its operands and results are split",
    **dict.fromkeys(COLLECTIVES, "is for ranks, not for whole tensors"),
}
