"""Plans of ranks that do not compute the same: who is which of them, what each is given, and that it is right."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from support.cases.unlike_ranks import X, Y, drawn, program, shared
from support.machines.profiles import EVERYTHING, NARROW, device, near, worker
from support.machines.run_plan import run_plan

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.plan import FromInput, FromParam, FromState, Plan, Window
from coordinator.planning.model.profiles import CLIENT, Link, Profiles
from coordinator.planning.model.unit_work import graph_seconds
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.planner import make_plan
from coordinator.planning.session_planner import Stateful, session_plan
from coordinator.planning.spmd.collective_cost import exchange_s
from coordinator.planning.spmd.rank_placement import Site, _Pairs, sites_for
from mesh import Grid, PartitionSpec, collectives, shard_map
from mesh.client.plan_preview import PlanPreview
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.passes.unroll_spmd import unroll
from worker.cpu import evaluate

P = PartitionSpec
GIVEN = {"x": X, "y": Y}


def fleet(*speeds: float) -> Profiles:
    return near(*(worker(number, device(0, speed, 10 * speed)) for number, speed in enumerate(speeds)))


def ranks_of(plan: Plan) -> list[str]:
    return [plan.parts[part].node for part in plan.gangs[0].parts]


def right(plan: Plan, graph: WireGraph) -> None:
    assert plan_from(plan_bytes(plan), plan.graph) == plan
    for found, expected in zip(run_plan(plan, GIVEN, {}), evaluate(unroll(graph), GIVEN), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_of_many_ranks_one_may_be_for_the_last_site_alone() -> None:
    """All others are taken before, and none of those between has a rank for the sites that are left."""
    count, sites = 1200, [Site(worker(n, device(0, 1.0, 1.0)), device(0, 1.0, 1.0)) for n in range(1300)]
    asked: list[int] = []

    def allowed(rank: int, site: Site) -> bool:
        asked.append(rank)
        return (site is sites[-1]) == (rank == 0)

    pairs = _Pairs(range(count), allowed)
    taken = [pairs.take(site) for site in sites]
    assert pairs.complete and taken == [True] * (count - 1) + [False] * (len(sites) - count) + [True]
    assert len(asked) < 4 * count * count


# -- shares of a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("speeds", list(itertools.permutations((1e-5, 2e-5, 4e-5))))
def test_whoever_has_most_rows_is_on_the_fastest_device(speeds: tuple[float, ...]) -> None:
    graph = program(shared((4, 2, 1)), out=P())
    plan = make_plan(graph, fleet(*speeds), "ranks")
    fastest = sorted(range(3), key=lambda number: -speeds[number])
    assert ranks_of(plan) == [f"node-{number}" for number in fastest]
    right(plan, graph)


def test_a_rank_is_given_its_rows_and_costs_what_it_computes() -> None:
    plan = make_plan(program(shared((4, 2, 1)), out=P()), fleet(4e-5, 2e-5, 1e-5), "ranks")
    windows = [[each.window for each in part.sources if each == FromInput("x", each.window)] for part in plan.parts[:3]]
    assert windows == [[Window((4 * rank, 0), (rows, 4))] for rank, rows in enumerate((4, 2, 1))]
    flops = [each["flops"] for each in plan.describe()["parts"]]
    assert flops[0] > 1.5 * flops[1] > 2 * flops[2]
    seconds = [part.seconds for part in plan.parts[:3]]
    assert max(seconds) < 1.5 * min(seconds), "by speed"
    row, first_of_y = 16, 16
    assert [each.bytes_in for each in plan.workers] == [rows * row + first_of_y for rows in (4, 2, 1)]
    memory = [each.memory_bytes for each in plan.workers]
    assert memory[0] > memory[1] > memory[2]


def test_the_preview_says_that_ranks_do_not_compute_the_same() -> None:
    plan = make_plan(program(shared((4, 2, 1)), out=P()), fleet(4e-5, 2e-5, 1e-5), "ranks")
    (told,) = [each for each in plan.reasons if "do not compute the same" in each]
    assert all(f"worker-{number}" in told for number in range(3))
    assert told in str(PlanPreview(plan.describe()))
    same = make_plan(program(shared((4, 4, 4)), out=P()), fleet(4e-5, 2e-5, 1e-5), "ranks")
    assert not any("do not compute the same" in each for each in same.reasons)


def test_ranks_with_as_many_rows_have_one_graph_between_them() -> None:
    plan = make_plan(program(shared((3, 1, 1)), out=P()), fleet(4e-5, 2e-5, 2e-5), "ranks")
    assert plan.parts[0].graph != plan.parts[1].graph
    assert plan.parts[1].graph is plan.parts[2].graph


def test_what_an_ordinary_part_makes_is_cut_to_what_is_read() -> None:
    def whole(x: Any, y: Any) -> Any:
        mapped = shard_map(shared((4, 2, 1)), Grid((3,), ("dp",)), P("dp"), P(), check=False)
        return mapped(mnp.tanh(x), y)

    graph = mesh.trace(whole, X, Y)
    plan = make_plan(graph, fleet(4e-5, 2e-5, 1e-5), "ranks")
    sizes = {graph.types[index].shape for graph in [plan.parts[0].graph] for index in graph.outputs}
    assert sizes == {(4, 4), (2, 4), (1, 4)}
    for found, expected in zip(run_plan(plan, GIVEN, {}), evaluate(unroll(graph), GIVEN), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_ranks_made_is_taken_where_it_is_though_not_all_of_it_is_read() -> None:
    def whole(x: Any, y: Any) -> Any:
        grid = Grid((3,), ("dp",))
        doubled = shard_map(lambda x: x * 2, grid, P("dp"), P("dp"))(x)
        return shard_map(shared((4, 2, 1)), grid, P("dp"), P(), check=False)(doubled, y)

    plan = make_plan(mesh.trace(whole, X, Y), fleet(4e-5, 2e-5, 1e-5), "ranks")
    assert len(plan.gangs) == 2 and len(plan.parts) == 6, "no ordinary part cuts it"


def test_a_state_is_read_as_it_is_made() -> None:
    def local(state: Any, x: Any) -> Any:
        rank = collectives.axis_index("dp")
        used = mesh.cond(rank == 0, lambda: state, lambda: mnp.concatenate([state[:1] + 1] * 4))
        total = collectives.all_reduce(mnp.sum(used) + mnp.sum(x), "dp")
        return used + total, total

    mapped = shard_map(local, Grid((3,), ("dp",)), (P("dp"), P("dp")), (P("dp"), P()))
    traced = mesh.trace(mapped, X, Y)
    builder = GraphBuilder()
    bindings = {"state": builder.param("state", (12, 4), F32), "x": builder.input("x", (12, 4), F32)}
    new, told = builder.graph(traced, bindings)
    graph, profiles = builder.build([told, new]), fleet(4e-5, 2e-5, 1e-5)
    plan = session_plan(graph, profiles, "auto", Stateful((("state", 1),), 1))
    states = [each.window for part in plan.parts for each in part.sources if isinstance(each, FromState)]
    assert states == [Window((4 * rank, 0), (4, 4)) for rank in range(3)]
    called = make_plan(graph, profiles, "ranks")
    params = [each.window for part in called.parts for each in part.sources if isinstance(each, FromParam)]
    assert params == [Window((4 * rank, 0), (rows, 4)) for rank, rows in enumerate((4, 1, 1))], (
        "of a call, what is read"
    )
    for found, right in zip(
        run_plan(called, {"x": X}, {"state": Y}), evaluate(graph, {"x": X}, {"state": Y}), strict=True
    ):
        np.testing.assert_array_equal(found, right)


# -- who is which rank ------------------------------------------------------------------------------------


def branches(*sizes: int) -> WireGraph:
    """One rank for each of these, which multiplies matrices of that size."""

    def local(x: Any, y: Any) -> Any:
        rank = collectives.axis_index("dp")

        def of(number: int) -> Any:
            def branch() -> Any:
                square = mnp.ones((sizes[number], sizes[number]), "float32") * x[0, 0]
                return mnp.sum(square @ square)

            return branch() if number == len(sizes) - 1 else mesh.cond(rank == number, branch, lambda: of(number + 1))

        return collectives.all_reduce(of(0), "dp")

    return program(local, len(sizes), out=P())


@pytest.mark.parametrize("seed", range(12))
def test_the_slowest_rank_is_done_as_soon_as_it_can_be(seed: int) -> None:
    chance = np.random.default_rng(seed)
    graph = branches(*chance.integers(8, 200, 4).tolist())
    profiles = fleet(*(10.0 ** chance.uniform(-3, -1, 4)))
    plan = make_plan(graph, profiles, "ranks")
    graphs = [plan.parts[part].graph for part in plan.gangs[0].parts]
    took = max(plan.parts[part].seconds for part in plan.gangs[0].parts)
    devices = [each.devices[0] for each in profiles.workers]
    best = min(
        max(one.dispatch_s + graph_seconds(mine, one) for mine, one in zip(graphs, order, strict=True))
        for order in itertools.permutations(devices)
    )
    assert took == pytest.approx(best)


def test_a_rank_goes_where_it_has_room_and_where_its_ops_are_known() -> None:
    graph = branches(64, 8)
    small = near(
        worker(0, device(0, 1.0, 1.0), memory_bytes=4096),
        worker(1, device(0, 0.1, 0.1)),
        worker(2, device(0, 0.5, 0.5)),
    )
    assert ranks_of(make_plan(graph, small, "ranks")) == ["node-2", "node-0"]
    with pytest.raises(PlacementError, match=r"dp 2 needs 2 devices"):
        make_plan(branches(64, 64), near(*small.workers[:2]), "ranks")

    def wide(x: Any, y: Any) -> Any:
        rank = collectives.axis_index("dp")
        doubles = mesh.cond(rank == 1, lambda: mnp.astype(mnp.astype(x, "float64") * 2, "float32"), lambda: mnp.tanh(x))
        return collectives.all_reduce(doubles, "dp")

    narrow = near(worker(0, device(0, 1.0, 1.0, EVERYTHING)), worker(1, device(0, 9.0, 9.0, NARROW)))
    plan = make_plan(program(wide, 2, out=P()), narrow, "ranks")
    assert ranks_of(plan) == ["node-1", "node-0"]
    right(plan, program(wide, 2, out=P()))


def test_a_fast_worker_is_left_out_where_only_others_have_room_for_what_is_left() -> None:
    workers = [worker(number, device(0, 9.0, 9.0), memory_bytes=4096) for number in range(2)]
    profiles = near(*workers, worker(2, device(0, 0.1, 0.1)))
    assert ranks_of(make_plan(branches(64, 8), profiles, "ranks"))[0] == "node-2"


def test_ranks_of_two_axes_that_are_near_each_other_stay_so() -> None:
    workers = tuple(worker(number, device(0, 1.0 + number % 2, 1.0)) for number in range(4))
    nodes = [CLIENT, *(each.node_id for each in workers)]

    def between(a: str, b: str) -> Link:
        far = CLIENT not in (a, b) and int(a[-1]) // 2 != int(b[-1]) // 2
        return Link(1e-1, 1e5) if far else Link(1e-4, 1e9)

    def local(x: Any, y: Any) -> Any:
        one = collectives.axis_index("dp")
        most = mesh.cond(one == 0, lambda: mnp.tanh(x), lambda: mnp.concatenate([x[:1]] * 3))
        return collectives.all_reduce(most, "tp")

    profiles = Profiles(workers, frozenset(), {(a, b): between(a, b) for a in nodes for b in nodes if a != b})
    graph = program(local, grid=Grid((2, 2), ("dp", "tp")))
    plan = make_plan(graph, profiles, "ranks")
    assert len({part.graph for part in plan.parts}) == 2
    rooms = [int(node[-1]) // 2 for node in ranks_of(plan)]
    assert rooms[0] == rooms[1] != rooms[2] == rooms[3]


def test_ranks_alike_are_where_they_would_be_without_branches() -> None:
    builder = GraphBuilder()
    x = builder.input("0", (64, 64), F32)
    total = builder.add("all_reduce", builder.add("tanh", x), axes=("dp",), sizes=(3,), reduction="sum")
    graph = builder.build([total])
    profiles = fleet(1e-3, 3e-3, 2e-3, 5e-4)
    sites = sites_for([(graph,)] * 3, ("dp",), (3,), profiles, [0] * 3)
    assert [site.worker.node_id for site in sites] == ["node-1", "node-2", "node-0"]
    nodes = [site.worker.node_id for site in sites]
    assert exchange_s(graph, ("dp",), (3,), nodes, profiles) < math.inf


# -- whatever programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_are_planned_and_right_to_the_bit(seed: int) -> None:
    ranks = 2 + seed % 3
    graph = program(drawn(seed, ranks), ranks)
    plan = make_plan(graph, fleet(1e-4, 3e-4, 2e-4, 5e-5), "ranks")
    right(plan, graph)


def test_ranks_that_would_wait_for_others_for_ever_are_no_plan() -> None:
    builder, inner = GraphBuilder(), GraphBuilder()
    group: dict[str, Any] = {"axes": ("dp",), "sizes": (2,)}
    x = inner.input("0", (2,), F32)
    then, otherwise = GraphBuilder(), GraphBuilder()
    meets = then.build([then.add("all_reduce", then.input("0", (2,), F32), **group, reduction="sum")])
    alone = otherwise.build([otherwise.add("neg", otherwise.input("0", (2,), F32))])
    asked = inner.add("eq", inner.add("axis_index", **group), inner.const(np.int32(0)))
    body = inner.build([inner.add("cond", asked, x, then=meets, otherwise=alone, output=0)])
    made = builder.add("spmd", builder.input("x", (4,), F32), body=body, **group, in_specs=("dp",), out_specs=("dp",),
                       output=0)  # fmt: skip
    with pytest.raises(InputError, match="would wait for ranks that do not"):
        make_plan(builder.build([made]), fleet(1.0, 1.0), "ranks")
