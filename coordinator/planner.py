"""make_plan: from a graph and the machines to a Plan.  A pure function.

The graph is simplified first (`wire/simplify.py`): the values stay the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wire.errors import PlacementError
from wire.graph import GraphBuilder, WireGraph
from wire.simplify import simplify
from wire.strategies import DeviceMap, Pipeline, strategy_of

from .cost import CostModel, PartSketch, Prediction
from .memory import memory_by_site
from .partition import EXACT_ASSIGNMENTS_MAX, Partitioner
from .placement import named, placed
from .plan import Edge, FromConst, FromInput, FromParam, FromPart, ParamPlace, Part, Plan, Source, WorkerShare
from .profile import Profiles


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan follows from, all of it: equal questions have equal plans."""

    graph: WireGraph
    strategy: str
    profiles: Profiles

    def answer(self) -> Plan:
        """The plan; PlacementError if nothing fits."""
        return make_plan(self.graph, self.profiles, self.strategy)


def make_plan(graph: WireGraph, profiles: Profiles, strategy: str = "auto") -> Plan:
    """The plan for one call of `graph`; `strategy` is the text of one (wire/strategies.py).

    PlacementError with need and have per worker if nothing fits, InputError for a strategy that is not known.
    """
    asked = strategy_of(strategy)
    if not profiles.workers:
        raise PlacementError("there is no worker to plan for", next_step="Start mesh-worker")
    graph = simplify(graph)
    if isinstance(asked, DeviceMap):
        return _fitting(graph, named(profiles, asked), strategy, len(profiles.workers))
    count = len(profiles.workers) if isinstance(asked, Pipeline) else CANDIDATES_MAX
    while count < len(profiles.workers):
        try:
            return _fitting(graph, profiles.best(count), strategy, len(profiles.workers))
        except PlacementError:
            count *= 2
    return _fitting(graph, profiles, strategy, len(profiles.workers))


CANDIDATES_MAX = 16  # workers among which to choose; of many more, none but the best are looked at unless they must be


def _fitting(graph: WireGraph, profiles: Profiles, strategy: str, known: int) -> Plan:
    """The best plan that fits; PlacementError if there is none.  `known` workers there are in all."""
    budgets = profiles
    refusals = []
    for _ in range(BUDGETS_TRIED_MAX):
        plan, prediction = _draft(graph, profiles, budgets, strategy, known)
        short = _missing(plan, profiles)
        if not any(short):
            return plan
        refusals.append(_does_not_fit(plan, short))
        if not prediction.fits:
            break
        budgets = _tightened(budgets, prediction, short)
    raise refusals[0]


BUDGETS_TRIED_MAX = 4  # a part may hold slightly more than was predicted of it


def _draft(
    graph: WireGraph, profiles: Profiles, budgets: Profiles, strategy: str, known: int
) -> tuple[Plan, Prediction]:
    """The best plan under these budgets, or the one that lacks least; the profiles have the real ones."""
    model = CostModel(graph, budgets)
    partitioner = Partitioner(model)
    asked = strategy_of(strategy)
    assignment = placed(model, asked) if isinstance(asked, DeviceMap) else partitioner.best(strategy)[1]
    prediction, sketches = model.arrange(assignment)
    parts, edges, place = _parts(model, sketches)
    plan = Plan(
        strategy,
        graph,
        parts,
        edges,
        tuple(_output_source(graph, index, place) for index in graph.outputs),
        _param_places(graph, parts),
        _shares(profiles, prediction, parts),
        prediction.seconds,
        prediction.cut_bytes,
        (*_reasons(partitioner, strategy, prediction, sketches, known), *_relays(profiles, parts, edges)),
    )
    return plan, prediction


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


def _shares(profiles: Profiles, prediction: Prediction, parts: Sequence[Part]) -> tuple[WorkerShare, ...]:
    memory = memory_by_site(parts)
    rows = zip(profiles.workers, prediction.busy_s, prediction.bytes_in, strict=True)
    return tuple(
        WorkerShare(
            worker.node_id,
            worker.name,
            sum(part.node == worker.node_id for part in parts),
            busy_s,
            sum(size for (node, _), size in memory.items() if node == worker.node_id),
            worker.memory_bytes,
            bytes_in,
        )
        for worker, busy_s, bytes_in in rows
    )


