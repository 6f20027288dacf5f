"""Subgraphs: from an assignment of a graph's nodes to the subgraphs that workers are given, and what goes between
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wire.ir.graph import WireGraph

from .cost_model import CostModel, PartSketch
from .liveness import CONSTANTS
from .plan import Edge, FromConst, FromInput, FromParam, FromPart, ParamPlace, Part, Source
from .region_builder import RegionBuilder


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
    """The source of an output of the graph."""
    return FromConst(node) if graph.nodes[node].op in CONSTANTS else _source(graph, node, place)


def param_places(graph: WireGraph, parts: Sequence[Part]) -> tuple[ParamPlace, ...]:
    """Every param's homes; the client that put it holds the second copy for as long as it lives."""
    homes: dict[str, list[str]] = {}
    for part in parts:
        for source in part.sources:
            if isinstance(source, FromParam) and part.node not in homes.setdefault(source.name, []):
                homes[source.name].append(part.node)
    sizes = {name: kind.size_bytes for name, kind in graph.param_types.items()}
    return tuple(ParamPlace(name, tuple(nodes), "", sizes[name]) for name, nodes in homes.items())


class _PartRegion(RegionBuilder):
    """The graph of a part: of some nodes of the whole, with constants of its own."""

    def __init__(self, graph: WireGraph, members: Collection[int]) -> None:
        super().__init__(graph)
        self._members = members
        self.needs: list[int] = []  # the nodes that its inputs stand for

    def outside(self, index: int) -> int | None:
        if index in self._members or self.graph.nodes[index].op in CONSTANTS:
            return None
        self.needs.append(index)
        return self.input(len(self.needs) - 1, *self.graph.types[index])


def _part(model: CostModel, number: int, sketch: PartSketch, place: dict[int, FromPart]) -> Part:
    """The subgraph of a sketch; the nodes that others need are added to `place`."""
    index = model.index
    members = {node for unit in sketch.units for node in index.members[unit]}
    region = _PartRegion(model.graph, members)
    for node in sorted(members):
        region.value(node)
    units = set(sketch.units)
    leaving = [node for unit in sketch.units for node in index.leaving(unit, units)]
    graph = region.builder.build([region.value(node) for node in leaving])
    sources = tuple(_source(model.graph, node, place) for node in region.needs)
    place.update((node, FromPart(number, slot)) for slot, node in enumerate(leaving))
    worker = model.profiles.workers[sketch.site[0]]
    device = worker.devices[sketch.site[1]]
    seconds = model.part_seconds(sketch)
    return Part(number, worker.node_id, device.index, device.engine, graph, sources, seconds, device.slower)


def _source(graph: WireGraph, node: int, place: Mapping[int, FromPart]) -> Source:
    op, attrs = graph.nodes[node].op, graph.nodes[node].attrs
    if op == "input":
        return FromInput(attrs["name"])
    return FromParam(attrs["name"]) if op == "param" else place[node]
