"""Elastic training on simulated workers: what deaths and joins cost, in virtual time, and whom a late joiner asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.cases.training import first_state, flat_params

import mesh.numpy as mnp
from coordinator.plan_service.planner_client import InProcessPlanner
from coordinator.plan_service.planner_main import answer_of
from coordinator.planning.model.plan import Plan
from coordinator.planning.model.profiles import Profiles
from coordinator.planning.model.program import Program
from coordinator.planning.plan_codec import AnyQuestion
from coordinator.sessions.plan_maker import PlanMaker
from mesh import DistributedTrainer, Mesh, optim
from mesh.simulation.cluster import Cluster
from mesh.training import Callback, StepReport
from wire.link.link import Link
from wire.protocol.messages import BlobStream, Message

RNG = np.random.default_rng(5)
X = RNG.normal(size=(96, 8)).astype(np.float32)
Y = np.sin(X[:, :4])
WORKERS, SHARDS, BATCH = 3, 6, 24  # 2 shards for each of three, 3 for each of two
GFLOPS = 6e-5  # so that a step takes about half a second
STEPS = 120


def loss(params: Any, x: Any, y: Any) -> Any:
    """One per row."""
    for layer in params[:-1]:
        x = mnp.tanh(x @ layer["w"] + layer["b"])
    return mnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2, axis=1)


def trainer(params: Any = None) -> DistributedTrainer:
    given = first_state()["layers"] if params is None else params
    return DistributedTrainer(loss, given, optimizer=optim.adam(1e-2), deterministic=SHARDS)


@cache
def undisturbed(steps: int) -> Any:
    alone = trainer()
    alone.fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=steps)
    return flat_params(alone)


class Joining(Callback):
    """Starts a worker after some steps, and waits until it takes part."""

    def __init__(self, mesh: Mesh, name: str, after: int) -> None:
        self.mesh, self.name, self.after, self.workers = mesh, name, after, list[int]()

    def on_step(self, report: StepReport) -> None:
        session = next(iter(cluster_of(self.mesh).coordinator.sessions._open))
        self.workers.append(len({part.node for part in session.plan.parts}))
        if report.step == self.after:
            self.mesh.simulation.start(self.name)
            self.mesh.simulation.wait(3)


def cluster_of(mesh: Mesh) -> Cluster:
    return mesh.simulation._cluster


def faults(mesh: Mesh, every_s: float, down_s: float) -> list[float]:
    """One worker after the other is killed, and started again a while later; when, as it comes."""
    cluster, struck = cluster_of(mesh), list[float]()

    def strike() -> None:
        loop, name = asyncio.get_running_loop(), f"sim-{len(struck) % WORKERS}"
        struck.append(loop.time())
        cluster.kill(name)
        loop.call_later(down_s, cluster.start, name)
        loop.call_later(every_s, strike)

    mesh.simulation._do(lambda: asyncio.get_running_loop().call_later(every_s / 2, strike))
    return struck


PHASES = (0.98, 1.0, 1.02)


@cache
def seconds(steps: int, every_s: float = 0.0, down_s: float = 1.5) -> tuple[float, int, int]:
    """The virtual seconds that so many steps take, how many faults there were meanwhile, and steps that were lost."""
    found, events = trainer(), list[Any]()
    with Mesh.builder().mesh("sim").simulate(WORKERS, gflops=GFLOPS).build() as mesh:
        mesh.watch(events.append)
        found.distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=2)  # traced and linked
        del events[:]
        began_s = mesh.simulation.now_s
        struck = faults(mesh, every_s, down_s) if every_s else []
        found.fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=steps)
        took_s, count = mesh.simulation.now_s - began_s, len(struck)
    begun = {(each["generation"], each["text"].rpartition(" ")[2]) for each in events if each["kind"] == "began"}
    assert np.array_equal(flat_params(found), undisturbed(steps + 2)), "to the bit"
    return took_s, count, len(begun) - steps


@pytest.mark.parametrize(
    ("every_s", "goal", "steps"),
    [
        (5.0, 0.75, 50),
        pytest.param(5.0, 0.75, 120, marks=pytest.mark.long),
        pytest.param(10.0, 0.85, 120, marks=pytest.mark.long),
    ],
)
def test_a_death_every_few_seconds_costs_little_and_changes_no_bit(every_s: float, goal: float, steps: int) -> None:
    took_s = []
    for phase in PHASES:  # a death at the end of a step costs more than one at its beginning
        took, count, lost = seconds(steps, every_s * phase)
        assert count >= 4
        assert lost <= count, "a step at most for each"
        took_s.append(took)
    assert seconds(steps)[0] / np.mean(took_s) >= goal


class Killing(Callback):
    """Kills a worker after some steps."""

    def __init__(self, mesh: Mesh, name: str, after: int) -> None:
        self.mesh, self.name, self.after = mesh, name, after

    def on_step(self, report: StepReport) -> None:
        if report.step == self.after:
            self.mesh.simulation.kill(self.name)


def test_deaths_are_planned_for_by_another_process_where_plans_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, here, plan = list[AnyQuestion](), list[Profiles](), PlanMaker._plan_here

    async def answer(_: InProcessPlanner, question: AnyQuestion) -> bytes | None:
        asked.append(question)
        return answer_of(question)

    async def planned(maker: PlanMaker, *args: Any) -> Plan:
        here.extend(each for each in args if isinstance(each, Profiles))
        return await plan(maker, *args)

    monkeypatch.setattr(InProcessPlanner, "answer", answer)
    monkeypatch.setattr(PlanMaker, "_plan_here", planned)
    found = trainer()
    with Mesh.builder().mesh("sim").simulate(WORKERS, gflops=GFLOPS).timeouts(plan_here_s=0).build() as mesh:
        killing = Killing(mesh, "sim-1", after=10)
        found.distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=20, callbacks=[killing])
    assert [len(profiles.workers) for profiles in here] == [WORKERS], "the death of sim-1 was planned for"
    left = [sorted(worker.name for worker in question.profiles.workers) for question in asked]
    assert sorted(left[:WORKERS]) == [["sim-0", "sim-1"], ["sim-0", "sim-2"], ["sim-1", "sim-2"]]
    assert np.array_equal(flat_params(found), undisturbed(20))


def test_who_cannot_answer_once_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [EOFError("it was killed")]

    async def answer(_: InProcessPlanner, question: AnyQuestion) -> bytes | None:
        if failures:
            raise failures.pop()
        return answer_of(question)

    monkeypatch.setattr(InProcessPlanner, "answer", answer)
    workers, found = list[int](), trainer()
    with Mesh.builder().mesh("sim").simulate(WORKERS, gflops=GFLOPS).timeouts(plan_here_s=0).build() as mesh:

        class Counting(Killing):
            def on_step(self, report: StepReport) -> None:
                super().on_step(report)
                workers.append(len(report.shares))

        counting = Counting(mesh, "sim-0", after=10)
        found.distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=20, callbacks=[counting])
    assert not failures and workers[-1] == WORKERS - 1
    assert np.array_equal(flat_params(found), undisturbed(20))


def test_no_death_is_planned_for_where_that_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, plan = list[int](), PlanMaker._plan_here

    async def counted(maker: PlanMaker, program: Program, profiles: Profiles) -> Plan:
        planned.append(len(profiles.workers))
        return await plan(maker, program, profiles)

    monkeypatch.setattr(PlanMaker, "_plan_here", counted)
    for wanted, plans in ((False, [WORKERS]), (True, [WORKERS, *[WORKERS - 1] * WORKERS])):
        del planned[:]
        with Mesh.builder().mesh("sim").simulate(WORKERS, gflops=GFLOPS).plan_ahead(wanted).build() as mesh:
            trainer().distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=20)
        assert planned == plans


def test_who_comes_late_catches_up_from_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state comes from the others, and nothing of it from the client."""
    sent, send_stream = Counter[str](), Link.send_stream

    async def counted(link: Link, header: Message, data: Any) -> None:
        if isinstance(header, BlobStream) and link.peer.name == "sim-2":
            sent[link._owner.identity.name] += data.nbytes if isinstance(data, memoryview) else sum(map(len, data))
        await send_stream(link, header, data)

    monkeypatch.setattr(Link, "send_stream", counted)
    rng = np.random.default_rng(1)
    layers = [
        {"w": rng.normal(0, 0.1, (n, m)).astype(np.float32), "b": np.zeros(m, np.float32)}
        for n, m in ((8, 256), (256, 256), (256, 4))
    ]
    found = trainer(layers)
    with Mesh.builder().mesh("sim").simulate(WORKERS).build() as mesh:
        mesh.simulation.kill("sim-2")
        heard = Joining(mesh, "sim-2", after=3)
        found.distribute(mesh).fit((X, Y), epochs=1 << 20, batch_size=BATCH, steps=20, callbacks=[heard])
    assert heard.workers[0] == WORKERS - 1 and heard.workers[-1] == WORKERS
    assert set(sent) <= {"sim-0", "sim-1"}
    assert sum(sent.values()) == 3 * 256 * 256 * 4, "the large weights and their two moments; small ones are no streams"
