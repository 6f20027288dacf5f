"""Composites replaced by their bodies."""

from __future__ import annotations

from wire.ir.graph import GraphBuilder, WireGraph


def inline_composites(graph: WireGraph) -> WireGraph:
    """`graph` without composite nodes; the same values in the same order."""
    if all(node.op != "composite" for node in graph.nodes):
        return graph
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    outputs = _place(graph, builder, {})
    return builder.build(outputs, graph.output_names, graph.name)


def _place(graph: WireGraph, builder: GraphBuilder, bindings: dict[str, int]) -> list[int]:
    placed: list[int] = []
    for node in graph.nodes:
        operands = [placed[index] for index in node.inputs]
        if node.op in ("input", "param") and node.attrs["name"] in bindings:
            placed.append(bindings[node.attrs["name"]])
        elif node.op == "composite":
            body = node.attrs["body"]
            names = [body.nodes[index].attrs["name"] for index in body.inputs]
            placed.append(_place(body, builder, dict(zip(names, operands, strict=True)))[0])
        else:
            placed.append(builder.add(node.op, *operands, **node.attrs))
    return [placed[index] for index in graph.outputs]
