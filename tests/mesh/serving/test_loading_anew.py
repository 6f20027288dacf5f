"""`mesh-coord serve-model` loads models anew at a signal, and goes on serving whatever fails of that."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from typing import Any, cast

import pytest

from mesh.commands import serve_model
from wire.errors import InputError

OPTIONS = argparse.Namespace(json=False, quiet=False)


class Server:
    """A server of models, of which each fails as it is loaded anew for the first time."""

    def __init__(self, *faults: Exception) -> None:
        self.faults, self.loaded = list(faults), list[str]()
        self.done = asyncio.Event()

    async def reload_model(self, name: str) -> None:
        self.loaded.append(name)
        if len(self.loaded) % 3 == 0:
            self.done.set()
        if self.faults:
            raise self.faults.pop(0)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_model_that_fails_keeps_no_other_from_being_loaded_anew_then_or_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: Any, **more: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(serve_model, "say_lines", gone)  # as where the reader of stderr has left
    server = Server(MemoryError(), OSError(5, "the test's device fails"), InputError("damaged"))
    reloading = asyncio.ensure_future(serve_model._reload_at_signals(OPTIONS, cast(Any, server), ["a", "b", "c"]))
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(120):
                await server.done.wait()
            server.done.clear()
    await asyncio.sleep(0)
    assert server.loaded == ["a", "b", "c"] * 2 and not reloading.done()
    told = [text for line in caplog.records if "stays as it was: " in (text := line.getMessage())]
    assert [text[0] for text in told] == ["a", "b", "c"]
    assert all(cause in text for cause, text in zip(("MemoryError", "device fails", "damaged"), told, strict=True))
    reloading.cancel()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
