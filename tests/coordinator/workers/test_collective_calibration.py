"""What collectives take is learnt from steps that are over, and goes into the next plan."""

from __future__ import annotations

from dataclasses import replace

from support.machines.profiles import device, near, worker

from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.planner import make_plan
from coordinator.workers.collective_calibration import SEEN_MIN, CollectiveCalibration
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder

THREE = near(*(worker(number, device(0, 1.0, 1.0)) for number in range(3)))


def planned(profiles: Profiles, ranks: int = 2) -> Plan:
    builder = GraphBuilder()
    exp = builder.add("exp", builder.input("x", (1 << 16, 8), F32))
    return make_plan(builder.build([builder.add("reduce_sum", exp, axes=(0,))]), profiles, f'data {{"ranks":{ranks}}}')


def learnt(
    plan: Plan, rests: dict[str, float], calibration: CollectiveCalibration | None = None
) -> CollectiveCalibration:
    calibration = calibration or CollectiveCalibration()
    for step in range(SEEN_MIN):
        for node, rest_s in rests.items():
            calibration.ran((id(plan), step), plan, node, rest_s)
    return calibration


def test_collectives_that_take_longer_than_priced_are_priced_higher_in_the_next_plan() -> None:
    plan = planned(THREE)
    priced_s = plan.gangs[0].seconds
    first, second = (plan.parts[part].node for part in plan.gangs[0].parts)
    calibration = learnt(plan, {first: 8 * priced_s, second: 30 * priced_s})
    assert calibration.factors == {first: 8.0, second: 8.0}, "the other one waited for it"
    again = planned(replace(THREE, exchanging=calibration.factors), 3)
    assert again.gangs[0].slower == 8.0
    assert again.gangs[0].seconds > 7 * planned(THREE, 3).gangs[0].seconds
    same = planned(replace(THREE, workers=THREE.workers[:2], exchanging=calibration.factors))
    learnt(same, dict.fromkeys((first, second), 8 * priced_s), calibration)
    assert calibration.factors == {first: 8.0, second: 8.0}, "what was learnt is in the price already, and stays"


def test_ranks_that_exchange_nothing_are_priced_as_ever() -> None:
    builder = GraphBuilder()
    rows = builder.build([builder.add("exp", builder.input("x", (1 << 16, 8), F32))])
    slow = replace(THREE, exchanging=dict.fromkeys((worker.node_id for worker in THREE.workers), 8.0))
    (gang,), (same,) = (make_plan(rows, profiles, 'data {"ranks":3}').gangs for profiles in (THREE, slow))
    assert gang.sent_bytes == 0 and gang == same


def test_a_step_that_is_about_as_priced_or_lacks_a_rank_teaches_nothing() -> None:
    plan = planned(THREE)
    priced_s = plan.gangs[0].seconds
    first, second = (plan.parts[part].node for part in plan.gangs[0].parts)
    assert not learnt(plan, {first: 1.3 * priced_s, second: priced_s}).factors
    assert not learnt(plan, {first: 9 * priced_s}).factors
    assert not learnt(plan, {"node-9": 9 * priced_s}).factors
    calibration = learnt(plan, {first: 9 * priced_s, second: 9 * priced_s})
    calibration.forget(first)
    assert set(calibration.factors) == {second}
