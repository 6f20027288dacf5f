"""A plan carried out in this process, part by part, on one engine: what workers do, without workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.rank_parts import each_by_itself

from coordinator.planning.model.liveness import DUPLICATED
from coordinator.planning.model.plan import FromInput, FromParam, FromPart, Gang, Part, Plan, Source
from coordinator.planning.plan_messages import counts, outputs
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.ops import CONTROL, inner_graphs
from wire.ir.workspace import scratch_bytes
from wire.passes.unroll_spmd import Ranks
from wire.protocol.engine_names import CPU
from worker.cpu import evaluate

Arrays = Mapping[str, NDArray[Any]]
Compute = Callable[[WireGraph, Arrays], Sequence[NDArray[Any]]]
Value = Callable[[int, int, Source], NDArray[Any]]  # of a part's input


def run_plan(plan: Plan, inputs: Arrays, params: Arrays, compute: Compute = evaluate) -> list[NDArray[Any]]:
    """The graph's outputs, then auditors' counts; a KeyError if a part reads what nobody made or no edge brings."""
    edges = {(edge.source, edge.part, edge.slot) for edge in plan.edges}
    made: dict[FromPart, NDArray[Any]] = {}

    def value(part: int, slot: int, source: Source) -> NDArray[Any]:
        match source:
            case FromInput(name, window):
                return inputs[name] if window is None else window.of(inputs[name])
            case FromParam(name, window):
                return params[name] if window is None else window.of(params[name])
            case FromPart():
                assert (source, part, slot) in edges, "a part reads what no edge brings"
                return made[source]

    gangs = {part: gang for gang in plan.gangs for part in gang.parts}

    for part in plan.parts:
        if part.index in gangs:
            if part.index == gangs[part.index].parts[0]:
                ranks = [plan.parts[each] for each in gangs[part.index].parts]
                made.update(_together(ranks, gangs[part.index], value, compute))
            continue
        names = [part.graph.nodes[index].attrs["name"] for index in part.graph.inputs]
        given = {name: value(part.index, int(name), part.sources[int(name)]) for name in names}
        for slot, array in enumerate(compute(part.graph, given)):
            made[FromPart(part.index, slot)] = array
    arrived = {position: made[source] for position, source in plan.arrivals.items()}
    return [*outputs(plan, arrived, inputs, params), *(np.array(count) for count in counts(plan, arrived))]


def _together(parts: Sequence[Part], gang: Gang, value: Value, compute: Compute) -> dict[FromPart, NDArray[Any]]:
    """What the ranks of a gang make: all in one graph, or each by itself where they have graphs of their own."""
    graph, builder = parts[0].graph, GraphBuilder()
    assert len({(part.node, part.device) for part in parts}) == len(parts), "two ranks on one device"
    if any(part.graph != graph for part in parts):
        assert compute is evaluate, "ranks by themselves are the cpu engine's"
        fed = [[value(part.index, slot, source) for slot, source in enumerate(part.sources)] for part in parts]
        results = each_by_itself([part.graph for part in parts], fed, gang.axes, gang.sizes)
        return {FromPart(part.index, slot): array for part, made in zip(parts, results, strict=True)
                for slot, array in enumerate(made)}  # fmt: skip
    given: dict[str, NDArray[Any]] = {}
    placed: list[list[int]] = []
    for slot, index in enumerate(graph.inputs):
        placed.append([])
        for part in parts:
            name = f"{part.index}.{slot}"
            given[name] = value(part.index, slot, part.sources[slot])
            placed[-1].append(builder.input(name, *graph.types[index]))
    found = Ranks(builder, gang.axes, gang.sizes).place(graph, placed)
    flat = [FromPart(part.index, slot) for slot in range(len(found)) for part in parts]
    whole = builder.build([node for nodes in found for node in nodes])
    return dict(zip(flat, compute(whole, given), strict=True))


def memory_by_device(plan: Plan) -> dict[tuple[str, int], int]:
    """Bytes that each (worker, device) holds at most while its parts run, one after another.

    What a part reads stays: params, inputs, constants, tensors from other parts, each once.  Of what the parts make,
    the most that is alive at once in one of them, where a part's own outputs stay to its end.
    """
    held: dict[tuple[str, int], dict[object, int]] = {}
    made: dict[tuple[str, int], int] = {}
    for part in plan.parts:
        site = (part.node, part.device)
        graph = part.graph
        for index, node in enumerate(graph.nodes):
            if node.op == "input":
                held.setdefault(site, {})[part.sources[int(node.attrs["name"])]] = graph.types[index].size_bytes
            elif node.op in DUPLICATED:
                held.setdefault(site, {})[node] = graph.types[index].size_bytes
        made[site] = max(made.get(site, 0), _most_alive(graph, part.engine == CPU))
    return {site: most + sum(held.get(site, {}).values()) for site, most in made.items()}


def _most_alive(graph: WireGraph, by_numpy: bool) -> int:
    """With what a branch or a loop holds inside, what a kernel copies, and siblings as made together."""
    made = {each: first for first, group in graph.siblings.items() for each in group}
    computing = [index for index, node in enumerate(graph.nodes) if node.op not in DUPLICATED]
    last_use = {source: made.get(index, index) for index in computing for source in graph.nodes[index].inputs}
    for index in computing:
        for source in graph.nodes[index].inputs:
            last_use[source] = max(last_use[source], made.get(index, index))
    last_use |= dict.fromkeys(graph.outputs, len(graph))
    most = 0
    for now in computing:
        alive = [each for each in computing if made.get(each, each) <= now <= last_use.get(each, len(graph))]
        node = graph.nodes[now]
        if node.op in CONTROL:
            inside = max(_most_alive(inner, by_numpy) for inner in inner_graphs(node.op, node.attrs))
        else:
            inside = scratch_bytes(graph, now, by_numpy)
        most = max(most, sum(graph.types[index].size_bytes for index in alive) + (made.get(now, now) == now) * inside)
    return most
