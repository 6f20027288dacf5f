"""Composites replaced by their bodies."""

from __future__ import annotations

from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.provenance import Provenance


def inline_composites(graph: WireGraph, provenance: Provenance | None = None) -> WireGraph:
    """`graph` without composite nodes; the same values in the same order."""
    if all(node.op != "composite" for node in graph.nodes):
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    outputs = _place(graph, builder, {}, provenance)
    if provenance is not None:
        provenance.passed(builder.order(outputs))
    return builder.build(outputs, graph.output_names, graph.name)


def _place(
    graph: WireGraph, builder: GraphBuilder, bindings: dict[str, int], provenance: Provenance | None = None
) -> list[int]:
    placed: list[int] = []
    for number, node in enumerate(graph.nodes):
        operands, first = [placed[index] for index in node.inputs], len(builder.nodes)
        if node.op in ("input", "param") and node.attrs["name"] in bindings:
            placed.append(bindings[node.attrs["name"]])
        elif node.op == "composite":
            body = node.attrs["body"]
            names = [body.nodes[index].attrs["name"] for index in body.inputs]
            placed.append(_place(body, builder, dict(zip(names, operands, strict=True)))[0])
        else:
            placed.append(builder.copy(node, operands, graph.types[number]))
        if provenance is not None:
            provenance.note(number, {placed[-1], *range(first, len(builder.nodes))})
    return [placed[index] for index in graph.outputs]
