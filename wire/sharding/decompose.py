"""Decompose: composites that are split along what their body sums over, replaced by their body."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import GraphBuilder, WireGraph
from .assignment import projected
from .layout import Dims
from .program import Program


def opened(program: Program, wanted: Sequence[Dims]) -> WireGraph:
    """The program's graph with such composites opened; itself if there is none."""
    graph = program.graph
    places = {
        index for index, node in enumerate(graph.nodes) if node.op == "composite" and _loses(program, wanted, index)
    }
    if not places:
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    placed: list[int] = []
    for index, (op, inputs, attrs) in enumerate(graph.nodes):
        operands = [placed[source] for source in inputs]
        if index in places:
            body = attrs["body"]
            names = [body.nodes[leaf].attrs["name"] for leaf in body.inputs]
            placed += builder.graph(body, dict(zip(names, operands, strict=True)))
        else:
            placed.append(builder.add(op, *operands, **attrs))
    return builder.build([placed[index] for index in graph.outputs], graph.output_names, graph.name)


def _loses(program: Program, wanted: Sequence[Dims], index: int) -> bool:
    """Whether an operand or the result is split in a way that the composite cannot be."""
    rule = program.rules[index]
    assert rule is not None
    tensors = [*zip(program.graph.nodes[index].inputs, rule.operands, strict=True), (index, rule.results[0])]
    for tensor, dims in tensors:
        kept = projected(rule, dims, wanted[tensor], program.axes)
        if sum(map(len, kept.values())) < sum(map(len, wanted[tensor])):
            return True
    return False
