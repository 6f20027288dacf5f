"""Recovery by plans made ahead, on the simulator: used when they fit, never when they are stale, never in the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.simulated.simulated import chaos_run, simulate, weights_moved

from coordinator.plan_service import warm_up
from coordinator.plan_service.plan_service import LOOK_S, MADE_AHEAD, PLANS_BYTES, SETTLE_S
from coordinator.plan_service.planner_client import InProcessPlanner
from coordinator.plan_service.warm_up import QUIET_S
from coordinator.planning.contingency import ContingencyPlans
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.model.program import Program
from coordinator.planning.plan_codec import AnyQuestion, plan_from
from coordinator.workers.call_report import CallReport
from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.virtual_network import Conditions
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import NODE_BYTES, GraphBuilder, WireGraph
from wire.ir.types import TensorType
from worker.cpu import evaluate

X = np.linspace(-1, 1, 8 * 8, dtype=np.float32).reshape(8, 8)
SETTLED_S = 20.0  # links are measured, and whatever can be planned ahead is
LAYERS = 8


WEIGHTS = {f"w{number}": X * (number + 1) for number in range(LAYERS)}


def tower() -> Program:
    builder = GraphBuilder()
    x = builder.input("x", X.shape, F32)
    for name in WEIGHTS:
        weight = builder.param(name, X.shape, F32)
        x = builder.add("dot", x, weight, lhs_batch=(), rhs_batch=(), lhs_contract=(1,), rhs_contract=(0,))
        x = builder.add("tanh", x)
    kind = TensorType(X.shape, F32)
    bindings = {name: (hash_array(array), kind) for name, array in WEIGHTS.items()}
    return Program(builder.build([x]), bindings, "pipeline")


@dataclass(slots=True)
class SlowAnswers:
    """Takes so many seconds for a plan; None: for ever."""

    seconds: float | None = None
    asked: list[AnyQuestion] = field(default_factory=list)

    async def answer(self, question: AnyQuestion) -> bytes | None:
        self.asked.append(question)
        if self.seconds is None:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(self.seconds or 0.0)
        return await InProcessPlanner().answer(question)

    async def close(self) -> None:
        return


async def ask(cluster: Cluster, *dying: str) -> CallReport:
    """A call during which workers die at one instant, and its report; the answer is right."""
    program = tower()
    for array in WEIGHTS.values():
        cluster.coordinator.hold(hash_array(array), array)
    _, future, report = cluster.coordinator.submit(program, {"x": X})
    await asyncio.sleep(0.3)
    for name in dying:
        cluster.kill(name)
    (found,) = await future
    (wanted,) = evaluate(program.graph, {"x": X}, WEIGHTS)
    assert found.tobytes() == wanted.tobytes()
    assert set(report.workers) <= set(cluster.alive)
    return report


def four() -> tuple[Device, ...]:
    """A device so slow that faults can happen during a call."""
    return tuple(Device(dispatch_s=0.2) for _ in range(4))


def test_a_death_is_answered_by_the_plan_made_for_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await ask(cluster)
        assert MADE_AHEAD not in first.reasons
        await asyncio.sleep(SETTLED_S)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert [row["worker"] for row in preview["deaths"]] == list(cluster.names)
        report = await ask(cluster, "sim-2")
        assert MADE_AHEAD in report.reasons and len(report.generations) == 2
        assert sorted(report.workers) == ["sim-0", "sim-1", "sim-3"]
        planned = [event for event in report.events if event.kind == "planned"]
        assert MADE_AHEAD in planned[-1].text

    simulate(scenario, devices=four(), plan_ahead_min=0)


def test_a_report_counts_what_plans_sent_that_were_given_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        report = await ask(cluster, "sim-2")
        assert len(report.generations) == 2
        assert weights_moved(report) >= sum(weight.nbytes for weight in WEIGHTS.values())
        assert weights_moved(await ask(cluster)) == 0

    simulate(scenario, devices=four())


def test_without_planning_ahead_a_death_is_answered_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        assert (await cluster.coordinator.preview(tower().graph, "pipeline"))["deaths"] == []
        assert MADE_AHEAD not in (await ask(cluster, "sim-2")).reasons

    simulate(scenario, devices=four(), plan_ahead=False)


def test_the_next_death_is_planned_for_as_well() -> None:
    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        for name in ("sim-3", "sim-0"):
            await asyncio.sleep(SETTLED_S)
            assert MADE_AHEAD in (await ask(cluster, name)).reasons
        assert cluster.coordinator.idle

    simulate(scenario, devices=four(), plan_ahead_min=0)


def test_a_worker_that_died_while_nothing_ran_costs_the_next_call_no_planning() -> None:
    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        cluster.kill("sim-1")
        await asyncio.sleep(SETTLED_S)
        assert MADE_AHEAD in (await ask(cluster)).reasons

    simulate(scenario, devices=four(), plan_ahead_min=0)


def test_after_two_deaths_at_once_the_plan_is_made_for_both() -> None:
    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        report = await ask(cluster, "sim-1", "sim-3")
        assert MADE_AHEAD not in report.reasons
        assert sorted(report.workers) == ["sim-0", "sim-2"]

    simulate(scenario, devices=four(), plan_ahead_min=0)


async def _joined(cluster: Cluster) -> None:
    cluster.start("sim-3")
    while len(cluster.coordinator.nodes()) < 4 or cluster.coordinator.nodes()[3].state != "healthy":
        await asyncio.sleep(0.1)


async def _measured(cluster: Cluster) -> None:
    """The ways to a worker become slow, and that is found out: it joins anew."""
    for way in (("sim-0", "sim-1"), ("sim-1", "sim-0"), ("sim-0", "sim-2"), ("sim-2", "sim-0")):
        cluster.network.set_way(*way, Conditions(delay_s=0.05))
    cluster.coordinator.prober.probe_again(_id(cluster, "sim-0"), _id(cluster, "sim-1"))
    cluster.coordinator.prober.probe_again(_id(cluster, "sim-0"), _id(cluster, "sim-2"))
    await asyncio.sleep(2.0)


def _id(cluster: Cluster, name: str) -> str:
    return next(view.node_id for view in cluster.coordinator.nodes() if view.name == name)


async def _slower(cluster: Cluster) -> None:
    """A verdict on a device's pace, which nobody is told of."""
    site = (_id(cluster, "sim-0"), 0)
    cluster.coordinator._stragglers._site(site).slowness = 4.0
    await asyncio.sleep(LOOK_S + 2 * SETTLE_S)


