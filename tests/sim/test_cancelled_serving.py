"""A server whose calls are cancelled, or that is closed, at any moment: nothing goes on that nobody wants."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest
from support.cases.language import golden_model

from mesh import AsyncInferenceServer, AsyncMesh, InferenceServer, Mesh
from mesh.backends.config import MeshConfig
from mesh.errors import Cancelled, ConfigError, InputError, OutOfMemory
from mesh.inference.generation_runner import Generating, TokenStream
from mesh.inference.replica_set import ReplicaSet
from mesh.inference.settings import Options, Sampling
from mesh.simulation.loop import VirtualLoop

LONG: dict[str, Any] = {"max_new_tokens": 28, "ends": ()}


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


async def simulated(workers: int) -> AsyncMesh:
    return await Mesh.builder().mesh("sim").simulate(workers).build_async()


async def to_the_end(stream: TokenStream) -> list[int]:
    return [token async for token in stream]


def looking() -> int:
    """How many tasks look at the workers for replicas."""
    return sum("_keep_looking" in repr(task) for task in asyncio.all_tasks())


@pytest.mark.parametrize("turns", [1, 2, 4, 8, 16, 32])
def test_unloading_is_done_to_the_end_though_whoever_asked_for_it_is_cancelled(turns: int) -> None:
    async def work() -> None:
        async with await simulated(2) as own, AsyncInferenceServer(own) as server:
            await server.load_model("llama", golden_model("llama"), max_batch=1)
            reply = server.generate("llama", [3, 4], **LONG)
            await anext(reply)
            unloading = asyncio.ensure_future(server.unload_model("llama"))
            for _ in range(turns):
                await asyncio.sleep(0)
            unloading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unloading
            with pytest.raises(Cancelled):
                await asyncio.wait_for(reply.all(), 60)
            await asyncio.sleep(5)
            assert own.simulation.coordinator.sessions.idle

    run(work())


def test_a_batch_is_closed_to_the_end_though_whoever_closes_it_is_cancelled() -> None:
    async def work() -> None:
        async with await simulated(1) as own:
            batch = Generating(own, golden_model("llama"))
            stream = batch.begin([3, 4], 28, ends=())
            await stream.next()
            closing = asyncio.ensure_future(batch.close())
            for _ in range(6):
                await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(Cancelled):
                await asyncio.wait_for(to_the_end(stream), 60)

    run(work())


def awaited_by(task: asyncio.Task[Any]) -> list[str]:
    """The coroutines that a task is in, the outermost first."""
    names, inner = list[str](), task.get_coro()
    while hasattr(inner, "cr_await"):
        names.append(inner.__qualname__)
        inner = inner.cr_await
    return names


def test_a_server_that_is_closed_while_a_model_is_loaded_serves_none() -> None:
    async def work() -> None:
        async with await Mesh.builder().build_async() as own:
            server, model = AsyncInferenceServer(own), golden_model("llama")
            loading = asyncio.ensure_future(server.load_model("llama", model, draft=golden_model("llama")))
            while "ReplicaSet.open" not in awaited_by(loading):
                assert not loading.done()
                await asyncio.sleep(0)
            await server.close()
            with pytest.raises(ConfigError, match="closed"):
                await loading
            assert "llama" not in repr(server)

    asyncio.run(work())


def test_a_model_that_cannot_be_served_leaves_nothing_that_goes_on() -> None:
    async def work() -> None:
        async with await simulated(2) as own, AsyncInferenceServer(own) as server:
            with pytest.raises(InputError, match="sideways"):
                await server.load_model("llama", golden_model("llama"), replicas=2, mode="sideways")
            assert not looking() and server.loaded_models() == ()

    run(work())


@pytest.mark.parametrize("how", ["all", "next", "dropped"])
def test_a_text_stops_when_the_task_that_waits_for_it_is_cancelled_or_nobody_has_it(how: str) -> None:
    async def work() -> None:
        async with await Mesh.builder().build_async() as own, AsyncInferenceServer(own) as server:
            await server.load_model("llama", golden_model("llama"), max_batch=1)
            replies = [server.generate("llama", [3, 4], **LONG)]

            async def reads() -> None:
                if how == "all":
                    await replies[0].all()
                async for _ in replies[0]:
                    pass

            if how == "dropped":
                await anext(replies[0])
            else:
                reading = asyncio.ensure_future(reads())
                while not replies[0].tokens:
                    await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                assert replies[0].reason == "cancelled"
                del reading
            replies.clear()
            gc.collect()
            await asyncio.sleep(0)
            assert [model.texts for model in server.loaded_models()] == [0]
            (model,) = server.loaded_models()
            assert model.steps < 20

    asyncio.run(work())


def test_an_iterator_that_is_closed_before_its_first_piece_frees_its_place() -> None:
    with Mesh(MeshConfig()) as here, InferenceServer(here) as server:
        server.load_model("llama", golden_model("llama"), max_batch=1)
        for close in (lambda pieces: pieces.close(), lambda pieces: None):
            close(server.generate("llama", [3, 4], stream=True, **LONG))
            gc.collect()
        (model,) = server.loaded_models()
        assert (model.texts, model.waiting) == (0, 0)


def test_the_seed_of_one_text_may_be_any_integer_and_wrong_requests_reach_no_other_text() -> None:
    async def work() -> None:
        async with await Mesh.builder().build_async() as own:
            batch = Generating(own, golden_model("llama"), slots=2)
            stream = batch.begin([3, 4], 8, ends=())
            wrong: list[tuple[Any, int]] = [([3], 0), ([3], -5), ([1.7], 2), ([None], 2), (["5"], 2)]
            for prompt, most in wrong:
                with pytest.raises(InputError):
                    batch.begin(prompt, most, ends=())
            seeds: list[Any] = [7, np.int32(7), np.uint8(7), np.int64(7)]
            drawn = [batch.begin([3], 5, Sampling(1.0, seed=seed), ends=()) for seed in seeds]
            said = [[token async for token in each] for each in drawn]
            assert said == [said[0]] * 4
            assert len([token async for token in stream]) == 8
            await batch.close()

    asyncio.run(work())


def test_replicas_that_are_loaded_wait_for_each_other_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with await simulated(2) as own:
            replicas = await ReplicaSet.open(own, golden_model("llama"), Options(replicas=2), 4)
            slow, turns = iter([0.0, 30.0]), 0

            async def tried(batch: Generating) -> None:
                seconds = next(slow)
                await asyncio.sleep(seconds)
                if not seconds:
                    raise OutOfMemory("no room")

            async def waited(tasks: Any, **named: Any) -> Any:
                nonlocal turns
                turns += any("tried" in repr(task) for task in tasks)
                assert turns < 100, "it asks again and again"
                return await wait(tasks, **named)

            wait = asyncio.wait
            monkeypatch.setattr(replicas, "_tried", tried)
            monkeypatch.setattr(asyncio, "wait", waited)
            await replicas.load()
            monkeypatch.undo()
            assert turns == 2
            await replicas.close()

    run(work())
