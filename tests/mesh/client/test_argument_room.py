"""Programs that begin steps and calls faster than they are done wait for room for their arguments."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

import numpy as np
import pytest

from mesh import AsyncMesh, Mesh
from mesh.client.async_mesh import HERE_BYTES_MAX
from mesh.core.answer import Answer
from mesh.core.argument_room import EACH_BYTES, ArgumentRoom
from mesh.errors import ConfigError, LimitExceeded
from wire.bounds import ARGUMENTS

M = TypeVar("M", Mesh, AsyncMesh)
ROOM_BYTES = 1 << 20
X = np.ones(ROOM_BYTES // 4 // 4, np.float32)  # four of these do not fit beside what is counted for each


def with_little_room(mesh: M) -> M:
    """The mesh, with room for 1 MiB."""
    own = mesh._async if isinstance(mesh, Mesh) else mesh
    assert own._room._most_bytes == ARGUMENTS.most
    own._room = ArgumentRoom(ROOM_BYTES)
    return mesh


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most that was taken at any time."""
    held: list[int] = [0]
    take = ArgumentRoom.take

    def watched(room: ArgumentRoom, size_bytes: int) -> Answer[None]:
        taken = take(room, size_bytes)
        held[0] = max(held[0], room._held_bytes)
        return taken

    monkeypatch.setattr(ArgumentRoom, "take", watched)
    return held


def add(state, x):  # type: ignore[no-untyped-def]
    return state + x, state.sum()


@pytest.mark.parametrize("mode", ["off", "on"])
def test_steps_wait_for_room_and_all_are_done(mode: str, little_room: list[int]) -> None:
    with (
        with_little_room(Mesh.builder().simulate(1).build()) as mesh,
        mesh.session(add, X * 0, X, mode=mode) as session,
    ):
        steps = [session.step(X) for _ in range(20)]
        assert mode == "off" or little_room[0] >= 3 * X.nbytes, "simulated time stands still until somebody waits"
        assert [float(step.result()) for step in steps] == [number * X.size for number in range(20)]
        assert (session.state() == 20).all()
        assert little_room[0] <= ROOM_BYTES and not mesh._async._room._held_bytes


@pytest.mark.parametrize("mode", ["off", "on"])
def test_calls_that_are_submitted_wait_for_room(mode: str, little_room: list[int]) -> None:
    with with_little_room(Mesh.builder().simulate(1).build()) as mesh:
        jobs = [mesh.submit(lambda x: x * 2, X + number, mode=mode) for number in range(10)]
        assert [float(job.result()[0]) for job in jobs] == [2 * (1 + number) for number in range(10)]
        assert little_room[0] <= ROOM_BYTES and not mesh._async._room._held_bytes


def test_a_program_with_a_loop_waits_for_calls_and_is_told_of_steps(little_room: list[int]) -> None:
    async def scenario() -> None:
        async with with_little_room(await AsyncMesh.builder().build_async()) as mesh:
            jobs = await asyncio.gather(*(mesh.submit(lambda x: x * 2, X, mode="off") for _ in range(10)))
            assert [float((await job.result())[0]) for job in jobs] == [2.0] * 10
            assert little_room[0] <= ROOM_BYTES
            async with await mesh.session(add, X * 0, X, mode="off") as session:
                begun = [session.step(X) for _ in range(3)]
                with pytest.raises(LimitExceeded, match=r"256\.0 KiB .* beside 780\.0 KiB .* 1\.0 MiB"):
                    session.step(X)
                await begun[0]
                begun.append(session.step(X))
                await asyncio.gather(*begun)
                assert ((await session.state()) == 4).all()

    asyncio.run(scenario())


def test_arguments_larger_than_the_room_go_alone() -> None:
    large = np.ones(ROOM_BYTES, np.float32)
    with with_little_room(Mesh.builder().simulate(1).build()) as mesh:
        jobs = [mesh.submit(lambda x: x.sum(), large, mode="on") for _ in range(3)]
        assert [float(job.result()) for job in jobs] == [float(large.size)] * 3


