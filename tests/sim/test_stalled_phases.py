"""Each phase of a call and of a session stalls once: somebody never answers, though all heartbeats come.  The work goes
on elsewhere after the phase's deadline, or ends with an error that names the phase."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.cases.training import batch, first_state, train
from support.simulated.simulated import simulate

from coordinator.planning.model.program import Program
from mesh import Mesh
from mesh.backends.config import MeshConfig
from mesh.simulation.cluster import Cluster
from wire.deadlines import DEPLOY, DROP, FETCH, FETCH_PROGRESS, PLAN, SNAPSHOT, STORE_COPY
from wire.errors import DeadlineExceeded
from wire.ir.codec import hash_array
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import Deploy, Drop, FetchBlob, Message, Snapshot

WEIGHT = np.linspace(-1, 1, 1 << 16, dtype=np.float32)
SETTLED_S = 15.0  # what all else takes


def summed() -> Program:
    builder = GraphBuilder()
    x, w = builder.input("x", WEIGHT.shape, F32), builder.param("w", WEIGHT.shape, F32)
    bound = {"w": (hash_array(WEIGHT), TensorType(WEIGHT.shape, F32))}
    return Program(builder.build([builder.add("add", x, w)]), bound, "single")


@contextlib.contextmanager
def unanswered(wanted: Callable[[Message], bool], times: int = 1) -> Iterator[list[Message]]:
    """The next requests of this kind are never answered; those that there were."""
    real, held = Link._serve, list[Message]()

    async def serve(link: Link, number: int, body: Any, answer: Any) -> None:
        if not wanted(body) or len(held) >= times:
            await real(link, number, body, answer)
            return
        held.append(body)
        await asyncio.Event().wait()

    Link._serve = serve  # type: ignore[method-assign]
    try:
        yield held
    finally:
        Link._serve = real  # type: ignore[method-assign]


def of_parts(body: Message) -> bool:
    return isinstance(body, Deploy) and bool(body.parts)


def of_copies(body: Message) -> bool:
    return isinstance(body, Deploy) and not body.parts


def fetching(body: Message) -> bool:
    return isinstance(body, FetchBlob)


CALLS = {"deploy": (of_parts, DEPLOY.seconds), "fetch": (fetching, FETCH.seconds)}


@pytest.mark.parametrize("phase", CALLS)
def test_a_call_goes_on_elsewhere_when_a_phase_stalls(phase: str) -> None:
    wanted, limit_s = CALLS[phase]

    async def scenario(cluster: Cluster) -> None:
        cluster.coordinator.hold(hash_array(WEIGHT), WEIGHT)
        clock = asyncio.get_running_loop()
        began_s = clock.time()
        with unanswered(wanted) as held:
            (found,), _ = await asyncio.wait_for(cluster.coordinator.call(summed(), {"x": WEIGHT}), 600)
        assert held and np.array_equal(found, 2 * WEIGHT)
        assert limit_s <= clock.time() - began_s < limit_s + SETTLED_S

    simulate(scenario)


def test_a_call_whose_only_worker_never_prepares_its_part_ends_with_the_phase() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.coordinator.hold(hash_array(WEIGHT), WEIGHT)
        with unanswered(of_parts, 1000), pytest.raises(DeadlineExceeded, match="deploy took too long"):
            await asyncio.wait_for(cluster.coordinator.call(summed(), {"x": WEIGHT}), 3600)

    simulate(scenario, workers=1)


def test_a_call_whose_planning_does_not_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        real = loop.run_in_executor

        def never_planned(executor: Any, work: Any, *args: Any) -> Any:
            return loop.create_future() if work.__name__ == "_planned" else real(executor, work, *args)

        cluster.coordinator.hold(hash_array(WEIGHT), WEIGHT)
        monkeypatch.setattr(loop, "run_in_executor", never_planned)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match="plan took too long"):
            await asyncio.wait_for(cluster.coordinator.call(summed(), {"x": WEIGHT}), 3600)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(PLAN.seconds, abs=1)

    simulate(scenario, plan_ahead=False)


def test_a_worker_that_does_not_forget_a_plan_holds_nobody_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.coordinator.hold(hash_array(WEIGHT), WEIGHT)
        await cluster.coordinator.call(summed(), {"x": WEIGHT})
        with unanswered(lambda body: isinstance(body, Drop)) as held:
            cluster.coordinator.forget_program(summed())
            await asyncio.sleep(2 * DROP.seconds)
            (found,), _ = await asyncio.wait_for(cluster.coordinator.call(summed(), {"x": WEIGHT}), SETTLED_S)
        assert held and np.array_equal(found, 2 * WEIGHT)

    simulate(scenario)


SESSIONS = {
    "deploy": (of_parts, DEPLOY.seconds),
    "snapshot": (lambda body: isinstance(body, Snapshot), SNAPSHOT.seconds),
    "store": (of_copies, STORE_COPY.seconds),
    "fetch": (fetching, FETCH_PROGRESS.seconds),
}


@pytest.mark.parametrize("phase", SESSIONS)
def test_a_session_goes_on_when_a_phase_stalls(phase: str) -> None:
    wanted, limit_s = SESSIONS[phase]
    with Mesh.builder().mesh("sim").simulate(3).build() as mesh, unanswered(wanted) as held:
        with (
            mesh.session(train, first_state(), *batch(0), strategy="pipeline", copies="buddy", every=1) as session,
            Mesh(MeshConfig()) as here,
        ):
            alone = here.session(train, first_state(), *batch(0))
            for step in range(4):
                within_s = 2 * limit_s + SETTLED_S
                found = float(session.step(*batch(step)).result(within_s))
                assert found == float(alone.step(*batch(step)).result())
            mesh.simulation.wait(2 * limit_s)
            found = float(session.step(*batch(4)).result(2 * limit_s + SETTLED_S))
            assert found == float(alone.step(*batch(4)).result())
        assert held
