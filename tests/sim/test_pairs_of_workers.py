"""A simulated mesh knows its links: measured when a worker joins, used by the planner, relayed where two are cut off."""

from __future__ import annotations

import asyncio

import pytest
from support.simulated import Job, simulate

from coordinator.pairs import Way
from coordinator.profile import CLIENT, LAN
from mesh.simulation.cluster import COORDINATOR, Cluster
from wire.memory_transport import Conditions


def ways(cluster: Cluster) -> dict[tuple[str, str], tuple[Way, str]]:
    """What was found, by names."""
    names = {node.node_id: node.name for node in cluster.coordinator.nodes()} | {CLIENT: COORDINATOR}
    table = cluster.coordinator.prober.pairs.table()
    return {(names[source], names[target]): (way, path) for (source, target), way, path in table}


async def probed(cluster: Cluster, within_s: float = 60.0) -> dict[tuple[str, str], tuple[Way, str]]:
    """The same, once all is known."""
    nodes = len(cluster.alive) + 1
    async with asyncio.timeout(within_s):
        while len(ways(cluster)) < nodes * (nodes - 1):
            await asyncio.sleep(0.05)
    return ways(cluster)


def test_every_pair_is_measured_after_the_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        found = await probed(cluster, 5.0)
        for way, path in found.values():
            assert path == "direct" and way.reached
            assert way.rtt_s == pytest.approx(0.0008, abs=0.0004)
            assert way.bytes_per_s == pytest.approx(1e8, rel=0.3)
        assert cluster.coordinator.prober.known(node.node_id for node in cluster.coordinator.nodes()) == {}

    simulate(scenario)


def test_a_slow_line_is_found_when_its_worker_joins_and_the_planner_goes_by_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await probed(cluster)
        cluster.kill("sim-2")
        for host in ("sim-0", "sim-1", COORDINATOR):
            for way in ((host, "sim-2"), ("sim-2", host)):
                cluster.network.set_way(*way, Conditions(delay_s=0.03, bytes_per_s=3e5))
        await asyncio.sleep(1)
        cluster.start("sim-2")
        await asyncio.sleep(20)
        found = await probed(cluster)
        assert found["sim-2", "sim-0"][0].bytes_per_s == pytest.approx(3e5, rel=0.3)
        ids = {node.name: node.node_id for node in cluster.coordinator.nodes()}
        links = cluster.coordinator.prober.known(ids.values())
        assert links[ids["sim-2"], ids["sim-0"]].bytes_per_s == pytest.approx(3e5, rel=0.3)
        assert (ids["sim-0"], ids["sim-1"]) not in links
        assert links[CLIENT, ids["sim-2"]].latency_s > 10 * LAN.latency_s
        assert await Job.of(7, "auto").ask(cluster)

    simulate(scenario)
