"""Faults that no shell expects, in a simulated mesh: each is answered as an error, and nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.simulated.simulated import simulate

import coordinator.lifecycle.plan_shell
import coordinator.planning.plan_messages
import coordinator.runtime.call_runner
import coordinator.runtime.health_watch
import mesh.numpy as mnp
import worker.daemon.snapshot_writer
import worker.daemon.tensor_sender
from coordinator.delivery.deployer import Deployer
from coordinator.plan_service.plan_service import PlanService
from coordinator.plan_service.straggler_mitigation import RETRY_S_FIRST, StragglerMitigation
from coordinator.planning.model.program import Program, Trial
from coordinator.sessions.plan_maker import PlanMaker
from coordinator.sessions.plan_watch import PlanWatch
from coordinator.workers.call_report import CallReport
from coordinator.workers.event_feed import EventFeed
from coordinator.workers.link_prober import LinkProber
from coordinator.workers.straggler_detector import DeviceKey
from mesh import Grid, Mesh, PartitionSpec, Ranks, collectives, shard_map
from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device, SimulatedHost
from wire.errors import MeshError, NodeLost
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.system.shared_memory import SharedDir
from wire.transfer.content_exchange import BlobExchange
from worker.daemon.blob_store import BlobStore
from worker.daemon.collective_bridge import Bridge
from worker.daemon.daemon import Daemon
from worker.daemon.tensor_sender import TensorSender
from worker.daemon.worker_links import WorkerLinks
from worker.state.device_recovery import WITHIN_S

LARGE = np.ones(1 << 16, np.float32)  # travels as a file, not in a message


def doubled() -> Program:
    builder = GraphBuilder()
    x = builder.input("x", LARGE.shape, F32)
    return Program(builder.build([builder.add("add", x, x)]), {}, "single")


def daemon_of(cluster: Cluster, name: str = "sim-0") -> Daemon:
    daemon = cluster._processes[name].daemon
    assert daemon is not None
    return daemon


def files_of(daemon: Daemon) -> set[str]:
    """What lies in its shared memory."""
    return {each.name for each in Path(daemon._shared.path).iterdir() if each.is_file()}


def test_the_inputs_of_a_part_that_cannot_reach_its_gang_are_freed() -> None:
    async def scenario(cluster: Cluster) -> None:
        daemon, program = daemon_of(cluster), doubled()
        await cluster.coordinator.call(program, {"x": LARGE})
        await asyncio.sleep(1)
        before, asked = files_of(daemon), daemon._bridge.directories

        def gone(prepared: int) -> tuple[str, ...]:
            daemon._bridge.directories = asked  # type: ignore[method-assign]
            raise NodeLost("the test has no directories")

        daemon._bridge.directories = gone  # type: ignore[method-assign]
        (found,), _ = await cluster.coordinator.call(program, {"x": LARGE})
        assert (found == 2).all()
        await asyncio.sleep(1)
        assert daemon._bridge.directories == asked, "it was asked for"
        assert files_of(daemon) == before

    simulate(scenario, devices=[Device()])


# -- foreign exceptions

FAULTS = (OSError(24, "Too many open files"), MemoryError(), ValueError("no one foresaw this"))
ANSWER_S = 300.0  # virtual seconds within which anything must have ended, be it as an error


def weight_of(number: int) -> Any:
    """Another content for every number, so that workers have to fetch it."""
    return np.linspace(-1, 1 + number, LARGE.size, dtype=np.float32)


@contextlib.contextmanager
def failing_once(owner: Any, name: str, fault: Exception) -> Iterator[list[int]]:
    """The next call of this raises; whether there was one."""
    real = inspect.getattr_static(owner, name)
    calls: list[int] = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return called(*args, **kwargs)
        if not inspect.iscoroutinefunction(called):
            raise fault

        async def raising() -> None:
            raise fault

        return raising()

    called = real.__func__ if isinstance(real, staticmethod) else real
    setattr(owner, name, staticmethod(failing) if isinstance(real, staticmethod) else failing)
    try:
        yield calls
    finally:
        setattr(owner, name, real)


def weighted(number: int) -> Program:
    """A large weight, and a large output that is made on several workers."""
    builder = GraphBuilder()
    y, weight = builder.input("x", LARGE.shape, F32), builder.param("weight", LARGE.shape, F32)
    for _ in range(6 + number):
        y = builder.add("tanh", builder.add("mul", y, weight))
    content = hash_array(weight_of(number)), TensorType(LARGE.shape, F32)
    return Program(builder.build([y]), {"weight": content}, "pipeline")


async def answered(cluster: Cluster, number: int) -> bool:
    """Whether a call of a new program is answered, and then rightly; a MeshError is an answer as well."""
    weight = weight_of(number)
    cluster.coordinator.hold(hash_array(weight), weight)
    try:
        async with asyncio.timeout(ANSWER_S):
            (found,), _ = await cluster.coordinator.call(weighted(number), {"x": LARGE})
    except MeshError:
        return False
    right = LARGE
    for _ in range(6 + number):
        right = np.tanh(right * weight)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    return True


CALLS: dict[str, tuple[Any, str]] = {
    "what a worker has of some content": (BlobStore, "find"),
    "storing content": (BlobStore, "put"),
    "the file of some content": (BlobStore, "path"),
    "content by a link": (BlobExchange, "fetch"),
    "serving content": (BlobExchange, "serve"),
    "room for a stream": (SharedDir, "allocate"),
    "a stream": (Link, "send_stream"),
    "dialling": (WorkerLinks, "linked"),
    "outputs": (TensorSender, "answer_run"),
    "an output's file": (worker.daemon.tensor_sender, "take"),
    "planning": (PlanService, "plan_for"),
    "a plan of before": (PlanService, "found"),
    "deploying": (Deployer, "deploy"),
    "the params": (Deployer, "params"),
    "running": (coordinator.lifecycle.plan_shell, "run_step"),
    "putting outputs together": (coordinator.runtime.call_runner.CallRunner, "_made"),
    "beginning a run": (CallReport, "add_generation"),
    "telling of a plan": (EventFeed, "note_plan"),
    "telling of the end": (coordinator.runtime.call_runner.CallRunner, "_answer"),
}


@pytest.mark.parametrize("what", CALLS)
def test_whatever_a_shell_raises_in_a_call_ends_it(what: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        numbers = itertools.count()
        assert await answered(cluster, next(numbers))
        for fault in FAULTS:
            with failing_once(*CALLS[what], fault) as calls:
                await answered(cluster, next(numbers))
                if what == "dialling" and not calls:  # they are linked already
                    cluster.kill("sim-1")
                    await asyncio.sleep(1)
                    cluster.start("sim-1")
                    await asyncio.sleep(5)
                    await answered(cluster, next(numbers))
            assert calls, "it was not called"
            await asyncio.sleep(2)
            assert await answered(cluster, next(numbers)), "it goes on"
        assert cluster.coordinator.idle and not any(cluster.busy().values())

    simulate(scenario, devices=[Device(dispatch_s=0.01) for _ in range(3)])


NOTES: dict[str, tuple[Any, str]] = {
    "of calls": (StragglerMitigation, "ran"),
    "of sessions": (PlanWatch, "ran"),
    "for the report": (EventFeed, "complete_report"),
}


@pytest.mark.parametrize("what", NOTES)
def test_a_fault_in_notes_on_a_step_does_not_end_it(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The answer is right, so nothing is computed again by another plan."""
    x = np.zeros(3, np.float32)
    with (
        Mesh.builder().mesh("sim").simulate(2).build() as mesh,
        mesh.session(train, first_state(), *batch(0), strategy="single") as session,
    ):
        session.step(*batch(0)).result(ANSWER_S)
        plans = session._async.running.deployments  # type: ignore[attr-defined]
        before = [*plans]
        for fault in FAULTS:
            with failing_once(*NOTES[what], fault) as calls:
                for _ in range(2):  # what the first one teaches is noted once the second one has left
                    call = mesh.submit(lambda x: x + 1, x)
                    assert (call.result(ANSWER_S) == 1).all() and len(call.report().generations) == 1
                session.step(*batch(0)).result(ANSWER_S)
                assert [*plans] == before
            assert calls, "it was not called"
    assert caplog.text.count("recording what a worker did failed") == len(FAULTS)


