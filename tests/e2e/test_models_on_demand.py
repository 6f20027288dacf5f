"""Served models that come and go while they are asked for: unloaded when idle, loaded on demand, loaded anew."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import Daemon, environment, run, wait_for
from support.processes.footprint import footprint
from support.processes.model_servers import model_server, openai_client
from support.processes.worker_process import children

with pytest.MonkeyPatch.context() as _patch:  # it makes a client when it is imported
    _patch.delenv("SSL_CERT_FILE", raising=False)
    import ollama

KEPT_S = 3
HELLO: Any = [{"role": "user", "content": "Hello, how are you?"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    own = tmp_path_factory.mktemp("models")
    return {
        "small": llama_folder(own / "small"),
        "large": llama_folder(own / "large", width=512, layers=3, heads=8, kv_heads=8, seed=1),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    own = tmp_path_factory.mktemp("server")
    with model_server(own, *map(str, folders.values()), "--unload-after", f"{KEPT_S}s", "-v") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Daemon) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


@pytest.fixture(scope="module")
def llamas(server: Daemon) -> ollama.Client:
    return ollama.Client(host=server.ready["url"])


def said(client: openai.OpenAI, model: str = "small", **more: Any) -> str:
    how: dict[str, Any] = {"model": model, "messages": HELLO, "max_completion_tokens": 12, "temperature": 0, **more}
    return client.chat.completions.create(**how).choices[0].message.content or ""


def there(server: Daemon) -> list[str]:
    with urllib.request.urlopen(server.ready["url"] + "/api/ps", timeout=60) as answer:
        return [model["name"] for model in json.load(answer)["models"]]


def held_mib(server: Daemon) -> float:
    workers = children(server.process.pid)
    return sum(footprint(pid).rss_kib for each in workers for pid in (each, *children(each))) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_a_model_that_nobody_asks_for_frees_the_workers_and_comes_back(server: Daemon, client: openai.OpenAI) -> None:
    assert there(server) == [], "nobody has asked"
    first = said(client, "large")
    assert there(server) == ["large"]
    loaded_mib = held_mib(server)
    wait_for(lambda: not there(server))
    weights_mib = 4 * 512 * (3 * 512 * (4 + 2 * 3) + 2 * 512) / 2**20
    assert weights_mib > 25
    wait_for(lambda: held_mib(server) < loaded_mib - 0.8 * weights_mib)
    assert [model.id for model in client.models.list()] == ["small", "large"], "it is served all the while"
    assert said(client, "large") == first
    assert there(server) == ["large"]


def test_a_model_stays_while_it_answers(server: Daemon, client: openai.OpenAI) -> None:
    begun_s = time.monotonic()
    stream = client.chat.completions.create(
        model="small", messages=HELLO, max_completion_tokens=2000, temperature=0, stream=True
    )
    for _ in stream:
        if time.monotonic() - begun_s > 2 * KEPT_S:
            break
    assert "small" in there(server)
    stream.close()
    wait_for(lambda: "small" not in there(server))


def test_ollama_says_how_long_a_model_stays(server: Daemon, llamas: ollama.Client) -> None:
    how: Any = {"messages": HELLO, "options": {"num_predict": 2}}
    llamas.chat("small", **how, keep_alive="1h30m")
    (told,) = [model for model in llamas.ps().models if model.model == "small"]
    assert told.expires_at is not None
    assert 5300 < told.expires_at.timestamp() - time.time() < 5500
    llamas.chat("small", **how, keep_alive=-1)
    (told,) = [model for model in llamas.ps().models if model.model == "small"]
    assert told.expires_at is not None and told.expires_at.year > 2300
    assert llamas.generate("small", keep_alive=0).done_reason == "unload"
    wait_for(lambda: "small" not in there(server))
    assert llamas.generate("small", keep_alive=0).done_reason == "unload", "it is not loaded for that"
    assert "small" not in there(server)
    assert llamas.generate("small").done_reason == "load"
    assert "small" in there(server)


@pytest.mark.parametrize("wrong", ["soon", "5 minutes", "", "1h-3m", "m", "-", True, [3], {}])
@pytest.mark.parametrize("path", ["chat", "generate", "embed"])
def test_a_wrong_keep_alive_is_refused(server: Daemon, path: str, wrong: Any) -> None:
    body = {"model": "small", "keep_alive": wrong, "messages": HELLO, "prompt": "x", "input": "x"}
    kept = {"chat": ("messages",), "generate": ("prompt",), "embed": ("input",)}[path]
    data = json.dumps({name: body[name] for name in ("model", "keep_alive", *kept)}).encode()
    asked = urllib.request.Request(f"{server.ready['url']}/api/{path}", data, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=60)
    told = caught.value.read().decode()
    assert (caught.value.code, "keep_alive" in told) == ((400, True) if path != "embed" else (404, False)), told


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_models_are_loaded_anew_under_requests(server: Daemon, client: openai.OpenAI, folders: Any) -> None:
    before = said(client)
    other = llama_folder(folders["small"].parent / "other", seed=9)
    over, answers = threading.Event(), list[str]()

    def ask() -> None:
        while not over.is_set():
            answers.append(said(client))

    def stream() -> str:
        pieces = client.chat.completions.create(
            model="small", messages=HELLO, max_completion_tokens=300, temperature=0, stream=True
        )
        text = ""
        for number, piece in enumerate(pieces):
            if number == 5:
                begun.set()
            text += piece.choices[0].delta.content or ""
        return text

    whole = said(client, max_completion_tokens=300)
    begun = threading.Event()
    with ThreadPoolExecutor(5) as users:
        asking = [users.submit(ask) for _ in range(4)]
        streamed = users.submit(stream)
        try:
            assert begun.wait(120)
            shutil.copy(other / "model.safetensors", folders["small"] / "new")
            (folders["small"] / "new").replace(folders["small"] / "model.safetensors")
            wait_for(lambda: answers != [])
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "large is loaded anew" in server.log.read_text())
            wait_for(lambda: answers[-1] != before)
        finally:
            over.set()
        for each in asking:
            each.result(120)
        assert streamed.result(120) == whole, "it ended on the weights that it had begun with"
    after = said(client)
    assert after != before
    assert {*answers} == {before, after}, "every request was answered, by the one or the other"


def test_a_time_that_is_none_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    arguments = ("serve-model", str(folders["small"]), "--unload-after", "soon")
    found = run("coord", *arguments, env=environment(tmp_path))
    assert found.returncode == 2
    assert "'soon' is not a time" in found.stderr
