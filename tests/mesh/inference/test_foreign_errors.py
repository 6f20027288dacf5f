"""What guides of texts and served functions raise reaches whoever waits for it, and nobody else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.language import golden_model

import mesh
from mesh.inference import Generating, Sampling
from mesh.inference.continuous_batching import ChosenToken
from mesh.inference.steady_guide import ANY
from mesh.models.decoder import Decoder, Text
from mesh.models.model import Model
from wire.errors import MeshError, NodeLost

ANSWER_S = 120.0  # within which whoever waits has heard


class Panic(BaseException):
    """As libraries in Rust raise it."""


class Raising:
    """A guide that raises at its second token, as it takes it or as it is asked for its mask."""

    def __init__(self, words: int, take: Callable[[], Any], show: Callable[[], Any]) -> None:
        self._words, self._take, self._show, self._seen = words, take, show, 0

    @property
    def mask(self) -> Any:
        return np.full(self._words, ANY, np.uint32) if not self._seen else self._show()

    def accept(self, token: int) -> str:
        self._seen += 1
        return "" if self._seen < 2 else self._take()


def raising(error: BaseException) -> Callable[[], Any]:
    def leave() -> Any:
        raise error

    return leave


GUIDES = {
    "an error": (raising(ValueError("wrong")), lambda: ANY, ValueError),
    "a panic": (raising(Panic("wrong")), lambda: ANY, RuntimeError),
    "an exit": (raising(SystemExit("wrong")), lambda: ANY, RuntimeError),
    "an error of its mask": (lambda: "", raising(ValueError("wrong")), ValueError),
    "a mask of another size": (lambda: "", lambda: np.zeros(3, np.uint32), ValueError),
}


@pytest.mark.parametrize("case", GUIDES)
def test_a_guide_that_raises_ends_its_own_text(case: str) -> None:
    take, show, kind = GUIDES[case]
    model = golden_model("llama")
    words = -(-model.weights["model.embed_tokens.weight"].shape[0] // 32)

    async def story() -> None:
        async with await mesh.Mesh.builder().build_async() as own, asyncio.timeout(ANSWER_S):
            batch = Generating(own, model, slots=2, detailed=True)
            guided = batch.begin([1, 2, 3], 9, ends=(), guide=Raising(words, take, show))
            free = batch.begin([5, 6, 7], 9, ends=())
            assert await guided.next() is not None
            with pytest.raises(kind):  # and no token that the guide did not limit, or did not accept
                await guided.next()
            assert [token async for token in free] == model.generate([5, 6, 7], max_new_tokens=9, ends=())
            assert batch.rebuilt == 0 and not batch.active
            await batch.close()

    asyncio.run(story())


def counting() -> Model:
    """Token 1 follows 0, and so on up to 4, and 0 follows that."""
    following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}
    decoder = Decoder(
        lambda params, ids, at: params["rows"][ids], print, lambda params, x: x, (), 1, 1, None, "rows"
    )  # fmt: skip
    return Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))


@pytest.mark.parametrize("left", [ValueError("wrong"), Panic("wrong"), asyncio.CancelledError("wrong")], ids=repr)
@pytest.mark.parametrize("at", ["a token", "the end"])
def test_whoever_hears_of_a_text_and_raises_ends_that_one_alone(
    at: str, left: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with await mesh.Mesh.builder().build_async() as own, asyncio.timeout(ANSWER_S):
            batch, told = Generating(own, counting()), asyncio.Queue[Any]()

            def hear(news: Any) -> None:
                told.put_nowait(news)
                if at == "a token" or not isinstance(news, ChosenToken):
                    raise left

            streams = [batch.draft([0], 9, Sampling(), hear)[0] for _ in range(2)]
            assert [(await told.get()).token for _ in streams] == [1, 1]
            if at == "the end":
                batch._fail_all(NodeLost("the test says so"))
                assert [type(told.get_nowait()) for _ in streams] == [NodeLost] * 2
            assert [token async for token in batch.begin([0], tokens_max=3)] == [1, 2, 3]
            assert not batch.active and batch.rebuilt == 0 and told.empty()
            await batch.close()

    asyncio.run(story())
    assert caplog.text.count("whoever hears of a text failed") == 2


@pytest.mark.parametrize("left", [SystemExit(3), Panic("wrong"), KeyboardInterrupt()], ids=repr)
def test_whoever_asks_a_served_function_that_exits_hears_of_it(left: BaseException) -> None:
    async def story() -> None:
        async with await mesh.Mesh.builder().build_async() as own, mesh.AsyncInferenceServer(own) as server:
            await server.load_model("leaves", lambda x: raising(left)())
            await server.load_model("stays", lambda x: x + 1)
            x = np.ones((1, 2), np.float32)
            asked = server._models["leaves"].request_runner.ask((x,))
            await asyncio.wait([asked], timeout=ANSWER_S)
            assert asked.exception() is left
            np.testing.assert_array_equal(await server.infer("stays", x), x + 1)

    asyncio.run(story())


FUTURES_OWN = [StopIteration(), concurrent.futures.CancelledError(), asyncio.CancelledError()]


@pytest.mark.parametrize("left", FUTURES_OWN, ids=lambda left: f"{type(left).__module__}.{type(left).__name__}")
def test_what_futures_take_for_their_own_reaches_whoever_asks_as_an_error(left: BaseException) -> None:
    async def story() -> None:
        async with await mesh.Mesh.builder().build_async() as own, mesh.AsyncInferenceServer(own) as server:
            await server.load_model("leaves", lambda x: raising(left)())
            async with asyncio.timeout(ANSWER_S):
                with pytest.raises(RuntimeError, match=type(left).__name__):
                    await server.infer("leaves", np.ones((1, 2), np.float32))

    asyncio.run(story())


def test_whoever_puts_an_array_hears_what_it_raises() -> None:
    class Lazy:
        shape, dtype = (2,), np.dtype(np.float32)

        def __array__(self, *_: object, **__: object) -> Any:
            return next(iter(()))

    async def story() -> None:
        async with await mesh.Mesh.builder().build_async() as own, asyncio.timeout(ANSWER_S):
            with pytest.raises(RuntimeError, match="StopIteration"):
                await own.put(Lazy())

    asyncio.run(story())


@pytest.mark.parametrize("leave", [lambda: sys.exit("left"), lambda: next(iter(()))], ids=["exits", "stops"])
def test_training_hears_of_a_loss_that_leaves_as_it_is_traced_for_fewer_workers(leave: Callable[[], Any]) -> None:
    lost: list[bool] = []

    def loss(params: Any, x: Any) -> Any:
        if lost:
            leave()
        return (x @ params["w"]) ** 2

    class Lose(mesh.training.Callback):
        def on_step(self, report: Any) -> None:
            if not lost:
                lost.append(True)
                world.simulation.kill("sim-1")

    with mesh.Mesh.builder().simulate(2).build() as world:
        trainer = mesh.DistributedTrainer(loss, {"w": np.ones(2, np.float32)}, strategy=mesh.DataParallel())
        with pytest.raises(MeshError, match="sim-1"):
            trainer.distribute(world).fit(np.ones((64, 2), np.float32), epochs=50, batch_size=8, callbacks=[Lose()])
