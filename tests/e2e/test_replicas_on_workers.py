"""Replicas of a served model on processes: one is killed under 16 streams of OpenAI's official client."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import Daemon, daemon, environment
from support.processes.worker_process import children

STREAMS = 16
TOKENS = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take

    def made(server: Daemon) -> openai.OpenAI:
        return openai.OpenAI(base_url=server.ready["url"] + "/v1", api_key="none", max_retries=0)

    return made


def asking(place: int) -> dict[str, Any]:
    how: dict[str, Any] = {"json_object": {"response_format": {"type": "json_object"}}, "scored": {"logprobs": True}}
    return {
        "model": "llama", "messages": [{"role": "user", "content": f"Tell me of the number {place}."}],
        "max_completion_tokens": TOKENS, "temperature": 0.8, "seed": place,
        **({} if place % 4 else how["json_object" if place % 8 else "scored"]),
    }  # fmt: skip


def whole(client: openai.OpenAI, place: int) -> str:
    return client.chat.completions.create(**asking(place)).choices[0].message.content or ""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_replica_killed_under_streams_fails_none_and_changes_no_token(
    folder: Path, tmp_path: Path, client: Any
) -> None:
    arguments = (
        "serve-model",
        str(folder),
        "--port",
        "0",
        "--local",
        "2",
        "--engine",
        "cpu",
        "--replicas",
        "2",
        "--preset",
        "test",
        "-v",
    )
    with daemon("coord", *arguments, env=environment(tmp_path), log=tmp_path / "log") as server:
        with client(server) as openais, ThreadPoolExecutor(STREAMS) as users:
            wanted = [*users.map(lambda place: whole(openais, place), range(STREAMS))]
            begun = threading.Barrier(STREAMS + 1, timeout=120)

            def stream(place: int) -> str:
                pieces = openais.chat.completions.create(**asking(place), stream=True)
                said = ""
                for number, piece in enumerate(pieces):
                    if number == 3:
                        begun.wait()
                    said += piece.choices[0].delta.content or ""
                if number < 3:
                    begun.wait()
                return said

            found = [users.submit(stream, place) for place in range(STREAMS)]
            begun.wait()
            workers = [pid for pid in children(server.process.pid) if "worker" in cmdline(pid)]
            assert len(workers) == 2, "each has a replica"
            os.kill(workers[0], signal.SIGKILL)
            assert [each.result(240) for each in found] == wanted
            assert whole(openais, 1) == wanted[1], "and it serves on"
        assert "1 replica on" in server.log.read_text(), "texts went from one to the other"
        assert server.stop(signal.SIGTERM) == 0, server.log.read_text()


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""
