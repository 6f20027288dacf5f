"""Served models that do not fit a worker together: an idle one is unloaded for one that is asked for."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import PATIENT_S

import mesh

with pytest.MonkeyPatch.context() as _patch:  # it makes a client when it is imported
    _patch.delenv("SSL_CERT_FILE", raising=False)
    import ollama

NAMES = ("anna", "berta", "carla")
HELLO: Any = [{"role": "user", "content": "Hello, how are you?"}]
WEIGHTS_MIB = 4 * (512 * (3 * 512 * (4 + 2 * 3) + 2 * 512)) / 2**20
ONE, TWO = "64MiB", "100MiB"  # room for so many models, their working memory and their keys and values


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    own = tmp_path_factory.mktemp("models")
    return {
        name: llama_folder(own / name, width=512, layers=3, heads=8, kv_heads=8, seed=seed)
        for seed, name in enumerate(NAMES)
    }


@pytest.fixture
def server(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[mesh.ModelServer]:
    assert 30 < WEIGHTS_MIB < 33
    with (
        pytest.MonkeyPatch.context() as patch,
        mesh.Mesh.builder().local(1, engine="cpu", max_memory=request.param).node_timeout(PATIENT_S).build() as m,
        mesh.ModelServer(m, port=0) as made,
    ):
        patch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take
        for name, folder in folders.items():
            made.load_model(name, folder, kv_budget="8MiB")
        yield made


@pytest.fixture
def client(server: mesh.ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def said(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(model=model, messages=HELLO, max_completion_tokens=6, temperature=0)
    return answer.choices[0].message.content or ""


def there(server: mesh.ModelServer) -> list[str]:
    with urllib.request.urlopen(server.url + "/api/ps", timeout=60) as answer:
        return [model["name"] for model in json.load(answer)["models"]]


@pytest.mark.parametrize("server", [TWO], indirect=True)
def test_the_model_that_was_used_longest_ago_makes_way(server: mesh.ModelServer, client: openai.OpenAI) -> None:
    first = {name: said(client, name) for name in ("anna", "berta", "anna")}
    assert there(server) == ["anna", "berta"]
    said(client, "carla")
    assert there(server) == ["anna", "carla"]
    assert {name: said(client, name) for name in ("berta", "anna")} == first


@pytest.mark.parametrize("server", [ONE], indirect=True)
def test_a_model_that_answers_or_was_asked_to_stay_does_not(server: mesh.ModelServer, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="anna", messages=HELLO, max_completion_tokens=400, temperature=0, stream=True
    )
    next(stream)
    with pytest.raises(openai.InternalServerError) as caught:
        said(client, "berta")
    assert (caught.value.status_code, caught.value.code) == (503, "no_room")
    assert "there is no room for 'berta' beside other models: local-0 needs" in str(caught.value)
    assert "and has 64.0 MiB, of which 'anna' (answers a request) holds" in str(caught.value)
    assert sum(1 for _ in stream) > 10, "it was answered to its end"
    said(client, "berta")
    assert there(server) == ["berta"]
    llamas = ollama.Client(host=server.url)
    llamas.generate("berta", keep_alive=-1)
    with pytest.raises(openai.InternalServerError, match=r"'berta' \(was asked to stay\) holds"):
        said(client, "carla")
    assert there(server) == ["berta"]
    llamas.generate("berta", keep_alive=0)
    said(client, "carla")
    assert there(server) == ["carla"]