@pytest.mark.parametrize("change", [_joined, _measured, _slower])
def test_a_plan_made_before_a_change_is_not_used_after_it(change: Callable[[Cluster], Awaitable[None]]) -> None:
    slow = SlowAnswers(0.0)

    async def scenario(cluster: Cluster) -> None:
        if change is _joined:
            cluster.kill("sim-3")
            await asyncio.sleep(2.0)
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        before = (await cluster.coordinator.preview(tower().graph, "pipeline"))["deaths"]
        assert len(before) == len(cluster.alive)
        slow.seconds = None  # from now on nothing is planned ahead in time
        await change(cluster)
        after = (await cluster.coordinator.preview(tower().graph, "pipeline"))["deaths"]
        assert "sim-2" not in {row["worker"] for row in after}
        report = await ask(cluster, "sim-2")
        assert MADE_AHEAD not in report.reasons
        assert sorted(report.workers) == ["sim-0", "sim-1", "sim-3"]

    simulate(scenario, devices=four(), plan_ahead_min=0, answerer=slow)


def test_calls_take_as_long_while_plans_are_made_ahead_for_ever() -> None:
    def times(plan_ahead: bool) -> tuple[float, float]:
        found: list[float] = []
        never = SlowAnswers(None)

        async def scenario(cluster: Cluster) -> None:
            await ask(cluster)
            await asyncio.sleep(SETTLED_S)
            assert bool(never.asked) == plan_ahead
            found.append((await ask(cluster)).seconds)
            found.append((await ask(cluster, "sim-1")).seconds)

        simulate(scenario, devices=four(), plan_ahead=plan_ahead, plan_ahead_min=0, answerer=never)
        return found[0], found[1]

    assert times(True) == times(False)


def test_a_question_that_nobody_has_any_more_is_given_up() -> None:
    never = SlowAnswers(None)

    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        asked = len(never.asked)
        cluster.kill("sim-3")
        await asyncio.sleep(SETTLED_S)
        assert len(never.asked) > asked
        names = {worker.name for worker in never.asked[-1].profiles.workers}
        assert "sim-3" not in names

    simulate(scenario, devices=four(), plan_ahead_min=0, answerer=never)


def plans_on(cluster: Cluster) -> dict[str, int]:
    """How many plans every worker holds."""
    states = {name: each.daemon.shell.machine for name, each in cluster._processes.items() if each.daemon is not None}
    return {name: len(state._plans) for name, state in states.items() if state is not None}


@pytest.mark.parametrize("rehearsed", [True, False])
def test_after_a_rehearsal_a_recovery_moves_no_weight_and_compiles_nothing(rehearsed: bool) -> None:
    most = {} if rehearsed else {"rehearsed_bytes_max": 0}

    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert all(row["rehearsed"] for row in preview["deaths"]), "tried, as far as the bound allows"
        assert plans_on(cluster) == dict.fromkeys(cluster.names, 1), "a rehearsed plan is dropped"
        report = await ask(cluster, "sim-0")
        assert MADE_AHEAD in report.reasons
        assert (weights_moved(report) == 0) == rehearsed
        cold = [each for each in report.workers.values() if each.kernels_cached < each.kernels_compiled]
        assert not cold or not rehearsed

    simulate(scenario, devices=four(), plan_ahead_min=0, **most)


