"""Subgraphs: from an assignment of a graph's nodes to the subgraphs that workers are given, and what goes between
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wire.ir.graph import GraphBuilder, WireGraph

from .cost_model import CostModel, PartSketch
from .plan import Edge, FromConst, FromInput, FromParam, FromPart, ParamPlace, Part, Source


def parts_of(
    model: CostModel, sketches: Sequence[PartSketch], first: int = 0
) -> tuple[tuple[Part, ...], dict[int, FromPart]]:
    """The parts, numbered from `first`, and which part output carries which graph node."""
    place: dict[int, FromPart] = {}
    parts = [_part(model, index, sketch, place) for index, sketch in enumerate(sketches, first)]
    return tuple(parts), place


def edges_of(parts: Sequence[Part]) -> tuple[Edge, ...]:
    """Every tensor that goes from one of these parts to another."""
    return tuple(
        Edge(source, part.index, slot, part.graph.types[part.graph.inputs[slot]].size_bytes)
        for part in parts
        for slot, source in enumerate(part.sources)
        if isinstance(source, FromPart)
    )


def output_source(graph: WireGraph, node: int, place: Mapping[int, FromPart]) -> Source | FromConst:
    """Where an output of the graph comes from."""
    return FromConst(node) if graph.nodes[node].op in ("const", "iota") else _source(graph, node, place)


def param_places(graph: WireGraph, parts: Sequence[Part]) -> tuple[ParamPlace, ...]:
    """Every param's homes; the client that put it holds the second copy for as long as it lives."""
    homes: dict[str, list[str]] = {}
    for part in parts:
        for source in part.sources:
            if isinstance(source, FromParam) and part.node not in homes.setdefault(source.name, []):
                homes[source.name].append(part.node)
    sizes = {name: kind.size_bytes for name, kind in graph.param_types.items()}
    return tuple(ParamPlace(name, tuple(nodes), "", sizes[name]) for name, nodes in homes.items())


def _part(model: CostModel, index: int, sketch: PartSketch, place: dict[int, FromPart]) -> Part:
    """The subgraph of a sketch; the nodes that others need are added to `place`."""
    graph = model.graph
    members = {node for unit in sketch.units for node in model.members[unit]}
    builder = GraphBuilder()
    builder.blobs.update(graph.blobs)
    sources: list[Source] = []
    local: dict[int, int] = {}

    def operand(node: int) -> int:
        if node in local:
            return local[node]
        if graph.nodes[node].op in ("const", "iota"):
            local[node] = builder.add(graph.nodes[node].op, **graph.nodes[node].attrs)
        else:
            local[node] = builder.input(str(len(sources)), *graph.types[node])
            sources.append(_source(graph, node, place))
        return local[node]

    for node in sorted(members):
        inputs = [operand(source) for source in graph.nodes[node].inputs]
        local[node] = builder.add(graph.nodes[node].op, *inputs, **graph.nodes[node].attrs)
    units = set(sketch.units)
    leaving = [node for unit in sketch.units for node in model.leaving(unit, units)]
    for slot, node in enumerate(leaving):
        place[node] = FromPart(index, slot)
    worker = model.profiles.workers[sketch.site[0]]
    built = builder.build([local[node] for node in leaving])
    device = worker.devices[sketch.site[1]]
    seconds = model.part_seconds(sketch)
    return Part(index, worker.node_id, device.index, device.engine, built, tuple(sources), seconds, device.slower)


def _source(graph: WireGraph, node: int, place: Mapping[int, FromPart]) -> Source:
    op, attrs = graph.nodes[node].op, graph.nodes[node].attrs
    if op == "input":
        return FromInput(attrs["name"])
    return FromParam(attrs["name"]) if op == "param" else place[node]
