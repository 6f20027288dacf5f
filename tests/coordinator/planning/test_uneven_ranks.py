"""Rows by the speed of workers: who gets how many, that values are right, and where it cannot be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.cases.towers import layers
from support.machines.profiles import NARROW, device, near, worker
from support.machines.run_plan import run_plan

from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from coordinator.planning.spmd.uneven_ranks import sharing
from mesh import Mesh
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32, F64
from wire.ir.graph import GraphBuilder
from wire.policy.strategies import DataParallel, strategy_of
from worker.cpu import evaluate

GRAPH = layers(240, 64, 3)
BY_SPEED = DataParallel(by_speed=True)


def machines(*gflops: float) -> Profiles:
    return near(*(worker(number, device(0, each, 1e3)) for number, each in enumerate(gflops)))


@pytest.mark.parametrize("gflops", [(0.02, 0.01), (0.03, 0.01, 0.01), (0.01, 0.01, 0.001), (0.05, 0.01, 0.02)])
def test_shares_are_about_as_the_speeds(gflops: tuple[float, ...]) -> None:
    found = sharing(GRAPH, BY_SPEED, machines(*gflops))
    assert 240 % found.ranks == 0
    for share, speed in zip(found.shares, gflops, strict=True):
        assert share / found.ranks == pytest.approx(speed / sum(gflops), abs=0.08)


def test_values_are_right_and_the_plan_is_as_quick_as_the_speeds_allow() -> None:
    profiles = machines(0.03, 0.01, 0.01)
    plan = make_plan(GRAPH, profiles, BY_SPEED.text)
    rng = np.random.default_rng(0)
    values = {
        name: rng.standard_normal(kind.shape).astype(np.float32) / 8
        for name, kind in {**GRAPH.input_types, **GRAPH.param_types}.items()
    }
    inputs, params = {"x": values["x"]}, {name: values[name] for name in GRAPH.param_types}
    (got,), (wanted,) = run_plan(plan, inputs, params), evaluate(GRAPH, values)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    parts = Counter(part.node for part in plan.parts)
    assert parts["node-0"] == 3 * parts["node-1"] == 3 * parts["node-2"] and not plan.gangs
    assert len({part.graph.hash for part in plan.parts}) == 1, "which is compiled once"
    assert plan.seconds < 0.75 * make_plan(GRAPH, profiles, "single").seconds
    assert plan.seconds < 0.75 * make_plan(GRAPH, profiles, "data").seconds


def test_auto_takes_it_where_workers_are_unlike_and_the_plan_says_who_has_how_much() -> None:
    plan = make_plan(GRAPH, machines(0.03, 0.01, 0.01), "auto")
    assert getattr(strategy_of(plan.how), "by_speed", False)
    assert any("equal shares of the rows: worker-0 3, worker-1 1, worker-2 1" in each for each in plan.reasons)
    assert not getattr(strategy_of(make_plan(GRAPH, machines(0.01, 0.01), "auto").how), "by_speed", False)


def test_auto_knows_that_ranks_with_uneven_shares_need_not_begin_together() -> None:
    profiles, graph = machines(*(1.0, 2.0) * 4), layers(960, 64, 3)
    plan = make_plan(graph, profiles, "auto")
    assert getattr(strategy_of(plan.how), "by_speed", False)
    assert plan.seconds < 0.75 * make_plan(graph, profiles, "data").seconds


def test_each_worker_computes_on_a_device_that_can() -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("exp", builder.input("x", (8, 4), F64))])
    narrow = device(0, 9.0, 1e3, NARROW, engine="wgsl")
    beside = [worker(number, narrow, device(1, speed, 1e-6)) for number, speed in enumerate((1e-6, 3e-6))]
    plan = make_plan(graph, near(*beside, worker(2, narrow)), BY_SPEED.text)
    assert {(part.node, part.device) for part in plan.parts} == {("node-0", 1), ("node-1", 1)}


def test_ranks_that_exchange_something_have_even_shares() -> None:
    builder = GraphBuilder()
    total = builder.add("reduce_sum", builder.add("exp", builder.input("x", (8, 4), F32)), axes=(0,))
    with pytest.raises(PlacementError, match="exchange something"):
        make_plan(builder.build([total]), machines(0.03, 0.01), BY_SPEED.text)
    with pytest.raises(PlacementError, match="not to be shared out by speed"):
        make_plan(layers(7, 8, 1), machines(1.0, 1e-6), BY_SPEED.text)
    with pytest.raises(InputError):
        DataParallel(by_speed=3)  # type: ignore[arg-type]
    assert strategy_of(BY_SPEED.text) == BY_SPEED


def test_unlike_workers_compute_it() -> None:
    x, w = np.ones((240, 32), np.float32), np.full((32, 32), 0.01, np.float32)
    with Mesh.builder().mesh("sim").simulate(3, gflops=(3e-4, 1e-4, 1e-4)).build() as mesh:
        got = mesh.run(lambda w, x: x @ w, mesh.put(w), x, strategy=BY_SPEED)
        np.testing.assert_allclose(got, x @ w, rtol=1e-5)
        assert len(mesh.report().workers) == 3
