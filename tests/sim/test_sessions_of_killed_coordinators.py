"""A simulated coordinator daemon that is killed again and again, also in the middle of writing its journal: the session
of its client has the losses and the state, to the bit, of one that nobody disturbed.

`PYTHONHASHSEED=0 python tests/sim/test_sessions_of_killed_coordinators.py COUNT [FIRST]` runs that many seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.by_seed import ranges, run_seeds
from support.cases.training import batch, first_state, train
from support.simulated.remote_client import client_of
from support.simulated.simulated_jobs import DurableCluster, simulate_durable
from support.undisturbed import bits, undisturbed

from mesh.client.async_mesh import AsyncMesh
from mesh.errors import MeshError, NodeLost
from wire.protocol.messages import CloseSession, ResumeSession

MOMENTS = 10  # at which it is killed; more often, where its disk ends it
STEPS_MAX = 6  # between two of them
REST_S = 0.05
COPIES = ("buddy", "coded", "checkpoint", "none", "")


async def killed(cluster: DurableCluster) -> None:
    rng, loop = random.Random(cluster.seed), asyncio.get_running_loop()
    mesh = AsyncMesh(await client_of(cluster))
    options: Any = {"copies": COPIES[cluster.seed % len(COPIES)], "every": rng.randint(1, 5)}
    options["strategy"] = rng.choice(("single", "pipeline"))
    session = await mesh.session(train, first_state(), *batch(0), **options)
    losses: list[float] = []
    for _ in range(MOMENTS):
        loop.call_later(rng.uniform(0, 2.0), cluster.crash)
        steps: list[Any] = []
        for _ in range(rng.randint(0, STEPS_MAX)):
            steps.append(session.step(*batch(len(losses) + len(steps))))
            await asyncio.sleep(rng.choice((0.0, rng.uniform(0, REST_S), rng.uniform(0, 1.0))))
        state = asyncio.ensure_future(session.state()) if rng.random() < 0.3 else None
        losses += [float(await step) for step in steps]
        if state is not None:
            assert bits(await state) == undisturbed(len(losses))[1]
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 3.0))))
    cluster.mortal = False
    assert (losses, bits(await session.state())) == undisturbed(len(losses))
    await session.close()
    await mesh.close()
    await asyncio.sleep(5.0)
    assert cluster.coordinator.sessions.idle, "a session stays"
    assert not plans_on(cluster), "workers hold what nobody needs any more"


def plans_on(cluster: DurableCluster) -> set[str]:
    """The plans and copies that workers hold, with who holds them."""
    daemons = [process.daemon for process in cluster._processes.values()]
    states = [daemon.shell.machine for daemon in daemons if daemon is not None]
    return {f"{key} on {state.node}" for state in states if state is not None for key in state._plans}


def run(seed: int) -> Counter[str]:
    _, lives = simulate_durable(2 + seed % 2, seed, killed)
    assert lives > 1
    return Counter(lives=lives, sessions=1)


@pytest.mark.parametrize("seeds", ranges(2, 500), ids=str)
def test_a_session_goes_on_whenever_its_coordinator_is_killed(seeds: range) -> None:
    for seed in seeds:
        run(seed)


def test_a_session_that_is_closed_while_it_is_resumed_stays_closed() -> None:
    async def closed(cluster: DurableCluster) -> None:
        mesh = AsyncMesh(await client_of(cluster))
        session = await mesh.session(train, first_state(), *batch(0), strategy="single")
        await session.step(*batch(0))
        before = cluster.sessions
        cluster.crash()
        while cluster.sessions is before or not cluster.coordinator.endpoint.links.get("d" * 32):
            await asyncio.sleep(0.1)
        service, link = cluster.sessions, cluster.coordinator.endpoint.links["d" * 32]
        (name,) = service._sessions
        content, read = service._content, asyncio.Event()

        async def slowly(opened: Any) -> Any:
            found = await content(opened)
            await read.wait()
            return found

        service._content = slowly  # type: ignore[method-assign]
        resuming = asyncio.create_task(service._resume(link, ResumeSession(name, 0, 1)))
        await asyncio.sleep(0.1)
        await service._close(link, CloseSession(name))
        read.set()
        with pytest.raises(NodeLost, match="has no session"):
            await resuming
        assert cluster.coordinator.sessions.idle and not service._sessions
        with contextlib.suppress(MeshError):
            await session.close()
        await mesh.close()

    simulate_durable(1, 3, closed, mortal=False)


def test_a_session_that_cannot_be_resumed_is_let_go_when_it_is_closed() -> None:
    """Its program is gone from the disk; its client is there still, and may have others."""

    async def unreadable(cluster: DurableCluster) -> None:
        mesh = AsyncMesh(await client_of(cluster))
        x = np.ones((64, 64), np.float32)
        session = await mesh.session(lambda state, x: (state + x, state[0, 0]), x, x, strategy="single")
        await session.step(x)
        cluster.crash()
        assert cluster._image is not None
        for path in (cluster._image / "content").rglob("*"):
            if path.is_file():
                path.unlink()
        with pytest.raises(MeshError):
            await session.step(x)
        await session.close()
        assert not cluster.sessions._sessions and not cluster.coordinator.sessions.kept_plans
        await mesh.close()

    simulate_durable(1, 3, unreadable, mortal=False)


if __name__ == "__main__":
    sys.exit(run_seeds(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, run, 240.0))
