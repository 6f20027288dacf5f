"""A client whose link to the coordinator daemon breaks for a moment has its session as it was: at any moment.

Steps in flight are neither lost nor done twice: losses and state have the bits of a run that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.simulated.remote_client import CLIENT, client_of
from support.undisturbed import bits, undisturbed

from coordinator.coordinator import CoordinatorConfig
from coordinator.jobs.client_contents import ClientContents
from coordinator.jobs.job_store import JobStore
from coordinator.jobs.session_service import SessionService
from mesh.backends.remote import UNREAD_MAX
from mesh.client.async_mesh import AsyncMesh
from mesh.errors import NodeLost, ProtocolError
from mesh.simulation.cluster import COORDINATOR, PORT, Cluster
from mesh.simulation.engine_host import Device
from mesh.simulation.loop import VirtualLoop
from wire.link.link import Link
from wire.protocol.messages import AskNodes, CloseSession, Nodes, ResumeSession, SessionHeard, SessionState
from wire.timeouts import DEFAULT_TIMEOUTS

MOMENTS, MOMENTS_BRIEFLY = 100, 16
STEPS_MAX = 4  # between two breaks
RESTS_S = 0.05  # at most between two steps that are asked for; a step takes about as long
AWAY_S = (0.0, 0.05, 1.0, 20.0)  # how long the client does not reach the coordinator after its link broke


def break_link(cluster: Cluster, away_s: float, noticed: bool = False) -> None:
    """End the link with nothing said, and let nothing through for so long; the daemon may have `noticed` before."""

    def block() -> None:
        cluster.network.block([CLIENT], [COORDINATOR])
        cluster.network.block([COORDINATOR], [CLIENT])
        loop.call_later(away_s, cluster.network.heal, CLIENT)

    loop = asyncio.get_running_loop()
    cluster.network.kill(CLIENT)
    if away_s:
        loop.call_later(0.001 if noticed else 0.0, block)


class Daemon:
    """A simulated coordinator daemon with its workers, and a client of it."""

    def __init__(self, seed: int, workers: int = 2) -> None:
        devices = [Device(dispatch_s=0.01) for _ in range(workers)]
        self.cluster = Cluster(CoordinatorConfig("sim", "me"), devices, seed)

    async def __aenter__(self) -> Daemon:
        await self.cluster.begin()
        self.store, _ = JobStore.open(self.cluster._folder / "jobs", 1)
        self.service = SessionService(self.cluster.coordinator, ClientContents(self.cluster.coordinator), self.store)
        await self.cluster.coordinator.endpoint.listen(COORDINATOR, PORT, PORT)
        self.remote = await client_of(self.cluster)
        self.mesh = AsyncMesh(self.remote)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mesh.close()
        await asyncio.sleep(1.0)
        assert self.cluster.coordinator.sessions.idle, "a session stays"
        await self.service.leave()
        await self.store.close()
        await self.cluster.stop()


async def broken(seed: int, moments: int) -> None:
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    async with Daemon(seed) as daemon:
        if seed % 2:  # while it is opened
            loop.call_later(rng.uniform(0, 0.01), break_link, daemon.cluster, rng.choice(AWAY_S))
        session = await daemon.mesh.session(
            train, first_state(), *batch(0), copies="checkpoint", every=rng.randint(1, 5), strategy="single"
        )
        losses: list[float] = []
        for moment in range(moments):
            away_s = AWAY_S[moment % len(AWAY_S)]
            noticed = rng.random() < 0.5
            loop.call_later(rng.uniform(0, 2 * RESTS_S), break_link, daemon.cluster, away_s, noticed)
            steps: list[Any] = []
            for _ in range(rng.randint(0, STEPS_MAX)):
                steps.append(session.step(*batch(len(losses) + len(steps))))
                await asyncio.sleep(rng.choice((0.0, rng.uniform(0, RESTS_S))))
            state = asyncio.ensure_future(session.state()) if rng.random() < 0.2 else None
            losses += [float(await step) for step in steps]
            if state is not None:
                assert bits(await state) == undisturbed(len(losses))[1]
            await asyncio.sleep(rng.choice((0.0, 0.1)))
        assert (losses, bits(await session.state())) == undisturbed(len(losses))
        (opened,) = daemon.service._sessions.values()
        assert len(opened.requests.answers) <= STEPS_MAX + 1, "answers that the client has are forgotten"
        await session.close()


def run(scenario: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_a_session_goes_on_where_the_link_of_its_client_broke(seed: int) -> None:
    run(broken(seed, MOMENTS if seed > 1 else MOMENTS_BRIEFLY))


def test_sessions_are_closed_one_after_another_though_their_coordinator_is_gone() -> None:
    """As the models of a server are: each waited for the coordinator to return."""

    async def scenario() -> None:
        loop, times = asyncio.get_running_loop(), DEFAULT_TIMEOUTS
        async with Daemon(0, workers=1) as daemon:
            x = np.float32(1)
            sessions = [await daemon.mesh.session(lambda s, x: (s + x, s), x, x, copies="none") for _ in range(4)]
            assert [float(await session.step(x)) for session in sessions] == [1.0] * 4
            break_link(daemon.cluster, math.inf)
            await asyncio.sleep(1.0)
            began_s = loop.time()
            for session in sessions[:3]:
                await session.close()
            assert loop.time() - began_s < 1.5 * times.coordinator_return_s
            daemon.cluster.network.heal(CLIENT)
            assert float(await sessions[3].step(x)) == 2.0, "what goes on is dialled for again"
            await sessions[3].close()
            await asyncio.sleep(times.keep_sessions_s)

    run(scenario())


def large(state: Any, x: Any) -> Any:
    return state + x, state * 2


def test_values_that_are_fetched_outlast_the_link_too() -> None:
    """Inputs, outputs and a state that do not ride along in messages."""
    x = np.ones((512, 300), np.float32)

    async def scenario() -> None:
        rng = random.Random(3)
        async with Daemon(3, workers=1) as daemon:
            session = await daemon.mesh.session(large, x * 0, x, copies="none", strategy="single")
            for number in range(20):
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.1), break_link, daemon.cluster, 0.01)
                told = await session.step(x)
                np.testing.assert_array_equal(told, 2 * number * x)
                await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_later(0.005, break_link, daemon.cluster, 0.01)
            np.testing.assert_array_equal(await session.state(), 20 * x)
            await session.close()

    run(scenario())


def test_more_large_answers_than_before_wait_for_a_client_that_was_away() -> None:
    """They are kept until the client says that it has them, however many they are."""
    x = np.ones((512, 300), np.float32)

    async def scenario() -> None:
        async with Daemon(4, workers=1) as daemon:
            session = await daemon.mesh.session(large, x * 0, x, copies="none", strategy="single", ahead=4)
            steps = [session.step(x) for _ in range(24)]
            await asyncio.sleep(0.05)
            break_link(daemon.cluster, 20.0)
            for number, step in enumerate(steps):
                np.testing.assert_array_equal(await step, 2 * number * x)
            await session.close()

    run(scenario())


def test_steps_go_on_where_the_link_broke_before_the_coordinator_heard_that_their_answers_have_come() -> None:
    async def scenario() -> None:
        async with Daemon(7, workers=1) as daemon:
            network = daemon.cluster.network
            session = await daemon.mesh.session(train, first_state(), *batch(0), strategy="single", ahead=1)
            steps = [session.step(*batch(number)) for number in range(2)]
            await asyncio.sleep(0.005)
            network.block([CLIENT], [COORDINATOR])
            losses = [float(await steps[0])]
            await asyncio.sleep(0.01)
            network.kill(CLIENT)
            network.heal(CLIENT)
            async with asyncio.timeout(60.0):
                losses.append(float(await steps[1]))
            assert losses == undisturbed(2)[0]
            await session.close()

    run(scenario())


def test_a_session_of_a_client_that_stays_away_ends_and_the_client_hears_it() -> None:
    async def scenario() -> None:
        async with Daemon(5) as daemon:
            session = await daemon.mesh.session(train, first_state(), *batch(0), strategy="single")
            await session.step(*batch(0))
            loop = asyncio.get_running_loop()
            break_link(daemon.cluster, DEFAULT_TIMEOUTS.keep_sessions_s + 60.0, True)
            await asyncio.sleep(DEFAULT_TIMEOUTS.keep_sessions_s - 1.0)
            assert not daemon.cluster.coordinator.sessions.idle
            await asyncio.sleep(2.0)
            assert daemon.cluster.coordinator.sessions.idle
            began_s = loop.time()
            with pytest.raises(NodeLost, match="and the session with it"):
                await session.step(*batch(1))
            most_s = DEFAULT_TIMEOUTS.coordinator_return_s + DEFAULT_TIMEOUTS.dial_s  # one dial more
            assert loop.time() - began_s <= most_s
            began_s = loop.time()
            await session.close()
            assert loop.time() == began_s, "there is nobody to ask any more"
            await asyncio.sleep(60.0)
            again = await daemon.mesh.session(train, first_state(), *batch(0), strategy="single", mode="on")
            await again.step(*batch(0))
            daemon.service._sessions.clear()  # as another process at the same address has none
            with pytest.raises(NodeLost, match="has no session") as caught:
                await again.step(*batch(0))
            assert "saved last" in str(caught.value)
            await again.close()
            daemon.cluster.coordinator.sessions.close()

    run(scenario())


def test_nobody_else_has_the_session_of_a_client() -> None:
    async def scenario() -> None:
        async with Daemon(6) as daemon:
            session = await daemon.mesh.session(train, first_state(), *batch(0), strategy="single")
            await session.step(*batch(0))
            (token,) = daemon.service._sessions
            other = await client_of(daemon.cluster, "thief", member="e" * 32)
            for ask in (SessionState(token, 1), CloseSession(token), ResumeSession(token, 0, 0)):
                with pytest.raises(NodeLost, match="has no session"):
                    await (await other._open()).request(ask)
            (await other._open()).notify(SessionHeard(token, 1))
            assert (await session.step(*batch(1))) is not None
            await other.close()
            await session.close()

    run(scenario())


def test_an_answer_that_no_client_can_read_is_asked_for_a_few_times_and_then_an_error() -> None:
    async def asked() -> int:
        count = 0

        async def unreadable(link: Link, body: AskNodes) -> Any:
            nonlocal count
            count += 1
            return Nodes("soon")  # type: ignore[arg-type]

        async with Daemon(0) as daemon:
            daemon.cluster.coordinator.requests[AskNodes] = unreadable
            with pytest.raises(ProtocolError, match="--version"):
                await daemon.remote.nodes()
        return count

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(asked()) == UNREAD_MAX
