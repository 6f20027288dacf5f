"""Faults that no shell expects, in a simulated mesh: each is answered as an error, and nothing stays behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from support.simulated import simulate

from coordinator.program import Program
from mesh.simulation.cluster import Cluster
from mesh.simulation.host import Device
from wire.dtypes import F32
from wire.errors import NodeLost
from wire.graph import GraphBuilder
from worker.daemon import Daemon

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
        before, asked = files_of(daemon), daemon._bridge.inboxes

        def gone(prepared: int) -> tuple[str, ...]:
            daemon._bridge.inboxes = asked  # type: ignore[method-assign]
            raise NodeLost("the test has no inboxes")

        daemon._bridge.inboxes = gone  # type: ignore[method-assign]
        (found,), _ = await cluster.coordinator.call(program, {"x": LARGE})
        assert (found == 2).all()
        await asyncio.sleep(1)
        assert daemon._bridge.inboxes == asked, "it was asked for"
        assert files_of(daemon) == before

    simulate(scenario, devices=[Device()])