def test_a_slow_device_is_tried_though_the_trial_of_another_fails() -> None:
    """A fault of this process keeps no device from its trial, the same one neither."""
    tried: list[DeviceKey] = []

    async def scenario(cluster: Cluster) -> None:
        await asyncio.sleep(1)  # they have joined
        pacing = cluster.coordinator._pacing
        first, second = [(worker.node_id, 0) for worker in pacing._lent.profiles().workers]

        async def run(trial: Trial) -> None:
            tried.append((trial.node, trial.device))
            if trial.node == first[0]:
                raise ValueError("no one foresaw this")
            await asyncio.sleep(1)

        pacing._lent = replace(pacing._lent, run=run)
        pacing.stragglers.slow = lambda: {first: 2.0, second: 2.0}.items()  # type: ignore[method-assign]
        pacing._watch_slow()
        await asyncio.sleep(RETRY_S_FIRST * 4)
        assert tried.count(first) > 1, "and again later"
        assert pacing._slow[second].tried and not pacing._slow[first].tried

    simulate(scenario, devices=[Device(), Device()])


DEATHS: dict[str, Callable[[Cluster], tuple[Any, str]]] = {
    "telling of it": lambda cluster: (cluster.coordinator.health, "_publish"),
    "forgetting its links": lambda cluster: (LinkProber, "left"),
    "ending its link": lambda cluster: (Link, "fail"),
    "its last words": lambda cluster: (coordinator.runtime.health_watch, "lost_node"),
    "what it computed": lambda cluster: (coordinator.runtime.health_watch, "work_by_plan"),
}


