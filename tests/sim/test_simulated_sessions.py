"""Sessions on simulated workers: whatever befalls them, the state is that of a run nobody disturbed, bit for bit."""

from __future__ import annotations

import asyncio
import inspect
import random

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.simulated.simulated import Chaos
from support.undisturbed import bits, undisturbed

from coordinator.delivery.deployer import Deployer
from mesh import AsyncMesh, Mesh, tree
from mesh.errors import DeviceLost, MeshError, NodeLost
from mesh.simulation.loop import VirtualLoop

STEPS = 12


@pytest.mark.parametrize("strategy", ["single", "pipeline", "auto"])
def test_a_session_computes_what_one_machine_computes(strategy: str) -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        with mesh.session(train, first_state(), *batch(0), strategy=strategy) as session:
            steps = [session.step(*batch(step)) for step in range(STEPS)]
            losses = [float(step.result()) for step in steps]
            assert (losses, bits(session.state())) == undisturbed(STEPS)
        mesh.simulation.wait(1.0)
        assert mesh.simulation._cluster.coordinator.sessions.idle


def test_state_of_a_pipeline_is_where_it_is_read() -> None:
    with (
        Mesh.builder().mesh("sim").simulate(3).build() as mesh,
        mesh.session(train, first_state(), *batch(0), strategy="pipeline") as session,
    ):
        session.step(*batch(0)).result()
        plan = session._async.running.plan  # type: ignore[attr-defined]
        assert len({part.node for part in plan.parts}) == 3, "every worker has some of it"
        sites = {carry.state: plan.parts[carry.source.part] for carry in plan.carries}
        for part in plan.parts:
            for source in part.sources:
                if source in sites:
                    assert (part.node, part.device) == (sites[source].node, sites[source].device)


async def disturbed(seed: int, copies: str, strategy: str) -> tuple[list[float], list[bytes], int]:
    """A run of three workers one of which dies now and then; how often."""
    rng = random.Random(seed)
    builder = Mesh.builder().mesh("sim").simulate(3, seed)
    async with await builder.build_async() as mesh:
        cluster = mesh.simulation
        deaths = 0

        async def mischief() -> None:
            nonlocal deaths
            while True:
                await asyncio.sleep(rng.uniform(0.001, 0.02))
                name = rng.choice(cluster.names)
                if len(cluster.alive) < len(cluster.names):
                    continue
                deaths += 1
                cluster.kill(name)
                await asyncio.sleep(rng.uniform(0.05, 0.4))
                cluster.start(name)
                await asyncio.sleep(4)  # it joins, and the copies that it had are made again

        async with await mesh.session(
            train, first_state(), *batch(0), copies=copies, every=rng.randint(1, 5), strategy=strategy
        ) as session:
            losses: list[float] = []
            await session.step(*batch(0))
            player = asyncio.create_task(mischief())
            for first in range(1, STEPS, 3):
                steps = [session.step(*batch(step)) for step in range(first, min(first + 3, STEPS))]
                losses += [float(await step) for step in steps]
                await asyncio.sleep(rng.uniform(0, 1.5))
            player.cancel()
            state = bits(await session.state())
        cluster.checker.verdict()
        return losses, state, deaths


def check(seed: int, copies: str, strategy: str) -> int:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        losses, state, deaths = runner.run(disturbed(seed, copies, strategy))
    expected, final = undisturbed(STEPS)
    assert losses == expected[1:] and state == final
    return deaths


@pytest.mark.parametrize("strategy", ["single", "pipeline"])
@pytest.mark.parametrize("copies", ["buddy", "coded", "checkpoint"])
def test_deaths_lose_no_step_and_change_no_bit(copies: str, strategy: str) -> None:
    assert check(1, copies, strategy)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 60))
def test_many_deaths_lose_no_step_and_change_no_bit(seed: int) -> None:
    check(seed, ("buddy", "coded", "checkpoint", "coded 1 of 2")[seed % 4], ("single", "pipeline", "auto")[seed % 3])


