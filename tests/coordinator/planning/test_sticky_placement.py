"""Staying plans: after a death nothing moves but what was lost, and the values are the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.compare import same_bits
from support.machines.profiles import EVERYTHING, device, near, worker
from support.machines.run_plan import run_plan

from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.placement.sticky_placement import sticky_plan
from coordinator.planning.planner import make_plan
from wire.ir.dtypes import F32, F64
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate

LAYERS, WIDTH = 9, 64
LAYER_BYTES = 4 * WIDTH * WIDTH
ROOM = 5 * LAYER_BYTES + 8192  # for five layers and what they make


def layered() -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (2, WIDTH), F32)
    for number in range(LAYERS):
        w = builder.param(f"w{number}", (WIDTH, WIDTH), F32)
        x = builder.add(
            "tanh", builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        )
    return builder.build([x])


def machines(count: int = 3, room: int = ROOM) -> Profiles:
    return near(*(worker(number, device(0, 10, 10), memory_bytes=room) for number in range(count)))


def homes_of(plan: Plan) -> dict[str, set[str]]:
    return {place.name: set(place.homes) for place in plan.params}


@pytest.mark.parametrize("dead", ["node-0", "node-1", "node-2"])
@pytest.mark.parametrize("strategy", ["pipeline", "auto"])
def test_after_any_death_only_what_was_lost_goes_elsewhere(dead: str, strategy: str) -> None:
    before = make_plan(layered(), machines(), strategy)
    homes, left = homes_of(before), machines().without(dead)
    after = sticky_plan(layered(), left, strategy, homes)
    assert after is not None
    lost = {name for name, nodes in homes.items() if nodes == {dead}}
    assert {name for name, nodes in homes_of(after).items() if not nodes <= homes[name]} == lost
    assert "weights stay where they are" in after.reasons[1]
    assert {share.node: share.parts for share in after.workers} == Counter(part.node for part in after.parts)
    values = {f"w{n}": np.random.default_rng(n).standard_normal((WIDTH, WIDTH), np.float32) for n in range(LAYERS)}
    inputs = {"x": np.ones((2, WIDTH), np.float32)}
    (wanted,) = evaluate(layered(), {**inputs, **values})
    (found,) = run_plan(after, inputs, values)
    assert same_bits(found, wanted)


@pytest.mark.parametrize("room", [2 * ROOM, ROOM + LAYER_BYTES])
def test_what_a_buddy_has_is_computed_there_as_far_as_there_is_room(room: int) -> None:
    before = make_plan(layered(), machines(), "pipeline")
    homes = homes_of(before)
    lost = {name for name, nodes in homes.items() if nodes == {"node-2"}}
    kept = {name: {"node-0"} for name in lost}
    after = sticky_plan(layered(), machines(room=room).without("node-2"), "pipeline", homes, kept)
    assert after is not None
    moved = {name for name in lost if homes_of(after)[name] != {"node-0"}}
    assert len(moved) == (0 if room == 2 * ROOM else 1)
    assert all(homes_of(after)[name] == homes[name] for name in homes.keys() - lost)


def test_there_is_none_for_other_strategies_and_where_there_is_no_room() -> None:
    homes = homes_of(make_plan(layered(), machines(), "pipeline"))
    left = machines().without("node-2")
    assert sticky_plan(layered(), left, "single", homes) is None
    assert sticky_plan(layered(), machines(room=4 * LAYER_BYTES).without("node-2"), "pipeline", homes) is None
    assert sticky_plan(layered(), left, "pipeline", {}) is None


def test_a_search_ends_where_few_workers_can_have_what_was_lost() -> None:
    """Of what twelve layers lost, one worker alone computes the first and the last."""
    narrow = ("f32", "bool")
    dtypes = [*[narrow] * 11, EVERYTHING]
    workers = [worker(number, device(0, 20.0 - number, 1.0, known)) for number, known in enumerate(dtypes)]
    builder = GraphBuilder()
    outputs = []
    for number in range(13):
        w = builder.param(f"w{number}", (8,), F64 if number in (1, 12) else F32)
        outputs.append(builder.add("add", w, w))
    plan = sticky_plan(builder.build(outputs), near(*workers), "auto", {"w0": {"node-0"}})
    assert plan is not None
    homes = homes_of(plan)
    assert homes["w0"] == {"node-0"} and homes["w1"] == homes["w12"] == {"node-11"}


class Homes(dict[str, set[str]]):
    """The homes of params, and how often they were looked up."""

    lookups = 0

    def get(self, *key: Any) -> Any:
        self.lookups += 1
        return super().get(*key)


def test_who_has_a_weight_is_looked_up_once_and_not_for_every_worker() -> None:
    homes = Homes({f"w{number}": {"node-0", "node-1"} for number in range(LAYERS)})
    assert sticky_plan(layered(), machines(200, room=20 * ROOM), "auto", homes) is not None
    assert homes.lookups <= 2 * LAYERS
