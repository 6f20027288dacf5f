"""`mesh-coord serve-model` gives the memory back that requests and models leave free."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mesh.commands import serve_model
from mesh.simulation.loop import VirtualLoop


def test_a_server_gives_memory_back_for_as_long_as_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    returned = list[int]()
    monkeypatch.setattr(serve_model, "give_back", lambda: returned.append(1))

    async def serve() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(9.5 * serve_model.GIVE_BACK_S):
                await serve_model._give_memory_back()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(serve())
    assert len(returned) == 9
