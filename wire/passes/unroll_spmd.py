"""unroll: what an spmd node means on one device, as a graph without it.

The body is copied once per rank, each on its blocks of the operands, and a collective becomes plain ops on the values
of all ranks of a group, combined in the order of their numbers.  What all ranks compute alike is one node, as equal
nodes are.  Engines run an spmd node by this form, and it is the reference for engines that run the ranks apart.

Branches and loops with collectives inside are made for a whole group at once: a scan over the carries of all of its
ranks.  Their predicate is the first rank's, as it must be the same on all.  To add a collective: a row of _MEANINGS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..ir.dtypes import BF16, BOOL, F16, F32, dtype_named
from ..ir.graph import GraphBuilder, Node, WireGraph
from ..ir.grids import Axes, Sizes, block, coordinates, groups, local_shape, parts, spec_of
from ..ir.ops import COLLECTIVES, GRAPH_ATTRS, inner_graphs
from ..ir.types import Attrs
from .provenance import Provenance

Values = list[int]
"""The nodes that hold one value, by rank."""


def unroll(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """`graph` without spmd nodes, also in the graphs inside it; the same inputs, outputs and values."""
    if not graph.has_spmd:
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    known: dict[tuple[tuple[int, ...], Attrs], Values] = {}
    for number, node in enumerate(graph.nodes):
        operands, first = [placed[index] for index in node.inputs], len(builder.nodes)
        if node.op == "spmd":
            shared = Attrs({name: value for name, value in node.attrs.items() if name != "output"})
            key = (tuple(operands), shared)
            if key not in known:
                known[key] = _spmd(builder, operands, node.attrs)
            placed.append(known[key][node.attrs["output"]])
        else:
            inner = {name: unroll(node.attrs[name]) for name in GRAPH_ATTRS.get(node.op, ())}
            node = node._replace(attrs=Attrs({**node.attrs, **inner})) if inner else node
            placed.append(builder.copy(node, operands))
        if provenance is not None:
            provenance.note(number, {placed[-1], *range(first, len(builder.nodes))})
    outputs = [placed[index] for index in graph.outputs]
    if provenance is not None:
        provenance.passed(builder.order(outputs))
    return builder.build(outputs, graph.output_names, graph.name)


def _spmd(builder: GraphBuilder, operands: Sequence[int], attrs: Attrs) -> Values:
    """All results of one node."""
    axes, sizes = attrs["axes"], attrs["sizes"]
    ranks = coordinates(sizes)
    inputs = []
    for operand, text in zip(operands, attrs["in_specs"], strict=True):
        spec = spec_of(text)
        shape = local_shape(builder.types[operand].shape, spec, axes, sizes)
        inputs.append([_block(builder, operand, block(spec, axes, sizes, at), shape) for at in ranks])
    placed = Ranks(builder, axes, sizes).place(attrs["body"], inputs)
    results = []
    for values, text in zip(placed, attrs["out_specs"], strict=True):
        spec = spec_of(text)
        blocks: dict[tuple[int, ...], int] = {}
        for value, at in zip(values, ranks, strict=True):
            blocks.setdefault(block(spec, axes, sizes, at), value)
        results.append(joined(builder, blocks, parts(spec, axes, sizes)))
    return results


def _block(builder: GraphBuilder, operand: int, number: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The block of this number along each dimension."""
    if shape == builder.types[operand].shape:
        return operand
    start = tuple(at * dim for at, dim in zip(number, shape, strict=True))
    stop = tuple(at + dim for at, dim in zip(start, shape, strict=True))
    return builder.add("slice", operand, start=start, stop=stop, step=(1,) * len(shape))


def joined(builder: GraphBuilder, blocks: dict[tuple[int, ...], int], counts: tuple[int, ...]) -> int:
    """One tensor of its blocks, joined from the last dimension to the first."""
    for axis in reversed(range(len(counts))):
        rows: dict[tuple[int, ...], Values] = {}
        for number in sorted(blocks):
            rows.setdefault(number[:axis], []).append(blocks[number])
        blocks = {number: _concat(builder, row, axis) for number, row in rows.items()}
    return blocks[()]


