"""Faults of this process in what a session's shell does, in a simulated mesh: whoever waits is told, the session goes
on where it can, and nothing is kept for longer than it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import coordinator.sessions.session_shell
from coordinator.sessions import events as ev
from coordinator.sessions.copy_shell import CopyShell
from coordinator.sessions.plan_maker import PlanMaker
from coordinator.sessions.state import SessionState
from mesh import AsyncMesh
from mesh.simulation.loop import VirtualLoop
from wire.errors import OutOfMemory

ANSWER_S = 300.0  # virtual seconds within which anything must have ended
X = np.arange(8, dtype=np.float32)


def total_of(total: Any, x: Any) -> Any:
    return total + x, x


def simulate(scenario: Callable[[AsyncMesh], Awaitable[object]], workers: int = 3) -> None:
    async def run() -> None:
        async with await AsyncMesh.builder().mesh("sim").simulate(workers).build_async() as mesh:
            async with asyncio.timeout(ANSWER_S):
                await scenario(mesh)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def failing_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, place: int) -> list[int]:
    """The call of this function with this number, counted from 1, finds no memory.  How many there were."""
    real, calls = getattr(owner, name), list[int]()

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == place:
            raise MemoryError
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    return calls


def test_a_step_whose_answer_finds_no_memory_is_told_so_and_the_next_one_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(mesh: AsyncMesh) -> None:
        async with await mesh.session(total_of, X, X, strategy="single") as session:
            failing_at(monkeypatch, coordinator.sessions.session_shell, "arrays_of", 2)  # the first is for the worker
            with pytest.raises(OutOfMemory, match="putting the outputs together"):
                await session.step(X)
            np.testing.assert_array_equal(await session.step(X), X)
            np.testing.assert_array_equal(await session.state(), 3 * X)

    simulate(scenario)


def test_a_state_that_finds_no_memory_here_is_told_of_and_can_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(mesh: AsyncMesh) -> None:
        async with await mesh.session(total_of, X, X) as session:
            await session.step(X)
            calls = failing_at(monkeypatch, CopyShell, "value_of", 1)
            with pytest.raises(OutOfMemory, match="putting the state together"):
                await session.state()
            assert calls
            np.testing.assert_array_equal(await session.state(), 2 * X)

    simulate(scenario)


def test_a_fault_while_a_better_plan_is_looked_for_leaves_the_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(mesh: AsyncMesh) -> None:
        mesh.simulation.kill("sim-2")
        await asyncio.sleep(5)
        async with await mesh.session(total_of, X, X) as session:
            await session.step(X)
            calls = failing_at(monkeypatch, PlanMaker, "better_than", 1)
            mesh.simulation.start("sim-2")
            await asyncio.sleep(10)
            assert calls, "nobody looked"
            np.testing.assert_array_equal(await session.step(X), X)
            np.testing.assert_array_equal(await session.state(), 3 * X)

    simulate(scenario)


def test_copies_that_were_let_go_leave_nothing_here() -> None:
    async def scenario(mesh: AsyncMesh) -> None:
        async with await mesh.session(total_of, X, X, copies="checkpoint", every=1) as session:
            for _ in range(20):
                await session.step(X)
            await asyncio.sleep(2)
            assert len(session.running._copies._copies) <= 2

    simulate(scenario)


def test_a_session_that_fails_as_time_passes_ends_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its clock it would wait for a step that hangs for ever."""
    real, faults = SessionState.handle, [MemoryError()]

    def handle(machine: SessionState, event: ev.Event, now: float) -> list[ev.Action]:
        if isinstance(event, ev.Tick) and faults:
            raise faults.pop()
        return real(machine, event, now)

    async def scenario(mesh: AsyncMesh) -> None:
        async with await mesh.session(total_of, X, X, strategy="single") as session:
            await session.step(X)
            monkeypatch.setattr(SessionState, "handle", handle)
            for device in mesh.simulation.devices:
                device.stuck = True
            with pytest.raises(OutOfMemory, match="a session failed as time passed"):
                await session.step(X)
            assert not faults
            for device in mesh.simulation.devices:
                device.stuck = False

    simulate(scenario)
