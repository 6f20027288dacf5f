"""Attacks on a server of models: none is answered, and none shows in its log what it sent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cases.served_models import llama_folder
from support.hostile.http_attacks import ATTACKS, BODIES, READS, TELLS, Attack, attacked, bearer, request

import mesh
from mesh.importers.minilm import model_folder
from mesh.serving.api_keys import ApiKeys

AT_ONCE = 16
LOG_CHARACTERS_MAX = 300  # of a line


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "own" / "keys.json"


@pytest.fixture(scope="module")
def key(keys: Path) -> str:
    return ApiKeys(keys).create("a friend")


@pytest.fixture(scope="module")
def port(keys: Path, key: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mesh.Mesh.builder().build() as own, mesh.ModelServer(own, port=0, keys=keys) as server:
        server.load_model("llama", llama_folder(tmp_path_factory.mktemp("models") / "llama"))
        server.load_model("minilm", model_folder())
        yield int(server.url.rpartition(":")[2])


async def test_no_attack_is_answered(port: int, key: str, caplog: pytest.LogCaptureFixture) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(attack: Attack) -> str:
        async with room:
            return (await attacked(attack, f"127.0.0.1:{port}", port, key)).wrong

    quick = [attack for attack in ATTACKS if not attack.slow]
    with caplog.at_level(logging.DEBUG, "graph_mesh.serving"):
        found = await asyncio.gather(*map(one, quick))
    assert not {attack.name: wrong for attack, wrong in zip(quick, found, strict=True) if wrong}
    lines = [record.getMessage() for record in caplog.records]
    assert key not in caplog.text
    assert max(map(len, lines)) < LOG_CHARACTERS_MAX
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("path", [*BODIES, *READS])
async def test_what_the_server_tells_a_friend_would_be_noticed(port: int, key: str, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    more = ("Connection: close", bearer(key))
    writer.write(request(path, f"127.0.0.1:{port}", *more))
    answer = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert any(text in answer for text in TELLS)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost : {key}\r\n\r\n", b"\x00{key}\r\n\r\n", b"{key}" * 9000])
async def test_what_is_no_http_is_refused_as_the_rest_is_and_shown_to_nobody(
    port: int, key: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with caplog.at_level(logging.DEBUG, "graph_mesh.serving"):
        writer.write(data.replace(b"{key}", key.encode()))
        head, _, body = (await asyncio.wait_for(reader.read(), 120)).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert b"Server: graph-mesh" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
    assert key.encode() not in body
    assert key not in caplog.text
    assert len(caplog.text) < LOG_CHARACTERS_MAX
