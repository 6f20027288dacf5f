"""Plan builder: from parts and outputs to a Plan: what goes between parts, where params live, what each worker does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wire.ir.graph import WireGraph
from wire.units import time_text

from .cost_model import CostModel, Prediction
from .memory_check import memory_by_worker
from .plan import FromInput, Output, Part, Plan, WorkerShare
from .profiles import Profiles
from .subgraphs import edges_of, output_source, param_places, parts_of


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes of one call by worker: what each receives from the client and other workers, and what it returns."""

    received: dict[str, int]
    returned: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.received.values()) + sum(self.returned.values())


def plan_of(
    graph: WireGraph,
    parts: tuple[Part, ...],
    profiles: Profiles,
    strategy: str,
    outputs: tuple[Output, ...],
    prediction: Prediction | None = None,
    ordered: bool = False,
) -> Plan:
    """The plan that these parts make, `ordered` if a device runs them as they stand.

    Its figures are those of a `prediction`.  Without one they are counted from the parts, and `seconds` are left at 0.
    """
    params = param_places(graph, parts)
    plan = Plan(strategy, graph, parts, edges_of(parts, profiles), outputs, params, (), 0.0, 0, (), ordered=ordered)
    if prediction is not None:
        shares = worker_shares(plan, profiles, prediction.busy_s, prediction.bytes_in)
        return replace(plan, workers=shares, seconds=prediction.seconds, cut_bytes=prediction.cut_bytes)
    nodes = [worker.node_id for worker in profiles.workers]
    busy_s = [sum(part.seconds for part in parts if part.node == node) for node in nodes]
    traffic = traffic_of(plan, profiles)
    shares = worker_shares(plan, profiles, busy_s, [traffic.received[node] for node in nodes])
    return replace(plan, workers=shares, cut_bytes=traffic.total_bytes)


def assigned_plan(model: CostModel, strategy: str, assignment: list[int], per: str, *reasons: str) -> Plan:
    """The plan of an assignment, which has a worker for each unit of the model.

    Its first reason names the workers, and the time that is predicted `per` "call" or "step"; `reasons` follow.
    """
    graph, profiles = model.graph, model.profiles
    prediction, sketches = model.arrange(assignment)
    parts, place = parts_of(model, sketches)
    outputs = tuple(output_source(graph, index, place) for index in graph.outputs)
    names = sorted({profiles.workers[worker].name for worker in assignment})
    used = f"{len(names)} of {len(profiles.workers)} workers ({', '.join(names)})"
    first = f"{used}, predicted {time_text(prediction.seconds)} per {per}"
    return replace(plan_of(graph, parts, profiles, strategy, outputs, prediction), reasons=(first, *reasons))


def worker_shares(
    plan: Plan, profiles: Profiles, busy_s: Sequence[float], bytes_in: Sequence[int]
) -> tuple[WorkerShare, ...]:
    """What every worker does in a plan; the figures are in the order of the profiles."""
    memory = memory_by_worker(plan)
    return tuple(
        WorkerShare(
            worker.node_id,
            worker.name,
            sum(part.node == worker.node_id for part in plan.parts),
            seconds,
            memory.get(worker.node_id, 0),
            worker.memory_bytes,
            size,
        )
        for worker, seconds, size in zip(profiles.workers, busy_s, bytes_in, strict=True)
    )


def traffic_of(plan: Plan, profiles: Profiles) -> Traffic:
    """Counted part by part: a tensor that two parts of one worker read is received twice."""
    received = dict.fromkeys((worker.node_id for worker in profiles.workers), 0)
    for part in plan.parts:
        received[part.node] += sum(part.sizes(FromInput).values())
    for (source, number), size in {(edge.source, edge.part): edge.size_bytes for edge in plan.edges}.items():
        node = plan.parts[number].node
        received[node] += size if plan.parts[source.part].node != node else 0
    returned: dict[str, int] = {}
    for source in plan.arrivals.values():
        part = plan.parts[source.part]
        size = part.graph.types[part.graph.outputs[source.slot]].size_bytes
        returned[part.node] = returned.get(part.node, 0) + size
    return Traffic(received, returned)
