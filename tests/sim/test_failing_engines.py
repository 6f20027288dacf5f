"""A simulated mesh in which the Nth call of any engine fails, for every N: whatever it is, calls are answered
rightly by what is left, and soon all is as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from support.hostile.failing_calls import Refusing, each_call
from support.hostile.faulty_disk import Fuse
from support.simulated.sim_machine import FORGIVEN_S, job_of
from support.simulated.simulated import simulate

from mesh.simulation.cluster import Cluster
from mesh.simulation.engine_host import Device
from wire.errors import DeviceLost, OutOfMemory
from worker.engine.protocol import Engine

ERRORS: dict[str, Callable[[], Exception]] = {
    "lost": lambda: DeviceLost("the test's device is gone"),
    "full": lambda: OutOfMemory("the test's device is full"),
    "host full": lambda: MemoryError(),
}


def devices(fuse: Fuse, what: str) -> list[Device]:
    """Two whose engines share the fuse, so that the Nth call of either fails."""

    def made() -> Device:
        device = Device(dispatch_s=0.01)

        def hang() -> None:
            device.stuck = True

        names = ("compile", "load", "run")
        device.wrap = lambda engine: cast(Engine, Refusing(engine, names, fuse, ERRORS.get(what, hang)))
        return device

    return [made(), made()]


@pytest.mark.parametrize("what", ["lost", "full", pytest.param("host full", marks=pytest.mark.long), "hangs"])
@pytest.mark.parametrize("graph", [10, *(pytest.param(each, marks=pytest.mark.long) for each in (6, 7, 8, 11, 12, 14))])
def test_whatever_call_of_an_engine_fails_calls_are_answered_all_the_same(graph: int, what: str) -> None:
    assert not job_of(graph, "auto").random.graph.work_varies, "else nobody can tell that it hangs: take another"
    for fuse in each_call():
        made = devices(fuse, what)

        async def scenario(cluster: Cluster, fuse: Fuse = fuse, made: list[Device] = made) -> None:
            for strategy in ("pipeline", "auto"):
                assert await job_of(graph, strategy).ask(cluster)
            fuse.fails_at = 0
            for device in made:
                device.stuck = False
            assert await job_of(graph, "pipeline").ask(cluster)
            await asyncio.sleep(FORGIVEN_S)
            assert cluster.coordinator.idle and not any(cluster.busy().values())
            assert {node.state for node in cluster.coordinator.nodes()} == {"healthy"}

        simulate(scenario, devices=made)
    assert fuse.steps >= 10
