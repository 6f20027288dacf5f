"""Plans of sessions: the state is made where it is read, its values are counted, and what cannot be says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.machines.profiles import device, near, worker

from coordinator.planning.model.memory_check import memory_by_site
from coordinator.planning.model.plan import FromPart, FromState, Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.placement.state_colocation import _even
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.session_planner import Stateful, check_carried, session_plan, sticky_session_plan
from mesh.functions.step_trace import Stepping
from wire.errors import InputError, PlacementError
from wire.policy.strategies import Auto, Pipeline, Single, Strategy

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
