"""Plans of training steps over stages: what they compute, in which order, and what a stage holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.pipelines import KINDS, MODELS, ROWS, alike, case, largest_difference, layers
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

import mesh
import mesh.numpy as mnp
from coordinator.planning.model.memory_check import memory_by_site
from coordinator.planning.model.plan import FromParam, FromPart, Part, Plan
from coordinator.planning.pipeline.stage_region import StageRegion
from coordinator.planning.plan_codec import plan_bytes, plan_from
from coordinator.planning.planner import make_plan
from coordinator.planning.session_planner import Stateful, session_plan
from mesh import Pipeline, optim, tree
from wire.errors import InputError, PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.policy.pipeline_schedules import BACKWARD, FORWARD, SCHEDULES

SCHEDULES_OF_SUMS = ["gpipe", "1f1b"]


@pytest.mark.parametrize(("stages", "schedule"), [(2, "gpipe"), (3, "1f1b"), (4, "1f1b")])
@pytest.mark.parametrize("model", MODELS)
def test_stages_make_the_bits_of_one_worker(model: str, stages: int, schedule: str) -> None:
    step = case(model, 4)
    _, whole = step.run("single", alike(1))
    plan, found = step.run(Pipeline(stages, 4, schedule).text, alike(stages))
    assert len({part.node for part in plan.parts}) == stages
    assert all(np.array_equal(one, other) for one, other in zip(whole, found, strict=True))


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_all_kinds_are_cut(kind: str, precision: str) -> None:
    """Means over rows that do not divide, keys, blocks that are computed again, loops; wide and narrow."""
    step = case(kind, 4, 22, precision="f32" if kind == "looping" else precision)
    _, whole = step.run("single", alike(1))
    plan, found = step.run(Pipeline(2, 4).text, alike(2))
    assert len({part.node for part in plan.parts}) == 2
    assert all(np.array_equal(one, other) for one, other in zip(whole, found, strict=True))


@pytest.mark.parametrize(("stages", "data", "model"), [(1, 3, "layers"), (2, 2, "tied"), (2, 3, "layers")])
def test_columns_add_up_what_they_found(model: str, stages: int, data: int) -> None:
    """Micro-batches need not divide over columns."""
    step = case(model, 4)
    _, whole = step.run("single", alike(1))
    plan, found = step.run(Pipeline(stages, 4, data=data).text, alike(stages * data))
    assert len({part.node for part in plan.parts}) == stages * data
    assert largest_difference(whole, found) < 1e-5


def test_outputs_and_gradients_do_not_depend_on_the_number_of_micro_batches() -> None:
    found = {m: case("layers", m).run(Pipeline(3, m).text, alike(3))[1] for m in (2, 3, 8, 24)}
    for other in found.values():
        assert largest_difference(found[2], other) < 1e-5


@pytest.mark.parametrize("rows", [ROWS - 1, 13, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_need_not_divide_into_micro_batches(rows: int, schedule: str) -> None:
    updates = SCHEDULES[schedule].updates
    step = case("layers", 4, rows, updates=updates, optimiser=optim.sgd(0.05))
    _, found = step.run(Pipeline(2, 4, schedule).text, alike(2))
    _, whole = step.run("single", alike(1))
    if not updates:
        loss, params, batch = MODELS["layers"]
        mine = tree.map(lambda leaf: leaf[:rows], batch)
        expected = float(np.mean(np.asarray(loss(params, *mine))))
        assert float(step.told(found)["loss"]) == pytest.approx(expected, rel=1e-5)
        assert all(np.array_equal(one, other) for one, other in zip(whole, found, strict=True))
    assert all(np.isfinite(np.asarray(each)).all() for each in found)


def test_what_is_computed_of_weights_alone_may_be_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sum of squares of a thousand gradients is, for their norm."""

    def deep(params: Any, x: Any, y: Any) -> Any:
        (weight, bias), *rest = params
        for _ in range(600):
            weight = mnp.sin(weight)
        return layers([(weight, bias), *rest], x, y)

    monkeypatch.setitem(KINDS, "deep", (deep, *MODELS["layers"][1:]))
    step = case.__wrapped__("deep", 4)
    plan = make_plan(step.stepping.graph, alike(2), Pipeline(2, 4).text, step.stepping.carries)
    assert len({part.node for part in plan.parts}) == 2