def _reasons(
    partitioner: Partitioner, strategy: str, chosen: Prediction, sketches: Sequence[PartSketch], known: int
) -> list[str]:
    """Why the plan is as it is, a sentence each."""
    model = partitioner.model
    workers = model.profiles.workers
    used = sorted({part.site[0] for part in sketches})
    names = ", ".join(workers[worker].name for worker in used) or "none"
    reasons = [f"{len(used)} of {known} workers ({names}), predicted {chosen.seconds * 1e3:.3g} ms per call"]
    if strategy.startswith(DeviceMap.word):
        return [*reasons, "every layer where the device map says", *_detours(model, sketches)][:REASONS_MAX]
    if known > len(workers):
        reasons.append(f"chosen among the {len(workers)} fastest and roomiest")
    if strategy == "auto" and len(workers) ** len(model.units) <= EXACT_ASSIGNMENTS_MAX:
        reasons.append(f"the cheapest of all ways to place {len(model.units)} nodes on {len(workers)} workers")
    if strategy != "pipeline" and 0 < len(used) < len(workers):
        which = f"all {known} workers" if known == len(workers) else f"those {len(workers)}"
        reasons.append(_compared(f"cut across {which}", partitioner.pipeline[0], chosen))
    if strategy != "single" and len(used) > 1:
        reasons.append(_compared("on one worker", partitioner.single[0], chosen))
    return [*reasons, *_detours(model, sketches)][:REASONS_MAX]


REASONS_MAX = 8


def _compared(what: str, other: Prediction, chosen: Prediction) -> str:
    if not other.fits:
        return f"{what} it would need {sum(other.short_bytes)} bytes more than there are"
    times = other.seconds / chosen.seconds
    return f"{what} a call would take {'about' if 0.95 < times < 1.05 else f'{times:.2g} times'} as long"


def _relays(profiles: Profiles, parts: Sequence[Part], edges: Sequence[Edge]) -> list[str]:
    """Which tensors go through the coordinator, and that the cost of it was counted."""
    names = {worker.node_id: worker.name for worker in profiles.workers}
    sizes: dict[tuple[str, str], int] = {}
    for edge in edges:
        way = parts[edge.source.part].node, parts[edge.part].node
        if profiles.link(*way).relayed:
            sizes[way] = sizes.get(way, 0) + edge.size_bytes
    return [
        f"{names[source]} and {names[target]} cannot connect: {size_bytes} bytes per call go through the coordinator, "
        f"predicted {profiles.link(source, target).seconds(size_bytes) * 1e3:.3g} ms"
        for (source, target), size_bytes in sizes.items()
    ]


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


# -- memory -----------------------------------------------------------------------------------------------


def _missing(plan: Plan, profiles: Profiles) -> list[int]:
    """Per worker by how many bytes the parts exceed its budget, or those of its devices."""
    memory = memory_by_site(plan.parts)
    short = []
    for worker in profiles.workers:
        sizes = [memory.get((worker.node_id, device.index), 0) for device in worker.devices]
        pairs = zip(sizes, worker.devices, strict=True)
        on_devices = sum(max(size - device.memory_bytes, 0) for size, device in pairs)
        short.append(max(on_devices, sum(sizes) - worker.memory_bytes, 0))
    return short


def _tightened(budgets: Profiles, prediction: Prediction, short: Sequence[int]) -> Profiles:
    """Budgets under which what was predicted no longer fits."""
    rows = zip(budgets.workers, prediction.memory_bytes, short, strict=True)
    workers = (
        replace(worker, memory_bytes=min(worker.memory_bytes, need) - missing) if missing else worker
        for worker, need, missing in rows
    )
    return replace(budgets, workers=tuple(workers))


def _does_not_fit(plan: Plan, short: Sequence[int]) -> PlacementError:
    rows = [
        f"{share.name} needs {share.memory_bytes} bytes and has "
        f"{share.memory_bytes - missing if missing else share.budget_bytes}"
        for share, missing in zip(plan.workers, short, strict=True)
    ]
    return PlacementError(
        f"no plan fits the workers' memory: {'; '.join(rows)}",
        next_step=f"Raise --max-memory by {sum(short)} bytes in all, or add a worker with at least that much",
    )