class Ranks:
    """A grid's ranks, whose values stand in one builder."""

    def __init__(self, builder: GraphBuilder, axes: Axes, sizes: Sizes) -> None:
        self.builder, self.axes, self.sizes = builder, axes, sizes
        self.count = math.prod(sizes)
        self._together: dict[tuple[WireGraph, Axes], WireGraph] = {}

    def place(self, graph: WireGraph, given: Sequence[Values]) -> list[Values]:
        """The outputs of `graph` for its inputs."""
        rest = iter(given)
        placed: list[Values] = []
        for node in graph.nodes:
            operands = [placed[index] for index in node.inputs]
            placed.append(next(rest) if node.op == "input" else self._node(node, operands))
        return [placed[index] for index in graph.outputs]

    def _node(self, node: Node, operands: list[Values]) -> Values:
        if node.op in COLLECTIVES:
            return self._collective(node, operands[0] if operands else [])
        if not any(inner.free_axes for inner in inner_graphs(node.op, node.attrs)):
            rows = [[values[rank] for values in operands] for rank in range(self.count)]
            return [self.builder.copy(node, row) for row in rows]
        if node.op == "composite":
            return self.place(node.attrs["body"], operands)[0]
        return self._jointly(node, operands)

    def _collective(self, node: Node, values: Values) -> Values:
        by_rank: Values = [0] * self.count
        for members in groups(self.axes, self.sizes, node.attrs["axes"]):
            inputs = [values[rank] for rank in members] if values else list(range(len(members)))
            for rank, output in zip(members, _MEANINGS[node.op](self.builder, inputs, node.attrs), strict=True):
                by_rank[rank] = output
        return by_rank

    def _jointly(self, node: Node, operands: list[Values]) -> Values:
        """A branch or a loop of all ranks of a group."""
        free = {axis for inner in inner_graphs(node.op, node.attrs) for axis in inner.free_axes}
        over = tuple(axis for axis in self.axes if axis in free)
        sections = _SECTIONS[node.op](node.attrs, len(operands))
        by_rank: Values = [0] * self.count
        for members in groups(self.axes, self.sizes, over):
            inputs = [operands[0][members[0]]] if node.op == "cond" else []
            inputs += [operands[place][rank] for section in sections for rank in members for place in section]
            attrs = dict(node.attrs)
            for name in GRAPH_ATTRS[node.op]:
                attrs[name] = self._graph_together(node, name, sections, over)
            for name in ("carry", "consts"):
                if name in attrs:
                    attrs[name] *= len(members)
            for number, rank in enumerate(members):
                attrs["output"] = _place_of(node, number, len(members))
                by_rank[rank] = self.builder.add(node.op, *inputs, **attrs)
        return by_rank

    def _graph_together(self, node: Node, name: str, sections: Sequence[range], over: Axes) -> WireGraph:
        """The graph `name` of a branch or a loop for all ranks of a group over some axes."""
        graph: WireGraph = node.attrs[name]
        if (graph, over) not in self._together:
            sizes = tuple(size for axis, size in zip(self.axes, self.sizes, strict=True) if axis in over)
            inner = GraphBuilder()
            ranks = Ranks(inner, over, sizes)
            kinds = [graph.types[index] for index in graph.inputs]
            inputs: list[Values] = [[] for _ in kinds]
            first = 1 if node.op == "cond" else 0
            for section in sections:
                for _ in range(ranks.count):
                    for place in section:
                        values = inputs[place - first]
                        values.append(inner.input(f"{place}.{len(values)}", *kinds[place - first]))
            results = ranks.place(graph, inputs)
            if name == "test":
                outputs = results[0][:1]
            else:
                ends = _results_of(node)
                outputs = [results[at][rank] for part in ends for rank in range(ranks.count) for at in part]
            self._together[graph, over] = inner.build(outputs)
        return self._together[graph, over]


