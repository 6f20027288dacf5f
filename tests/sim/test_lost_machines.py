"""The machine of a simulated coordinator loses its power, and its standby serves after a while: the session of a client
goes on soon after that, whenever that is.

Nothing tells the client but silence, so it needs some time of its own to notice: the rest of that counts, too.
"""

from __future__ import annotations

import asyncio

import pytest
from support.cases.training import batch, first_state, train
from support.simulated.remote_client import CLIENT, client_of
from support.simulated.simulated_jobs import DurableCluster, simulate_durable
from support.undisturbed import bits, undisturbed

from mesh.client.async_mesh import AsyncMesh
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