def test_what_comes_after_the_loop_may_be_deep() -> None:
    builder = GraphBuilder()
    total = builder.input("x", (4,), F32)
    for _ in range(2000):
        total = builder.add("sin", total)
    graph = builder.build([total])
    region = StageRegion(graph)
    assert region.builder.build([region.value(graph.outputs[0])]).nodes[-1] == graph.nodes[-1]


# -- the order ----------------------------------------------------------------------------------------------


def turns_of(plan: Plan, node: str) -> Iterator[tuple[str, int, Part]]:
    """The parts of a worker that are of the loop, which have two graphs: which way, which micro-batch."""
    graphs: dict[bytes, list[Part]] = {}
    for part in plan.parts:
        if part.node == node:
            graphs.setdefault(part.graph.hash, []).append(part)
    ahead, back = sorted((parts for parts in graphs.values() if len(parts) > 1), key=lambda parts: parts[0].index)
    for part in plan.parts:
        if part in ahead or part in back:
            way, parts = (FORWARD, ahead) if part in ahead else (BACKWARD, back)
            yield way, parts.index(part), part


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_worker_does_its_stage_as_the_table_says(schedule: str, stages: int) -> None:
    row = SCHEDULES[schedule]
    step = case("layers", 6, updates=row.updates)
    plan, _ = step.run(Pipeline(stages, 6, schedule).text, alike(stages))
    assert plan.ordered, "each device runs its parts as they stand here"
    for stage, node in enumerate(in_line(plan)):
        found = [(way, batch) for way, batch, _ in turns_of(plan, node)]
        assert found == [(event.kind, event.batch) for event in row.events(stage, stages, 6)]


