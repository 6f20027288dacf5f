"""Subgraphs: from an assignment of a graph's nodes to the subgraphs that workers get, and what is sent between
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from wire.ir.graph import Node, WireGraph
from wire.ir.types import Attrs, TensorType

from .cost_model import CostModel, PartSketch
from .liveness import CONSTANTS
from .plan import Edge, FromConst, FromInput, FromParam, FromPart, ParamPlace, Part, Source
from .profiles import Profiles
from .sent_bytes import fronts, sent_bytes


def parts_of(
    model: CostModel, sketches: Sequence[PartSketch], first: int = 0
) -> tuple[tuple[Part, ...], dict[int, FromPart]]:
    """The parts, numbered from `first`, and which part output carries which graph node."""
    place: dict[int, FromPart] = {}
    parts = [_part(model, index, sketch, place) for index, sketch in enumerate(sketches, first)]
    return tuple(parts), place


def edges_of(parts: Sequence[Part], profiles: Profiles) -> tuple[Edge, ...]:
    """Every tensor that goes from one of these parts, which are in an order in which they can run, to another."""
    front: dict[FromPart, int] = {}
    nodes = {part.index: part.node for part in parts}
    edges = []
    for part in parts:
        types, inputs = part.graph.types, part.graph.inputs
        given: dict[int, int] = {}
        for slot, (source, index) in enumerate(zip(part.sources, inputs, strict=True)):
            if isinstance(source, FromPart):
                whole = source not in front or profiles.sends_zeros(nodes[source.part], part.node)
                edges.append(Edge(source, part.index, slot, sent_bytes(types[index], None if whole else front[source])))
                given |= {index: front[source]} if source in front else {}
        found = fronts(part.graph, given)
        front.update((FromPart(part.index, at), found[o]) for at, o in enumerate(part.graph.outputs) if o in found)
    return tuple(edges)


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


def _part(model: CostModel, number: int, sketch: PartSketch, place: dict[int, FromPart]) -> Part:
    """The subgraph of a sketch; the nodes that others need are added to `place`."""
    index = model.index
    units = set(sketch.units)
    leaving = [node for unit in sketch.units for node in index.leaving(unit, units)]
    members = sorted([node for unit in sketch.units for node in index.members[unit]])
    graph, needs = part_graph(model.graph, members, leaving)
    sources = tuple([_source(model.graph, node, place) for node in needs])
    place.update((node, FromPart(number, slot)) for slot, node in enumerate(leaving))
    worker = model.profiles.workers[sketch.site[0]]
    device = worker.devices[sketch.site[1]]
    seconds = model.part_seconds(sketch)
    return Part(number, worker.node_id, device.index, device.engine, graph, sources, seconds, device.slower)


def part_graph(graph: WireGraph, members: Sequence[int], outputs: Sequence[int]) -> tuple[WireGraph, list[int]]:
    """The graph of some nodes of another, in ascending order, and the nodes that its inputs stand for.

    It is what a GraphBuilder would make of them.  The nodes were checked and are shared already, so they are copied:
    the plan of a large graph consists mostly of this.
    """
    inside, needs, place = set(members), list[int](), dict[int, int]()
    for index in members:
        for source in graph.nodes[index].inputs:
            if source not in inside and source not in place and graph.nodes[source].op not in CONSTANTS:
                place[source] = len(needs)
                needs.append(source)
    order = _canonical(graph, place, outputs)
    nodes = [_input(number, graph.types[source]) for number, source in enumerate(needs)]
    for op, inputs, attrs in map(graph.nodes.__getitem__, order[len(needs) :]):
        nodes.append(Node(op, tuple([place[source] for source in inputs]), attrs))
    blobs = {node.attrs["blob"] for node in nodes if node.op == "const" and "blob" in node.attrs}
    made = WireGraph(
        tuple(nodes),
        tuple([place[index] for index in outputs]),
        tuple([str(slot) for slot in range(len(outputs))]),
        tuple([graph.types[index] for index in order]),
        blobs={address: graph.blobs[address] for address in blobs if address in graph.blobs},
    )
    return made, needs


def _canonical(graph: WireGraph, place: dict[int, int], outputs: Sequence[int]) -> list[int]:
    """The nodes in a graph's canonical order, after those in `place`, to which the others are added."""
    nodes, order = graph.nodes, [*place]
    for output in outputs:
        stack = [(output, iter(nodes[output].inputs))] if output not in place else []
        while stack:
            index, sources = stack[-1]
            for source in sources:
                if source not in place:
                    stack.append((source, iter(nodes[source].inputs)))
                    break
            else:
                stack.pop()
                place[index] = len(order)
                order.append(index)
    return order


@lru_cache(maxsize=4096)
def _input(number: int, kind: TensorType) -> Node:
    """An input that is named by its position."""
    return Node("input", (), Attrs({"dtype": kind.dtype.name, "name": str(number), "shape": kind.shape}))


def _source(graph: WireGraph, node: int, place: Mapping[int, FromPart]) -> Source:
    op, attrs = graph.nodes[node].op, graph.nodes[node].attrs
    if op == "input":
        return FromInput(attrs["name"])
    return FromParam(attrs["name"]) if op == "param" else place[node]
