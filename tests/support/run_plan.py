"""A plan carried out in this process, part by part, on the cpu engine: what workers do, without workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from coordinator.dispatch import outputs
from coordinator.plan import FromInput, FromParam, FromPart, Plan, Source
from worker.cpu import evaluate

Arrays = Mapping[str, NDArray[Any]]


def run_plan(plan: Plan, inputs: Arrays, params: Arrays) -> list[NDArray[Any]]:
    """The graph's outputs; a KeyError if a part reads what no earlier part made or no edge brings."""
    edges = {(edge.source, edge.part, edge.slot) for edge in plan.edges}
    made: dict[FromPart, NDArray[Any]] = {}

    def value(part: int, slot: int, source: Source) -> NDArray[Any]:
        match source:
            case FromInput(name):
                return inputs[name]
            case FromParam(name):
                return params[name]
            case FromPart():
                assert (source, part, slot) in edges, "a part reads what no edge brings"
                return made[source]

    for part in plan.parts:
        names = [part.graph.nodes[index].attrs["name"] for index in part.graph.inputs]
        given = {name: value(part.index, int(name), part.sources[int(name)]) for name in names}
        for slot, array in enumerate(evaluate(part.graph, given)):
            made[FromPart(part.index, slot)] = array
    arrived = {slot: made[source] for slot, source in enumerate(plan.outputs) if isinstance(source, FromPart)}
    return outputs(plan, arrived, inputs, params)
