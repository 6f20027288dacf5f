"""What policies cost, counted from a plan: memory of each worker, bytes and seconds of each death."""

from __future__ import annotations

import pytest
from support.machines.profiles import device, near, worker

from coordinator.planning.model.cost_model import REPLAN_S
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import SAME_HOST, Profiles
from coordinator.planning.planner import make_plan
from coordinator.planning.redundancy.redundancy_cost import redundancy_cost
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder

LAYERS, WIDTH = 6, 32
LAYER_BYTES = 4 * WIDTH * WIDTH
WEIGHTS_BYTES = LAYERS * LAYER_BYTES


def machines(count: int) -> Profiles:
    return near(*(worker(number, device(0, 10, 10)) for number in range(count)))


def pipeline(profiles: Profiles) -> Plan:
    builder = GraphBuilder()
    x = builder.input("x", (2, WIDTH), F32)
    for number in range(LAYERS):
        w = builder.param(f"w{number}", (WIDTH, WIDTH), F32)
        x = builder.add("dot", x, w, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
    return make_plan(builder.build([x]), profiles, "pipeline")


@pytest.mark.parametrize(
    ("copies", "kept", "moved", "client", "survived"),
    [
        ("buddy", WEIGHTS_BYTES, 0, 0, 1),
        ("coded", WEIGHTS_BYTES // 2, 2 * LAYER_BYTES, 0, 1),  # a half, and what was lost moves
        ("checkpoint", 0, 2 * LAYER_BYTES, 2 * LAYER_BYTES, 0),
    ],
)
def test_three_workers(copies: str, kept: int, moved: int, client: int, survived: int) -> None:
    profiles = machines(3)
    found = redundancy_cost(pipeline(profiles), profiles, copies).describe()
    assert [row["own_bytes"] for row in found["memory"]] == [2 * LAYER_BYTES] * 3
    assert sum(row["kept_bytes"] for row in found["memory"]) == kept
    assert (found["copies"], found["deaths_survived"]) == (copies, survived)
    for row in found["deaths"]:
        assert (row["lost_bytes"], row["moved_bytes"], row["client_bytes"]) == (2 * LAYER_BYTES, moved, client)
        most_s = REPLAN_S + SAME_HOST.seconds(moved)
        assert REPLAN_S <= row["seconds"] <= most_s and (row["seconds"] > REPLAN_S) == (moved > 0)


def test_replicas_hold_what_the_plans_without_each_worker_need() -> None:
    profiles = machines(2)
    standby = {f"node-{n}": pipeline(profiles.without(f"node-{n}")) for n in range(2)}
    found = redundancy_cost(pipeline(profiles), profiles, "replica", standby).describe()
    assert [row["own_bytes"] + row["kept_bytes"] for row in found["memory"]] == [WEIGHTS_BYTES] * 2
    assert [row["moved_bytes"] for row in found["deaths"]] == [0, 0] and found["deaths_survived"] == 1


def test_one_worker_keeps_nothing_for_others_and_says_so() -> None:
    profiles = machines(1)
    found = redundancy_cost(pipeline(profiles), profiles, "coded").describe()
    assert found["meaning"].startswith("nothing is kept, since there are too few workers")
    assert redundancy_cost(pipeline(profiles), profiles, "checkpoint").meaning == "this process has it"
    assert found["deaths_survived"] == 0 and found["deaths"][0]["client_bytes"] == WEIGHTS_BYTES
