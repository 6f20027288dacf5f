"""Plans of programs with ranks: each on a device of its own, fed its blocks only, and right to the bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.by_seed import seeds
from support.cases.control_cases import siblings
from support.cases.rank_programs import rank_program
from support.cases.spmd_cases import CASES, on_grid
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

from coordinator.planning import plan_messages
from coordinator.planning.audit.result_audit import audited
from coordinator.planning.model.plan import FromInput, FromParam, FromPart, Pieces, Plan, Window
from coordinator.planning.model.profiles import CLIENT, Link, Profiles
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.planner import make_plan
from coordinator.planning.spmd.collective_cost import (
    BEGIN_S,
    COMBINED_BYTES_PER_S,
    MAILBOX,
    exchange_s,
    exchanged_bytes,
)
from coordinator.workers.straggler_detector import StragglerDetector
from mesh.client.plan_preview import PlanPreview
from wire.errors import PlacementError
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from wire.passes.unroll_spmd import unroll
from wire.protocol.messages import Member, PlanKey
from worker.cpu import evaluate
from worker.state.deployments import refusal_of

SIX = near(*(worker(number, device(0, 1.0 + number / 8, 1.0 + number / 8)) for number in range(6)))
GROUP = {"axes": ("dp",), "sizes": (2,)}


def whole(graph: WireGraph, given: dict[str, Any]) -> list[Any]:
    return list(evaluate(unroll(graph), given))


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, expected, strict=True))


def validate(plan: Plan) -> None:
    """What makes a plan with gangs one that can be carried out."""
    assert plan.ordered and plan.gangs
    assert [part.index for part in plan.parts] == list(range(len(plan.parts)))
    for edge in plan.edges:
        assert edge.source.part < edge.part, "a part needs a later one"
    for gang in plan.gangs:
        sources = {each.part for part in gang.parts for each in plan.parts[part].sources if isinstance(each, FromPart)}
        assert not sources & set(gang.parts), "a rank waits for another one's end"
        assert list(gang.parts) == list(range(gang.parts[0], gang.parts[0] + len(gang.parts))), "others stand between"
    assert plan_from(plan_bytes(plan), plan.graph) == plan
    json.dumps(plan.describe())


@pytest.mark.parametrize("dtype", [F32, I32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", CASES)
def test_every_case_of_ranks_is_planned_apart_and_right_to_the_bit(op: str, dtype: Any) -> None:
    for name, graph, given in CASES[op](dtype):
        if name == "in-a-scan":
            with pytest.raises(PlacementError, match="no ranks"):
                make_plan(graph, SIX, "ranks")
            continue
        plan = make_plan(graph, SIX, "ranks")
        validate(plan)
        assert same(run_plan(plan, given, {}), whole(graph, given)), name


# -- random programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(14, 40))
def test_random_programs_of_ranks_and_ordinary_nodes_are_right_to_the_bit(seed: int) -> None:
    graph, given, params = rank_program(seed)
    if not graph.has_spmd:
        return
    plan = make_plan(graph, SIX, "ranks")
    validate(plan)
    assert same(run_plan(plan, given, params), whole(graph, {**given, **params}))


# -- what travels -----------------------------------------------------------------------------------------


def halves(out: str = "dp -") -> WireGraph:
    """Two gangs: x + w in halves of the rows, and the sum of that over ranks in halves of the columns."""
    builder = GraphBuilder()
    body = GraphBuilder()
    made = body.add("add", body.input("0", (4, 8), F32), body.input("1", (4, 8), F32))
    attrs: dict[str, Any] = {"body": body.build([made]), **GROUP, "in_specs": ("dp -", "dp -"), "out_specs": ("dp -",)}
    first = builder.add("spmd", builder.input("x", (8, 8), F32), builder.param("w", (8, 8), F32), **attrs, output=0)
    body = GraphBuilder()
    total = body.add("all_reduce", body.input("0", (4, 8), F32), **GROUP, reduction="sum")
    attrs = {"body": body.build([total]), **GROUP, "in_specs": ("dp -",), "out_specs": (out,)}
    return builder.build([builder.add("spmd", first, **attrs, output=0)])


def test_ranks_get_windows_of_inputs_and_params_and_results_stay_where_they_are() -> None:
    plan = make_plan(halves(), SIX, "ranks")
    top, bottom = Window((0, 0), (4, 8)), Window((4, 0), (4, 8))
    assert [part.sources for part in plan.parts[:2]] == [
        (FromInput("x", top), FromParam("w", top)),
        (FromInput("x", bottom), FromParam("w", bottom)),
    ]
    assert [part.node for part in plan.parts[:2]] == [part.node for part in plan.parts[2:]]
    assert [part.sources for part in plan.parts[2:]] == [(FromPart(0, 0),), (FromPart(1, 0),)]
    assert plan.outputs == (Pieces(((FromPart(2, 0), top), (FromPart(3, 0), bottom))),)
    assert [worker.bytes_in for worker in plan.workers if worker.parts] == [128, 128], "half of x each"


def test_what_all_ranks_have_comes_back_from_one() -> None:
    plan = make_plan(halves("- -"), SIX, "ranks")
    assert plan.outputs == (FromPart(2, 0),)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [((0, 0), (8, 8), (2, 2)), ((0, 0), (8, 8), (1, 2)), ((0, 0), (3, 8), (1, 1)), ((0, 0), (0, 8), (1, 1))],
    ids=["every second", "every second column", "the first rows", "nothing"],
)
def test_what_is_cut_of_the_result_of_ranks_is_right(start: Any, stop: Any, step: Any) -> None:
    builder = GraphBuilder()
    (made,) = builder.graph(halves(), {})
    graph = builder.build([builder.add("slice", made, start=start, stop=stop, step=step)])
    x, w = (np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32) for seed in (0, 1))
    plan = make_plan(graph, SIX, "ranks")
    validate(plan)
    assert same(run_plan(plan, {"x": x}, {"w": w}), whole(graph, {"x": x, "w": w}))


def test_an_ordinary_part_cuts_what_ranks_get_of_it_and_joins_what_they_made() -> None:
    builder = GraphBuilder()
    body = GraphBuilder()
    attrs: dict[str, Any] = {"body": body.build([body.add("neg", body.input("0", (4, 8), F32))]), **GROUP}
    before = builder.add("tanh", builder.input("x", (8, 8), F32))
    split = builder.add("spmd", before, **attrs, in_specs=("dp -",), out_specs=("dp -",), output=0)
    plan = make_plan(builder.build([builder.add("exp", split)]), SIX, "ranks")
    first, *ranks, last = plan.parts
    assert [first.graph.types[index].shape for index in first.graph.outputs] == [(4, 8), (4, 8)], "not the whole"
    assert [part.sources for part in ranks] == [(FromPart(0, 0),), (FromPart(0, 1),)]
    assert last.sources == (FromPart(1, 0), FromPart(2, 0))
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    assert same(run_plan(plan, {"x": x}, {}), whole(plan.graph, {"x": x}))


# -- who is which rank ------------------------------------------------------------------------------------


def test_the_fastest_devices_are_taken_and_the_preview_says_who_is_which_rank() -> None:
    plan = make_plan(halves(), SIX, "auto")
    assert {part.node for part in plan.parts} == {"node-4", "node-5"}
    gang = plan.describe()["gangs"][0]
    assert gang["axes"] == {"dp": 2} and gang["groups"] == {"dp": [[0, 1]]}
    assert [rank["at"] for rank in gang["ranks"]] == [[0], [1]]
    assert {rank["worker"] for rank in gang["ranks"]} == {"worker-4", "worker-5"}
    assert "dp 2" in plan.reasons[1]
    first, second = (rank["worker"] for rank in gang["ranks"])
    assert f"grid dp 2: (0) {first}, (1) {second}" in str(PlanPreview(plan.describe()))


def two_rooms() -> Profiles:
    """Workers 0 and 2 are near each other, and so are 1 and 3; between the two pairs lies a slow line."""
    workers = tuple(worker(number, device(0, 1.0, 1.0)) for number in range(4))
    nodes = [CLIENT, *(each.node_id for each in workers)]

    def between(a: str, b: str) -> Link:
        far = CLIENT not in (a, b) and int(a[-1]) % 2 != int(b[-1]) % 2
        return Link(1e-2, 1e6) if far else Link(1e-4, 1e9)

    return Profiles(workers, frozenset(), {(a, b): between(a, b) for a in nodes for b in nodes if a != b})


def test_ranks_along_the_innermost_axis_are_near_each_other() -> None:
    graph = on_grid("2x2", [TensorType((2, 2), F32)], ("dp tp",), ("dp tp",), lambda b, x: [
        b.add("all_reduce", x, axes=("tp",), sizes=(2,), reduction="sum")])  # fmt: skip
    nodes = [int(part.node[-1]) for part in make_plan(graph, two_rooms(), "ranks").parts]
    assert nodes[0] % 2 == nodes[1] % 2 and nodes[2] % 2 == nodes[3] % 2


def test_a_pair_is_taken_from_one_room_though_another_is_faster() -> None:
    rooms = two_rooms()
    fast = worker(1, device(0, 1.5, 1.5))
    unlike = Profiles((rooms.workers[0], fast, *rooms.workers[2:]), frozenset(), rooms.links)
    nodes = {part.node for part in make_plan(halves(), unlike, "ranks").parts}
    assert nodes == {"node-1", "node-3"}


def test_ranks_are_workers_that_reach_each_other() -> None:
    ways = {(f"node-{a}", f"node-{b}"): Link(1e-3, 1e8, a in (4, 5)) for a in range(6) for b in range(6) if a != b}
    ways |= {(b, a): link for (a, b), link in ways.items() if link.relayed}
    plan = make_plan(halves(), Profiles(SIX.workers, SIX.near, ways), "ranks")
    assert {part.node for part in plan.parts} == {"node-2", "node-3"}, "the fastest two are reached by relay only"
    cut = {way: replace(link, relayed=True) for way, link in ways.items()}
    with pytest.raises(PlacementError, match="reach each other"):
        make_plan(halves(), Profiles(SIX.workers, SIX.near, cut), "ranks")


def test_too_few_devices_and_too_little_memory_say_need_and_have() -> None:
    graph = on_grid("4", [TensorType((256,), F32)], ("dp",), ("dp",), lambda b, x: [b.add("neg", x)])
    three = near(*SIX.workers[:3])
    with pytest.raises(PlacementError, match=r"dp 4 needs 4 devices.*there are 3"):
        make_plan(graph, three, "ranks")
    plan = make_plan(graph, three, "auto")
    assert not plan.gangs and any("as one program" in reason and "needs 4" in reason for reason in plan.reasons)
    small = near(*(worker(number, device(0, 1.0, 1.0), memory_bytes=1500) for number in range(6)))
    with pytest.raises(PlacementError, match=r"2.0 KiB each.*has 1.4 KiB"):
        make_plan(graph, small, "ranks")


def test_devices_of_one_worker_share_its_memory() -> None:
    fast = worker(0, device(0, 9.0, 9.0, engine="wgsl"), device(1, 9.0, 9.0, engine="wgsl"), memory_bytes=600)
    plan = make_plan(halves(), near(fast, worker(1, device(0, 1.0, 1.0))), "ranks")
    assert {part.node for part in plan.parts} == {"node-0", "node-1"}
    with pytest.raises(PlacementError, match=r"worker-0 needs \S+ \S+ and has 600 B"):
        make_plan(halves(), near(fast), "ranks")


def test_single_and_pipeline_compute_all_ranks_as_one_program_and_say_so() -> None:
    x, w = (np.random.default_rng(k).standard_normal((8, 8)).astype(np.float32) for k in (0, 1))
    for strategy in ("single", "pipeline"):
        plan = make_plan(halves(), SIX, strategy)
        assert not plan.gangs and any("one program" in reason for reason in plan.reasons)
        assert same(run_plan(plan, {"x": x}, {"w": w}), whole(halves(), {"x": x, "w": w}))


# -- costs ------------------------------------------------------------------------------------------------


def reduced(size: int, ranks: int) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("0", (size,), F32)
    return builder.build([builder.add("all_reduce", x, axes=("dp",), sizes=(ranks,), reduction="sum")])


def test_a_collective_costs_what_the_slowest_pair_makes_it_cost() -> None:
    nodes = [f"node-{number}" for number in range(4)]
    size = 1 << 20
    apart = exchange_s(reduced(size, 4), ("dp",), (4,), nodes, two_rooms())
    assert apart - 4 * BEGIN_S == pytest.approx(2 * 1e-2 + 3 / 4 * 4 * size * (2 / 1e6 + 1 / COMBINED_BYTES_PER_S))
    inside = exchange_s(reduced(size, 2), ("dp",), (2,), ["node-0", "node-2"], two_rooms())
    assert inside - 2 * BEGIN_S == pytest.approx(2e-4 + 4 * size * (1 / 1e9 + 1 / COMBINED_BYTES_PER_S / 2))
    here = exchange_s(reduced(1, 4), ("dp",), (4,), nodes, SIX)
    once = MAILBOX.latency_s + 12 / MAILBOX.bytes_per_s + 12 / COMBINED_BYTES_PER_S
    assert here - 4 * BEGIN_S == pytest.approx(once), "one round is less than two"
    assert exchanged_bytes(reduced(size, 4), 4) == 4 * (2 * 4 * size * 3 // 4)


def test_a_collective_in_a_loop_costs_once_per_turn() -> None:
    step = reduced(8, 2)
    inner = GraphBuilder()
    total = inner.graph(step, {"0": inner.input("0", (8,), F32)})
    builder = GraphBuilder()
    x = builder.input("0", (8,), F32)
    attrs = {"body": inner.build(total), "carry": 1, "consts": 0, "length": 7, "reverse": 0}
    looped = builder.build(siblings(builder, "scan", x, count=1, **attrs))
    nodes = ["node-0", "node-2"]
    once, often = (exchange_s(each, ("dp",), (2,), nodes, SIX) - 2 * BEGIN_S for each in (step, looped))
    assert often == pytest.approx(7 * once)


# -- what follows for the rest ----------------------------------------------------------------------------


def test_workers_are_told_which_rank_they_are_and_who_the_others_are() -> None:
    plan = make_plan(halves(), SIX, "ranks")
    params = {source: (bytes(32), TensorType((4, 8), F32)) for source in plan_messages.params_of(plan)}
    for place, node in enumerate(part.node for part in plan.parts[:2]):
        peers = dict.fromkeys(plan_messages.nodes(plan), ("h:1",))
        told = plan_messages.deploy(
            plan, node, PlanKey(1, 1), params, plan_messages.Inventory({}, peers), timeout_s=7.0
        )
        assert told.ordered and refusal_of(told, node, 1) is None
        for first, part in zip((0, 2), told.parts, strict=True):
            assert part.gang is not None and (part.part, part.gang.rank) == (first + place, place)
            assert part.gang.members[place] == Member(node, part.part, 0)
            assert [member.part for member in part.gang.members] == [first, first + 1]
            assert part.gang.timeout_s == 7.0


def test_ranks_are_neither_stuck_nor_audited_and_may_be_stragglers() -> None:
    plan = make_plan(halves(), SIX, "ranks")
    assert set(plan_messages.part_seconds(plan).values()) == {math.inf}
    assert audited(plan, 0, SIX) == plan
    stragglers = StragglerDetector()
    for _ in range(40):
        assert not stragglers.took(plan, {0: 1.0}, 1)
    assert any(stragglers.took(plan, {0: 100.0}, 1) for _ in range(5)), "what it computed itself took so long"
