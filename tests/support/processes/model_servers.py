"""Servers of models, as `mesh-coord serve-model` starts them, and a client of the interface of OpenAI."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from .commands import Daemon, daemon, environment


@contextmanager
def model_server(folder: Path, *arguments: str) -> Iterator[Daemon]:
    """`mesh-coord serve-model` with one worker of its own on numpy, whose state and log are in `folder`.  It has to end
    in good order."""
    command = ("serve-model", *arguments, "--port", "0", "--local", "1", "--engine", "cpu", "--preset", "test")
    with (
        pytest.MonkeyPatch.context() as patch,
        daemon("coord", *command, env=environment(folder), log=folder / "log") as server,
    ):
        patch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take
        yield server
        assert server.stop(signal.SIGTERM) == 0, server.log.read_text()


@contextmanager
def openai_client(server: Daemon) -> Iterator[openai.OpenAI]:
    """A client that tries each request once."""
    with openai.OpenAI(base_url=server.ready["url"] + "/v1", api_key="none", max_retries=0) as client:
        yield client
