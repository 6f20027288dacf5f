"""Devices that flip bits, on simulated meshes with audits: found, named, given no more work; the good go on."""

from __future__ import annotations

import pytest
from support.simulated.simulated import Job, simulate

from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from wire.errors import ExecuteFailed
from wire.ir.codec import hash_array

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
