"""Whether another plan is worth the move."""

from __future__ import annotations

import pytest
from support.cases.random_graphs import random_graph
from support.machines.profiles import device, worker

from coordinator.plan_service.migration_cost import GAIN_MIN, MARGIN, REST_S, StayCost, move_s
from coordinator.planning.model.cost_model import REPLAN_S
from coordinator.planning.model.plan import FromParam
from coordinator.planning.model.profiles import CLIENT, Link, Profiles
from coordinator.planning.planner import make_plan


def test_what_moves_is_the_weights_that_a_worker_does_not_hold() -> None:
    graph = next(made.graph for seed in range(99) if len((made := random_graph(seed, 6, 24)).graph.params) > 1)
    profiles = Profiles((worker(0, device(0, 1.0, 1.0)),), links={(CLIENT, "node-0"): Link(0.0, 100.0)})
    plan = make_plan(graph, profiles, "single")
    sizes = {name: kind.size_bytes for name, kind in plan.graph.param_types.items()}
    used = {source.name for part in plan.parts for source in part.sources if isinstance(source, FromParam)}
    first, *others = sorted(used)
    assert move_s(plan, profiles, lambda node: used, 0.25) == pytest.approx(REPLAN_S + 0.25)
    missing = sum(sizes[name] for name in others)
    assert move_s(plan, profiles, lambda node: {first}, 0.0) == pytest.approx(REPLAN_S + missing / 100.0)


def test_a_plan_stays_until_staying_has_cost_more_than_the_move() -> None:
    debt = StayCost()
    calls = 0
    while debt.stays(loss_s=0.6, cost_s=3.0, at_s=0.0):
        calls += 1
    assert (calls + 1) * 0.6 == pytest.approx(MARGIN * 3.0, abs=0.6)


def test_a_gain_that_is_none_is_forgotten() -> None:
    debt = StayCost()
    assert debt.gains(1.0, 0.1) and debt.stays(0.9, 1.0, 0.0) and debt.seconds == 0.9
    assert not debt.gains(1.0, 1.0 - GAIN_MIN / 2) and debt.seconds == 0.0, "too little, though it costs nothing"


def test_a_program_moves_once_in_a_while_at_most() -> None:
    debt = StayCost()
    assert not debt.stays(0.9, 0.0, at_s=100.0)
    assert debt.stays(0.9, 0.0, at_s=100.0 + REST_S / 2)
    assert not debt.stays(0.9, 0.0, at_s=100.0 + REST_S)
