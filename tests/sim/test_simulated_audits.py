"""Devices that flip bits, on simulated meshes with audits: found, named, given no more work; the good go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.simulated.simulated import Job, simulate

from coordinator.authority.authority import Authority
from coordinator.planning import plan_messages
from coordinator.workers.records import Enrolled
from mesh import AsyncMesh
from mesh.backends.admission import Admission
from mesh.simulation.cluster import Cluster, _node_id
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from wire.errors import ExecuteFailed
from wire.ir.codec import hash_array
from wire.protocol.reports import Event

CALLS_MAX = 150


def fleet(count: int) -> list[Device]:
    return [Device(dispatch_s=0.001) for _ in range(count)]


async def quarantined_after(cluster: Cluster, job: Job) -> int:
    """How many calls until somebody is in quarantine; wrong answers are not looked at until then."""
    for array in job.random.params.values():
        cluster.coordinator.hold(hash_array(array), array)
    for number in range(CALLS_MAX):
        if cluster.coordinator.quarantined:
            return number
        await cluster.coordinator.call(job.program, job.random.inputs)
    return CALLS_MAX


@pytest.mark.parametrize("bad", range(4))
def test_a_worker_that_is_wrong_is_found_and_gets_no_more_work(bad: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.devices[bad].wrong = 1.0
        job = Job.of(bad, "pipeline")
        assert await quarantined_after(cluster, job) < CALLS_MAX
        states = {node.name: node.state for node in cluster.coordinator.nodes()}
        assert states == {name: "quarantined" if name == f"sim-{bad}" else "healthy" for name in cluster.names}
        events = [(event.kind, event.node) for event in cluster.coordinator.events]
        assert [event for event in events if event[0] in ("wrong", "quarantined")] == [
            ("wrong", f"sim-{bad}"),
            ("wrong", f"sim-{bad}"),
            ("quarantined", f"sim-{bad}"),
        ]
        for seed in range(6):
            assert await Job.of(seed, "pipeline").ask(cluster), "nobody answers"
        assert cluster.busy()[f"sim-{bad}"] == 0

    simulate(scenario, devices=fleet(4), audit=0.1)


def test_every_answer_is_right_where_every_part_is_audited_and_one_device_flips_bits_at_times() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.devices[1].wrong = 0.3
        for seed in range(12):
            assert await Job.of(seed, "single").ask(cluster)
        assert len(cluster.coordinator.quarantined) == 1

    simulate(scenario, devices=fleet(3), audit=1.0)


def test_the_good_are_left_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        for seed in range(25):
            assert await Job.of(seed, ("auto", "single", "pipeline")[seed % 3]).ask(cluster)
        assert not cluster.coordinator.quarantined
        assert not [event for event in cluster.coordinator.events if event.kind in ("wrong", "doubted")]

    simulate(scenario, devices=fleet(4), audit=0.5)


def test_two_workers_that_disagree_give_no_answer_rather_than_a_wrong_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.devices[0].wrong = 1.0
        with pytest.raises(ExecuteFailed, match="disagreed"):
            await Job.of(1, "single").ask(cluster)
        assert not cluster.coordinator.quarantined, "nobody knows which"

    simulate(scenario, devices=fleet(2), audit=1.0)


def test_a_call_that_waits_for_workers_does_so_also_after_its_answer_was_doubted() -> None:
    async def scenario(cluster: Cluster) -> None:
        def gone(event: Event) -> None:
            if event.kind == "doubted" and cluster.alive:
                cluster.devices[0].wrong = 0.0
                for name in cluster.names:
                    cluster.kill(name)

        cluster.coordinator.watchers.append(gone)
        cluster.devices[0].wrong = 1.0
        job = Job.of(1, "single")
        for array in job.random.params.values():
            cluster.coordinator.hold(hash_array(array), array)
        asked = asyncio.create_task(cluster.coordinator.call(job.program, job.random.inputs, patient=True))
        await asyncio.sleep(600)
        assert not cluster.alive and not asked.done(), "it waits"
        for name in cluster.names:
            cluster.start(name)
        outputs, _ = await asyncio.wait_for(asked, 60)
        for found, right in zip(outputs, job.expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)

    simulate(scenario, devices=fleet(2), audit=1.0)


def test_a_worker_in_quarantine_keeps_nothing_of_sessions() -> None:
    async def scenario(mesh: AsyncMesh) -> None:
        cluster, x = mesh.simulation, np.arange(8, dtype=np.float32)
        async with await mesh.session(lambda total, x: (total + x, x), x, x, copies="buddy", every=1) as session:
            for _ in range(3):
                await session.step(x)
            await asyncio.sleep(1)
            plan = session.running.plan
            assert plan is not None
            node = min(plan_messages.nodes(plan))
            (daemon,) = (
                process.daemon
                for process in cluster._processes.values()
                if process.daemon and process.daemon._identity.node_id == node
            )
            assert daemon.shell.machine._plans
            cluster.coordinator._runner._quarantine(node)
            for _ in range(3):
                await session.step(x)
            await asyncio.sleep(5)
            assert not daemon.shell.machine._plans
            np.testing.assert_array_equal(await session.state(), 7 * x)

    async def run() -> None:
        async with await AsyncMesh.builder().mesh("sim").simulate(3).build_async() as mesh:
            await scenario(mesh)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def theirs(_: Path) -> Callable[[str], Enrolled | None]:
    """An authority that says that one worker is somebody else's."""
    return {_node_id("sim-2"): Enrolled("sim-2", untrusted=True)}.get


def unread(folder: Path) -> Callable[[str], Enrolled | None]:
    """An authority whose list of members cannot be read."""
    admission = Admission(Authority(folder, "sim"))
    (folder / "members.json").unlink()
    return admission._enrolled


def older(folder: Path) -> Callable[[str], Enrolled | None]:
    """An authority whose list does not have the worker yet, as the copy of a standby that takes over."""
    return Admission(Authority(folder, "sim"))._enrolled


@pytest.mark.parametrize("whose", [theirs, unread, older])
def test_a_worker_that_may_be_somebody_elses_and_is_wrong_is_found_without_a_flag(
    tmp_path: Path, whose: Callable[[Path], Callable[[str], Enrolled | None]]
) -> None:
    enrolled = whose(tmp_path / "authority")

    async def scenario(cluster: Cluster) -> None:
        cluster.coordinator.names_come_from(enrolled)
        cluster.devices[2].wrong = 1.0
        cluster.kill("sim-2")
        await asyncio.sleep(5.0)
        cluster.start("sim-2")
        while {node.name: node.state for node in cluster.coordinator.nodes()}["sim-2"] != "healthy":
            await asyncio.sleep(0.5)
        assert await quarantined_after(cluster, Job.of(2, "pipeline")) < CALLS_MAX
        wrong = [event.node for event in cluster.coordinator.events if event.kind == "wrong"]
        assert wrong == ["sim-2", "sim-2"]

    simulate(scenario, devices=fleet(4))
