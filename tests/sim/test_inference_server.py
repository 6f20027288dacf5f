"""A server of several models: in this process, and on simulated workers that die under load."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from support.cases.language import GOLDEN, MODELS, golden_model

import mesh
import mesh.numpy as mnp
from mesh import AsyncInferenceServer, AsyncMesh, InferenceServer, Mesh
from mesh.backends.config import MeshConfig
from mesh.errors import Cancelled, ConfigError, InputError, QueueFull
from mesh.models.model import GRAPHS_BYTES
from mesh.simulation.loop import VirtualLoop
from wire.lru_cache import Latest

REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())["llama"]
W = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def layer(x: Any) -> Any:
    return mnp.tanh(x @ W)


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def rows(seed: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32)


def test_two_models_at_once_and_what_is_told_of_them() -> None:
    ids = np.arange(3, 11, dtype=np.int32)[None]
    with Mesh(MeshConfig()) as here, InferenceServer(here) as server:
        server.load_model("bert", MODELS / "bert")
        server.load_model("llama", str(MODELS / "llama"), max_batch=2)
        assert [model.name for model in server.loaded_models()] == ["bert", "llama"]
        wanted = mesh.load(MODELS / "bert")(ids)
        found = server.infer("bert", {"input_ids": ids})
        np.testing.assert_allclose(found["last_hidden_state"], np.asarray(wanted["last_hidden_state"]), atol=1e-5)
        assert server.infer("llama", ids).shape == (1, 8, 50)
        prompt = REFERENCE["prompts"][2]
        assert server.generate("llama", prompt, max_new_tokens=14, ends=()) == REFERENCE["tokens"][2][:14]
        pieces = server.generate("llama", prompt, max_new_tokens=14, ends=(), stream=True)
        assert [next(pieces), next(pieces)] == REFERENCE["tokens"][2][:2]
        pieces.close()
        beyond = f"32 positions: after a prompt of {len(prompt)} tokens there is room for {33 - len(prompt)} new ones"
        with pytest.raises(InputError, match=beyond):
            server.generate("llama", prompt, max_new_tokens=100)
        assert len(server.generate("llama", prompt, ends=())) == 33 - len(prompt), "nobody asked for more"
        told = {model.name: model for model in server.loaded_models()}
        assert told["llama"].steps >= 14 and told["llama"].batches == 1 and told["bert"].weights_bytes > 60_000
        server.unload_model("bert")
        with pytest.raises(InputError, match=r"no model is called 'bert'. Loaded: llama"):
            server.infer("bert", {"input_ids": ids})
        with pytest.raises(InputError, match="is called 'llama' already"):
            server.load_model("llama", MODELS / "llama")
        with pytest.raises(InputError, match="max_batch counts from 1"):
            server.load_model("other", MODELS / "bert", max_batch=0)
        with pytest.raises(InputError, match=r"max_batch counts from 1, got 2\.5"):
            server.load_model("other", MODELS / "bert", max_batch=2.5)
        with pytest.raises(InputError, match=r"3 is no model\. Give a path"):
            server.load_model("other", 3)
        with pytest.raises(InputError, match="a model's name has one or more characters that print, got 3"):
            server.load_model(3, MODELS / "bert")
        with pytest.raises(InputError, match="has at least one token"):
            server.generate("llama", [])
    with pytest.raises(ConfigError, match="closed"):
        server._async.generate("llama", [1])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"max_bacth": 3},
            r"load_model has no option 'max_bacth'\. Did you mean 'max_batch'\? It takes max_batch, max_wait",
        ),
        ({"max_batch": "8"}, "max_batch counts from 1, got '8'"),
        ({"max_batch": True}, "max_batch counts from 1, got True"),
        ({"queue": 0}, "queue counts from 1, got 0"),
        ({"chunk": 1 << 40}, "chunk is 16384 at most"),
        ({"max_wait_ms": float("inf")}, "max_wait_ms is a number, 0 or more, got inf"),
        ({"max_wait_ms": None}, "max_wait_ms is a number, 0 or more, got None"),
        ({"batched": "yes"}, "batched is True or False, got 'yes'"),
        ({"strategy": "pipelin"}, "strategy='pipelin' is not known"),
        ({"mode": None}, "mode=None is not known"),
        ({"copies": "bud"}, "copies='bud' is not known"),
        ({"name": ""}, "a model's name has one or more characters that print, got ''"),
        ({"model": ""}, "no model is named: the text is empty"),
        ({"model": []}, r"\[\] is no model"),
    ],
)
def test_options_that_cannot_be_are_named_and_load_nothing(options: dict[str, Any], says: str) -> None:
    given = {"name": "layer", "model": layer, **options}
    with Mesh(MeshConfig()) as here, InferenceServer(here) as server:
        with pytest.raises(InputError, match=says):
            server.load_model(**given)
        assert server.loaded_models() == ()


def test_calls_that_cannot_be_are_named() -> None:
    with Mesh(MeshConfig()) as here, InferenceServer(here) as server:
        server.load_model("two", lambda x, y: x + y, max_batch=np.int64(2))
        server.load_model("llama", golden_model("llama"), max_batch=np.int64(2))
        x = rows(1)
        wrong: list[tuple[Any, str]] = [
            (lambda: InferenceServer(None), "serves on a mesh.Mesh, got None"),
            (lambda: InferenceServer(here.on_loop), "AsyncInferenceServer is for those"),
            (lambda: AsyncInferenceServer(here), "InferenceServer is for a mesh.Mesh"),
            (lambda: InferenceServer(here, max_batch=3), "unexpected keyword argument 'max_batch'"),
            (lambda: server.load_model("a"), "missing 1 required positional argument: 'model'"),
            (lambda: server.infer("two", x), "the function takes .*, got 1 input"),
            (lambda: server.infer("two", x, x, x), "the function takes .*, got 3 inputs"),
            (lambda: server.infer("two", x, z=x), "'z' of <lambda> has no place among its arguments"),
            (lambda: server.infer("two", x, "text"), "is no tensor"),
            (lambda: server.infer("two", x, object()), "is no tensor"),
            (lambda: server.infer("two", x, 3.0), "is a scalar"),
            (lambda: server.infer("two", {}, {}), "there is none"),
            (lambda: server.infer("two", x, rows(1, 2)), r"they have \[1, 2\] rows"),
            (lambda: server.infer(["two"], x, x), r"no model is called \['two'\]"),
            (lambda: server.generate("two", [1]), "a function does not generate text"),
            (lambda: server.generate("llama", [1], max_tokens=3), "generate has no option 'max_tokens'. Did you mean"),
            (lambda: server.generate("llama", [1], stream="yes"), "stream is True or False"),
            (lambda: server.generate("llama", [[1, 2], [3]]), "a prompt is a text or a list of tokens, got several"),
            (lambda: server.generate("llama"), "missing 1 required positional argument: 'prompt'"),
            (lambda: server.unload_model([]), r"no model is called \[\]"),
        ]
        for call, says in wrong:
            with pytest.raises(InputError, match=says):
                call()
        assert all(model.waiting == model.texts == 0 for model in server.loaded_models())
        np.testing.assert_allclose(server.infer("two", x, x), x + x)
        assert len(server.generate("llama", [3, 4], max_new_tokens=3, ends=())) == 3


def test_what_a_function_raises_itself_is_not_taken_for_a_misspelt_argument() -> None:
    def own(x: Any) -> Any:
        raise TypeError("my own")

    with Mesh(MeshConfig()) as here, InferenceServer(here) as server:
        server.load_model("own", own)
        with pytest.raises(TypeError, match="my own"):
            server.infer("own", rows(1))


async def _batched() -> None:
    async with await AsyncMesh.connect(MeshConfig()) as here, AsyncInferenceServer(here) as server:
        await server.load_model("layer", layer, max_batch=8)
        await server.load_model("sum", lambda x: mnp.sum(x), batched=False)
        counts = [1, 2, 1, 3, 1, 1, 5]
        found = await asyncio.gather(*(server.infer("layer", rows(seed, count)) for seed, count in enumerate(counts)))
        for seed, (count, array) in enumerate(zip(counts, found, strict=True)):
            np.testing.assert_allclose(array, np.tanh(rows(seed, count) @ W), rtol=1e-5, atol=1e-6)
        (told,) = [model for model in server.loaded_models() if model.name == "layer"]
        assert told.batches == 2, "fourteen rows"
        assert float(await server.infer("sum", rows(1, 3))) == pytest.approx(rows(1, 3).sum(), rel=1e-5)
        await server.load_model("wrong", lambda x: mnp.sum(x))
        with pytest.raises(InputError, match="no row per row"):
            await server.infer("wrong", rows(1, 3))
        with pytest.raises(InputError, match="the first axis of every input is the batch"):
            await server.infer("layer", np.float32(1))


def test_requests_of_any_number_of_rows_are_computed_together_and_equal_themselves_alone() -> None:
    run(_batched())


async def _crowded() -> None:
    async with (
        await Mesh.builder().mesh("sim").simulate(2).build_async() as workers,
        AsyncInferenceServer(workers) as server,
    ):
        await server.load_model("layer", layer, max_batch=2, queue=4, max_wait_ms=1000)
        asked = [asyncio.ensure_future(server.infer("layer", rows(seed))) for seed in range(16)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        refused = [each for each in asked if each.done()]
        assert refused, "more than can be under way and wait"
        for each in refused:
            error = each.exception()
            assert isinstance(error, QueueFull) and error.retry and "Try again" in str(error)
        await asyncio.wait(asked)
        for seed, each in enumerate(asked):
            if each not in refused:
                np.testing.assert_allclose(await each, np.tanh(rows(seed) @ W), rtol=1e-5, atol=1e-6)
        await server.load_model("llama", golden_model("llama"), max_batch=1, queue=2)
        replies = [server.generate("llama", [3, 4], max_new_tokens=4) for _ in range(3)]
        with pytest.raises(QueueFull, match="texts wait already"):
            server.generate("llama", [3, 4])
        assert await replies[0].all() == await replies[1].all() == await replies[2].all()


def test_a_full_queue_is_an_immediate_refusal() -> None:
    run(_crowded())


async def _roomy() -> None:
    async with await AsyncMesh.connect(MeshConfig()) as here, AsyncInferenceServer(here) as server:
        await server.load_model("layer", layer, max_batch=8, queue=1, max_wait_ms=60_000)
        found = await asyncio.gather(*(server.infer("layer", rows(seed)) for seed in range(8)))
        for seed, array in enumerate(found):
            np.testing.assert_allclose(array, np.tanh(rows(seed) @ W), rtol=1e-5, atol=1e-6)
        (told,) = server.loaded_models()
        assert told.batches == 1, "they were one batch"
        await server.load_model("whole", lambda x: mnp.sum(x), batched=False, queue=1, max_wait_ms=60_000)
        sums = await asyncio.gather(*(server.infer("whole", rows(seed)) for seed in range(5)))
        assert [float(each) for each in sums] == pytest.approx([rows(seed).sum() for seed in range(5)], rel=1e-4)
        await server.load_model("llama", golden_model("llama"), max_batch=3, replicas=2, queue=2)
        replies = [server.generate("llama", [3, 4], max_new_tokens=4) for _ in range(8 + 2)]
        for _ in range(2):
            with pytest.raises(QueueFull):
                server.generate("llama", [3, 4])
        replies.pop().cancel()
        replies.append(server.generate("llama", [3, 4], max_new_tokens=4))
        assert len({tuple(await reply.all()) for reply in replies}) == 1


def test_nobody_is_refused_while_there_is_room_however_small_the_queue() -> None:
    run(_roomy())


async def _cancelled() -> None:
    async with (
        await Mesh.builder().mesh("sim").simulate(1).build_async() as workers,
        AsyncInferenceServer(workers) as server,
    ):
        await server.load_model("layer", layer, max_batch=2, max_wait_ms=1000)
        alone = asyncio.ensure_future(server.infer("layer", rows(0)))
        await asyncio.sleep(0.1)
        alone.cancel()
        await asyncio.wait([alone])
        first, second = (asyncio.ensure_future(server.infer("layer", rows(seed))) for seed in (1, 2))
        await asyncio.sleep(0)
        first.cancel()
        np.testing.assert_allclose(await second, np.tanh(rows(2) @ W), rtol=1e-5, atol=1e-6)
        await server.load_model("llama", golden_model("llama"), max_batch=1)
        long, short = (server.generate("llama", [3, 4], max_new_tokens=count, ends=()) for count in (30, 3))
        assert isinstance(await anext(long), int)
        long.cancel()
        assert len(await short.all()) == 3 and long.reason == "cancelled"
        waits = asyncio.ensure_future(server.infer("layer", rows(0)))
        goes = server.generate("llama", [3, 4], max_new_tokens=30, ends=())
        await anext(goes)
        await server.close()
        with pytest.raises(Cancelled):
            await waits
        with pytest.raises(Cancelled):
            await goes.all()
        await asyncio.sleep(1)
        assert workers.simulation.coordinator.sessions.idle


def test_requests_are_cancelled_by_whoever_asked_and_by_unloading() -> None:
    run(_cancelled())


async def _under_load() -> None:
    """Every worker dies, or leaves, once; others come; no request is lost, and every answer is right."""
    async with (
        await Mesh.builder().mesh("sim").simulate(3, 4).build_async() as workers,
        AsyncInferenceServer(workers) as server,
    ):
        cluster = workers.simulation
        await server.load_model("layer", layer, max_batch=4, strategy="pipeline")
        await server.load_model("llama", golden_model("llama"), max_batch=2, replicas=2, strategy="pipeline")

        answered = {"requests": 0, "texts": 0}

        async def asks(seed: int) -> None:
            for turn in range(12):
                x = rows(100 * seed + turn)
                np.testing.assert_allclose(await server.infer("layer", x), np.tanh(x @ W), rtol=1e-5, atol=1e-6)
                answered["requests"] += 1
                await asyncio.sleep(0.3)

        async def reads(place: int) -> None:
            for _ in range(3):
                reply = server.generate("llama", REFERENCE["prompts"][place], max_new_tokens=14, ends=())
                assert await reply.all() == REFERENCE["tokens"][place][:14]
                answered["texts"] += 1
                await asyncio.sleep(1)

        async def mischief() -> None:
            for number, name in enumerate(cluster.names):
                await asyncio.sleep(0.5)
                (cluster.leave if number == 1 else cluster.kill)(name)
                await asyncio.sleep(0.7)
                cluster.start(name)
                await asyncio.sleep(1)

        await asyncio.gather(*map(asks, range(4)), *map(reads, range(4)), mischief())
        cluster.checker.verdict()
        assert answered == {"requests": 4 * 12, "texts": 4 * 3}


def test_stages_are_replaced_under_load_and_no_request_is_lost() -> None:
    run(_under_load())


async def _seconds_of(requests: int, in_turn: bool = False) -> float:
    """Virtual seconds of so many requests at once, each a batch of its own, over three stages that take their time."""
    layers = [np.random.default_rng(place).normal(0, 0.05, (64, 64)).astype(np.float32) for place in range(6)]

    def deep(x: Any) -> Any:
        for weights in layers:
            x = mnp.tanh(x @ weights)
        return x

    x = np.random.default_rng(9).normal(size=(1, 64)).astype(np.float32)
    async with (
        await Mesh.builder().mesh("sim").simulate(3).build_async() as workers,
        AsyncInferenceServer(workers) as server,
    ):
        for name in workers.simulation.names:
            workers.simulation.slow(name, 3000)  # a link's delay is nothing beside
        await server.load_model("deep", deep, max_batch=1, max_wait_ms=0, strategy="pipeline")
        wanted = await server.infer("deep", x)
        clock = asyncio.get_running_loop()
        began_s = clock.time()
        if in_turn:
            found = [await server.infer("deep", x) for _ in range(requests)]
        else:
            found = await asyncio.gather(*(server.infer("deep", x) for _ in range(requests)))
        took_s = clock.time() - began_s
        assert len(found) == requests and all(np.array_equal(each, wanted) for each in found)
        return took_s


def test_requests_overlap_the_stages_of_a_pipeline() -> None:
    alone_s, together_s = run(_seconds_of(1)), run(_seconds_of(12))
    in_turn_s = run(_seconds_of(12, in_turn=True))
    assert in_turn_s == pytest.approx(12 * alone_s, rel=0.1)
    assert together_s < 0.6 * in_turn_s, (together_s, in_turn_s)


def test_shapes_of_long_ago_are_forgotten() -> None:
    """The server and the workers forget programs, also where a shape that came again was traced again."""

    async def story() -> None:
        built = AsyncMesh.builder().mesh("sim").simulate(2).build_async()
        async with await built as mesh, AsyncInferenceServer(mesh) as server:
            await server.load_model("double", lambda x: x + x, max_wait_ms=0)
            (its,) = (model.request_runner for model in server._models.values())
            its._works_max, its._function._forms = 3, Latest(2, GRAPHS_BYTES)
            for seed in range(2):
                for size in range(1, 8):
                    x = np.random.default_rng(seed).normal(size=(1, size)).astype(np.float32)
                    np.testing.assert_array_equal(await server.infer("double", x), x + x)
            assert len(its._works) == 3
            await asyncio.sleep(30)
            processes = mesh.simulation._processes.values()
            kept = {plan.key.generation for each in processes for plan in each.daemon.shell.machine._plans.values()}
            assert len(kept) == 3

    run(story())
