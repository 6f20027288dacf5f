"""Simulated programs that train in one session with a name, and are killed one after the other, with the coordinator or
without: the next one attaches, and finds every step that the one before had the answer of.

`PYTHONHASHSEED=0 python tests/sim/test_sessions_of_killed_programs.py COUNT [FIRST]` runs that many seeds.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from typing import Any

import pytest
from support.by_seed import ranges, run_seeds
from support.cases.training import batch, first_state, train
from support.simulated.remote_client import client_of
from support.simulated.simulated_jobs import DurableCluster, simulate_durable
from support.undisturbed import bits, undisturbed

from mesh.client.async_mesh import AsyncMesh
from mesh.client.session import AsyncSession
from mesh.simulation.cluster import COORDINATOR
from wire.errors import InputError, NodeLost, SessionTaken

PROGRAMS = 6
STEPS_MAX = 6
REST_S = 0.05
COPIES = ("buddy", "coded", "checkpoint", "none", "")


async def joined(cluster: DurableCluster, name: str) -> AsyncMesh:
    return AsyncMesh(await client_of(cluster, name))


def die(cluster: DurableCluster, name: str) -> None:
    """As `kill -9` of a program does."""
    cluster.network.kill(name)
    cluster.network.block([name], [COORDINATOR])


async def trained(session: AsyncSession, rng: random.Random) -> int:
    """Ask for some steps and read some of the answers; how many steps there are then at most."""
    first, steps, losses = session.steps_done, list[asyncio.Future[Any]](), list[float]()
    for _ in range(rng.randint(0, STEPS_MAX)):
        steps.append(session.step(*batch(first + len(steps))))
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0, REST_S), rng.uniform(0, 1.0))))
    for step in steps[: rng.randint(0, len(steps))]:
        losses.append(float(await step))
    assert losses == undisturbed(first + len(losses))[0][first:]
    return first + len(steps)


async def taken_up(cluster: DurableCluster) -> None:
    rng, loop = random.Random(cluster.seed), asyncio.get_running_loop()
    options: Any = {"copies": COPIES[cluster.seed % len(COPIES)], "every": rng.randint(1, 5)}
    options["strategy"] = rng.choice(("single", "pipeline"))
    cluster.mortal = rng.random() < 0.5
    mesh = await joined(cluster, "program0")
    session = await mesh.session(train, first_state(), *batch(0), name="run7", **options)
    await session.state()  # it is open
    at_least = at_most = 0
    for number in range(1, PROGRAMS):
        if cluster.mortal:
            loop.call_later(rng.uniform(0, 3.0), cluster.crash)
        at_most = await trained(session, rng)
        at_least = session.steps_done
        if rng.random() < 0.8:
            die(cluster, f"program{number - 1}")
        elif rng.random() < 0.5:
            await session.detach()
            at_least = at_most
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 3.0), rng.uniform(0, 200.0))))
        before, mesh = (mesh, session), await joined(cluster, f"program{number}")
        session = await mesh.attach("run7", train if rng.random() < 0.3 else None, take=True)
        assert at_least <= session.steps_done <= at_most, "a step that was answered is lost"
        await before[0].close()
    cluster.mortal = False
    losses = [float(await session.step(*batch(session.steps_done))) for _ in range(3)]
    assert (losses, bits(await session.state())) == (
        undisturbed(session.steps_done)[0][-3:], undisturbed(session.steps_done)[1]
    )  # fmt: skip
    await session.close()
    await mesh.close()
    await asyncio.sleep(5.0)
    assert cluster.coordinator.sessions.idle, "a session stays"


async def asked_for(cluster: DurableCluster) -> None:
    one, two = [await client_of(cluster, name) for name in ("one", "two")]
    stranger = await client_of(cluster, "stranger", "e" * 32)
    first, second, third = AsyncMesh(one), AsyncMesh(two), AsyncMesh(stranger)
    session = await first.session(train, first_state(), *batch(0), name="run7")
    await session.step(*batch(0))
    with pytest.raises(InputError, match="there is a session 'run7' already"):
        await (await second.session(train, first_state(), *batch(0), name="run7")).state()
    with pytest.raises(InputError, match="no session 'run7' of yours"):
        await third.attach("run7", take=True)
    with pytest.raises(InputError, match="no session 'run7' of yours"):
        await stranger.end_session("run7")
    assert await stranger.named_sessions() == ()
    own = await third.session(train, first_state(), *batch(0), name="run7")  # names belong to members
    assert bits(await own.state()) == undisturbed(0)[1] and bits(await session.state()) == undisturbed(1)[1]
    assert [(report.client, report.steps) for report in await stranger.named_sessions()] == [("stranger", 0)]
    assert [(report.client, report.steps) for report in await one.named_sessions()] == [("one", 1)]
    await own.detach()
    assert (await third.attach("run7", take=True)).steps_done == 0
    await stranger.end_session("run7")
    with pytest.raises(InputError, match="no session 'run7' of yours"):
        await third.attach("run7", take=True)
    assert bits(await session.state()) == undisturbed(1)[1], "another member ended it"
    with pytest.raises(SessionTaken, match="is driven by one"):
        await second.attach("run7")
    under_way = session.step(*batch(1))
    taken = await second.attach("run7", train, take=True)
    assert taken.steps_done in (1, 2) and (under_way.done() or taken.steps_done == 1)
    with pytest.raises(SessionTaken, match="is driven by two"):
        await session.step(*batch(2))
    with pytest.raises(SessionTaken):
        await session.state()
    with pytest.raises(SessionTaken):
        await session.detach()
    await session.close()  # which ends nothing
    (report,) = await one.named_sessions()
    assert (report.name, report.client, report.attached, report.steps) == ("run7", "two", True, taken.steps_done)
    assert report.workers and report.size_bytes == taken.stepping.state_bytes and report.found
    await taken.detach()
    with pytest.raises(InputError, match="another step function"):
        await first.attach("run7", lambda state, x, y: (train(state, x, y)[0], x))
    again = await first.attach("run7")
    await one.end_session("run7")
    with pytest.raises(NodeLost):
        await again.step(*batch(2))
    with pytest.raises(InputError, match="no session 'run7' of yours"):
        await second.attach("run7")
    for mesh in (first, second, third):
        await mesh.close()
    await asyncio.sleep(5.0)
    assert cluster.coordinator.sessions.idle, "a session stays"


def test_a_session_is_its_owner_s_and_one_program_s_at_a_time() -> None:
    _, lives = simulate_durable(2, 1, asked_for, mortal=False)
    assert lives == 1


async def asked_for_after_a_crash(cluster: DurableCluster) -> None:
    first, second = [await joined(cluster, name) for name in ("one", "two")]
    session = await first.session(train, first_state(), *batch(0), name="run7")
    await session.step(*batch(0))
    cluster.crash()
    await session.step(*batch(1))
    with pytest.raises(SessionTaken, match="is driven by one"):
        await second.attach("run7")
    for mesh in (first, second):
        await mesh.close()


def test_after_a_crash_of_the_coordinator_it_is_known_who_drives_a_session() -> None:
    _, lives = simulate_durable(2, 1, asked_for_after_a_crash, mortal=False)
    assert lives == 2


async def left_alone(cluster: DurableCluster) -> None:
    cluster.sessions._keep_named_s = 100.0  # a week of heartbeats would take minutes
    mesh = await joined(cluster, "one")
    session = await mesh.session(train, first_state(), *batch(0), name="run7")
    await session.step(*batch(0))
    await mesh.close()
    await asyncio.sleep(90.0)
    assert not cluster.coordinator.sessions.idle
    await asyncio.sleep(20.0)
    assert cluster.coordinator.sessions.idle, "nobody came for it"


def test_a_session_that_nobody_drives_is_kept_for_so_long() -> None:
    _, lives = simulate_durable(2, 1, left_alone, mortal=False)
    assert lives == 1


def run(seed: int) -> Counter[str]:
    _, lives = simulate_durable(2 + seed % 2, seed, taken_up, mortal=False)
    assert lives > 0
    return Counter(lives=lives, programs=PROGRAMS)


@pytest.mark.parametrize("seeds", ranges(2, 500), ids=str)
def test_a_session_goes_on_with_another_program_whenever_one_is_killed(seeds: range) -> None:
    for seed in seeds:
        run(seed)


if __name__ == "__main__":
    sys.exit(run_seeds(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, run, 240.0))
