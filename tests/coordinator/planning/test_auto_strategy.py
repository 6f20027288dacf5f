"""What auto chooses among, on machines where the best is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.cases.towers import layers
from support.cases.training import batch, first_state, train
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import CLIENT, Link, Profiles
from coordinator.planning.planner import make_plan
from coordinator.planning.session_planner import Stateful, session_plan
from coordinator.planning.spmd.split_strategies import counts
from mesh.functions.step_trace import Stepping
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.policy.strategies import Auto, DataTensor, strategy_of
from worker.cpu import evaluate

RNG = np.random.default_rng(3)


def machines(gflops: Sequence[float], links: Sequence[Link] | None = None, memory_bytes: int = 1 << 34) -> Profiles:
    workers = [worker(n, device(0, each, 1e3), memory_bytes=memory_bytes) for n, each in enumerate(gflops)]
    names = [CLIENT, *(each.node_id for each in workers)]
    if links is None:
        return near(*workers)
    ends = dict(zip(names, [Link(0.0, 1e12), *links], strict=True))
    ways = {
        (a, b): max(ends[a], ends[b], key=lambda link: link.seconds(1 << 20)) for a in names for b in names if a != b
    }
    return Profiles(tuple(workers), links=ways)


def names(plan: Plan) -> dict[str, float | None]:
    return {each.name: each.seconds for each in plan.candidates}


def checked(graph: WireGraph, profiles: Profiles, asked: Auto = Auto()) -> Plan:
    """The plan, after its answer was compared with that of one device, and its prediction with those of the others."""
    plan = make_plan(graph, profiles, asked.text)
    kinds = {**graph.input_types, **graph.param_types}
    values = {name: RNG.standard_normal(kind.shape).astype(np.float32) / 8 for name, kind in kinds.items()}
    inputs = {name: values[name] for name in graph.input_types}
    params = {name: values[name] for name in graph.param_types}
    for found, wanted in zip(run_plan(plan, inputs, params), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    if not asked.use_all:
        assert plan.seconds <= min(each.seconds for each in plan.candidates if each.seconds is not None) * 1.06
    return plan


def test_rows_are_shared_out_where_there_is_much_to_do_with_each() -> None:
    plan = checked(layers(256, 64, 4), machines([0.01] * 4))
    assert strategy_of(plan.how).word == "data" and len(plan.gangs[0].parts) == 4
    assert names(plan)["data 4"] == plan.seconds < names(plan)["single"] / 2
    assert names(plan)["data 2"] is None, "it would take more than twice as long, which need not be tried"
    assert any(reason.startswith("data 4 is predicted to take least") for reason in plan.reasons)


def test_weights_are_shared_out_where_there_are_no_rows_to_share() -> None:
    plan = checked(layers(1, 256, 4), machines([1e-4] * 4))
    assert strategy_of(plan.how).word == "tensor"


@pytest.mark.parametrize("speed", [0.0, 1e-320])
def test_devices_that_say_they_do_next_to_nothing_have_a_plan(speed: float) -> None:
    plan = checked(layers(8, 8, 2), near(*(worker(number, device(0, speed, speed)) for number in range(3))))
    assert plan.parts and math.isfinite(plan.seconds)


def test_one_worker_is_enough_for_what_is_little() -> None:
    plan = checked(layers(8, 8, 2), machines([10.0] * 4))
    assert len(plan.parts) == 1 and not plan.gangs
    assert any(each.why.endswith("at least") for each in plan.candidates), "and nobody split it to find out"


ROWS, FAST = layers(256, 64, 4), machines([0.01] * 2)


def test_what_calls_took_counts_more_than_what_is_predicted() -> None:
    first = make_plan(ROWS, FAST)
    predicted = names(first)
    assert first.candidate == "data 2" and predicted["single"]
    took = 1.6 * predicted["single"]
    single = make_plan(ROWS, FAST, measured=(("data 2", took),))
    assert single.candidate == "single" and not single.gangs and names(single)["data 2"] == took
    assert any(reason.startswith("calls took") and "by data 2" in reason for reason in single.reasons)
    both = (("data 2", took), ("single", 1.1 * took))
    again = make_plan(ROWS, FAST, measured=both)
    assert again.candidate == "data 2" and again.seconds == took, "it is the better one of two that are known"
    assert make_plan(ROWS, FAST, measured=both) == again


def test_an_error_of_all_predictions_tries_nothing_else() -> None:
    first = make_plan(ROWS, FAST)
    for times in (0.5, 0.8, 1.25, 1.6):
        plan = make_plan(ROWS, FAST, measured=(("data 2", times * first.seconds),))
        assert plan.candidate == "data 2", f"everything may take {times} times as long as predicted"


def test_a_cut_that_saves_next_to_nothing_is_not_worth_another_worker() -> None:
    """Of two branches one is so short that another worker for it saves a hundredth; two equal ones save half."""
    x = np.ones((1, 4096), np.float32)

    def branches(short: int, long: int) -> WireGraph:
        return mesh.trace(lambda a: (_sines(a, short), _sines(a + 1, long)), x)

    profiles = machines([1e-3] * 2, [Link(0.0, 1e12)] * 2)
    assert make_plan(branches(1, 60), profiles).candidate == "single"
    assert make_plan(branches(30, 31), profiles).candidate == "cut 2"


def _sines(value: Any, times: int) -> Any:
    for _ in range(times):
        value = mnp.sin(value)
    return value


def test_what_does_not_fit_one_worker_is_shared_out() -> None:
    graph = layers(64, 128, 6)
    share = sum(kind.size_bytes for kind in graph.param_types.values()) // 2
    plan = checked(graph, machines([10.0] * 4, memory_bytes=share))
    assert len({part.node for part in plan.parts}) > 1
    assert names(plan)["single"] is None


def test_a_grid_of_two_axes_is_among_them() -> None:
    plan = make_plan(layers(256, 64, 4), machines([1e-4] * 4), "auto")
    assert "data-tensor 2 x 2" in names(plan)
    grid = make_plan(layers(256, 64, 4), machines([1e-4] * 4), DataTensor(4).text)
    assert grid.gangs[0].axes == ("data", "tensor") and grid.gangs[0].sizes == (2, 2)


def test_a_worker_that_is_ten_times_slower_gets_nothing_and_the_plan_says_why() -> None:
    plan = checked(layers(256, 64, 4), machines([0.01, 0.01, 0.001]))
    assert {part.node for part in plan.parts} == {"node-0", "node-1"}
    assert any("worker-2 has no work: it is 10 times slower than worker-0" in reason for reason in plan.reasons)
    assert names(plan)["data 3"] > 2 * plan.seconds


def test_a_worker_behind_a_slow_link_gets_nothing_and_the_plan_says_why() -> None:
    quick, slow = Link(1e-4, 1e9), Link(1e-3, 1.25e5)
    plan = checked(layers(256, 64, 4), machines([0.01] * 3, [quick, quick, slow]))
    assert {part.node for part in plan.parts} == {"node-0", "node-1"}
    assert any("worker-2 has no work: its link carries 1 Mbit/s" in reason for reason in plan.reasons)


@pytest.mark.parametrize("rows", [256, 1])
def test_all_of_them_have_work_where_that_is_asked_for(rows: int) -> None:
    plan = checked(layers(rows, 64, 4), machines([0.01, 0.01, 0.001]), Auto(use_all=True))
    assert {part.node for part in plan.parts} == {"node-0", "node-1", "node-2"}
    assert plan.strategy == 'auto {"use_all":true}'
    told = next(reason for reason in plan.reasons if "is predicted to take least" in reason)
    rivals = {each.name for each in plan.candidates if each.workers in (0, 3)}
    assert {each.name for each in plan.candidates if each.name in told} <= rivals, (
        "others are no plans that were asked for"
    )


def test_more_workers_than_work_is_an_error_where_all_are_to_have_some() -> None:
    builder = GraphBuilder()
    graph = builder.build([builder.add("exp", builder.input("x", (), F32))])
    with pytest.raises(PlacementError, match="no plan gives all 3 workers work: 1 at most"):
        make_plan(graph, machines([1.0] * 3), Auto(use_all=True).text)


def test_the_texts_of_what_may_be_asked() -> None:
    for asked in (Auto(), Auto(use_all=True), DataTensor(8, 4), DataTensor(inputs=("x",))):
        assert strategy_of(asked.text) == asked
    for text in ('auto {"use_all":3}', 'data-tensor {"ranks":3}', 'data-tensor {"tensor":1}'):
        with pytest.raises(InputError):
            strategy_of(text)
    assert [*counts(DataTensor(), machines([1.0] * 6))] == [6]
    with pytest.raises(PlacementError, match="needs 4 workers at least, and the mesh has 3"):
        [*counts(DataTensor(), machines([1.0] * 3))]


# -- sessions ---------------------------------------------------------------------------------------------


def wide(state: Any, x: Any) -> Any:
    """A step with one weight that much is done with."""
    loss, gradient = mesh.value_and_grad(lambda w: mnp.mean(mnp.tanh(mnp.tanh(x @ w) @ w.T) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * gradient}, loss


def test_a_session_takes_the_split_that_is_predicted_to_be_fastest() -> None:
    step = Stepping(wide, {"w": np.ones((64, 64), np.float32)}, (np.ones((512, 64), np.float32),), "auto")
    plan = session_plan(step.graph, machines([0.01] * 4), "auto", Stateful(step.carries, step.returned_count))
    assert strategy_of(plan.how).word in ("data", "fully-sharded") and len(plan.carries) == 4
    assert plan.seconds == min(each for each in names(plan).values() if each) < names(plan)["single"] / 2


def test_a_small_step_stays_on_one_worker() -> None:
    step = Stepping(train, first_state(), batch(0), "auto")
    plan = session_plan(step.graph, machines([10.0] * 4), "auto", Stateful(step.carries, step.returned_count))
    assert len({part.node for part in plan.parts}) == 1
