"""A simulated mesh knows its links: measured at join, used by the planner, relayed where two are cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from support.simulated.simulated import Job, simulate

import mesh.numpy as mnp
from coordinator.planning.model.profiles import CLIENT, LAN
from coordinator.workers.link_table import RETRY_S_FIRST, ProbeResult
from mesh import Mesh
from mesh.simulation.cluster import COORDINATOR, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.virtual_network import Conditions


def ways(cluster: Cluster) -> dict[tuple[str, str], tuple[ProbeResult, str]]:
    """What was found, by names."""
    names = {node.node_id: node.name for node in cluster.coordinator.nodes()} | {CLIENT: COORDINATOR}
    table = cluster.coordinator.prober.table.rows()
    return {(names[source], names[target]): (way, path) for (source, target), way, path in table}


async def probed(cluster: Cluster, within_s: float = 60.0) -> dict[tuple[str, str], tuple[ProbeResult, str]]:
    """The table of links, once all pairs are probed."""
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


def cut(cluster: Cluster, one: str, other: str) -> None:
    """Neither of the two can reach the other."""
    cluster.block(one, other)
    cluster.block(other, one)


def test_workers_that_cannot_connect_work_together_through_the_coordinator() -> None:
    async def scenario(cluster: Cluster) -> None:
        for pair in (("sim-0", "sim-1"), ("sim-0", "sim-2"), ("sim-1", "sim-2")):
            cut(cluster, *pair)
        found = await probed(cluster)
        assert {path for pair, (_, path) in found.items() if COORDINATOR not in pair} == {"relay"}
        for seed in range(8):
            assert await Job.of(seed, "pipeline").ask(cluster)
        used = {line.split()[2].rstrip(":") for line in cluster.trace if " ran " in line}
        assert len(used) == 3

    told = simulate(scenario)
    assert "cannot connect" in told and "through the coordinator" in told


def test_a_report_says_what_was_relayed_call_by_call() -> None:
    """Exactly what the plan sends from one worker to another; and nothing where they can connect."""

    async def scenario(cluster: Cluster) -> None:
        await probed(cluster)
        job = Job.chain("pipeline")
        _, direct = await cluster.coordinator.call(job.program, job.random.inputs)
        assert len(direct.workers) > 1 and direct.relayed == []
        for pair in (("sim-0", "sim-1"), ("sim-0", "sim-2"), ("sim-1", "sim-2")):
            cut(cluster, *pair)
        await asyncio.sleep(90)  # until all of it is found out
        for _ in range(2):
            told = await asyncio.gather(*(cluster.coordinator.call(job.program, job.random.inputs) for _ in range(3)))
            plan = await cluster.coordinator.plan(job.program.graph, "pipeline")
            names = {node.node_id: node.name for node in cluster.coordinator.nodes()}
            sent: dict[tuple[str, str], set[tuple[int, int, int]]] = {}
            for edge in plan.edges:
                way = names[plan.parts[edge.source.part].node], names[plan.parts[edge.part].node]
                sent.setdefault(way, set()).add((edge.part, edge.slot, edge.size_bytes))
            wanted = {way: (len(edges), sum(size for _, _, size in edges)) for way, edges in sent.items()}
            for _, report in told:
                assert {
                    (each.source, each.target): (each.tensors, each.size_bytes) for each in report.relayed
                } == wanted
                assert wanted

    simulate(scenario)


def test_one_cut_pair_costs_and_the_plan_says_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        cut(cluster, "sim-0", "sim-1")
        await probed(cluster)
        ids = {node.name: node.node_id for node in cluster.coordinator.nodes()}
        links = cluster.coordinator.prober.known(ids.values())
        assert {pair for pair, link in links.items() if link.relayed} == {
            (ids["sim-0"], ids["sim-1"]),
            (ids["sim-1"], ids["sim-0"]),
        }
        direct, relayed = LAN.seconds(1 << 20), links[ids["sim-0"], ids["sim-1"]].seconds(1 << 20)
        assert relayed == pytest.approx(2 * direct, rel=0.5)
        for seed in range(8):
            assert await Job.of(seed, "auto").ask(cluster)

    simulate(scenario)


def test_a_pair_that_is_cut_while_it_works_is_relayed_by_the_next_plan() -> None:
    async def scenario(cluster: Cluster) -> None:
        await probed(cluster)
        assert await Job.of(1, "pipeline").ask(cluster)
        cluster.kill("sim-1")
        await asyncio.sleep(1)
        cut(cluster, "sim-0", "sim-1")
        cluster.start("sim-1")
        await asyncio.sleep(1)
        for seed in range(4):
            assert await Job.of(seed, "pipeline").ask(cluster)

    simulate(scenario)


def test_a_cut_that_heals_is_noticed() -> None:
    async def scenario(cluster: Cluster) -> None:
        cut(cluster, "sim-0", "sim-1")
        await probed(cluster)
        cluster.heal()
        await asyncio.sleep(2 * RETRY_S_FIRST)
        ids = {node.name: node.node_id for node in cluster.coordinator.nodes()}
        assert not any(link.relayed for link in cluster.coordinator.prober.known(ids.values()).values())

    simulate(scenario)


def test_workers_that_are_cut_off_from_each_other_while_they_work_go_on_through_the_coordinator() -> None:
    """Nobody is told of the silence, and small tensors are on their way without an answer."""

    async def scenario(cluster: Cluster) -> None:
        await probed(cluster)
        assert await Job.of(1, "pipeline").ask(cluster)
        for pair in (("sim-0", "sim-1"), ("sim-0", "sim-2"), ("sim-1", "sim-2")):
            cut(cluster, *pair)
        for seed in range(6):
            assert await Job.of(seed, "pipeline").ask(cluster)
        await asyncio.sleep(90)  # until all links of before have ended
        assert await Job.chain("pipeline").ask(cluster)
        await asyncio.sleep(30)  # and what nothing was sent over is found out
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await Job.chain("pipeline", 24).ask(cluster)  # another plan
        assert loop.time() - began_s < 1.0
        assert not any(line for line in cluster.trace if " dead " in line)

    simulate(scenario)


def little_room(cluster: Cluster) -> None:
    """Have a worker hear of steps much later than of what another one computes for them, and room for two tensors
    beside those of the first."""
    for name in cluster.names:
        early = cluster._running(name).shell.machine._steps.early
        early._bytes_max, early._bytes_of_one_max = 2048, 2048
    cluster.network.set_way(COORDINATOR, "sim-1", Conditions(delay_s=1.0))


def test_calls_whose_tensors_come_long_before_their_step_begins_there_wait_for_room() -> None:
    async def scenario(cluster: Cluster) -> None:
        job = Job.chain("pipeline")
        assert await job.ask(cluster)
        little_room(cluster)
        assert all(await asyncio.gather(*(job.ask(cluster) for _ in range(40))))

    simulate(scenario, devices=[Device(dispatch_s=0.001)] * 2)


def test_a_session_whose_tensors_find_no_room_has_fewer_steps_in_flight() -> None:
    x = np.ones((16, 16), np.float32)

    def step(total: Any, x: Any) -> Any:
        for _ in range(12):
            x = mnp.tanh(x)
        return total + x, total + x

    async def scenario() -> None:
        async with await Mesh.builder().mesh("sim").simulate(2).build_async() as mesh:
            session = await mesh.session(step, np.zeros_like(x), x, strategy="pipeline", ahead=32)
            once = await session.step(x)
            little_room(mesh.simulation)
            sums = await asyncio.gather(*(session.step(x) for _ in range(40)))
            for count, found in enumerate(sums, 2):
                np.testing.assert_allclose(found, count * once, rtol=1e-5)
            await session.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
