"""Replicas of a model on simulated workers: each on its own, and texts that go on elsewhere after a death."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from support.cases.language import golden_model

from mesh import AsyncInferenceServer, AsyncMesh, Mesh
from mesh.errors import MeshError, QueueFull
from mesh.inference import Generating
from mesh.inference.generation_runner import TokenStream, text_of
from mesh.inference.kv_cache_step import page_bytes
from mesh.inference.replica_set import ReplicaSet
from mesh.inference.settings import Options, Sampling
from mesh.simulation.loop import VirtualLoop
from wire.ir.dtypes import F32
from wire.policy.strategies import Single

PROMPTS = [[3 + place, 4, 5] for place in range(8)]
HOW: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.8, "seed": 7, "ends": ()}


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


async def simulated(workers: int) -> AsyncMesh:
    return await Mesh.builder().mesh("sim").simulate(workers).build_async()


def replicas_of(server: AsyncInferenceServer) -> ReplicaSet:
    found = server._models["llama"].replicas
    assert found is not None
    return found


async def to_the_end(stream: TokenStream) -> list[int]:
    return [token async for token in stream]


def spoken() -> list[list[int]]:
    model = golden_model("llama")
    return [model.generate(prompt, **HOW) for prompt in PROMPTS]


async def whole(server: AsyncInferenceServer) -> list[list[int]]:
    return [*await asyncio.gather(*(server.generate("llama", prompt, **HOW).all() for prompt in PROMPTS))]


def test_replicas_share_texts_out_and_each_has_its_own_worker() -> None:
    async def work() -> None:
        async with await simulated(3) as own, AsyncInferenceServer(own) as server:
            seen: list[Any] = []
            own.watch(seen.append)
            await server.load_model("llama", golden_model("llama"), replicas=3, max_batch=4)
            assert sorted(map(len, replicas_of(server).groups())) == [1, 1, 1]
            asked = [asyncio.ensure_future(server.generate("llama", prompt, **HOW).all()) for prompt in PROMPTS]
            await asyncio.sleep(0)
            assert sorted(batch.active + batch.waiting for batch in replicas_of(server).batches()) == [2, 3, 3]
            assert [*await asyncio.gather(*asked)] == spoken()
            assert {name for event in seen for name in own.simulation.names if name in event["text"]} == {
                *own.simulation.names
            }

    run(work())


def test_what_closed_replicas_held_is_free_without_a_search_for_cycles() -> None:
    async def work() -> None:
        async with await simulated(2) as own:
            model = golden_model("llama")
            gc.collect()
            gc.disable()
            try:
                replicas = await ReplicaSet.open(own, model, Options(replicas=2), 4)
                await replicas.load()
                await to_the_end(replicas.begin(PROMPTS[0], 4, Sampling()))
                held = [weakref.ref(replicas), *map(weakref.ref, replicas.batches())]
                await replicas.close()
                del replicas
                await asyncio.sleep(1.0)
                assert len(held) == 3 and [each() for each in held] == [None] * 3
            finally:
                gc.enable()

    run(work())


def test_each_replica_has_the_memory_of_its_own_worker() -> None:
    async def work() -> None:
        async with await simulated(3) as own:
            one = await ReplicaSet.open(own, golden_model("llama"), Options(replicas=1), 4)
            three = await ReplicaSet.open(own, golden_model("llama"), Options(replicas=3), 4)
            assert {batch.kv_bytes for batch in one._replicas} == {replica.kv_bytes for replica in three._replicas}
            await one.close()
            await three.close()

    run(work())


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_texts_of_a_replica_whose_worker_goes_are_the_same_elsewhere(how: str) -> None:
    async def work() -> None:
        async with await simulated(2) as own, AsyncInferenceServer(own) as server:
            await server.load_model("llama", golden_model("llama"), replicas=2, max_batch=8)
            replies = [server.generate("llama", prompt, **HOW) for prompt in PROMPTS]
            said = [[await anext(reply) for _ in range(5)] for reply in replies]
            getattr(own.simulation, how)(own.simulation.names[0])
            said = [[*first, *await reply.all()] for first, reply in zip(said, replies, strict=True)]
            assert said == spoken()
            assert len(replicas_of(server).groups()) == 1
            assert await whole(server) == spoken()

    run(work())


@pytest.mark.parametrize(("kv_pages", "batches"), [(64, 2), (3, 1)], ids=["divided", "too little to divide"])
def test_batches_that_share_a_worker_after_a_death_divide_its_memory_for_keys_and_values(
    kv_pages: int, batches: int
) -> None:
    how = Sampling(HOW["temperature"], seed=HOW["seed"])

    async def work() -> None:
        async with await simulated(2) as own:
            model = golden_model("llama")
            kv_bytes = kv_pages * page_bytes(text_of(model).decoder, F32)
            options = Options(max_batch=1, replicas=2, kv_budget=kv_bytes)
            replicas = await ReplicaSet.open(own, model, options, queue=16)
            streams = [replicas.begin(prompt, 20, how, ()) for prompt in PROMPTS]
            said = [[await anext(stream)] for stream in streams[:2]]
            own.simulation.kill(own.simulation.names[0])
            said = [first + await to_the_end(stream) for first, stream in zip([*said, *[[]] * 6], streams, strict=True)]
            assert said == spoken()
            assert (len(replicas.groups()), len(replicas.batches())) == (1, batches)
            assert sum(batch._pages_max * batch._page_bytes for batch in replicas.batches()) <= kv_bytes
            await replicas.close()

    run(work())


def test_a_worker_that_comes_is_another_replica_which_takes_texts_that_wait() -> None:
    how = Sampling(HOW["temperature"], seed=HOW["seed"])

    async def work() -> None:
        async with await simulated(2) as own:
            cluster = own.simulation
            cluster.kill(cluster.names[1])
            await asyncio.sleep(10)
            model, options = golden_model("llama"), Options(max_batch=1, replicas=2)
            replicas = await ReplicaSet.open(own, model, options, queue=16, look_s=1e6)
            assert len(replicas.groups()) == 1
            cluster.start(cluster.names[1])
            while sum(node.state == "healthy" for node in await own.nodes()) < 2:
                await asyncio.sleep(0.1)
            streams = [replicas.begin(prompt, 20, how, ()) for prompt in PROMPTS]
            assert len(replicas.batches()) == 2, "both are on the one worker"
            there = replicas.batches()
            while len(replicas.groups()) < 2:
                await replicas.look()
            assert sorted(batch.active + batch.waiting for batch in replicas.batches()) == [4, 4]
            assert len({*there, *replicas.batches()}) == 3, "one of them ended"
            assert [[token async for token in stream] for stream in streams] == spoken()
            await replicas.close()

    run(work())


def test_replicas_that_could_not_look_at_the_workers_look_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with await simulated(2) as own:
            replicas = await ReplicaSet.open(own, golden_model("llama"), Options(replicas=2), 4, look_s=1.0)
            assert len(replicas.groups()) == 2
            with monkeypatch.context() as broken:
                broken.setattr(own, "nodes", lambda: 1 / 0)
                await asyncio.sleep(3)
            own.simulation.kill(own.simulation.names[1])
            await asyncio.sleep(20)
            assert len(replicas.groups()) == 1
            await replicas.close()

    run(work())
    assert "could not look at the workers" in caplog.text


def test_texts_end_where_it_cannot_be_found_out_whether_they_go_on_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with await simulated(1) as own:

            async def broken() -> bool:
                raise ZeroDivisionError("no workers to divide")

            batch = Generating(own, golden_model("llama"), strategy="single", elsewhere=broken)
            stream = batch.begin([3, 4], 28, ends=())
            await stream.next()
            own.simulation.kill(own.simulation.names[0])
            with pytest.raises(MeshError, match="could not go on after a failure") as failed:
                await to_the_end(stream)
            assert "no workers to divide" in failed.value.cause
            own.simulation.start(own.simulation.names[0])
            assert [token async for token in batch.begin([3, 4], 3, ends=())] == golden_model("llama").generate(
                [3, 4], max_new_tokens=3, ends=()
            )
            await batch.close()

    run(work())
    assert "no workers to divide" in caplog.text


def test_texts_go_on_where_the_workers_of_their_replica_were_gone_and_are_back() -> None:
    """The session failed in between, since none of its workers was there; the look at the workers finds them all."""

    async def work() -> None:
        async with await simulated(2) as own:
            cluster, name = own.simulation, own.simulation.names[0]

            async def looks() -> bool:
                cluster.start(name)
                while sum(node.state == "healthy" for node in await own.nodes()) < 2:
                    await asyncio.sleep(0.1)
                return False

            model = golden_model("llama")
            strategy = Single(workers=(name,)).text
            batch = Generating(own, model, strategy=strategy, elsewhere=looks)
            stream = batch.begin(PROMPTS[0], 20, Sampling(HOW["temperature"], seed=HOW["seed"]), ends=())
            while batch._session is None:  # and no step is done, so that its state is no loss
                await asyncio.sleep(0)
            pages_max = batch._slots.pages_max
            cluster.kill(name)
            assert await to_the_end(stream) == spoken()[0]
            assert batch._slots.pages_max == pages_max, "no memory lacked"
            await batch.close()

    run(work())


def test_a_text_goes_where_its_beginning_is_known() -> None:
    prompt = [*range(2, 21), 7]

    async def work() -> None:
        async with await simulated(2) as own, AsyncInferenceServer(own) as server:
            await server.load_model("llama", golden_model("llama"), replicas=2, max_batch=4)
            for _ in range(4):
                await server.generate("llama", prompt, max_new_tokens=4, ends=()).all()
            (batch,) = [batch for batch in replicas_of(server).batches() if batch.tokens_read]
            assert batch.tokens_found == 3 * 16

    run(work())


def test_all_replicas_together_are_full() -> None:
    async def work() -> None:
        async with await simulated(2) as own, AsyncInferenceServer(own) as server:
            await server.load_model("llama", golden_model("llama"), replicas=2, max_batch=1, queue=2)
            replies = [server.generate("llama", prompt, **HOW) for prompt in PROMPTS[:4]]
            with pytest.raises(QueueFull):
                server.generate("llama", PROMPTS[4], **HOW)
            for reply in replies:
                reply.cancel()

    run(work())
