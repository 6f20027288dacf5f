"""Plans made ahead: which deaths are planned for, and that an answer is found for its own question alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.cases.random_graphs import random_graph
from support.machines.profiles import device, near, random_profiles, worker

from coordinator.planning.contingency import DEATHS_MAX, PROGRAMS_MAX, ContingencyPlans, ProgramInUse
from coordinator.planning.model.profiles import Link, Profiles
from coordinator.planning.model.program import Program
from coordinator.planning.plan_codec import plan_bytes, plan_from, question_bytes, question_from, seconds_in
from coordinator.planning.planner import Question
from wire.errors import PlacementError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from wire.policy.strategies import FOR_ANY_GRAPH

WORKERS = near(*(worker(number, device(0, 10.0 + number, 10.0)) for number in range(4)))


def graph(width: int = 8) -> WireGraph:
    builder = GraphBuilder()
    x = builder.input("x", (width,), F32)
    return builder.build([builder.add("tanh", builder.add("neg", x))])


def use(width: int = 8, nodes: frozenset[str] = frozenset()) -> ProgramInUse:
    return ProgramInUse(Program(graph(width), {}, "pipeline"), nodes)


def ready(profiles: Profiles = WORKERS, *uses: ProgramInUse, bytes_max: int = 1000) -> ContingencyPlans:
    """All answered that is expected, each with 100 bytes that nobody reads."""
    ahead = ContingencyPlans(0, bytes_max)
    for each in uses or (use(),):
        ahead.use(each)
    ahead.expect(profiles)
    while (question := ahead.next()) is not None:
        ahead.answered(question, bytes(100))
    return ahead


def without(*nodes: str) -> Question:
    profiles = WORKERS
    for node in nodes:
        profiles = profiles.without(node)
    return Question(graph(), "pipeline", profiles)


def test_every_single_death_is_planned_for_and_what_the_next_call_needs() -> None:
    ahead = ready()
    assert ahead.find(without()) is not None
    assert all(ahead.find(without(f"node-{number}")) is not None for number in range(4))
    assert ahead.find(without("node-0", "node-1")) is None


def test_deaths_of_workers_that_compute_come_first() -> None:
    ahead = ContingencyPlans(0)
    ahead.use(use(nodes=frozenset({"node-2"})))
    ahead.expect(WORKERS)
    assert ahead.next(known=[without()]) == without("node-2")


def test_what_is_known_elsewhere_is_not_asked_again() -> None:
    ahead = ContingencyPlans(0)
    ahead.use(use())
    ahead.expect(WORKERS)
    assert ahead.next(known=[without(), *(without(f"node-{number}") for number in range(4))]) is None


def changed_device() -> Profiles:
    first, *others = WORKERS.workers
    return replace(WORKERS, workers=(replace(first, devices=(device(0, 5.0, 10.0),)), *others))


CHANGES: dict[str, Callable[[], Profiles]] = {
    "a worker joined": lambda: near(*WORKERS.workers, worker(9, device(0, 1.0, 1.0))),
    "a device measured anew": changed_device,
    "a link measured": lambda: replace(WORKERS, links={("node-2", "node-3"): Link(0.1, 1e6)}),
    "a worker with less memory": lambda: replace(
        WORKERS, workers=(replace(WORKERS.workers[0], memory_bytes=1), *WORKERS.workers[1:])
    ),
    "a worker on another machine": lambda: replace(WORKERS, near=WORKERS.near - {"node-0"}),
    "another worker died": lambda: WORKERS.without("node-0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_no_plan_of_before_is_found_for_another_death(change: str) -> None:
    ahead = ready()
    after = CHANGES[change]()
    for dying in ("node-1", "node-2", "node-3"):
        asked = Question(graph(), "pipeline", after.without(dying))
        same = asked == without(dying)  # a worker that is gone anyway may change what it likes
        assert (ahead.find(asked) is not None) == same
        assert not same or change == "a link measured"
    ahead.expect(after)
    kept = sum(ahead.find(without(f"node-{number}")) is not None for number in range(4))
    assert kept == sum(ahead.expects(without(f"node-{number}")) for number in range(4))


def test_a_death_while_idle_keeps_the_plan_that_the_next_call_needs() -> None:
    ahead = ready()
    ahead.expect(WORKERS.without("node-1"))
    assert ahead.find(without("node-1")) is not None
    assert ahead.find(without("node-2")) is None
    assert ahead.next() is not None and ahead.next() != without("node-1")


def test_an_answer_that_comes_too_late_is_not_kept() -> None:
    ahead = ContingencyPlans(0)
    ahead.use(use())
    ahead.expect(WORKERS)
    asked = ahead.next()
    assert asked is not None
    ahead.expect(CHANGES["a device measured anew"]())
    assert not ahead.answered(asked, bytes(100))
    assert ahead.find(asked) is None and ahead.used_bytes == 0


def test_memory_is_bounded_and_the_most_urgent_have_it() -> None:
    ahead = ready(bytes_max=250)
    assert ahead.used_bytes == 200
    assert [ahead.find(without(f"node-{number}")) is not None for number in range(4)] == [True, False, False, False]
    assert ahead.next() is None
    large = ContingencyPlans(0, 50)
    large.use(use())
    large.expect(WORKERS)
    asked = large.next()
    assert asked is not None and not large.answered(asked, bytes(100))
    assert large.next() not in (None, asked), "one plan that is too large does not keep others from being tried"


def test_a_death_without_a_plan_is_not_asked_again() -> None:
    ahead = ContingencyPlans(0)
    ahead.use(use())
    ahead.expect(WORKERS)
    asked = ahead.next()
    assert asked is not None and not ahead.answered(asked, None)
    assert ahead.next() != asked


def test_programs_and_deaths_are_bounded() -> None:
    many = near(*(worker(number, device(0, 10.0, 10.0)) for number in range(DEATHS_MAX + 5)))
    uses = [use(8 + number) for number in range(PROGRAMS_MAX + 3)]
    ahead = ready(many, *uses, bytes_max=1 << 20)
    assert ahead.used_bytes == 100 * PROGRAMS_MAX * (1 + DEATHS_MAX)
    assert ahead.find(Question(uses[0].program.graph, "pipeline", many)) is None
    assert ahead.find(Question(uses[-1].program.graph, "pipeline", many)) is not None


def test_what_has_a_plan_is_rehearsed_once_and_again_after_a_change() -> None:
    ahead = ready()
    rehearsed = []
    while (found := ahead.unrehearsed()) is not None:
        ahead.rehearsed(*found)
        rehearsed.append(found[1])
    assert set(rehearsed) == {without(), *(without(f"node-{number}") for number in range(4))}
    ahead.expect(WORKERS)
    assert ahead.unrehearsed() is None, "nothing changed"
    ahead.expect(CHANGES["a device measured anew"]())
    assert not any(ahead.was_rehearsed(without(f"node-{number}")) for number in range(1, 4))
    assert ahead.was_rehearsed(without("node-0")), "that death is the same as before"


def test_the_same_graph_with_other_weights_is_planned_once_and_rehearsed_for_each() -> None:
    builder = GraphBuilder()
    kind = TensorType((8,), F32)
    builder.param("w", (8,), F32)
    made = builder.build([builder.add("neg", builder.param("w", (8,), F32))])
    programs = [Program(made, {"w": (bytes([number]) * 32, kind)}, "pipeline") for number in range(2)]
    ahead = ready(WORKERS, *map(ProgramInUse, programs))
    assert ahead.used_bytes == 100 * 5
    rehearsed = []
    while (found := ahead.unrehearsed()) is not None:
        ahead.rehearsed(*found)
        rehearsed.append(found[0])
    assert [rehearsed.count(program) for program in programs] == [5, 5]


@pytest.mark.parametrize(("nodes_min", "planned"), [(0, True), (3 * 4, True), (3 * 4 + 1, False), (None, False)])
def test_quick_plans_are_left_for_when_they_are_needed(nodes_min: int | None, planned: bool) -> None:
    ahead = ContingencyPlans(nodes_min)
    ahead.use(use())
    ahead.expect(WORKERS)
    assert (ahead.next() is not None) == planned


def test_one_worker_or_none_has_no_death_to_plan_for() -> None:
    for profiles, questions in ((near(WORKERS.workers[0]), 1), (near(), 0)):
        ahead = ready(profiles)
        assert ahead.used_bytes == 100 * questions


@pytest.mark.parametrize("seed", range(20))
def test_plans_and_questions_survive_as_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = random_graph(seed, 6, 40).graph
    for strategy in FOR_ANY_GRAPH:
        question = Question(made, strategy, random_profiles(rng, 3))
        assert question_from(question_bytes(question)) == question
        assert question_from(question_bytes(question), [made]).graph.nodes is made.nodes
        try:
            plan = question.answer()
        except PlacementError:
            continue
        data = plan_bytes(plan)
        assert plan_from(data, made) == plan
        assert plan_from(data, made, [plan.graph]).graph.nodes is plan.graph.nodes
        assert seconds_in(data) == plan.seconds
        assert plan_bytes(question_from(question_bytes(question)).answer()) == data, "the same question, another plan"


def test_large_constants_are_not_carried_and_come_back() -> None:
    builder = GraphBuilder()
    x = builder.input("x", (64, 1024), F32)
    large = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    made = builder.build([builder.add("tanh", builder.add("add", x, builder.const(large)))])
    assert made.blobs, "a constant of that size is content of its own"
    question = Question(made, "pipeline", WORKERS)
    plan = question.answer()
    data = plan_bytes(plan)
    assert len(data) < large.nbytes
    assert all(part.graph.blobs.keys() == made.blobs.keys() for part in plan_from(data, made).parts)