def _results_of(node: Node) -> tuple[range, ...]:
    """The results, in sections of which each has those of rank 0, then those of rank 1 ..."""
    count = len(node.attrs["then" if node.op == "cond" else "body"].outputs)
    carry = node.attrs["carry"] if node.op == "scan" else count
    return range(carry), range(carry, count)


def _place_of(node: Node, number: int, count: int) -> int:
    """The number of the joint node's result that is that of rank `number` of `count`."""
    first = 0
    for part in _results_of(node):
        if node.attrs["output"] in part:
            return first + number * len(part) + part.index(node.attrs["output"])
        first += count * len(part)
    raise AssertionError("the rules saw to it that there is such a result")


_SECTIONS: dict[str, Callable[[Attrs, int], tuple[range, ...]]] = {  # operands, the predicate of a cond not among them
    "cond": lambda attrs, count: (range(1, count),),
    "while": lambda attrs, count: (range(len(attrs["body"].outputs)), range(len(attrs["body"].outputs), count)),
    "scan": lambda attrs, count: (
        range(attrs["carry"]),
        range(attrs["carry"], attrs["carry"] + attrs["consts"]),
        range(attrs["carry"] + attrs["consts"], count),
    ),
}


# -- what each collective means ---------------------------------------------------------------------------


def _all_reduce(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    return [_combined(builder, operands, attrs["reduction"])] * len(operands)


def _all_gather(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    return [_concat(builder, operands, attrs["axis"])] * len(operands)


def _reduce_scatter(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    cut = [_cut(builder, value, attrs["axis"], len(operands)) for value in operands]
    return [_combined(builder, list(blocks), attrs["reduction"]) for blocks in zip(*cut, strict=True)]


def _all_to_all(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    cut = [_cut(builder, value, attrs["split_axis"], len(operands)) for value in operands]
    return [_concat(builder, blocks, attrs["concat_axis"]) for blocks in zip(*cut, strict=True)]


def _permute(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    kind = builder.types[operands[0]]
    nothing = builder.add("broadcast", builder.const(np.zeros((), kind.dtype.numpy)), shape=kind.shape)
    came = dict(zip(attrs["pairs"][1::2], attrs["pairs"][::2], strict=True))
    return [operands[came[rank]] if rank in came else nothing for rank in range(len(operands))]


def _broadcast_from(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    return [operands[attrs["root"]]] * len(operands)


def _axis_index(builder: GraphBuilder, operands: Values, attrs: Attrs) -> Values:
    return [builder.const(np.int32(number)) for number in operands]


_MEANINGS: dict[str, Callable[[GraphBuilder, Values, Attrs], Values]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "broadcast_from": _broadcast_from,
    "axis_index": _axis_index,
}
COMBINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
OF_BOOLS = {"max": "or", "min": "and"}  # `max` and `min` take numbers


def _combined(builder: GraphBuilder, operands: Values, reduction: str) -> int:
    """One after the other; small floats in f32, rounded once."""
    dtype = builder.types[operands[0]].dtype
    op = OF_BOOLS.get(reduction, COMBINED[reduction]) if dtype is BOOL else COMBINED[reduction]
    wide = F32 if dtype in (F16, BF16) and len(operands) > 1 else dtype
    total, *rest = [_as(builder, value, wide.name) for value in operands]
    for value in rest:
        total = builder.add(op, total, value)
    return _as(builder, total, dtype.name)


def _as(builder: GraphBuilder, value: int, dtype: str) -> int:
    return value if builder.types[value].dtype is dtype_named(dtype) else builder.add("cast", value, dtype=dtype)


def _concat(builder: GraphBuilder, values: Sequence[int], axis: int) -> int:
    return values[0] if len(values) == 1 else builder.add("concat", *values, axis=axis)


def _cut(builder: GraphBuilder, value: int, axis: int, count: int) -> Values:
    shape = builder.types[value].shape
    size = (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
    number = [0] * len(shape)
    blocks: Values = []
    for at in range(count):
        number[axis] = at
        blocks.append(_block(builder, value, tuple(number), size))
    return blocks


__all__ = ["joined", "unroll"]
