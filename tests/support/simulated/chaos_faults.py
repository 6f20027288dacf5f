"""Faults that last, for runs of minutes, beside those of `simulated.py`; and what a mesh may have once all is over."""

from __future__ import annotations

import asyncio

from mesh.simulation.cluster import Cluster

from .simulated import FAULTS, Chaos


async def _hangs_for_long(chaos: Chaos) -> None:
    """Until its host is ended for it."""
    number = chaos.random.randrange(len(chaos.cluster.devices))
    device = chaos.cluster.devices[number]
    device.stuck, lost = True, device.lost
    chaos.cluster.tell(f"the device of sim-{number} hangs for long")

    async def wait() -> None:
        while device.lost == lost and not chaos.over:
            await asyncio.sleep(0.5)
        device.stuck = False

    task = asyncio.ensure_future(wait())
    chaos._later.add(task)
    task.add_done_callback(chaos._later.discard)


async def _late_again(chaos: Chaos) -> None:
    """A worker dies and comes back much later."""
    name = chaos.some()
    if name is not None:
        chaos.cluster.kill(name)
        later = chaos.random.choice((4.0, 10.0, 40.0))
        chaos.later(later, lambda: None if name in chaos.cluster.alive else chaos.cluster.start(name))


ALL_FAULTS = (*FAULTS, _hangs_for_long, _late_again)


def check_nothing_left(cluster: Cluster) -> None:
    """No session, no call, no part, and no plan on a worker that nobody knows of."""
    coordinator = cluster.coordinator
    assert coordinator.sessions.idle, "a session is left"
    assert coordinator.idle, "a call is left"
    guards = coordinator._guards._guards.values()
    known = {*coordinator._state._plans, *(key.generation for guard in guards for _, key in guard.keys)}
    for name, depth in cluster.busy().items():
        assert depth == 0, f"{name} still has {depth} parts"
    for name, process in cluster._processes.items():
        assert process.daemon is not None
        left = {key.generation for key in process.daemon.shell.machine._plans} - known
        assert not left, f"{name} still has {left}"
