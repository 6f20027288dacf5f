"""A plan as plain data, and the sentences that say why it is as it is."""

from __future__ import annotations

import json

import numpy as np
from support.machines.profiles import NARROW, device, near, worker

from coordinator.planning.model.plan import Plan
from coordinator.planning.planner import make_plan
from wire.ir.dtypes import F32, F64
from wire.ir.graph import GraphBuilder, WireGraph


def layers(count: int, width: int = 256) -> WireGraph:
    """x @ w0 @ w1 ..., with a product for every layer."""
    builder = GraphBuilder()
    x = builder.input("x", (width, width), F32)
    for number in range(count):
        weight = builder.param(f"w{number}", (width, width), F32)
        x = builder.add("dot", x, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([x])


def plan_of(graph: WireGraph, strategy: str, gflops: tuple[float, ...], memory_bytes: int = 1 << 30) -> Plan:
    workers = (worker(n, device(0, speed, 10.0), memory_bytes=memory_bytes) for n, speed in enumerate(gflops))
    return make_plan(graph, near(*workers), strategy)


def test_a_plan_is_described_as_json_by_the_names_of_workers() -> None:
    plan = plan_of(layers(4), "pipeline", (1.0, 1.0))
    said = plan.describe()
    assert json.loads(json.dumps(said)) == said
    assert said["strategy"] == "pipeline"
    assert [part["worker"] for part in said["parts"]] == ["worker-0", "worker-1"]
    assert [part["nodes"] for part in said["parts"]] == [5, 5]
    assert {part["engine"] for part in said["parts"]} == {"cpu"}
    assert said["edges"] == [{"from": 0, "to": 1, "slot": 0, "size_bytes": 4 * 256 * 256}]
    assert said["cut_bytes"] == 3 * 4 * 256 * 256
    assert {place["name"]: place["homes"] for place in said["params"]} == {
        "w0": ["worker-0"], "w1": ["worker-0"], "w2": ["worker-1"], "w3": ["worker-1"],
    }  # fmt: skip
    assert all(place["copy"] == "client" for place in said["params"])
    assert [each["parts"] for each in said["workers"]] == [1, 1]
    assert said["seconds"] > sum(each["busy_s"] for each in said["workers"])


def test_equal_pieces_of_work_are_equal_graphs() -> None:
    parts = plan_of(layers(4), "pipeline", (1.0, 1.0)).parts
    assert parts[0].graph.hash == parts[1].graph.hash
    assert parts[0].sources != parts[1].sources


def test_the_reasons_of_auto_say_what_cutting_would_cost() -> None:
    reasons = plan_of(layers(4), "auto", (500.0, 500.0)).reasons
    assert reasons[0].startswith("1 of 2 workers (worker-0), predicted ")
    assert reasons[1] == "the cheapest of all ways to place 4 groups of nodes on 2 workers"
    assert reasons[2].startswith("cut across all 2 workers a call would take 1.")


def test_the_reasons_of_a_cut_say_what_one_worker_would_take() -> None:
    assert plan_of(layers(4), "pipeline", (50.0, 50.0)).reasons[1].startswith("on one worker a call would take 0.")
    tensor = 4 * 256 * 256  # eight weights, the input and two products, where seven tensors have room
    plan = plan_of(layers(8), "auto", (50.0, 50.0), 7 * tensor)
    assert "single does not fit into the workers' memory" in plan.reasons[-1]
    assert {each.name: each.seconds for each in plan.candidates}["single"] is None


def test_the_reasons_name_what_a_first_device_lacks() -> None:
    builder = GraphBuilder()
    x = builder.add("exp", builder.input("x", (8,), F64))
    graph = builder.build([builder.add("tanh", builder.add("cast", x, dtype="f32"))])
    two = worker(0, device(0, 100.0, 100.0, NARROW), device(1, 1.0, 1.0))
    reasons = make_plan(graph, near(two)).reasons
    assert "worker-0 computes exp on f64 on cpu, because its cpu device cannot" in reasons


def test_a_graph_without_work_has_a_plan_without_parts() -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.input("x", (2,), F32), builder.const(np.ones(3, np.float32))])
    plan = plan_of(graph, "auto", (1.0, 1.0))
    assert plan.parts == plan.edges == ()
    assert plan.reasons[0] == "0 of 2 workers (none), predicted 0 ms per call"
