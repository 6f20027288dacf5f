"""Detection with the real coordinator and real daemons on a simulated network: partitions whole, one-way and of all.

Times are those of the virtual clock, so they are asserted exactly as they are promised.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.simulated.simulated import Job, simulate

from coordinator.workers.failure_detector import HealthConfig
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.virtual_network import Conditions
from wire.limits import DEFAULT
from worker.state.lease import ASK_SHARE

HEALTH = HealthConfig()
SETTLED_S = 3.3
TRAVEL_S = 0.01  # at most, of a frame


def events_of(cluster: Cluster, kind: str, node: str) -> list[tuple[float, str]]:
    """The time at which the coordinator published this event of a worker, and its text."""
    return [
        (event.at_s, event.text) for event in cluster.coordinator.events if (event.kind, event.node) == (kind, node)
    ]


def within(seconds: float, silence_s: float) -> bool:
    """Whether it took so long a silence, which began up to a heartbeat before the fault."""
    return silence_s - HEALTH.beat_s - TRAVEL_S <= seconds <= silence_s + TRAVEL_S


def cut_off(cluster: Cluster) -> None:
    """The coordinator hears nobody and is heard by nobody."""
    for name in cluster.names:
        cluster.block(name, COORDINATOR)
        cluster.block(COORDINATOR, name)


def after(fault: Callable[[Cluster], None], seen: Callable[[Cluster, float], None], workers: int) -> None:
    """Let a mesh settle, have a fault while it computes, and look at what was told once all is over."""

    async def scenario(cluster: Cluster) -> None:
        await asyncio.sleep(SETTLED_S)
        began_s = asyncio.get_running_loop().time()
        fault(cluster)
        job = asyncio.create_task(Job.of(1, "pipeline").ask(cluster))
        await asyncio.sleep(6.0)
        seen(cluster, began_s)
        cluster.heal()
        await job
        await asyncio.sleep(20.0)
        assert [node.state for node in cluster.coordinator.nodes()] == ["healthy"] * workers, "not everybody came back"
        assert await Job.of(2, "pipeline").ask(cluster)

    simulate(scenario, workers)


def test_those_that_are_gone_for_the_longest_are_forgotten_where_more_came_than_may_be_here() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinator

        def states() -> dict[str, str]:
            return {node.name: node.state for node in coordinator.nodes()}

        await asyncio.sleep(SETTLED_S)
        ids = {node.name: node.node_id for node in coordinator.nodes()}
        for name in ("sim-1", "sim-0"):
            cluster.kill(name)
            await asyncio.sleep(SETTLED_S)
        healthy = {"sim-2": "healthy", "sim-3": "healthy"}
        assert states() == {"sim-0": "dead", "sim-1": "dead", **healthy}
        limits, coordinator.endpoint.limits = coordinator.endpoint.limits, replace(DEFAULT, nodes_max=3)
        cluster.start("sim-0")
        await asyncio.sleep(SETTLED_S)
        assert states() == {"sim-0": "healthy", **healthy}
        assert coordinator.health.detector.health(ids["sim-1"]) is None
        assert await Job.of(1, "pipeline").ask(cluster)
        coordinator.endpoint.limits = limits
        cluster.start("sim-1")
        await asyncio.sleep(20.0)
        assert states() == dict.fromkeys(ids, "healthy"), "it may return"
        assert await Job.of(2, "pipeline").ask(cluster)

    simulate(scenario, 4)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_worker_that_is_cut_off_is_suspect_and_dead_in_time(workers: int) -> None:
    def seen(cluster: Cluster, began_s: float) -> None:
        ((suspect_s, _),), ((dead_s, reason),) = (
            events_of(cluster, "suspect", "sim-0"),
            events_of(cluster, "dead", "sim-0"),
        )
        assert within(suspect_s - began_s, HEALTH.suspect_s) and suspect_s - began_s <= 0.6
        assert within(dead_s - began_s, HEALTH.probed_s)
        asked = min(2, workers - 1)
        assert reason.endswith(f"{asked} peer{'s' if asked > 1 else ''} could not reach it")
        assert not any(
            events_of(cluster, kind, f"sim-{other}") for kind in ("suspect", "dead") for other in range(1, workers)
        )

    after(lambda cluster: cluster.silence("sim-0"), seen, workers)


def test_a_worker_that_is_only_not_heard_has_until_the_time_out() -> None:
    """The cluster's checker looks after every event that it owns nothing afterwards."""

    def seen(cluster: Cluster, began_s: float) -> None:
        ((dead_s, reason),) = events_of(cluster, "dead", "sim-0")
        assert within(dead_s - began_s, HEALTH.dead_s)
        assert reason.endswith("though 2 peers reached it")

    after(lambda cluster: cluster.block("sim-0", COORDINATOR), seen, 3)


def test_a_worker_that_does_not_hear_its_coordinator_falls_silent_itself_and_is_then_gone() -> None:
    def seen(cluster: Cluster, began_s: float) -> None:
        ((dead_s, _),) = events_of(cluster, "dead", "sim-0")
        lapsed_s = dead_s - HEALTH.dead_s - began_s  # its peers reach it, so that it has all of the time-out
        assert HEALTH.lease_s * (1 - ASK_SHARE) - HEALTH.beat_s <= lapsed_s <= HEALTH.lease_s + TRAVEL_S

    after(lambda cluster: cluster.block(COORDINATOR, "sim-0"), seen, 3)


def test_a_coordinator_that_is_cut_off_holds_its_verdicts_for_the_stated_time() -> None:
    def seen(cluster: Cluster, began_s: float) -> None:
        for name in cluster.names:
            ((dead_s, _),) = events_of(cluster, "dead", name)
            assert within(dead_s - began_s, HEALTH.suspect_s + HEALTH.hold_s)

    after(cut_off, seen, 4)


def test_a_coordinator_cut_off_for_less_than_that_condemns_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        await asyncio.sleep(SETTLED_S)
        cut_off(cluster)
        await asyncio.sleep(HEALTH.lease_s * (1 - ASK_SHARE) - TRAVEL_S)
        cluster.heal()
        await asyncio.sleep(5.0)
        assert all(events_of(cluster, "suspect", name) for name in cluster.names)
        assert not any(events_of(cluster, "dead", name) for name in cluster.names)

    simulate(scenario, 4)


@pytest.mark.parametrize(
    "wire",
    [
        Conditions(delay_s=0.1, jitter_s=0.1, bytes_per_s=1e6),
        Conditions(delay_s=0.02, jitter_s=0.02, bytes_per_s=1e6, loss=0.01),
    ],
    ids=["slow", "lossy"],
)
def test_nobody_is_condemned_over_bad_wires(wire: Conditions) -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in cluster.names:
            cluster.network.set_way(name, COORDINATOR, wire)
            cluster.network.set_way(COORDINATOR, name, wire)
        for seed in range(5):
            assert await Job.of(seed, "pipeline").ask(cluster)
            await asyncio.sleep(20.0)
        assert not any(events_of(cluster, "dead", name) for name in cluster.names)

    transcript = simulate(scenario, 3)
    assert not re.search(r"\bdead\b", transcript)
