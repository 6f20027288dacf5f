"""make_plan: from a graph and the machines to a Plan.  A pure function.

The graph is simplified first (`wire/simplify.py`): the values stay the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.errors import InputError, PlacementError
from wire.graph import GraphBuilder, WireGraph
from wire.simplify import simplify

from .cost import CostModel, PartSketch, Prediction
from .partition import EXACT_ASSIGNMENTS_MAX, Partitioner
from .plan import Edge, FromConst, FromInput, FromParam, FromPart, ParamPlace, Part, Plan, Source, WorkerShare
from .profile import Profiles

STRATEGIES = ("auto", "single", "pipeline")


def make_plan(graph: WireGraph, profiles: Profiles, strategy: str = "auto") -> Plan:
    """The plan for one call of `graph`; PlacementError with need and have per worker if nothing fits."""
    if strategy not in STRATEGIES:
        raise InputError(f"strategy {strategy!r} is not known", next_step=f"Choose one of {', '.join(STRATEGIES)}")
    if not profiles.workers:
        raise PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
    graph = simplify(graph)
    model = CostModel(graph, profiles)
    partitioner = Partitioner(model)
    _, assignment = partitioner.best(strategy)
    prediction, sketches = model.arrange(assignment)
    if not prediction.fits:
        raise _does_not_fit(model, prediction)
    parts, edges, place = _parts(model, sketches)
    params = _param_places(graph, parts)
    return Plan(
        strategy,
        graph,
        parts,
        edges,
        tuple(_output_source(graph, index, place) for index in graph.outputs),
        params,
        _shares(model, prediction, sketches),
        prediction.seconds,
        prediction.cut_bytes,
        tuple(_reasons(partitioner, strategy, prediction, sketches)),
    )


# -- parts ------------------------------------------------------------------------------------------------


def _parts(
    model: CostModel, sketches: Sequence[PartSketch]
) -> tuple[tuple[Part, ...], tuple[Edge, ...], dict[int, FromPart]]:
    place: dict[int, FromPart] = {}  # graph node -> the part output that carries it
    parts, edges = [], []
    for index, sketch in enumerate(sketches):
        part = _part(model, index, sketch, place)
        parts.append(part)
        for slot, source in enumerate(part.sources):
            if isinstance(source, FromPart):
                size = part.graph.types[part.graph.inputs[slot]].size_bytes
                edges.append(Edge(source, index, slot, size))
    return tuple(parts), tuple(edges), place


def _part(model: CostModel, index: int, sketch: PartSketch, place: dict[int, FromPart]) -> Part:
    """The subgraph of a sketch; the nodes that others need are added to `place`."""
    graph = model.graph
    members = {model.units[unit] for unit in sketch.units}
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
    leaving = _leaving(model, sketch, members)
    for slot, node in enumerate(leaving):
        place[node] = FromPart(index, slot)
    worker = model.profiles.workers[sketch.site[0]]
    built = builder.build([local[node] for node in leaving])
    device = sketch.site[1]
    return Part(index, worker.node_id, device, worker.devices[device].engine, built, tuple(sources))


def _leaving(model: CostModel, sketch: PartSketch, members: set[int]) -> list[int]:
    """The members that other parts or the client need, in order."""
    result = []
    for unit in sketch.units:
        outside = any(model.units[consumer] not in members for consumer in model.consumers[unit])
        if outside or unit in model.outputs:
            result.append(model.units[unit])
    return result


def _source(graph: WireGraph, node: int, place: dict[int, FromPart]) -> Source:
    op, attrs = graph.nodes[node].op, graph.nodes[node].attrs
    if op == "input":
        return FromInput(attrs["name"])
    return FromParam(attrs["name"]) if op == "param" else place[node]


def _output_source(graph: WireGraph, node: int, place: dict[int, FromPart]) -> Source | FromConst:
    return FromConst(node) if graph.nodes[node].op in ("const", "iota") else _source(graph, node, place)


# -- the rest of a plan -----------------------------------------------------------------------------------


def _param_places(graph: WireGraph, parts: Sequence[Part]) -> tuple[ParamPlace, ...]:
    """Every param's homes; the client that put it holds the second copy for as long as it lives."""
    homes: dict[str, list[str]] = {}
    for part in parts:
        for source in part.sources:
            if isinstance(source, FromParam) and part.node not in homes.setdefault(source.name, []):
                homes[source.name].append(part.node)
    sizes = {name: kind.size_bytes for name, kind in graph.param_types.items()}
    return tuple(ParamPlace(name, tuple(nodes), "", sizes[name]) for name, nodes in homes.items())


