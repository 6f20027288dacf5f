"""The machine of a simulated coordinator loses its power, and its standby serves after a while: the session of a client
goes on soon after that, whenever that is.

Nothing tells the client but silence, so it needs some time of its own to notice: the rest of that counts, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.simulated.remote_client import CLIENT, client_of
from support.simulated.simulated_jobs import STANDBY, DurableCluster, simulate_durable
from support.undisturbed import bits, undisturbed

from coordinator.jobs import session_service
from coordinator.jobs.stored_program import ProgramContent, load_program
from mesh.client.async_mesh import AsyncMesh
from mesh.simulation.loop import VirtualLoop
from mesh.simulation.network import LAN
from wire.link.keepalive import TICK_S
from wire.timeouts import DEFAULT_TIMEOUTS as TIMES

NOTICED_S = TIMES.keepalive_idle_s + 2 * TICK_S + TIMES.keepalive_doubtful_answer_s
GOES_ON_S = 1.0


@pytest.mark.parametrize("copies", ["buddy", "none"])
@pytest.mark.parametrize("served_s", [1.5, 5.5, 9.0, 14.0])
def test_a_session_goes_on_soon_after_the_standby_serves(served_s: float, copies: str) -> None:
    async def lost(cluster: DurableCluster) -> None:
        loop = asyncio.get_running_loop()
        for name in cluster.names:
            cluster.slow(name, 0.01)  # what is repeated is to take no time
        mesh = AsyncMesh(await client_of(cluster))
        session = await mesh.session(train, first_state(), *batch(0), copies=copies, every=3, strategy="pipeline")
        losses = [float(await session.step(*batch(number))) for number in range(8)]
        losing = asyncio.create_task(cluster.lose_power([CLIENT], served_s))
        await asyncio.sleep(1.0)
        began_s = loop.time()
        step = session.step(*batch(8))
        await losing
        since_s = max(loop.time(), began_s + NOTICED_S)
        losses.append(float(await step))
        assert loop.time() - since_s < GOES_ON_S, loop.time() - since_s
        losses += [float(await session.step(*batch(number))) for number in range(9, 12)]
        assert (losses, bits(await session.state())) == undisturbed(12)
        await session.close()
        await mesh.close()

    simulate_durable(3, 0, lost, mortal=False)


def test_a_slow_disk_costs_its_time_once_and_not_for_each_weight() -> None:
    weights = [np.full((40, 40), number, np.float32) for number in range(30)]
    state, x = {"weights": weights, "sum": np.zeros(40, np.float32)}, np.ones(40, np.float32)

    def step(state: Any, x: Any) -> Any:
        total = state["sum"] + sum(x @ weight for weight in state["weights"])
        return {**state, "sum": total}, total

    assert _resumed_s(step, state, x, steps=4, every=1, disk_s=0.2) < GOES_ON_S + 5 * 0.2


def test_feeds_that_are_wanted_again_are_sent_without_a_wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x, loaded = np.ones(4, np.float32), list[Any]()

    async def load(*given: Any) -> ProgramContent:
        loaded.append(given)
        return await load_program(*given)

    monkeypatch.setattr(session_service, "load_program", load)
    assert _resumed_s(lambda s, x: (s + x, s), x, x, steps=200, every=1000, delay_s=0.02) < GOES_ON_S + 0.5
    assert len(loaded) == 1, "by the first of them"


def _resumed_s(
    step: Any, state: Any, x: Any, steps: int, every: int, disk_s: float = 0.0, delay_s: float = LAN.delay_s
) -> float:
    """For how long a session stands still from when its standby serves, and its client knows; with a disk that takes
    so long for each file, and so far from the standby."""
    seconds: list[float] = []

    async def lost(cluster: DurableCluster) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for name in cluster.names:
            cluster.slow(name, 0.01)
        mesh = AsyncMesh(await client_of(cluster))
        session = await mesh.session(step, state, x, every=every, strategy="single")
        answers = [await session.step(x) for _ in range(steps)]
        for here, there in ((CLIENT, STANDBY), (STANDBY, CLIENT)):
            cluster.network.set_way(here, there, replace(LAN, delay_s=delay_s))
        losing = asyncio.create_task(cluster.lose_power([CLIENT], 2 * NOTICED_S))
        await asyncio.sleep(NOTICED_S)
        waiting = session.step(x)
        await losing
        loop.thread_s, since_s = lambda: disk_s, loop.time()
        answers.append(await waiting)
        seconds.append(loop.time() - since_s)
        assert len(answers) == steps + 1
        loop.thread_s = lambda: 0.0
        await session.close()
        await mesh.close()

    simulate_durable(1, 0, lost, mortal=False)
    return seconds[0]
