"""Devices that are lost, hang, or die of what they compute, on simulated meshes: what it costs, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support.simulated.simulated import simulate

from coordinator.calls.state import STUCK_S_MIN
from coordinator.lifecycle.step_timeout import PREPARE_S_MIN
from coordinator.planning.model.program import Program
from mesh.core.node import node_from
from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from wire.errors import PoisonTask
from wire.ir.dtypes import dtype_named
from wire.ir.graph import GraphBuilder
from worker.state.device_recovery import LOSSES_MAX, LOSSES_OF_LAST_MAX

X = np.arange(12, dtype=np.float32).reshape(3, 4)
BEATS_S = 0.3  # a few heartbeats


def chain(op: str = "neg", strategy: str = "pipeline") -> Program:
    """exp and op in turn: enough to be cut among all workers."""
    made = GraphBuilder()
    node = made.input("x", X.shape, dtype_named("f32"))
    for _ in range(4):
        node = made.add(op, made.add("sin", node))
    return Program(made.build([node]), {}, strategy)


def expected(op: Callable[[NDArray[np.float32]], NDArray[np.float32]] = np.negative) -> NDArray[np.float32]:
    value = X
    for _ in range(4):
        value = op(np.sin(value))
    return value


async def timed(cluster: Cluster, program: Program) -> tuple[float, list[str]]:
    """How long a right answer takes, and who computed it."""
    began_s = asyncio.get_running_loop().time()
    (found,), report = await cluster.coordinator.call(program, {"x": X})
    np.testing.assert_allclose(found, expected(), rtol=1e-6)
    return asyncio.get_running_loop().time() - began_s, sorted(report.workers)


def all_alive(cluster: Cluster) -> None:
    assert cluster.alive == cluster.names, "a worker left"
    assert not any(" dead " in line for line in cluster.trace)


def test_a_device_that_hangs_costs_a_second_try_elsewhere() -> None:
    async def scenario(cluster: Cluster) -> None:
        _, names = await timed(cluster, chain())
        assert names == list(cluster.names)
        cluster.devices[1].stuck = True
        took_s, names = await timed(cluster, chain())
        assert names == ["sim-0", "sim-2"]
        assert took_s < STUCK_S_MIN + BEATS_S + 0.3
        assert [node.state for node in cluster.coordinator.nodes()] == ["healthy", "stuck", "healthy"]
        took_s, names = await timed(cluster, chain())
        assert names == ["sim-0", "sim-2"] and took_s < 0.5, "later calls do not wait for it"
        cluster.devices[1].stuck = False
        await asyncio.sleep(2)
        assert (await timed(cluster, chain()))[1] == list(cluster.names)
        all_alive(cluster)

    simulate(scenario)


def test_a_compilation_that_does_not_end_is_tried_elsewhere_and_the_first_answer_wins() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.devices[1].compile_s = 1e6
        took_s, names = await timed(cluster, chain())
        assert names == ["sim-0", "sim-2"]
        assert took_s < PREPARE_S_MIN + BEATS_S + 0.3
        assert [node.state for node in cluster.coordinator.nodes()] == ["healthy", "stuck", "healthy"]
        took_s, names = await timed(cluster, chain())
        assert names == ["sim-0", "sim-2"] and took_s < 0.5, "later calls do not wait for it"
        took_s, names = await timed(cluster, chain(strategy="single"))
        assert names != ["sim-1"] and took_s < 0.5, "nor do other programs"
        assert cluster.devices[1].lost == 0, "it may end yet"
        all_alive(cluster)

    simulate(scenario)


@pytest.mark.parametrize("compile_s", [20.0, 50.0])
def test_a_driver_that_takes_its_time_to_compile_is_waited_for(compile_s: float) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.devices[1].compile_s = compile_s
        took_s, names = await timed(cluster, chain())
        assert names == list(cluster.names) and compile_s < took_s < compile_s + 1
        assert not [event for event in cluster.coordinator.events if event.kind == "stuck"]

    simulate(scenario)


def test_a_run_that_waits_for_a_compilation_is_not_late() -> None:
    """Two programs on one device: while it compiles the second, the first one's next call waits."""

    async def scenario(cluster: Cluster) -> None:
        await timed(cluster, chain())
        cluster.devices[0].compile_s = 30.0
        other = asyncio.create_task(timed(cluster, chain("tanh")))
        await asyncio.sleep(0.1)
        took_s, names = await timed(cluster, chain())
        assert names == ["sim-0"] and took_s > 25
        other.cancel()
        assert not [event for event in cluster.coordinator.events if event.kind == "stuck"]

    simulate(scenario, devices=[Device(spare=False)])


def test_a_hung_engine_host_is_replaced_where_it_stands() -> None:
    async def scenario(cluster: Cluster) -> None:
        await timed(cluster, chain())
        cluster.devices[0].silent = True
        call = asyncio.create_task(timed(cluster, chain()))
        await asyncio.sleep(4)
        cluster.devices[0].silent = False
        await call
        await asyncio.sleep(4)
        assert (await timed(cluster, chain()))[1] == list(cluster.names)
        all_alive(cluster)

    simulate(scenario)


def test_a_lone_worker_computes_again_on_its_new_engine_host() -> None:
    async def scenario(cluster: Cluster) -> None:
        await timed(cluster, chain())
        cluster.devices[0].fails_after = 0
        took_s, _ = await timed(cluster, chain())
        assert cluster.devices[0].lost == 1 and took_s < 1.0
        all_alive(cluster)

    simulate(scenario, workers=1)


def test_a_device_that_is_lost_again_and_again_is_given_up_for_the_cpu_beside_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        while cluster.devices[0].lost < LOSSES_MAX:
            cluster.devices[0].fails_after = 0
            await timed(cluster, chain())
            await asyncio.sleep(3)
        nodes = [node_from(view) for view in cluster.coordinator.nodes()]
        assert [[device.given_up for device in node.devices] for node in nodes] == [[True, False]]
        (told,) = [event.text for event in cluster.coordinator.events if event.kind == "devices"]
        assert "device 0 given up after 3 losses" in told
        cluster.devices[0].fails_after = 0
        await timed(cluster, chain())
        assert cluster.devices[0].lost == LOSSES_MAX, "it is still used"
        all_alive(cluster)

    simulate(scenario, devices=[Device(spare=True)])


def test_a_device_that_is_lost_again_and_again_makes_its_worker_leave_and_the_others_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        while "sim-0" in cluster.alive:
            cluster.devices[0].fails_after = 0
            await timed(cluster, chain())
            await asyncio.sleep(6)
        assert cluster.devices[0].lost == LOSSES_OF_LAST_MAX
        assert (await timed(cluster, chain()))[1] == ["sim-1", "sim-2"]

    simulate(scenario)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_part_that_kills_engines_is_named_and_the_other_jobs_go_on(workers: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        for device in cluster.devices:
            device.dies_of = "exp"
        poison = asyncio.create_task(cluster.coordinator.call(chain("exp"), {"x": X}))
        others = [asyncio.create_task(timed(cluster, chain(strategy=strategy))) for strategy in ("auto", "single")]
        with pytest.raises(PoisonTask) as caught:
            await poison
        assert "exp f32[3,4]" in caught.value.op and caught.value.node in cluster.names
        for other in others:
            await other
        all_alive(cluster)
        assert sum(device.lost for device in cluster.devices) == (3 if workers > 2 else 4)

    simulate(scenario, workers)