def _shares(model: CostModel, prediction: Prediction, sketches: Sequence[PartSketch]) -> tuple[WorkerShare, ...]:
    counts = [sum(part.site[0] == worker for part in sketches) for worker in range(len(prediction.busy_s))]
    rows = zip(
        model.profiles.workers, counts, prediction.busy_s, prediction.memory_bytes, prediction.bytes_in, strict=True
    )
    return tuple(
        WorkerShare(worker.node_id, worker.name, count, busy_s, memory, worker.memory_bytes, bytes_in)
        for worker, count, busy_s, memory, bytes_in in rows
    )


def _reasons(partitioner: Partitioner, strategy: str, chosen: Prediction, sketches: Sequence[PartSketch]) -> list[str]:
    """Why the plan is as it is, a sentence each."""
    model = partitioner.model
    workers = model.profiles.workers
    used = sorted({part.site[0] for part in sketches})
    names = ", ".join(workers[worker].name for worker in used) or "none"
    reasons = [f"{len(used)} of {len(workers)} workers ({names}), predicted {chosen.seconds * 1e3:.3g} ms per call"]
    if strategy == "auto" and len(workers) ** len(model.units) <= EXACT_ASSIGNMENTS_MAX:
        reasons.append(f"the cheapest of all ways to place {len(model.units)} nodes on {len(workers)} workers")
    if strategy != "pipeline" and 0 < len(used) < len(workers):
        reasons.append(_compared(f"cut across all {len(workers)} workers", partitioner.pipeline[0], chosen))
    if strategy != "single" and len(used) > 1:
        reasons.append(_compared("on one worker", partitioner.single[0], chosen))
    return [*reasons, *_detours(model, sketches)][:REASONS_MAX]


REASONS_MAX = 8


def _compared(what: str, other: Prediction, chosen: Prediction) -> str:
    if not other.fits:
        return f"{what} it would need {sum(other.short_bytes)} bytes more than there are"
    times = other.seconds / chosen.seconds
    return f"{what} a call would take {'about' if 0.95 < times < 1.05 else f'{times:.2g} times'} as long"


def _detours(model: CostModel, sketches: Sequence[PartSketch]) -> list[str]:
    """What does not run on a worker's first device, and why."""
    workers = model.profiles.workers
    found: dict[str, None] = {}
    for part in sketches:
        worker, device = part.site
        if device:
            for index in (model.units[unit] for unit in part.units):
                what = f"{model.graph.nodes[index].op} on {model.graph.types[index].dtype.name}"
                first, other = workers[worker].devices[0].engine, workers[worker].devices[device].engine
                found[f"{workers[worker].name} computes {what} on {other}, because its {first} device cannot"] = None
    return list(found)


def _does_not_fit(model: CostModel, prediction: Prediction) -> PlacementError:
    figures = zip(model.profiles.workers, prediction.memory_bytes, prediction.short_bytes, strict=True)
    rows = [
        f"{worker.name} needs {need} bytes and has {need - short if short else worker.memory_bytes}"
        for worker, need, short in figures
    ]
    missing = sum(prediction.short_bytes)
    return PlacementError(
        f"no plan fits the workers' memory: {'; '.join(rows)}",
        next_step=f"Raise --max-memory by {missing} bytes in all, or add a worker with at least that much",
    )