@pytest.mark.parametrize("what", DEATHS)
def test_a_fault_in_what_follows_of_a_death_keeps_no_call_waiting_for_the_dead(what: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        for number, fault in enumerate(FAULTS):
            assert await answered(cluster, 2 * number)
            weight = weight_of(2 * number + 1)
            cluster.coordinator.hold(hash_array(weight), weight)
            calling = asyncio.ensure_future(cluster.coordinator.call(weighted(2 * number + 1), {"x": LARGE}))
            await asyncio.sleep(0.1)
            victim = cluster.names[number]
            with failing_once(*DEATHS[what](cluster), fault) as calls:
                cluster.kill(victim)
                async with asyncio.timeout(ANSWER_S):
                    await asyncio.wait([calling])
            assert calls, "it was not called"
            assert not calling.exception()
            assert cluster.coordinator._usable() == cluster.coordinator._members.keys(), "nothing more is given to it"

    simulate(scenario, devices=[Device(dispatch_s=0.05) for _ in range(4)])


def test_a_host_that_cannot_be_started_again_is_tried_later() -> None:
    async def scenario(cluster: Cluster) -> None:
        for number, fault in enumerate(FAULTS):
            assert await answered(cluster, 2 * number)
            with failing_once(SimulatedHost, "start", fault) as calls:
                cluster.devices[0].fails_after = 0
                assert await answered(cluster, 2 * number + 1)
            assert len(calls) == 2
            await asyncio.sleep(WITHIN_S + 10)  # three losses in that time are too many

    simulate(scenario, devices=[Device(dispatch_s=0.01)])


def reduced(x: Any) -> Any:
    """A gang of three."""
    spec = PartitionSpec("dp")
    blocks = shard_map(
        lambda block: collectives.all_reduce(mnp.sum(block), "dp"), Grid((3,), ("dp",)), (spec,), PartitionSpec()
    )
    return blocks(x)


@pytest.mark.parametrize("name", ["prepare", "directories"])
def test_a_gang_without_mailboxes_ends_its_call(name: str) -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        for size, fault in zip((9, 12, 15), FAULTS, strict=True):  # another gang each time
            x = np.arange(size, dtype=np.float32)
            with failing_once(Bridge, name, fault) as calls, contextlib.suppress(MeshError):
                mesh.submit(reduced, x, strategy=Ranks()).result(ANSWER_S)
            assert calls
            assert mesh.submit(reduced, x, strategy=Ranks()).result(ANSWER_S) == x.sum()


SESSIONS: dict[str, tuple[Any, str]] = {
    "planning": (PlanMaker, "plan"),
    "deploying": (Deployer, "deploy"),
    "running": (coordinator.lifecycle.plan_shell, "run_step"),
    "outputs": (coordinator.planning.plan_messages, "outputs"),
    "hashing a snapshot": (worker.daemon.snapshot_writer, "hash_bytes"),
    "storing a snapshot": (BlobStore, "put"),
    "keeping a copy": (Deployer, "keep"),
    "fetching a copy": (BlobExchange, "fetch"),
}


@pytest.mark.parametrize("what", SESSIONS)
def test_whatever_a_shell_raises_in_a_session_ends_its_steps(what: str) -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        for fault in FAULTS:
            given: dict[str, Any] = {"strategy": "pipeline", "copies": "buddy", "every": 1}
            with (
                failing_once(*SESSIONS[what], fault) as calls,
                contextlib.suppress(MeshError),
                mesh.session(train, first_state(), *batch(0), **given) as session,
            ):
                for step in range(3):
                    session.step(*batch(step)).result(ANSWER_S)
                mesh.simulation.wait(2)
            assert calls, "it was not called"
        with mesh.session(train, first_state(), *batch(0), strategy="pipeline") as session:
            assert np.isfinite(float(session.step(*batch(0)).result(ANSWER_S)))
