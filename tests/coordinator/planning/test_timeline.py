"""When what of a plan is predicted to run: as the cost model has it, and with ranks that wait for each other."""

from __future__ import annotations

import numpy as np
import pytest
from support.cases.random_graphs import random_graph
from support.machines.profiles import device, near, random_profiles, worker

from coordinator.planning.model.profiles import Profiles
from coordinator.planning.model.timeline import timeline
from coordinator.planning.planner import make_plan
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph


def summed(rows: int) -> WireGraph:
    """The sum of exp over all rows: ranks that share the rows must add up."""
    builder = GraphBuilder()
    exp = builder.add("exp", builder.input("x", (rows, 8), F32))
    return builder.build([builder.add("reduce_sum", exp, axes=(0,))])


@pytest.mark.parametrize("strategy", ["single", "pipeline", "auto"])
def test_a_plan_takes_about_what_was_predicted_and_more_where_devices_are_slow(strategy: str) -> None:
    rng = np.random.default_rng(5)
    for seed in range(20):
        graph = random_graph(seed, 6, 24).graph
        profiles = random_profiles(rng, 3)
        plan = make_plan(graph, profiles, strategy)
        found = timeline(plan, profiles)
        assert found.seconds == pytest.approx(plan.seconds, rel=0.2), "a mask folded into its reader may start later"
        assert timeline(plan, profiles, lambda part: 10 * part.seconds).seconds > found.seconds


def test_what_the_client_copies_for_workers_of_its_machine_is_copied_one_after_another() -> None:
    """The search for a plan counts it as the timeline does."""
    builder = GraphBuilder()
    rows = [builder.input(f"x{number}", (1 << 18,), F32) for number in range(4)]
    graph = builder.build([builder.add("exp", row) for row in rows])
    profiles = near(*(worker(n, device(0, 1e-3, 1e-3)) for n in range(2)))
    for strategy in ("single", "pipeline", "auto"):
        plan = make_plan(graph, profiles, strategy)
        assert timeline(plan, profiles).seconds == pytest.approx(plan.seconds, rel=1e-9), strategy


def test_a_device_does_one_thing_at_a_time_and_nothing_before_what_it_needs() -> None:
    rng = np.random.default_rng(6)
    for seed in range(20):
        plan = make_plan(random_graph(seed, 6, 24).graph, profiles := random_profiles(rng, 3), "pipeline")
        found = timeline(plan, profiles)
        bars = {bar.part: bar for bar in found.bars}
        for one in found.bars:
            for other in found.bars:
                if one.part < other.part and (one.node, one.device) == (other.node, other.device):
                    assert other.start_s >= one.end_s or one.start_s >= other.end_s
        for arrow in found.arrows:
            assert arrow.source is None or arrow.start_s == bars[arrow.source].end_s
            assert arrow.target is None or bars[arrow.target].start_s >= arrow.end_s


def test_ranks_are_over_together_after_the_slowest_and_what_they_exchange() -> None:
    profiles = near(worker(0, device(0, 1e-3, 1e-2)), worker(1, device(0, 1e-4, 1e-3)))
    plan = make_plan(summed(64), profiles, "data")
    (gang,) = plan.gangs
    found = timeline(plan, profiles, gang_s=lambda each: 0.5)
    ends = {bar.end_s for bar in found.bars}
    computed = [bar.computed_s for bar in found.bars]
    assert len(ends) == 1 and len(found.bars) == 2 and min(computed) < max(computed)
    assert ends == {max(computed) + 0.5}
    assert timeline(plan, profiles).seconds == pytest.approx(found.seconds - 0.5 + gang.seconds)


def test_machines_alike_take_as_long() -> None:
    graph, profiles = random_graph(7, 6, 24).graph, near(*(worker(n, device(0, 1.0, 1.0)) for n in range(3)))
    alone = [Profiles((each,), profiles.near) for each in profiles.workers]
    assert len({timeline(make_plan(graph, each, "single"), each).seconds for each in alone}) == 1
