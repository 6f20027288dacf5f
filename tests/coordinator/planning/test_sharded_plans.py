"""Plans of programs that say how tensors are to lie: each rank on a device, and one device where there are too few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from mesh import PartitionSpec as P
from wire.errors import PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.sharding.partition import partition
from worker.cpu import evaluate

GRID = mesh.Grid((2, 2), ("dp", "tp"))
KEYS = mesh.random.split(mesh.random.key(1))
LAYERS = (
    mesh.nn.AllToShardedLinear.init(KEYS[0], 6, 9, grid=GRID, axis="tp"),  # 9 features over 2 ranks
    mesh.nn.ShardedToAllLinear.init(KEYS[1], 9, 6, grid=GRID, axis="tp"),
)
X = np.random.default_rng(2).standard_normal((5, 6)).astype(np.float32)  # 5 rows over 2 ranks


def machines(count: int) -> Profiles:
    return near(*(worker(number, device(0, 1e-3, 1e-2)) for number in range(count)))


def step(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        return (layers[1](mesh.nn.gelu(layers[0](mesh.shard(x, P("dp"), GRID)))) ** 2).sum()

    return mesh.value_and_grad(loss)(layers)


def planned(strategy: str, count: int) -> Plan:
    """The plan, after its answer was compared with that of one device."""
    graph = mesh.trace(step, LAYERS, X)
    inputs = dict(zip(graph.input_types, map(np.asarray, mesh.tree.leaves((LAYERS, X))), strict=True))
    plan = make_plan(graph, machines(count), strategy)
    for found, wanted in zip(run_plan(plan, inputs, {}), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    return plan


@pytest.mark.parametrize("strategy", ["auto", "ranks"])
def test_every_rank_has_a_device(strategy: str) -> None:
    plan = planned(strategy, 4)
    (gang,) = plan.gangs
    assert sorted(plan.parts[part].node for part in gang.parts) == [f"node-{number}" for number in range(4)]


def test_with_too_few_devices_it_is_computed_as_written_and_the_plan_says_so() -> None:
    plan = planned("auto", 3)
    assert not plan.gangs
    assert any("needs 4 devices, one per rank" in reason for reason in plan.reasons)
    with pytest.raises(PlacementError, match="needs 4 devices"):
        planned("ranks", 3)


def test_strategies_that_split_nothing_compute_the_same() -> None:
    assert not planned("single", 4).gangs
    assert not planned("pipeline", 2).gangs


def test_a_param_that_is_only_an_output_is_given_back_as_it_is() -> None:
    builder = GraphBuilder()
    x = builder.add("constraint", builder.input("x", (4, 2), F32), axes=("dp",), sizes=(2,), spec="dp -")
    graph = builder.build([builder.add("neg", x), builder.param("w", (3,), F32)])
    params = {"w": np.arange(3, dtype=np.float32)}
    inputs = {"x": np.ones((4, 2), np.float32)}
    for got, wanted in zip(evaluate(partition(graph), inputs, params), evaluate(graph, inputs, params), strict=True):
        np.testing.assert_array_equal(got, wanted)