@pytest.mark.parametrize(("copies", "deaths"), [("coded", 1), ("coded 2 of 4", 2), ("coded 3 of 5", 2)])
def test_pieces_of_workers_that_died_at_once_are_made_of_those_of_others(copies: str, deaths: int) -> None:
    with (
        Mesh.builder().mesh("sim").simulate(5).build() as mesh,
        mesh.session(train, first_state(), *batch(0), copies=copies, every=1, strategy="pipeline") as session,
    ):
        losses = [float(session.step(*batch(step)).result()) for step in range(6)]
        mesh.simulation.wait(2.0)  # copies and checks are made
        plan = session._async.running.plan  # type: ignore[attr-defined]
        owners = [share.name for share in plan.workers if share.node in frozenset().union(*plan.owners.values())]
        assert len(owners) > 1
        for name in owners[:deaths]:
            mesh.simulation.kill(name)
        losses += [float(session.step(*batch(step)).result()) for step in range(6, STEPS)]
        after = session._async.running.plan  # type: ignore[attr-defined]
        dead = {share.node for share in plan.workers if share.name in owners[:deaths]}
        for piece, nodes in plan.owners.items():
            assert after.owners[piece] == nodes or nodes <= dead, "what lives stays where it is"
        assert (losses, bits(session.state())) == undisturbed(STEPS)


async def mischief(seed: int) -> int:
    """A session under all mischief that there is; how many steps it did.  One that ends says that its state is lost."""
    rng = random.Random(seed)
    async with await Mesh.builder().mesh("sim").simulate(3, seed).build_async() as mesh:
        cluster = mesh.simulation
        chaos = Chaos(cluster, rng, rest_s=(0.05, 2.0))
        player = asyncio.create_task(chaos.play())
        strategy = rng.choice(("single", "pipeline", "auto"))
        session = await mesh.session(train, first_state(), *batch(0), every=rng.randint(1, 3), strategy=strategy)
        done, losses, ended = 0, list[float](), "no copy"
        try:
            async with asyncio.timeout(3600):
                for step in range(STEPS):
                    losses.append(float(await session.step(*batch(step))))
                    done += 1
                    await asyncio.sleep(rng.uniform(0, 2))
                    if rng.random() < 0.2:
                        await session.state()
                assert (losses, bits(await session.state())) == undisturbed(STEPS)
        except (NodeLost, DeviceLost) as error:  # or a device again and again, on every worker
            ended = str(error)
        chaos.settle()
        await player
        assert losses == undisturbed(STEPS)[0][:done]
        assert any(words in ended for words in ("no copy", "no worker is left", "device", "Do a step, and ask again"))
        async with asyncio.timeout(600):
            await session.close()
        await asyncio.sleep(15)
        for name, depth in cluster.busy().items():
            assert depth == 0, f"{name} still has {depth} parts"
        cluster.checker.verdict()
        return done


