"""Plans of sessions: the state is made where it is read, its values are counted, and what cannot be says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.call_count import calls_of
from support.cases.training import batch, first_state, train
from support.machines.profiles import device, near, worker

from coordinator.planning import plan_messages
from coordinator.planning.model.cost_model import CostModel
from coordinator.planning.model.memory_check import memory_by_site
from coordinator.planning.model.plan import FromPart, FromState, Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.placement.state_colocation import _even
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.plan_messages import Inventory
from coordinator.planning.session_planner import (
    Stateful,
    check_carried,
    interim_plan,
    session_plan,
    sticky_session_plan,
)
from mesh.functions.step_trace import Stepping
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from wire.policy.strategies import Auto, DataTensor, Pipeline, Single, Strategy
from wire.protocol.messages import PlanKey
from wire.units import time_text

STEP = Stepping(train, first_state(), batch(0), "auto")
STATE = Stateful(STEP.carries, STEP.returned_count, values=2)


def mesh_of(count: int) -> Profiles:
    """So many workers, all alike."""
    return near(*(worker(number, device(0, 10.0, 10.0)) for number in range(count)))


def sound(plan: Plan) -> None:
    """Every piece that is read is made on the same device, and nothing of the state comes back."""
    makers = [(carry.state, plan.parts[carry.source.part]) for carry in plan.carries]
    made = {(piece, maker.node, maker.device) for piece, maker in makers}
    for part in plan.parts:
        for source in part.sources:
            if isinstance(source, FromState):
                assert (source, part.node, part.device) in made
    assert {carry.state.name for carry in plan.carries} == {name for name, _ in STATE.carries}
    assert len(plan.outputs) == STATE.returned_count
    carried = {carry.source for carry in plan.carries}
    assert not carried & {source for source in plan.outputs if isinstance(source, FromPart)}


@pytest.mark.parametrize("strategy", ["auto", "single", "pipeline"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_state_is_made_where_it_is_read(strategy: str, workers: int) -> None:
    plan = session_plan(STEP.graph, mesh_of(workers), strategy, STATE)
    sound(plan)
    if strategy == "pipeline":
        assert len({part.node for part in plan.parts}) == workers, "there are more groups than workers"


@pytest.mark.parametrize("strategy", ["data", "tensor", "fully-sharded"])
def test_ranks_carry_what_they_make(strategy: str) -> None:
    plan = session_plan(STEP.graph, mesh_of(2), strategy, STATE)
    sound(plan)
    assert len(plan.gangs) == 1 and plan.ordered
    owners = plan.owners
    assert all(len(nodes) == 2 for piece, nodes in owners.items() if piece.window is None), "replicas"
    assert any(piece.window is not None for piece in owners) == (strategy != "data")


@pytest.mark.parametrize("strategy", ["tensor", "fully-sharded"])
def test_ranks_need_not_divide_the_state(strategy: str) -> None:
    plan = session_plan(STEP.graph, mesh_of(3), f'{strategy} {{"ranks":3}}', STATE)
    sound(plan)
    assert len(plan.gangs[0].parts) == 3, "of tensors of 16"


def test_ranks_in_groups_are_as_many_as_make_groups_and_have_the_state_in_place() -> None:
    builder = GraphBuilder()
    x, state = builder.input("x", (6,), F32), builder.param("s", (6, 6), F32)
    total = builder.add("add", builder.add("broadcast", x, shape=(6, 6)), state)
    graph = builder.build([builder.add("reduce_sum", total, axes=(0, 1)), builder.add("transpose", total, perm=(1, 0))])
    turned = Stateful((("s", 1),), 1)
    plan = session_plan(graph, mesh_of(5), DataTensor().text, turned)
    assert plan.gangs[0].sizes == (2, 2) and len(plan.carries) == 4
    with pytest.raises(PlacementError, match="4 workers at least, and the mesh has 3"):
        session_plan(graph, mesh_of(3), DataTensor().text, turned)


def test_what_has_nothing_to_do_with_the_state_is_computed_somewhere() -> None:
    builder = GraphBuilder()
    outputs = [builder.add("sin", builder.input("x", (8,), F32))]
    for number in range(3):
        state = builder.param(f"s{number}", (8,), F32)
        outputs.append(builder.add("add", state, state))
    state = Stateful(tuple((f"s{number}", number + 1) for number in range(3)), 1)
    small = mesh_of(3).with_memory([250] * 3)  # no worker has room for all of it
    plan = session_plan(builder.build(outputs), small, "auto", state)
    assert len({part.node for part in plan.parts}) > 1 and len(plan.carries) == 3


@pytest.mark.parametrize("strategy", ["single", "auto"])
def test_a_state_that_stays_on_its_worker_makes_no_link_to_the_client_dear(strategy: str) -> None:
    """A fast worker beyond a slow link keeps 64 MiB of keys and values there: nothing of them comes back in a step."""
    builder = GraphBuilder()
    kept = builder.add("add", builder.param("kept", (4096, 4096), F32), builder.input("x", (), F32))
    told = builder.add("reduce_sum", kept, axes=(0, 1))
    graph, state = builder.build([told, kept]), Stateful((("kept", 1),), 1)
    slow, fast = worker(0, device(0, 10.0, 1.0)), worker(1, device(0, 100.0, 10.0))
    profiles = Profiles((slow, fast), near=frozenset({slow.node_id}))
    plan = session_plan(graph, profiles, strategy, state)
    assert [part.node for part in plan.parts] == [fast.node_id]
    assert plan.cut_bytes == 8 and plan.seconds < 0.1
    assert f"predicted {time_text(plan.seconds)} per step" in plan.reasons[0]


def counters(count: int) -> tuple[WireGraph, Stateful]:
    """So many states, each of which is added to what was made of the one before."""
    builder = GraphBuilder()
    made, outputs = builder.input("x", (8,), F32), list[int]()
    for number in range(count):
        made = builder.add("add", builder.param(f"s{number}", (8,), F32), made)
        outputs.append(made)
        made = builder.add("mul", made, builder.param(f"w{number}", (8,), F32))
    carries = tuple((f"s{number}", number + 1) for number in range(count))
    return builder.build([made, *outputs]), Stateful(carries, 1)


def test_few_of_the_ways_to_share_out_a_state_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, state = counters(16)
    predictions: list[int] = []
    predict = CostModel.predict
    monkeypatch.setattr(CostModel, "predict", lambda *given: predictions.append(1) or predict(*given))
    plan = session_plan(graph, mesh_of(16), "auto", state)
    assert len(plan.carries) == 16 and len(predictions) <= 100


def test_a_crowd_does_not_make_it_harder_to_leave_a_state_where_it_is() -> None:
    graph, state = counters(12)
    homes = {name: ("node-1",) for name, _ in state.carries[1:]}
    calls = []
    for crowd in (25, 100):
        workers = mesh_of(crowd)
        calls.append(calls_of(lambda workers=workers: sticky_session_plan(graph, workers, "auto", state, homes)))
    assert calls[1] <= 4 * calls[0]


def test_a_lost_state_goes_where_the_weights_are_that_are_read_with_it() -> None:
    """Another worker is twice as fast, and would have to fetch them."""
    builder = GraphBuilder()
    weight = builder.param("w", (64, 64), F32)
    product = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
    made = [builder.add("dot", builder.param(name, (64, 64), F32), weight, **product) for name in ("lost", "there")]
    graph, state = builder.build(made), Stateful((("lost", 0), ("there", 1)), 0)
    left = near(worker(0, device(0, 0.1, 0.1)), worker(1, device(0, 0.2, 0.2)))
    plan = sticky_session_plan(graph, left, "auto", state, {"w": ["node-0"], "there": ["node-0"]})
    assert plan is not None and {place.name: place.homes for place in plan.params} == {"w": ("node-0",)}


def test_what_a_state_is_carried_to_is_found_at_once() -> None:
    calls = []
    for count in (20, 80):
        graph, state = counters(count)
        plan = session_plan(graph, mesh_of(1), "single", state)
        whole = TensorType((8,), F32)
        params = {source: (b"", whole) for part in plan.parts for source in part.sources}
        have = Inventory({}, {}, frozenset(part.graph.hash for part in plan.parts))
        asked = plan, "node-0", PlanKey(1, 1), params, have
        calls.append(calls_of(lambda asked=asked: plan_messages.deploy(*asked)))
    assert calls[1] <= 5 * calls[0]


def test_every_value_that_is_held_counts_as_memory() -> None:
    few = session_plan(STEP.graph, mesh_of(1), "single", STATE)
    many = session_plan(STEP.graph, mesh_of(1), "single", replace(STATE, values=6))
    (less,), (more,) = memory_by_site(few.parts).values(), memory_by_site(many.parts).values()
    assert more - less == 4 * STEP.state_bytes
    assert few.workers[0].memory_bytes == less


def test_a_state_that_fits_nowhere_says_what_is_missing() -> None:
    profiles = mesh_of(2)
    small = replace(profiles, workers=tuple(replace(each, memory_bytes=4096) for each in profiles.workers))
    with pytest.raises(PlacementError, match=r"needs \S+ KiB and has 4.0 KiB"):
        session_plan(STEP.graph, small, "auto", STATE)


def test_a_plan_with_a_state_survives_being_written() -> None:
    plan = session_plan(STEP.graph, mesh_of(2), "pipeline", STATE)
    assert plan_from(plan_bytes(plan), STEP.graph) == plan


@pytest.mark.parametrize("carries", [(("nothing", 1),), ((STEP.carries[0][0], 0),)], ids=["no param", "fine"])
def test_a_state_is_read_and_its_next_value_computed(carries: Any) -> None:
    if carries[0][0] == "nothing":
        with pytest.raises(InputError):
            check_carried(STEP.graph, Stateful(carries, 1))
    else:
        check_carried(STEP.graph, Stateful(carries, 1))


def test_a_session_is_on_the_device_of_that_number_whichever_workers_its_strategy_names() -> None:
    builder = GraphBuilder()
    moved = builder.add("transfer", builder.param("s", (8,), F32), device="accelerator 2")
    graph, state = builder.build([builder.add("sin", moved)]), Stateful((("s", 0),), 0)
    workers = near(*(worker(n, device(0, 5.0 - n, 1.0, engine="wgsl"), device(1, 1.0, 1.0)) for n in range(4)))
    asked, homes = Single(workers=("worker-3", "worker-2")), {"s": ["node-2"]}
    plans = [
        session_plan(graph, workers, asked.text, state),
        interim_plan(graph, workers, asked, state, PlacementError("too few")),
        sticky_session_plan(graph, workers, Auto(workers=asked.workers).text, state, homes),
    ]
    for plan in plans:
        assert plan is not None and {(part.node, part.device) for part in plan.parts} == {("node-2", 0)}


@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1], [5, 1, 1, 1], [0, 0, 0], [1, 9, 1], list(np.arange(20.0))])
def test_slices_are_contiguous_and_none_is_empty(weights: list[float]) -> None:
    for count in range(1, len(weights) + 1):
        slices = _even(weights, count)
        assert slices == sorted(slices) and set(slices) == set(range(count))


@pytest.mark.parametrize("strategy", [Auto, Single, Pipeline])
def test_a_session_stays_on_the_workers_that_its_strategy_names(strategy: type[Strategy]) -> None:
    asked = strategy(workers=("worker-1", "node-3"))
    plan = session_plan(STEP.graph, mesh_of(4), asked.text, STATE)
    sound(plan)
    assert {part.node for part in plan.parts} <= {"node-1", "node-3"}
    assert plan.strategy == asked.text
    homes = {place.name: place.homes for place in plan.params} | {
        piece.name: tuple(nodes) for piece, nodes in plan.owners.items()
    }
    after = sticky_session_plan(STEP.graph, mesh_of(4).without("node-1"), asked.text, STATE, homes)
    assert after is None or {part.node for part in after.parts} == {"node-3"}
    with pytest.raises(PlacementError, match="none is there"):
        session_plan(STEP.graph, mesh_of(4).without("node-1").without("node-3"), asked.text, STATE)
