"""The cost model against sums done by hand: two nodes, two workers, round figures."""

from __future__ import annotations

import numpy as np
import pytest
from support.cases.random_graphs import random_graph
from support.machines.profiles import DISPATCH_S, device, near, worker

from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.profiles import SAME_HOST, Profiles
from wire.ir.dtypes import BOOL, F32, F64
from wire.ir.graph import GraphBuilder, WireGraph

KB = 1024  # bytes of one tensor below: 16 x 16 of f32
DOT_S = 2 * 16**3 / 1e6  # at 0.001 GFLOP/s
NEG_S = 2 * KB / 1e6  # at 0.001 GB/s: one tensor read, one written
HOP_S = SAME_HOST.seconds(KB)


def two_nodes() -> WireGraph:
    """-(x @ w)"""
    builder = GraphBuilder()
    x, w = builder.input("x", (16, 16), F32), builder.param("w", (16, 16), F32)
    product = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return builder.build([builder.add("neg", product)])


def slow(number: int, memory_bytes: int = 1 << 20) -> Profiles:
    return near(*(worker(n, device(0, 1e-3, 1e-3), memory_bytes=memory_bytes) for n in range(number)))


def test_one_worker_is_fed_dispatched_and_answers() -> None:
    found = CostModel(two_nodes(), slow(1)).predict([0, 0])
    assert found.seconds == pytest.approx(HOP_S + DISPATCH_S + DOT_S + NEG_S + HOP_S)
    assert found.cut_bytes == 2 * KB
    assert found.memory_bytes == (4 * KB,)  # x, w, and both results at once
    assert found.bytes_in == (KB,)
    assert found.fits


def test_a_cut_adds_a_hop_and_a_dispatch_and_divides_memory() -> None:
    found = CostModel(two_nodes(), slow(2)).predict([0, 1])
    assert found.seconds == pytest.approx(HOP_S + DISPATCH_S + DOT_S + HOP_S + DISPATCH_S + NEG_S + HOP_S)
    assert found.cut_bytes == 3 * KB
    assert found.memory_bytes == (3 * KB, 2 * KB)
    assert found.busy_s == pytest.approx((DISPATCH_S + DOT_S, DISPATCH_S + NEG_S))


def test_what_is_missing_is_counted_per_worker() -> None:
    found = CostModel(two_nodes(), slow(2, 2 * KB + 10)).predict([0, 1])
    assert found.short_bytes == (KB - 10, 0)
    assert not found.fits


def test_a_device_has_a_budget_of_its_own() -> None:
    small = Profiles((worker(0, device(0, 1.0, 1.0, memory_bytes=KB)),))
    assert CostModel(two_nodes(), small).predict([0, 0]).short_bytes == (3 * KB,)


def test_a_tensor_that_two_parts_of_a_worker_read_travels_once() -> None:
    builder = GraphBuilder()
    x = builder.add("exp", builder.input("x", (16, 16), F32))
    there = builder.add("neg", x)
    back = builder.add("add", builder.add("exp", there), x)
    graph = builder.build([builder.add("mul", builder.add("add", back, x), there)])
    model = CostModel(graph, slow(2))
    assignment = [0, 1, 0, 1, 1, 1]  # exp, neg | exp | add, add, mul
    stages = [(part.site[0], part.stage) for part in model.parts(assignment)]
    assert stages == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert model.predict(assignment).cut_bytes == 5 * KB  # x, its exp, neg, exp of that, and the result


def test_views_are_free_and_a_gather_reads_what_it_picks() -> None:
    builder = GraphBuilder()
    table = builder.param("table", (100_000, 4), F32)
    rows = builder.add("gather", table, builder.const(np.arange(8, dtype=np.int32)), axis=0, batch_dims=0)
    model = CostModel(builder.build([builder.add("transpose", rows, perm=(1, 0))]), slow(1))
    assert model.seconds[0][1] == 0.0
    assert model.seconds[0][0] == pytest.approx((2 * 8 * 4 * 4 + 8 * 4) / 1e6)


