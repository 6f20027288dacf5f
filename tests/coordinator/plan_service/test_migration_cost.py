"""Whether another plan is worth the move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases.random_graphs import random_graph
from support.cases.towers import layers
from support.machines.profiles import device, near, worker

from coordinator.plan_service.migration_cost import MARGIN, REST_S, WEIGHTS_MOVE, StayCost, may_pay, move_s
from coordinator.planning.auto_strategy import Measured
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


def test_a_program_is_planned_anew_only_where_another_plan_may_be_better() -> None:
    """To plan takes a large program seconds, so what calls take by a plan asks for it only if that can change it."""
    profiles = near(*(worker(number, device(0, 0.01, 1e3)) for number in range(2)))
    made = make_plan(layers(256, 64, 4), profiles)
    seconds = {each.name: each.seconds for each in made.candidates if each.seconds is not None}
    plan = replace(made, candidates=tuple(each for each in made.candidates if each.name in seconds))
    single_s = seconds["single"]
    assert plan.candidate == "data 2" and len(seconds) < len(made.candidates)

    def asks(took_s: float, *known: tuple[str, float], before: Measured = ()) -> bool:
        return may_pay(plan, before, (("data 2", took_s), *known))

    assert not asks(plan.seconds) and asks(2 * single_s)
    assert not asks(2 * single_s, *((name, 3 * single_s) for name in seconds if name != "data 2"))
    assert not may_pay(plan, (), (("single", single_s / 9),)), "what this one takes is not known yet"
    now = (("data 2", plan.seconds),)
    assert may_pay(made, (), now) and not may_pay(made, now, now), "what was not predicted counts once"


def test_a_plan_stays_until_staying_has_cost_more_than_the_move() -> None:
    debt = StayCost()
    calls = 0
    while debt.stays(loss_s=0.6, cost_s=3.0, at_s=0.0):
        calls += 1
    assert (calls + 1) * 0.6 == pytest.approx(MARGIN * 3.0, abs=0.6)


def test_a_gain_that_is_none_is_forgotten() -> None:
    debt = StayCost()
    assert debt.gains(1.0, 0.1) and debt.stays(0.9, 1.0, 0.0) and debt.seconds == 0.9
    assert not debt.gains(1.0, (1.0 + WEIGHTS_MOVE.ratio) / 2) and debt.seconds == 0.0, (
        "too little, though it costs nothing"
    )


def test_a_program_moves_once_in_a_while_at_most() -> None:
    debt = StayCost()
    assert not debt.stays(0.9, 0.0, at_s=100.0)
    assert debt.stays(0.9, 0.0, at_s=100.0 + REST_S / 2)
    assert not debt.stays(0.9, 0.0, at_s=100.0 + REST_S)