def in_line(plan: Plan) -> list[str]:
    """The workers from the first stage to the last: each begins behind the one before it."""
    nodes = {part.node for part in plan.parts}
    return sorted(nodes, key=lambda node: next(part.index for _, _, part in turns_of(plan, node)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_stage_has_in_flight_is_bounded_as_published(schedule: str) -> None:
    """Of what a stage keeps for its way back, no more is there at once than the table allows."""
    row, stages, turns = SCHEDULES[schedule], 3, 6
    step = case("layers", turns, updates=row.updates)
    plan, _ = step.run(Pipeline(stages, turns, schedule).text, alike(stages))
    most: dict[str, int] = {}
    for node in {part.node for part in plan.parts}:
        mine = list(turns_of(plan, node))
        way_of = {part.index: (way, batch) for way, batch, part in mine}
        back = [(batch, part) for way, batch, part in mine if way == BACKWARD]
        made = ((batch, s.part) for batch, part in back for s in part.sources if isinstance(s, FromPart))
        kept = {batch for batch, part in made if way_of.get(part) == (FORWARD, batch)}
        assert kept == set(range(turns)), "each stage needs again what it made"
        flying = peak = 0
        for way, _, _ in mine:
            flying += 1 if way == FORWARD else -1
            peak = max(peak, flying)
        most[node] = peak
    assert sorted(most.values()) == sorted(row.in_flight(stage, stages, turns) for stage in range(stages))


def test_memory_counts_what_is_in_flight() -> None:
    step = case("layers", 8, times=30)
    graph, carries = step.stepping.graph, step.stepping.carries
    every, some = (make_plan(graph, alike(3), Pipeline(3, 8, each).text, carries) for each in SCHEDULES_OF_SUMS)
    more, less = (sum(memory_by_site(plan.parts, True).values()) for plan in (every, some))
    assert less < more
    assert more < sum(memory_by_site(every.parts).values()), "what was read is gone"


# -- weights that change after each micro-batch -------------------------------------------------------------


def stage_of_params(plan: Plan) -> list[int]:
    """Of each param's leaf, the stage that has it."""
    by_node = {node: stage for stage, node in enumerate(in_line(plan))}
    where = {}
    for part in plan.parts:
        for source in part.sources:
            if isinstance(source, FromParam):
                where[source.name] = by_node[part.node]
    count = len(tree.leaves(MODELS["layers"][1]))
    return [where[f"state/{index}"] for index in range(count)]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_pipedream_goes_back_with_the_weights_a_micro_batch_came_with(stages: int) -> None:
    """Against the same by hand: each stage's gradient is of the version that it had, and changes its newest one."""
    turns, optimiser = 4, optim.sgd(0.05, momentum=0.9)
    step = case("layers", turns, updates=True, optimiser=optimiser)
    plan, found = step.run(Pipeline(stages, turns, "pipedream").text, alike(stages))
    stage_of = stage_of_params(plan) if stages > 1 else [0] * 8
    _, params, (x, y) = MODELS["layers"]
    leaves, structure = tree.flatten(params)
    versions = [[leaf] for leaf in leaves]
    moments = optimiser.init(params)
    rows = ROWS // turns
    for batch in range(turns):
        own = [SCHEDULES["pipedream"].in_flight(stage, stages, turns) for stage in stage_of]
        stale = [each[max(0, batch - most + 1)] for each, most in zip(versions, own, strict=True)]
        mine = slice(batch * rows, (batch + 1) * rows)
        gradients = mesh.grad(lambda p, mine=mine: layers(p, x[mine], y[mine]).mean())(tree.unflatten(structure, stale))
        newest = tree.unflatten(structure, [each[-1] for each in versions])
        updates, moments = optimiser.update(gradients, moments, newest)
        for each, leaf in zip(versions, tree.leaves(optim.apply_updates(newest, updates)), strict=True):
            each.append(np.asarray(leaf))
    state = step.state(found)
    assert largest_difference(state["params"], tree.unflatten(structure, [each[-1] for each in versions])) < 1e-5
    if stages > 1:
        assert set(stage_of) == set(range(stages))
        _, whole = step.run("single", alike(1))
        assert largest_difference(state["params"], step.state(whole)["params"]) > 1e-4, "weights were stale"


def test_a_step_that_is_no_number_changes_nothing_on_any_stage() -> None:
    for updates, schedule in ((False, "1f1b"), (True, "pipedream")):
        step = case("layers", 4, updates=updates)
        name = next(name for name, value in step.feeds.items() if value.shape == (ROWS, 8))
        bad = step.feeds[name].copy()
        bad[7, 3] = np.nan
        step = replace(step, feeds={**step.feeds, name: bad})
        _, found = step.run(Pipeline(3, 4, schedule).text, alike(3))
        assert not step.told(found)["good"]
        before = {name: step.params[name] for name, _ in step.stepping.carries}
        after = {name: found[at] for name, at in step.stepping.carries}
        changed = [name for name in before if not np.array_equal(before[name], after[name])]
        assert len(changed) == 1, "but for the count of steps"


# -- which workers ------------------------------------------------------------------------------------------


def test_a_faster_worker_gets_more_of_the_layers() -> None:
    fast, slow = worker(0, device(0, 4e-4, 4e-3)), worker(1, device(0, 1e-4, 1e-3))
    plan, _ = case("skipping", 4).run(Pipeline(2, 4).text, near(slow, fast))
    seconds = {share.name: share.busy_s for share in plan.workers}
    assert 0.3 < seconds["worker-0"] / seconds["worker-1"] < 3
    flops = {node: sum(part.graph.flops for part in plan.parts if part.node == node) for node in ("node-0", "node-1")}
    assert flops["node-0"] > 1.5 * flops["node-1"]


def test_a_worker_with_little_memory_gets_few_of_the_layers() -> None:
    step = case("layers", 4)
    graph, state = step.stepping.graph, Stateful(step.stepping.carries, step.stepping.returned_count, values=3)

    def needs(plan: Plan) -> list[int]:
        return [share.memory_bytes for share in plan.workers]

    halves = needs(session_plan(graph, alike(2), Pipeline(2, 4).text, state))
    room = max(needs(session_plan(graph, alike(4), Pipeline(4, 4).text, state)))
    assert room < max(halves)
    for small in (0, 1):
        workers = (replace(each, memory_bytes=room) if n == small else each for n, each in enumerate(alike(2).workers))
        found = needs(session_plan(graph, near(*workers), Pipeline(2, 4).text, state))
        assert 0 < found[small] <= room < found[1 - small]


def test_the_number_of_stages_is_that_which_is_fastest() -> None:
    step = case("layers", 8)
    few = make_plan(step.stepping.graph, near(*(worker(n, device(0, 1e3, 1e3)) for n in range(4))), "pipeline")
    assert len({part.node for part in few.parts}) == 2, "sending costs more than computing"
    assert few.reasons[0].startswith("2 stages")
    many = make_plan(step.stepping.graph, alike(4), "pipeline")
    assert len({part.node for part in many.parts}) == 4


def test_what_cannot_be_says_why() -> None:
    step = case("layers", 4)
    graph, carries = step.stepping.graph, step.stepping.carries
    with pytest.raises(PlacementError, match=r"3 stages need 3 workers .* there are 2"):
        make_plan(graph, alike(2), Pipeline(3, 4).text, carries)
    with pytest.raises(PlacementError, match="no loop over 8 micro-batches"):
        make_plan(graph, alike(2), Pipeline(2, 8).text, carries)
    with pytest.raises(InputError, match="changes its weights once"):
        make_plan(graph, alike(2), Pipeline(2, 4, "pipedream").text, carries)
    stale = case("tied", 4, updates=True).stepping
    with pytest.raises(PlacementError, match="1 stages at most"):  # weights of both ends would change at both
        make_plan(stale.graph, alike(2), Pipeline(2, 4, "pipedream").text, stale.carries)
    with pytest.raises(PlacementError, match="memory"):
        make_plan(graph, alike(2, memory_bytes=2048), Pipeline(2, 4).text, carries)
    for wrong in ({"schedule": "zigzag"}, {"micro_batches": 1}, {"stages": -1}, {"micro_batches": 2, "data": 3}):
        with pytest.raises(InputError):
            Pipeline(**wrong)


def test_other_loops_are_cut_as_any_program() -> None:
    """A recurrent network has a scan, too, and a loop over given tensors no params."""

    def recurrent(weights: Any, rows: Any) -> Any:
        return mesh.scan(lambda carry, row: (mnp.tanh(carry @ weights + row), ()), rows[0], rows)[0]

    def summing(weights: Any, rows: Any) -> Any:
        def turn(total: Any, row: Any) -> Any:
            return total + mesh.grad(lambda w: mnp.sum(mnp.tanh(row @ w)))(weights), ()

        return mesh.scan(turn, mnp.zeros_like(weights), rows)[0]

    for program in (recurrent, summing):
        given = np.eye(4, dtype=np.float32), np.ones((8, 4), np.float32)
        graph = mesh.trace(program, *given)
        plan = make_plan(graph, alike(2), "pipeline")
        assert not plan.ordered
        inputs = dict(zip(graph.input_types, given, strict=True))
        assert np.allclose(run_plan(plan, inputs, {})[0], np.asarray(program(*given)), atol=1e-6)


@pytest.mark.parametrize("data", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_session_has_the_state_where_it_is_read(model: str, data: int) -> None:
    step = case(model, 4).stepping
    state = Stateful(step.carries, step.returned_count)
    plan = session_plan(step.graph, alike(4), Pipeline(2, 4, data=data).text, state)
    assert all(len(nodes) == data for nodes in plan.owners.values()), "each column has all of it"
    assert {piece.name for piece in plan.owners} == {name for name, _ in step.carries}
    assert plan_from(plan_bytes(plan), plan.graph) == plan, "as a plan that is kept"
