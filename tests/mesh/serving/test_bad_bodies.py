"""Bodies that are nearly right: each is answered, or refused in the shape of its API; none is the server's fault."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.cases.served_models import llama_folder
from support.hostile.bad_bodies import BODIES, nearly_right

import mesh
from mesh.importers.minilm import model_folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mesh.Mesh.builder().build() as own, mesh.ModelServer(own, port=0) as server:
        server.load_model("llama", llama_folder(tmp_path_factory.mktemp("models") / "llama"))
        server.load_model("minilm", model_folder())
        yield server.url


@pytest.mark.parametrize("path", BODIES)
def test_nearly_right_bodies(url: str, path: str) -> None:
    rng = random.Random(path)
    for turn in range(25):
        body = nearly_right(rng, path, min(turn, rng.choice([1, 1, 2])))  # the first one is right
        asked = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        status, told = answered(asked)
        assert status == 200 or (turn and status in (400, 404)), (body, told)
        if status != 200:
            error = told["error"]
            assert isinstance(error if path.startswith("/api/") else error["message"], str)


def answered(asked: urllib.request.Request) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())
