"""Branches and loops in plans: siblings stay together and cost once, and a device must know what is inside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import graph_of, siblings
from support.machines.profiles import device, worker
from support.machines.run_plan import run_plan

import mesh
from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.plan_messages import part_seconds
from coordinator.planning.planner import make_plan
from coordinator.workers.straggler_detector import StragglerDetector
from wire.ir.dtypes import F32, F64, DType
from wire.ir.graph import WireGraph
from wire.ir.ops import OPS, WHILE_TRIPS
from wire.ir.types import TensorType
from worker.cpu import evaluate

ROWS = np.ones(8, np.float32)


def looped(dtype: DType = F32, inner: DType | None = None, length: int = 4) -> WireGraph:
    """A scan of two carries and rows, whose body computes in `inner`; each result goes on by itself."""
    kind = TensorType((64,), dtype)

    def turn(b: Any, x: int, y: int) -> list[int]:
        wide = b.add("cast", b.add("add", x, y), dtype=(inner or dtype).name)
        found = b.add("cast", b.add("mul", wide, wide), dtype=dtype.name)
        return [found, x, b.add("max", x, y)]

    body = graph_of([kind, kind], turn)
    attrs = {"body": body, "carry": 2, "consts": 0, "length": length, "reverse": 0, "count": 3}

    def whole(b: Any, x: int, y: int) -> list[int]:
        return [b.add("neg", each) for each in siblings(b, "scan", x, y, **attrs)]

    return graph_of([kind, kind], whole)


@pytest.mark.parametrize("strategy", ["auto", "single", "pipeline"])
def test_siblings_stay_together(strategy: str) -> None:
    graph = looped()
    profiles = Profiles(tuple(worker(number, device(0, 1.0, 1.0)) for number in range(3)))
    plan = make_plan(graph, profiles, strategy)
    holding = [part for part in plan.parts if any(node.op == "scan" for node in part.graph)]
    assert len(holding) == 1
    assert sum(node.op == "scan" for node in holding[0].graph) == 3
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(64).astype(np.float32) for name in "01"}
    for found, expected in zip(run_plan(plan, inputs, {}), evaluate(graph, inputs), strict=True):
        assert found.tobytes() == expected.tobytes()
    if strategy == "pipeline":
        assert len(plan.parts) > 1


def test_a_loop_costs_its_turns_once() -> None:
    profiles = Profiles((worker(0, device(0, 1.0, 1.0)),))

    def seconds(graph: WireGraph) -> float:
        model = CostModel(graph, profiles)
        assert [len(members) for members in model.index.members] == [3, 1, 1, 1]
        return model.seconds[0][0]

    dispatch_s = profiles.workers[0].devices[0].dispatch_s
    assert seconds(looped(length=1000)) == pytest.approx(10 * seconds(looped(length=100)), rel=0.05)
    assert seconds(looped(length=1000)) >= 1000 * dispatch_s
    turning = mesh.trace(lambda x: mesh.while_loop(lambda c: c.sum() < 1, lambda c: c + x, x), np.zeros(64, np.float32))
    assert CostModel(turning, profiles).seconds[0][0] >= WHILE_TRIPS * dispatch_s


def test_a_device_must_know_what_is_inside() -> None:
    """A body in f64 goes to the cpu of the same worker, and so does one with an op that the gpu lacks."""
    cpu, dtypes = device(1, 1.0, 1.0), dict.fromkeys(OPS, ("bool", "f32", "i32", "u32"))
    gpu = replace(device(0, 100.0, 100.0), engine="wgsl", dtypes_by_op=dtypes)
    lacking = replace(gpu, dtypes_by_op={op: names for op, names in dtypes.items() if op != "max"})
    for first, graph, index in ((gpu, looped(), 0), (gpu, looped(inner=F64), 1), (lacking, looped(), 1)):
        plan = make_plan(graph, Profiles((worker(0, first, cpu),)), "single")
        assert [part.device for part in plan.parts if any(node.op == "scan" for node in part.graph)] == [index]


def test_what_a_turn_holds_counts_as_memory() -> None:
    def wide(x: Any) -> Any:
        return mesh.scan(lambda carry, row: (carry + (row[:, None] * row[None, :]).sum(), ()), 0.0, x)[0]

    graph = mesh.trace(wide, np.zeros((3, 300), np.float32))
    model = CostModel(graph, Profiles((worker(0, device(0, 1.0, 1.0)),)))
    assert model.predict([0] * len(model.index.units)).memory_bytes[0] > 300 * 300 * 4


def test_nobody_is_slow_or_stuck_for_work_that_depends_on_values() -> None:
    """A part with a while takes what it takes: no verdict follows, and no second try."""
    steady, varying = looped(), mesh.trace(lambda x: mesh.while_loop(lambda c: c.sum() < 1, lambda c: c + x, x), ROWS)
    inside = mesh.trace(lambda x: mesh.map(lambda row: mesh.cond(row > 0, lambda: row, lambda: -row), x), ROWS)
    assert [graph.work_varies for graph in (steady, varying, inside)] == [False, True, True]
    for graph in (steady, varying):
        plan = make_plan(graph, Profiles((worker(0, device(0, 1.0, 1.0)),)), "single")
        (expected_s,) = part_seconds(plan).values()
        assert (expected_s == math.inf) == graph.work_varies
        seen = StragglerDetector()
        for took_s in [0.1] * 10 + [10.0] * 5:
            seen.took(plan, {0: took_s}, 1)
        assert (seen.slowness(("node-0", 0)) > 1) == (not graph.work_varies)
