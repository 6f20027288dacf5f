"""Predictions beside what simulated workers take, and `auto` beside every other strategy: no machine's noise in it.

What simulated ranks exchange takes no time; bench/predict.py has real ones, whose computing and links are slowed down.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from support.cases.towers import layers
from support.simulated.simulated import simulate

from coordinator.planning.model.program import Program
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.virtual_network import Conditions
from wire.errors import MeshError
from wire.ir.codec import hash_array
from wire.ir.graph import WireGraph

OFF_MAX, BEHIND_MAX = 2.0, 1.1
CALLS = 3
SETTLED_S = 20.0  # virtual: the links are measured by then
OTHERS = ("single", "pipeline", "data", "tensor", "fully-sharded")


def devices(*speeds: float) -> list[Device]:
    return [Device(gflops=each, gbytes_per_s=1e3, dispatch_s=1e-4) for each in speeds]


QUICK, SLOW = Conditions(bytes_per_s=5e7), Conditions(delay_s=0.02, bytes_per_s=2.5e6)
FAR = Conditions(delay_s=0.08, bytes_per_s=1.25e5)
MESHES: dict[str, tuple[list[Device], Sequence[Conditions]]] = {
    "alike": (devices(0.05, 0.05, 0.05), (QUICK, QUICK, QUICK)),
    "unlike": (devices(0.1, 0.05, 0.01), (QUICK, QUICK, QUICK)),
    "far apart": (devices(0.05, 0.05, 0.05), (SLOW, SLOW, SLOW)),
    "one far away": (devices(0.05, 0.05, 0.05), (QUICK, QUICK, FAR)),
}
GRAPHS = {
    "many rows": layers(256, 64, 4),
    "few rows": layers(2, 256, 3),
    "one layer": layers(128, 128, 1),
    "deep": layers(32, 64, 12),
    "small": layers(4, 16, 2),
}


def took(graph: WireGraph, where: str, strategies: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Predicted and virtual seconds of a call by each of these strategies that there is a plan for."""
    found: dict[str, tuple[float, float]] = {}
    machines, links = MESHES[where]
    kinds = graph.param_types
    weights = {
        name: np.full(kind.shape, 0.01 * number, np.float32) for number, (name, kind) in enumerate(kinds.items())
    }
    inputs = {name: np.ones(kind.shape, np.float32) for name, kind in graph.input_types.items()}
    bindings = {name: (hash_array(array), kinds[name]) for name, array in weights.items()}

    async def scenario(cluster: Cluster) -> None:
        for name, link in zip(cluster.names, links, strict=True):
            for other in (COORDINATOR, *cluster.names):
                if other != name:
                    cluster.network.set_way(name, other, link)
                    cluster.network.set_way(other, name, link)
        for array in weights.values():
            cluster.coordinator.hold(hash_array(array), array)
        await asyncio.sleep(SETTLED_S)
        loop = asyncio.get_running_loop()
        for strategy in strategies:
            program, seconds = Program(graph, bindings, strategy), []
            try:
                for _ in range(CALLS + 1):
                    began_s = loop.time()
                    await cluster.coordinator.call(program, inputs)
                    seconds.append(loop.time() - began_s)
                plan = await cluster.coordinator.plan(graph, strategy)
            except MeshError:
                continue
            found[strategy] = plan.seconds, statistics.median(seconds[1:])

    simulate(scenario, devices=machines, plan_ahead=False)
    return found


@pytest.mark.parametrize("where", MESHES)
def test_a_call_takes_about_what_was_predicted(where: str) -> None:
    for what, graph in GRAPHS.items():
        predicted_s, took_s = took(graph, where, ("auto",))["auto"]
        assert max(predicted_s / took_s, took_s / predicted_s) <= OFF_MAX, (what, predicted_s, took_s)


@pytest.mark.parametrize(
    ("where", "what"),
    [("alike", "many rows"), ("unlike", "many rows"), ("far apart", "one layer"), ("one far away", "many rows"),
     ("alike", "small"), ("unlike", "deep")],
)  # fmt: skip
def test_nothing_else_is_quicker_than_what_auto_takes(where: str, what: str) -> None:
    found = took(GRAPHS[what], where, ("auto", *OTHERS))
    assert len(found) >= 5
    best = min(found, key=lambda strategy: found[strategy][1])
    assert found["auto"][1] <= BEHIND_MAX * found[best][1], (best, found)