def test_a_call_ends_a_rehearsal_and_gets_its_answer() -> None:
    """Calls so close that every rehearsal is broken off leave nothing behind."""

    async def scenario(cluster: Cluster) -> None:
        await ask(cluster)
        for _ in range(40):
            await asyncio.sleep(QUIET_S + 0.002)
            await ask(cluster)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert preview["deaths"] and not all(row["rehearsed"] for row in preview["deaths"])
        assert plans_on(cluster) == dict.fromkeys(cluster.names, 1)
        await asyncio.sleep(SETTLED_S)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert all(row["rehearsed"] for row in preview["deaths"])

    simulate(scenario, devices=four(), plan_ahead_min=0)


FAULTS = (ValueError("no one foresaw this"), OSError(24, "Too many open files"))


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_question_at_which_planning_fails_keeps_no_other_from_an_answer(fault: Exception) -> None:
    class Fails(SlowAnswers):
        async def answer(self, question: AnyQuestion) -> bytes | None:
            self.asked.append(question)
            if question == self.asked[0]:
                raise fault
            return await InProcessPlanner().answer(question)

    answers = Fails()

    async def scenario(cluster: Cluster) -> None:
        cluster.coordinator._planning._answerer = answers  # type: ignore[assignment]
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        others = {name for name in cluster.names if name != dead_in(answers.asked[0], cluster)}
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert others <= {row["worker"] for row in preview["deaths"]}
        assert answers.asked.count(answers.asked[0]) < 5, "it is not asked again and again"

    simulate(scenario, devices=four(), plan_ahead_min=0)


def dead_in(question: AnyQuestion, cluster: Cluster) -> str:
    """The worker whose death a question is about, "" for none."""
    there = {worker.name for worker in question.profiles.workers}
    return next((name for name in cluster.names if name not in there), "")


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_rehearsal_that_fails_keeps_no_other_from_being_rehearsed(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []

    def fails(data: bytes, graph: WireGraph) -> Plan:
        unpacked.append(data)
        if data == unpacked[0]:
            raise fault
        return plan_from(data, graph)

    async def scenario(cluster: Cluster) -> None:
        monkeypatch.setattr(warm_up, "plan_from", fails)
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert [row["worker"] for row in preview["deaths"]] == list(cluster.names)
        assert all(row["rehearsed"] for row in preview["deaths"]), "or was tried"

    simulate(scenario, devices=four(), plan_ahead_min=0)


def test_a_plan_that_is_forgotten_before_its_rehearsal_begins_is_none_to_rehearse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that dies between the choice of a plan and its rehearsal makes other plans of all."""
    choose, forgotten = ContingencyPlans.unrehearsed, list[AnyQuestion]()

    def forgets(plans: ContingencyPlans) -> tuple[Program, AnyQuestion] | None:
        chosen = choose(plans)
        if chosen is not None and not forgotten:
            forgotten.append(chosen[1])
            asyncio.get_running_loop().call_soon(plans.expect, Profiles(()))
        return chosen

    async def scenario(cluster: Cluster) -> None:
        monkeypatch.setattr(ContingencyPlans, "unrehearsed", forgets)
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        assert forgotten
        cluster.kill("sim-3")
        await ask(cluster)
        await asyncio.sleep(SETTLED_S)
        preview = await cluster.coordinator.preview(tower().graph, "pipeline")
        assert preview["deaths"] and all(row["rehearsed"] for row in preview["deaths"])

    simulate(scenario, devices=four(), plan_ahead_min=0)
    assert "failed" not in caplog.text


@pytest.mark.parametrize("seed", range(3))  # of 3, 4 and 5 workers
def test_mischief_while_plans_are_made_ahead(seed: int) -> None:
    """Programs of every kind, planned ahead however small: the answers are right and every job ends."""
    slow = SlowAnswers(random.Random(seed).random())
    simulate(chaos_run, workers=3 + seed % 3, seed=seed, plan_ahead_min=0, answerer=slow)
    assert slow.asked, "nothing was planned ahead"


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3, 8), *range(100, 400)])
def test_much_mischief_while_plans_are_made_ahead(seed: int) -> None:
    slow = SlowAnswers(random.Random(seed).random())
    simulate(chaos_run, workers=3 + seed % 3, seed=seed, plan_ahead_min=0, answerer=slow)
    assert slow.asked, "nothing was planned ahead"


def test_plans_are_remembered_up_to_a_size() -> None:
    """The nodes inside of bodies count, too."""
    nodes = 2_000

    def with_body(number: int) -> WireGraph:
        body = GraphBuilder()
        x = body.input("x", (8,), F32)
        for _ in range(nodes):
            x = body.add("sin", x)
        outer = GraphBuilder()
        y = outer.input("y", (8,), F32)
        y = outer.add("composite", y, body=body.build([x]), name=f"body {number}")
        return outer.build([y])

    async def scenario(cluster: Cluster) -> None:
        for number in range(40):
            await cluster.coordinator.preview(with_body(number), "single")
        plans = [plan for _, plan in cluster.coordinator._planning._plans.items()]
        made = sum(graph.total_nodes for plan in plans for graph in (plan.graph, *(part.graph for part in plan.parts)))
        assert len(plans) > 1
        assert made * NODE_BYTES <= PLANS_BYTES

    simulate(scenario, plan_ahead=False)
