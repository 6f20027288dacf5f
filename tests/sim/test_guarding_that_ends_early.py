"""Keeping copies of weights is cancelled, or fails in a way nobody thought of, at every place where it waits: nothing
stays pinned on workers, and later programs are guarded."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import numpy as np
import pytest

import mesh.numpy as mnp
from mesh import AsyncMesh
from mesh.simulation.cluster import Cluster
from mesh.simulation.loop import VirtualLoop
from wire.protocol.messages import Paused

LAYERS, WIDTH = 4, 24
AT_REST_S = 10.0  # virtual
PLACES_MAX = 200
X = np.ones((2, WIDTH), np.float32)


def model(weights: Any, x: Any) -> Any:
    for each in weights:
        x = mnp.tanh(x @ each)
    return x


def pinned(cluster: Cluster) -> int:
    """How many plans workers have that are not those of calls."""
    deployed = cluster.coordinator._runner.deployments
    states = [process.daemon.shell.machine for process in cluster._processes.values() if process.daemon]
    return sum(key.generation not in deployed for state in states if state for key in state._plans)


class Ended:
    """A piece of work that ends with an error at the place where it waits for the n-th time."""

    def __init__(self, work: Coroutine[Any, Any, None], place: int, error: Callable[[], BaseException]) -> None:
        self._work, self._place, self._error = work, place, error
        self.places = 0  # where it waited

    @types.coroutine
    def run(self) -> Generator[Any, Any, None]:
        answer: Any = None
        while True:
            try:
                waits = self._work.send(answer)
            except StopIteration:
                return
            self.places += 1
            if self.places == self._place:
                try:
                    self._work.throw(self._error())
                except StopIteration:
                    return
            try:
                answer = yield waits
            except BaseException as error:
                self._work.throw(error)


async def guarded(
    mesh: AsyncMesh, copies: str, place: int, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Call a program, whose guarding ends early; whether there was such a place."""
    cluster = mesh.simulation
    guards, works = cluster.coordinator._guards, list[Ended]()
    begin = guards._guard

    async def begin_ended(*arguments: Any) -> None:
        work = begin(*arguments)
        if works:
            await work
            return
        works.append(Ended(work, place, error))
        await works[0].run()

    monkeypatch.setattr(guards, "_guard", begin_ended)
    rng = np.random.default_rng(place)
    weights = await mesh.put([rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)])
    form = mesh.form(model, (weights, X), mesh.options("pipeline", "on", copies))
    inputs, work = form.bind((weights, X))
    await mesh.start(form, inputs, work).outputs
    await asyncio.sleep(AT_REST_S)
    monkeypatch.setattr(guards, "_guard", begin)
    ended = bool(works) and works[0].places >= place
    if ended:
        assert pinned(cluster) == 0, f"what was pinned when it ended at its place {place} stays"
    else:
        assert pinned(cluster) > 0, "nothing is guarded at all"
    mesh.forget(work)
    await asyncio.sleep(AT_REST_S)
    assert pinned(cluster) == 0
    return ended


@pytest.mark.parametrize("error", [asyncio.CancelledError, lambda: OSError("disk full")], ids=["cancelled", "fault"])
@pytest.mark.parametrize("copies", ["buddy", "coded", "replica"])
def test_nothing_stays_of_guarding_that_ended_at_any_place(
    copies: str, error: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> int:
        async with await AsyncMesh.builder().mesh("sim").simulate(3).build_async() as mesh:
            place = 1
            while await guarded(mesh, copies, place, error, monkeypatch):
                place += 1
                assert place < PLACES_MAX
            told = [event for event in mesh.simulation.coordinator.events if event.kind == "unguarded"]
            assert len(told) == (0 if error is asyncio.CancelledError else place - 1)
            assert all("OSError: disk full" in event.text for event in told)
            return place - 1

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(scenario()) >= 2


@pytest.mark.parametrize("copies", ["buddy", "coded", "replica"])
def test_a_program_that_is_forgotten_at_any_moment_leaves_nothing(copies: str) -> None:
    async def scenario() -> None:
        async with await AsyncMesh.builder().mesh("sim").simulate(3).build_async() as mesh:
            for moment in range(60):
                rng = np.random.default_rng(moment)
                weights = await mesh.put([rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)])
                form = mesh.form(model, (weights, X), mesh.options("pipeline", "on", copies))
                inputs, work = form.bind((weights, X))
                await mesh.start(form, inputs, work).outputs
                await asyncio.sleep(0.0005 * moment)
                mesh.forget(work)
            await asyncio.sleep(AT_REST_S)
            assert pinned(mesh.simulation) == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


def test_a_worker_that_comes_and_goes_all_the_time_leaves_no_queue_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with await AsyncMesh.builder().mesh("sim").simulate(3).build_async() as mesh:
            weights = await mesh.put([np.full((WIDTH, WIDTH), 1 / (1 + n), np.float32) for n in range(LAYERS)])
            form = mesh.form(model, (weights, X), mesh.options("single", "on", "buddy"))
            inputs, work = form.bind((weights, X))
            await mesh.start(form, inputs, work).outputs
            await asyncio.sleep(AT_REST_S)
            coordinator, turns = mesh.simulation.coordinator, list[int]()
            guards, make = coordinator._guards, coordinator._guards._make_and_pin
            (guard,) = guards._guards.values()

            async def counted(*arguments: Any) -> None:
                turns.append(1)
                await make(*arguments)

            monkeypatch.setattr(guards, "_make_and_pin", counted)
            other = min(coordinator._members.keys() - {part.node for part in guard.plan.parts})
            link = coordinator._members[other].link
            for _ in range(100):
                coordinator._registry.paused(link, Paused("user"))
                coordinator._registry.paused(link, Paused(""))
            await asyncio.sleep(AT_REST_S)
            assert 1 <= len(turns) <= 2 and guard.nodes == coordinator._members.keys()
            coordinator._registry.paused(link, Paused("user"))
            await asyncio.sleep(AT_REST_S)
            assert guard.nodes == coordinator._members.keys() - {other}, "it hears of later ones"
            assert pinned(mesh.simulation) > 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