def test_what_waits_ends_with_its_mesh_and_in_the_order_of_asking() -> None:
    room = ArgumentRoom(2 * EACH_BYTES)
    first, second, third, fourth = (room.take(0) for _ in range(4))
    assert [each.done() for each in (first, second, third, fourth)] == [True, True, False, False]
    room.leave(third, 0)
    room.give(0)
    assert fourth.done() and third.cancelled
    fifth = room.take(0)
    closing = threading.Timer(0.01, room.close, (ConfigError("closed"),))
    closing.start()
    assert fifth.wait(60)
    with pytest.raises(ConfigError, match="closed"):
        fifth.result()
    closing.join()
    with pytest.raises(ConfigError, match="closed"):
        room.take(0).result()


def test_what_is_over_takes_no_room_however_soon_it_is_looked_for() -> None:
    """A future is done before its callbacks run."""

    async def scenario() -> None:
        room, over = ArgumentRoom(EACH_BYTES), asyncio.get_running_loop().create_future()
        room.take_now(0, "")
        room.give_after(over, 0)
        with pytest.raises(LimitExceeded):
            room.take_now(0, "")
        over.set_result(None)
        room.take_now(0, "")
        await asyncio.sleep(0)
        assert room._held_bytes == EACH_BYTES, "it was given back once"

    asyncio.run(scenario())


def test_whoever_gives_up_waiting_takes_no_room() -> None:
    async def scenario() -> None:
        room = ArgumentRoom(2 * EACH_BYTES)
        await room.wait_for(EACH_BYTES)
        waiting = asyncio.ensure_future(room.wait_for(0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        room.give(EACH_BYTES)
        assert room._held_bytes == 0

    asyncio.run(scenario())


async def test_those_behind_one_that_gives_up_waiting_have_their_room_at_once() -> None:
    room = ArgumentRoom(4 * EACH_BYTES)
    room.take_now(EACH_BYTES, "")
    large, small = (asyncio.ensure_future(room.wait_for(size)) for size in (2 * EACH_BYTES, 0))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait([large])
    await asyncio.wait_for(small, 60)
    room.take_now(0, "")
    assert room._held_bytes == 4 * EACH_BYTES


@pytest.mark.parametrize("begin", ["submit", "step"])
def test_ctrl_c_while_a_call_waits_for_room_leaves_it_to_others(begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with with_little_room(Mesh.builder().build()) as mesh, mesh.session(add, X * 0, X, mode="off") as session:
        room = mesh._async._room
        room.take_now(ROOM_BYTES - X.nbytes, "")
        calls = {"submit": lambda: mesh.submit(lambda x: x, X), "step": lambda: session.step(X)}
        with monkeypatch.context() as patched:
            patched.setattr(mesh._loop, "call_soon", interrupted)
            with pytest.raises(KeyboardInterrupt):
                calls[begin]()
        room.take_now(0, "")
        assert mesh.submit(lambda x: x + 1, np.float32(1), mode="off").result(60) == 2
        assert room._held_bytes == ROOM_BYTES - X.nbytes + 2 * EACH_BYTES


async def test_a_call_whose_caller_gives_up_while_its_arguments_are_copied_gives_their_room_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few of them would take all room, and later calls wait for ever."""
    began, goes_on = threading.Event(), threading.Event()

    def copied(inputs: dict[str, Any]) -> dict[str, Any]:
        began.set()
        goes_on.wait(120)
        return inputs

    monkeypatch.setattr("mesh.client.async_mesh.copied", copied)
    async with with_little_room(await AsyncMesh.builder().build_async()) as mesh:
        submitting = asyncio.create_task(mesh.submit(lambda x: x + 1, np.ones(HERE_BYTES_MAX // 4 + 1, np.float32)))
        assert await asyncio.to_thread(began.wait, 120)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        goes_on.set()
        assert not mesh._room._held_bytes


def test_arguments_for_whose_copies_there_is_no_memory_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(inputs: dict[str, Any]) -> dict[str, Any]:
        raise MemoryError

    monkeypatch.setattr("mesh.client.mesh.copied", copied)
    with with_little_room(Mesh.builder().build()) as mesh:
        with pytest.raises(MemoryError):
            mesh.submit(lambda x: x + 1, X)
        assert not mesh._async._room._held_bytes
