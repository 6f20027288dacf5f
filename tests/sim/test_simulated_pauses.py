"""Paused workers and sleeping machines: work goes on elsewhere, and nothing is sent twice once they are back."""

from __future__ import annotations

import asyncio

import pytest
from support.simulated.simulated import ALONE_S, Job, simulate, weights_moved
from support.waiting import until

from coordinator.workers.call_report import CallReport
from mesh.simulation.cluster import Cluster
from wire.errors import Busy, InputError, NodeLost
from wire.ir.codec import hash_array

HOUR_S = 3600.0
SLEEPS = [3.0, 60.0, pytest.param(8 * HOUR_S, marks=pytest.mark.long)]


def states(cluster: Cluster) -> dict[str, str]:
    return {node.name: node.state for node in cluster.coordinator.nodes()}


async def report_of(cluster: Cluster, job: Job) -> CallReport:
    """Ask, see that the answer is right, and tell how it came about."""
    for array in job.random.params.values():
        cluster.coordinator.hold(hash_array(array), array)
    outputs, report = await cluster.coordinator.call(job.program, job.random.inputs)
    for found, wanted in zip(outputs, job.expected, strict=True):
        assert found.tobytes() == wanted.tobytes()
    return report


def test_a_paused_worker_hands_its_work_over_and_stays() -> None:
    async def scenario(cluster: Cluster) -> None:
        job = Job.of(3, "pipeline")
        first = await report_of(cluster, job)
        assert "sim-0" in first.workers
        calls = [asyncio.create_task(report_of(cluster, job)) for _ in range(3)]
        await asyncio.sleep(0.001)
        cluster.pause("sim-0")
        for call in calls:
            report = await call
            assert "sim-0" not in report.workers
        assert states(cluster) == {"sim-0": "paused", "sim-1": "healthy", "sim-2": "healthy"}
        await asyncio.sleep(60.0)
        assert states(cluster)["sim-0"] == "paused", "it beats all the time"
        assert cluster.busy()["sim-0"] == 0
        cluster.resume("sim-0")
        await until(lambda: states(cluster)["sim-0"] == "healthy", 0.1)
        back = await report_of(cluster, job)
        assert "sim-0" in back.workers and weights_moved(back) == 0, "all it needs it has"
        kinds = {event.kind for event in cluster.coordinator.events if event.node == "sim-0"}
        assert {"paused", "resumed"} <= kinds and not kinds & {"suspect", "dead"}

    simulate(scenario)


def test_a_pause_outlives_links_and_processes() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.pause("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "paused", 0.1)
        cluster.silence("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "dead", 5.0)
        cluster.reconnect("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "paused", 10.0)
        cluster.kill("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "dead", 5.0)
        cluster.start("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "paused", 10.0)
        cluster.kill("sim-1")
        cluster.resume("sim-1")
        await asyncio.sleep(0.1)
        cluster.start("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "healthy", 10.0)

    simulate(scenario)


def test_the_coordinator_pauses_and_resumes_but_the_machine_comes_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinator
        await coordinator.pause("sim-1", True)
        assert states(cluster)["sim-1"] == "paused"
        await coordinator.pause("sim-1", False)
        assert states(cluster)["sim-1"] == "healthy"
        cluster.pause("sim-1")
        await until(lambda: states(cluster)["sim-1"] == "paused", 0.1)
        with pytest.raises(Busy, match="paused on its own machine"):
            await coordinator.pause("sim-1", False)
        assert states(cluster)["sim-1"] == "paused"
        node_id = next(node.node_id for node in coordinator.nodes() if node.name == "sim-0")
        await coordinator.pause(node_id[:8], True)
        assert states(cluster)["sim-0"] == "paused"
        with pytest.raises(InputError, match="no worker called 'sim-7'"):
            await coordinator.pause("sim-7", True)

    simulate(scenario)


def test_where_all_are_paused_calls_say_so_and_patient_ones_wait() -> None:
    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        job = Job.of(5, "auto")
        for name in cluster.names:
            cluster.pause(name)
        await until(lambda: set(states(cluster).values()) == {"paused"}, 0.1)
        with pytest.raises(NodeLost, match="all 3 workers are paused"):
            await cluster.coordinator.plan(job.program.graph)
        began_s = loop.time()
        with pytest.raises(NodeLost, match="all 3 workers are paused"):
            await report_of(cluster, job)
        assert loop.time() - began_s == pytest.approx(ALONE_S, abs=0.01)
        patient = asyncio.create_task(cluster.coordinator.call(job.program, job.random.inputs, patient=True))
        await asyncio.sleep(60.0)
        assert not patient.done()
        assert any(event.kind == "waiting" for event in cluster.coordinator.events)
        cluster.resume("sim-2")
        _, report = await patient
        assert list(report.workers) == ["sim-2"]

    simulate(scenario)


@pytest.mark.parametrize("slept_s", SLEEPS)
def test_a_machine_that_slept_is_back_at_once_and_nothing_is_sent_again(slept_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.coordinator.endpoint.listen("coordinator", 7100, 7100)
        job = Job.of(3, "pipeline")
        await report_of(cluster, job)
        call = asyncio.create_task(report_of(cluster, job))
        await asyncio.sleep(0.001)
        cluster.sleep("sim-0")
        report = await call
        assert "sim-0" not in report.workers
        kinds = [event.kind for event in cluster.coordinator.events if event.node == "sim-0"]
        assert "leaving" in kinds and "suspect" not in kinds, "it was no surprise"
        await asyncio.sleep(slept_s)
        cluster.wake("sim-0")
        await until(lambda: states(cluster)["sim-0"] == "healthy", 3.0)
        back = await report_of(cluster, job)
        assert "sim-0" in back.workers and weights_moved(back) == 0

    simulate(scenario)


@pytest.mark.parametrize("slept_s", SLEEPS)
def test_a_machine_that_slept_without_a_word_comes_back_too(slept_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.coordinator.endpoint.listen("coordinator", 7100, 7100)
        job = Job.of(3, "pipeline")
        await report_of(cluster, job)
        cluster.silence("sim-0")
        await asyncio.sleep(slept_s)
        cluster.reconnect("sim-0")
        await until(lambda: states(cluster)["sim-0"] == "healthy", 8.0)
        back = await report_of(cluster, job)
        assert "sim-0" in back.workers and weights_moved(back) == 0

    simulate(scenario)
