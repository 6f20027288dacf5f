"""Local attributes: what the attributes of a node become where a rank computes its share of it.

Most name axes, and stay.  To add an op with an attribute that is a size: a row of LOCAL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.graph import GraphBuilder, WireGraph
from ..ir.types import Attrs, TensorType
from .factors import rules_within
from .rule import Body, Rule, local_of

Shape = tuple[int, ...]
Row = Callable[[Attrs, Rule, Sequence[int], Sequence[Shape], Shape], dict[str, Any]]
"""Of attributes, rule, shards of each factor, and the local shapes of operands and result: attributes that differ."""


def local_attrs(
    op: str, attrs: Attrs, rule: Rule, shards: Sequence[int], types: Sequence[TensorType], result: TensorType
) -> dict[str, Any]:
    """The attributes of a rank's share of a node, of which each factor is split into the number in `shards`."""
    row = LOCAL.get(op)
    if row is None:
        return dict(attrs)
    operands = [local_of(kind.shape, dims, shards) for kind, dims in zip(types, rule.operands, strict=True)]
    dims = rule.results[attrs.get("output", 0)]
    return {**attrs, **row(attrs, rule, shards, operands, local_of(result.shape, dims, shards))}


def local_graph(body: Body, shards: Sequence[int]) -> WireGraph:
    """A graph inside a node as a rank has it: one, for all results of the node."""
    split = tuple(shards)
    if split not in body.local_graphs:
        body.local_graphs[split] = _local_graph(body, split)
    return body.local_graphs[split]


def _local_graph(body: Body, shards: Sequence[int]) -> WireGraph:
    graph, builder = body.graph, GraphBuilder()
    placed: list[int] = []
    for index, ((op, inputs, attrs), rule) in enumerate(zip(graph.nodes, rules_within(graph), strict=True)):
        kind = graph.types[index]
        if op == "input":
            placed.append(
                builder.input(attrs["name"], local_of(kind.shape, body.dim_factors[index], shards), kind.dtype)
            )
            continue
        types = [graph.types[source] for source in inputs]
        if rule is not None:
            operand_dims = [body.dim_factors[source] for source in inputs]
            inner = _shards_inside(rule, operand_dims, body.dim_factors[index], attrs.get("output", 0), shards)
            attrs = Attrs(local_attrs(op, attrs, rule, inner, types, kind))
        placed.append(builder.add(op, *[placed[source] for source in inputs], **attrs))
    return builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)


def _shards_inside(
    rule: Rule, operands: Sequence[tuple[tuple[int, ...], ...]], result: tuple[tuple[int, ...], ...], output: int,
    shards: Sequence[int],
) -> list[int]:  # fmt: skip
    """The number of shards that the factors of an inner node are split into, by those of its dimensions."""
    counts = [1] * len(rule.sizes)
    pairs = [*zip(rule.operands, operands, strict=True), (rule.results[output], result)]
    for mine, outer in pairs:
        for factors, above in zip(mine, outer, strict=True):
            if factors and above:
                counts[factors[0]] = shards[above[0]]
    return counts


# -- rows -------------------------------------------------------------------------------------------------


def _shape(attrs: Attrs, rule: Rule, shards: Sequence[int], operands: Sequence[Shape], result: Shape) -> dict[str, Any]:
    return {"shape": result}


def _slice(attrs: Attrs, rule: Rule, shards: Sequence[int], operands: Sequence[Shape], result: Shape) -> dict[str, Any]:
    kept = [bool(factors) for factors in rule.operands[0]]
    stop = [local if is_kept else stop for local, is_kept, stop in zip(result, kept, attrs["stop"], strict=True)]
    return {"stop": tuple(stop)}


def _sizes(attrs: Attrs, rule: Rule, shards: Sequence[int], operands: Sequence[Shape], result: Shape) -> dict[str, Any]:
    return {"sizes": result}


def _conv(attrs: Attrs, rule: Rule, shards: Sequence[int], operands: Sequence[Shape], result: Shape) -> dict[str, Any]:
    if attrs["groups"] == 1:
        return {}
    return {"groups": attrs["groups"] // shards[rule.operands[1][0][0]]}


def _graphs(
    attrs: Attrs, rule: Rule, shards: Sequence[int], operands: Sequence[Shape], result: Shape
) -> dict[str, Any]:
    return {name: local_graph(body, shards) for name, body in rule.bodies.items()}


LOCAL: dict[str, Row] = {
    **dict.fromkeys(("reshape", "broadcast", "iota", "random_bits"), _shape),
    "slice": _slice,
    "dynamic_slice": _sizes,
    "conv": _conv,
    **dict.fromkeys(("composite", "cond", "while", "scan"), _graphs),
}