def test_a_unit_runs_on_the_first_device_that_can() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (4,), F64)
    graph = builder.build([builder.add("exp", builder.add("cast", builder.add("neg", x), dtype="f32"))])
    both = worker(0, device(0, 9.0, 9.0, ("f32",)), device(1, 1.0, 1.0))
    model = CostModel(graph, Profiles((both,)))
    assert model.device == [[1, 1, 0]]
    assert [part.site for part in model.parts([0, 0, 0])] == [(0, 1), (0, 0)]


def test_parts_only_depend_on_earlier_ones_whatever_the_assignment() -> None:
    for seed in range(60):
        model = CostModel(random_graph(seed).graph, slow(3))
        assignment = np.random.default_rng(seed).integers(3, size=len(model.index.units)).tolist()
        place = {unit: number for number, part in enumerate(model.parts(assignment)) for unit in part.units}
        assert sorted(place) == list(range(len(model.index.units)))
        for unit, operands in enumerate(model.index.operands):
            assert all(place[operand] <= place[unit] for operand in operands), seed


def test_a_small_first_part_is_folded_into_its_only_reader() -> None:
    builder = GraphBuilder()
    x, mask = builder.input("x", (16, 16), F32), builder.input("mask", (), F32)
    far = builder.add("exp", x)
    graph = builder.build([builder.add("mul", far, builder.add("neg", mask))])
    model = CostModel(graph, near(*(worker(n, device(0, 1.0, 1.0)) for n in range(2))))
    assert [node.op for node in (graph.nodes[index] for index in model.index.units)] == ["exp", "neg", "mul"]
    prediction, parts = model.arrange([0, 1, 1])
    assert [part.units for part in parts] == [(0,), (1, 2)]
    assert prediction.busy_s[1] < 2 * DISPATCH_S
    assert prediction.cut_bytes == model.predict([0, 1, 1]).cut_bytes


def test_alike_workers_are_twins() -> None:
    same = device(0, 1.0, 1.0)
    some = near(worker(0, same), worker(1, device(0, 2.0, 1.0)), worker(2, same), worker(3, same))
    assert some.twins == [-1, -1, 0, 2]
    far = Profiles(some.workers, frozenset(["node-0", "node-1", "node-2"]))
    assert far.twins == [-1, -1, 0, -1]
    measured = Profiles(some.workers, some.near, {("node-0", "node-1"): SAME_HOST, ("", "node-2"): SAME_HOST})
    assert measured.twins == some.twins, "a measured link as assumed changes nothing"


def branched(rows: int, width: int) -> tuple[WireGraph, int]:
    """Two branches in a row, each with a small result, which the next one reads, and a large one that is kept; and the
    units of both."""
    builder = GraphBuilder()
    does = builder.input("does", (), BOOL)
    x = builder.add("exp", builder.input("x", (rows, width), F32))
    outputs = []
    for number in range(2):
        kept = builder.param(f"kept{number}", (64, 16, 16), F32)
        branches = {}
        for name, op in (("then", "neg"), ("otherwise", "exp")):
            body = GraphBuilder()
            inner = body.input("0", (rows, width), F32), body.input("1", (64, 16, 16), F32)
            branches[name] = body.build([body.add(op, inner[0]), body.add(op, inner[1])])
        x, kept = (builder.add("cond", does, x, kept, **branches, output=output) for output in range(2))
        outputs.append(kept)
    graph = builder.build([builder.add("neg", x), *outputs])
    return graph, len(CostModel(graph, slow(1)).index.units)


def test_of_a_branch_with_several_results_only_those_travel_that_are_read() -> None:
    graph, units = branched(16, 16)
    model = CostModel(graph, slow(2, 1 << 30))
    first = model.predict([0] * units)
    second = model.predict([0, 0, *[1] * (units - 2)])
    assert [graph.nodes[index].op for index in model.index.units] == ["exp", "cond", "cond", "neg"]
    assert first.cut_bytes == 1 + 2 * KB + 2 * 64 * KB
    assert second.cut_bytes == first.cut_bytes + 1 + KB, "the flag, and what the second branch reads of the first"
    assert second.bytes_in == (1 + KB, 1 + KB)
    assert second.memory_bytes[1] < 4 * 64 * KB, "the large result of the first branch is not there"
