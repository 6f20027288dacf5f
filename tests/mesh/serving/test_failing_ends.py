"""A model whose end fails keeps no other from ending, and leaves nobody waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.cases.language import golden_model

import mesh
from mesh.inference import Generating
from mesh.serving.http_server import Listening
from mesh.serving.model_server import AsyncModelServer
from wire.errors import Cancelled

ANSWER_S = 120.0  # within which whoever waits has heard


class Failing:
    """What it is asked to end fails to end, and others do not."""

    def __init__(self, fails: bool) -> None:
        self._fails, self.ended = fails, False

    async def close(self) -> None:
        self.ended = True
        if self._fails:
            raise OSError("the test's device fails")


async def test_every_model_of_a_server_ends() -> None:
    async with await mesh.Mesh.builder().build_async() as own:
        server: Any = AsyncModelServer(own, Listening(port=0))
        await server.start()
        models = {name: Failing(name != "b") for name in "abc"}
        server._served.by_name.update(models)
        with pytest.raises(OSError, match="device"):
            await server.close()
        assert all(model.ended for model in models.values())


async def test_every_model_of_an_inference_server_ends() -> None:
    async with await mesh.Mesh.builder().build_async() as own:
        server: Any = mesh.AsyncInferenceServer(own)
        models = {name: Failing(name != "b") for name in "abc"}
        server._models.update(models)
        with pytest.raises(OSError, match="device"):
            await server.close()
        assert all(model.ended for model in models.values())


def raising(_: Any) -> None:
    raise MemoryError("the test has none")


async def test_texts_whose_session_cannot_be_closed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await mesh.Mesh.builder().build_async() as own, asyncio.timeout(ANSWER_S):
        batch = Generating(own, golden_model("llama"), slots=2)
        text = batch.begin([1, 2, 3], 30, ends=())
        await text.next()
        monkeypatch.setattr(own, "forget", raising)
        with pytest.raises(MemoryError):
            await batch.close()
        with pytest.raises(Cancelled, match="unloaded"):
            _ = [token async for token in text]