@pytest.mark.parametrize("seed", [3])
def test_mischief_ends_in_the_right_state_or_in_a_clear_error(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(mischief(seed)) == STEPS


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_much_mischief_ends_in_the_right_state_or_in_a_clear_error(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(mischief(seed))


def test_a_state_that_nobody_copied_dies_with_its_worker_and_says_so() -> None:
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        # more than what is held of feeds without copies: nothing can begin anew
        big = np.zeros((2048, 2048), np.float32)
        session = mesh.session(lambda total, x: (total + x[:8, :8], x[0, 0]), big[:8, :8], big, copies="none")
        for _ in range(6):
            session.step(big).result()
        plan = session._async.running.plan  # type: ignore[attr-defined]
        names = {share.node: share.name for share in plan.workers}
        (owners,) = plan.owners.values()
        mesh.simulation.kill(names[min(owners)])
        with pytest.raises(NodeLost, match="no copy"):
            session.step(big).result()
        with pytest.raises(NodeLost, match="no copy"):
            session.state()


@pytest.mark.parametrize("performer", ["keep", "deploy"])
def test_a_fault_of_the_coordinator_ends_the_session_with_it(performer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def faulty(*args: object, **given: object) -> None:
        raise AttributeError("no such thing")

    first = tree.map(np.asarray, first_state())
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        monkeypatch.setattr(Deployer, performer, faulty)
        session = mesh.session(train, first, *batch(0), copies="buddy", every=1)
        steps = [session.step(*batch(step)) for step in range(STEPS)]
        mesh.simulation.wait(5)
        with pytest.raises(MeshError, match="no such thing"):
            steps[-1].result()
        if performer == "deploy":
            with pytest.raises(MeshError, match="deploying failed"):
                mesh.run(lambda x: x + x, 1.5)
        monkeypatch.undo()
        session.close()
        assert mesh.run(lambda x: x + x, 1.5) == 3.0


def test_a_worker_that_comes_late_takes_part() -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        mesh.simulation.kill("sim-2")
        mesh.simulation.wait(3)
        with mesh.session(train, first_state(), *batch(0), strategy="pipeline") as session:
            first = [float(session.step(*batch(step)).result()) for step in range(4)]
            mesh.simulation.start("sim-2")
            mesh.simulation.wait(5)
            rest = [float(session.step(*batch(step)).result()) for step in range(4, STEPS)]
            plan = session._async.running.plan  # type: ignore[attr-defined]
            assert len({part.node for part in plan.parts}) == 3
            assert ([*first, *rest], bits(session.state())) == undisturbed(STEPS)


def test_workers_that_cannot_connect_have_copies_all_the_same() -> None:
    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        mesh.simulation.block("sim-0", "sim-1")
        mesh.simulation.block("sim-1", "sim-0")
        mesh.simulation.wait(3)
        with mesh.session(train, first_state(), *batch(0), strategy="single", every=2) as session:
            losses = [float(session.step(*batch(step)).result()) for step in range(6)]
            plan = session._async.running.plan  # type: ignore[attr-defined]
            (owner,) = {part.node for part in plan.parts}
            mesh.simulation.wait(30)  # for those who try to connect
            mesh.simulation.kill(next(share.name for share in plan.workers if share.node == owner))
            losses += [float(session.step(*batch(step)).result()) for step in range(6, STEPS)]
            assert (losses, bits(session.state())) == undisturbed(STEPS)
            assert session._async.running._machine.held_from >= 2  # type: ignore[attr-defined]


def test_a_device_that_is_lost_goes_back_to_a_copy() -> None:
    async def run() -> None:
        async with (
            await Mesh.builder().mesh("sim").simulate(2).build_async() as mesh,
            await mesh.session(train, first_state(), *batch(0), every=2, strategy="single") as session,
        ):
            for step in range(5):
                await session.step(*batch(step))
            plan = session.running.plan  # type: ignore[attr-defined]
            names = {share.node: share.name for share in plan.workers}
            (used,) = {part.node for part in plan.parts}
            cluster = mesh.simulation
            cluster.devices[cluster.names.index(names[used])].fails_after = 1
            for step in range(5, STEPS):
                await session.step(*batch(step))
            assert bits(await session.state()) == undisturbed(STEPS)[1]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_async_mesh_has_sessions_too() -> None:
    asked, also = (inspect.signature(kind.session).parameters for kind in (Mesh, AsyncMesh))
    assert asked == also


def test_copies_that_a_worker_has_no_memory_for_are_told_of_and_the_state_is_there_all_the_same() -> None:
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh:
        with mesh.session(train, first_state(), *batch(0), copies="buddy", every=1) as session:
            expected = [float(session.step(*batch(step)).result()) for step in range(STEPS)]
            whole = session.state()
        stores = [process.daemon._store._memory for process in mesh.simulation._cluster._processes.values()]
        with mesh.session(train, first_state(), *batch(0), copies="buddy", every=1) as session:
            found = [float(session.step(*batch(0)).result())]
            for memory in stores:
                memory.bytes_max = 200  # less than one of the tensors
            found += [float(session.step(*batch(step)).result()) for step in range(1, STEPS)]
            mesh.simulation.wait(2)
            told = [line for line in mesh.simulation.transcript().splitlines() if " unguarded " in line]
            assert told and all("may hold 200 B" in line and "--max-memory" in line for line in told)
            for memory in stores:
                memory.bytes_max = 1 << 20
            for leaf, right in zip(tree.leaves(session.state()), tree.leaves(whole), strict=True):
                assert np.array_equal(leaf, right)
        assert found == expected
