"""ModelServer in a program: what can be loaded, and what callers meet while models come and go."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections import Counter
from collections.abc import Coroutine, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases.served_models import GOLDEN, llama_folder, tokenizer_file
from support.processes.commands import wait_for

import mesh
from mesh import ModelServer
from mesh.errors import ConfigError, InputError, PlacementError
from mesh.functions.step_trace import Stepping
from mesh.importers.minilm import model_folder
from mesh.inference.settings import GREEDY, Options
from mesh.inference.tokenizer import Tokenizer
from mesh.models.model import Model
from mesh.serving.answer import Answer, TextRequest, Usage, whole
from mesh.serving.anthropic_messages import count_tokens
from mesh.serving.api_error import ApiError
from mesh.serving.api_keys import ApiKeys
from mesh.serving.calls import Call
from mesh.serving.chat_template import ChatTemplate
from mesh.serving.model_server import AsyncModelServer, Served
from mesh.serving.replies import JsonReply
from mesh.serving.served_embedding import ServedEmbedding
from mesh.serving.served_text import ServedText
from mesh.simulation.loop import VirtualLoop
from wire.ir.graph import WireGraph
from wire.system import mapped_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with mesh.Mesh.builder().build() as own, ModelServer(own, port=0) as made:
        yield made


def posted(server: ModelServer, **more: Any) -> Any:
    body = {"model": "llama", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, **more}
    headers = {"Content-Type": "application/json"}
    return urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers), timeout=120
    )


def embedding(server: ModelServer, model: str, tokens: list[int]) -> Any:
    body, headers = json.dumps({"model": model, "input": tokens}).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.url}/v1/embeddings", body, headers), timeout=120
    ) as answer:
        return json.load(answer)


def status(server: ModelServer, **more: Any) -> int:
    try:
        with posted(server, **more) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_packed_model_is_served_as_any_other(server: ModelServer, folder: Path) -> None:
    model = mesh.load(folder)
    server.load_model("llama", model)
    server.load_model("packed", mesh.quantise(model, "int8"))
    for name in ("llama", "packed"):
        with posted(server, model=name, max_tokens=4) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4


def test_a_model_that_is_unloaded_is_held_no_more(server: ModelServer, folder: Path) -> None:
    model = mesh.load(folder)
    server.load_model("llama", model)
    assert status(server, max_tokens=2) == 200
    weights = weakref.ref(next(iter(model.weights.values())))
    del model
    server.unload_model("llama")
    gc.collect()
    assert weights() is None


def test_a_name_is_taken_once_and_free_when_its_model_is_unloaded(server: ModelServer, folder: Path) -> None:
    server.load_model("llama", folder)
    with pytest.raises(InputError, match="called 'llama' already"):
        server.load_model("llama", folder)
    assert status(server, max_tokens=2) == 200
    server.unload_model("llama")
    assert status(server, max_tokens=2) == 404
    with pytest.raises(InputError, match="no model is called 'llama'"):
        server.unload_model("llama")
    server.load_model("llama", folder)
    assert status(server, max_tokens=2) == 200


@pytest.mark.parametrize("kind", ["text", "embedding"])
def test_what_a_model_held_is_free_without_a_search_for_cycles(server: ModelServer, folder: Path, kind: str) -> None:
    """A full search comes when a quarter of all objects are new: until then each time cost megabytes and a mapping."""
    of = {"text": folder, "embedding": model_folder()}[kind]
    held = ServedText, ServedEmbedding, Model, Tokenizer, Stepping, WireGraph, mapped_files._Region

    def begin() -> None:
        if kind == "text":
            assert status(server, max_tokens=2) == 200
        else:
            assert embedding(server, "llama", [101, 102])["data"]

    def counts() -> dict[str, int]:
        found = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, held))
        return {**found, "files": len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0}

    server.load_model("llama", of)
    begin()
    server.unload_model("llama")
    gc.collect()
    before = counts()
    gc.disable()
    try:
        server.load_model("llama", of)
        begin()
        server.reload_model("llama")
        begin()
        assert counts() != before, "it counts what a model holds"
        server.unload_model("llama")
        wait_for(lambda: counts() == before, 30)
    finally:
        gc.enable()


def test_who_is_answered_by_a_model_that_is_unloaded_gets_an_error(server: ModelServer, folder: Path) -> None:
    server.load_model("llama", folder)
    with posted(server, max_tokens=2000, stream=True) as answer:
        for _ in range(6):
            answer.readline()
        server.unload_model("llama")
        rest = answer.read().decode()
    last = json.loads(rest.strip().splitlines()[-1].removeprefix("data: "))
    assert (last["error"]["code"], last["error"]["message"][:24]) == ("model_unloaded", "the model was unloaded")


@pytest.mark.parametrize(
    ("name", "model", "why"),
    [
        ("", None, "characters that print"),
        ("a\nb", None, "characters that print"),
        ("x", 3, "is no model"),
        ("x", "/nowhere", "does not exist"),
    ],
)
def test_what_cannot_be_served_is_told(server: ModelServer, folder: Path, name: str, model: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        server.load_model(name, folder if model is None else model)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("1_Pooling/config.json", "{", "cannot be read as JSON"),
        ("1_Pooling/config.json", "[]", "holds no JSON object"),
        ("modules.json", "[3]", "holds no list of modules"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length is a positive integer, got 'x'"),
    ],
)
def test_a_damaged_file_of_an_encoder_is_named(
    server: ModelServer, tmp_path: Path, file: str, text: str, why: str
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "huggingface" / "bert", tmp_path / "bert"))
    tokenizer_file(folder / "tokenizer.json")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    with pytest.raises(InputError, match=why):
        server.load_model("bert", folder)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta"])
def test_a_text_as_long_as_an_encoder_reads_is_embedded_and_a_longer_one_refused(
    server: ModelServer, tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "huggingface" / name, tmp_path / name))
    tokenizer_file(folder / "tokenizer.json")
    most = 30 if name == "roberta" else 32  # of RoBERTa's 32 positions the first two are no token's
    server.load_model(name, folder)
    assert len(embedding(server, name, [3] * most)["data"]) == 1
    with pytest.raises(urllib.error.HTTPError) as refused:
        embedding(server, name, [3] * (most + 1))
    error = json.load(refused.value)["error"]
    assert (refused.value.code, error["code"]) == (400, "context_length_exceeded")
    assert f"the model reads {most}" in error["message"]


def test_a_schema_of_any_depth_is_answered_or_refused(server: ModelServer, folder: Path) -> None:
    server.load_model("llama", folder)
    for depth in (10, 45, 60, 300):
        schema: Any = {}
        for _ in range(depth):
            schema = {"properties": {"a": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        assert status(server, tools=[tool], tool_choice="required", max_tokens=2) == (200 if depth < 50 else 400)


async def test_a_template_runs_beside_the_loop(folder: Path) -> None:
    went_on, seen = threading.Event(), list[bool]()

    def clock() -> datetime:
        seen.append(went_on.wait(120))  # a loop that renders cannot set it
        return datetime(2026, 1, 1)

    async with await mesh.AsyncMesh.builder().build_async() as own, AsyncModelServer(own) as server:
        await server.load_model("llama", folder)
        model = server._served.text("llama")
        model.template = ChatTemplate({"default": "{{ strftime_now('%Y') }}"}, {}, clock)
        body = {"model": "llama", "messages": [{"role": "user", "content": "x"}]}
        call = Call(server._served, body, {}, "", lambda: 0, lambda: 0, lambda prefix: prefix, lambda: 0)
        asking = asyncio.create_task(count_tokens(call))
        asyncio.get_running_loop().call_soon(went_on.set)
        assert isinstance(await asking, JsonReply)
    assert seen == [True]


async def test_a_closed_server_loads_no_model(folder: Path) -> None:
    async with await mesh.AsyncMesh.builder().build_async() as own:
        server = AsyncModelServer(own)
        loading = asyncio.create_task(server.load_model("llama", folder))
        await asyncio.sleep(0)
        await server.close()
        with pytest.raises(ConfigError, match="this server is closed"):
            await loading
        with pytest.raises(ConfigError, match="this server is closed"):
            await server.load_model("other", folder)
        assert not server._served.by_name


def test_a_model_that_is_being_loaded_is_not_one_that_is_not_there() -> None:
    served = Served()
    served.loading.add("llama")
    for name in ("llama", "llama:latest"):
        with pytest.raises(ApiError, match="being loaded") as caught:
            served.text(name)
        assert (caught.value.status, caught.value.retry_after_s > 0) == (503, True)
    with pytest.raises(ApiError, match="no model 'other'") as caught:
        served.text("other")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("strategy", "hello", "strategy='hello' is not known"),
        ("strategy", 3, "strategy=3 is not known"),
        ("max_batch", 10**30, "max_batch is 1048576 at most"),
        ("queue", 0, "queue counts from 1"),
        ("unload_after_s", -1, "unload_after_s is a number, 0 or more, got -1"),
    ],
)
def test_an_option_is_checked_when_the_model_is_loaded(
    server: ModelServer, folder: Path, option: str, value: Any, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        server.load_model("llama", folder, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("host", 3, "host of ModelServer is a text, not 3"),
        ("port", 1.5, "port of ModelServer is an int, not 1.5"),
        ("port", 1 << 16, "port 65536 is not from 0 to 65535"),
        ("keys", 3, "keys of ModelServer is .*, not 3"),
    ],
)
def test_a_server_names_a_wrong_argument(option: str, value: Any, why: str) -> None:
    arguments: dict[str, Any] = {"port": 0, option: value}
    with mesh.Mesh.builder().build() as own, pytest.raises((InputError, ConfigError), match=why):
        ModelServer(own, **arguments)


def test_a_server_needs_a_mesh_and_keys_for_other_machines() -> None:
    with pytest.raises(InputError, match="mesh of ModelServer is of the class Mesh, not 3"):
        ModelServer(3)  # type: ignore[arg-type]
    with mesh.Mesh.builder().build() as own, pytest.raises(ConfigError, match="without API keys"):
        ModelServer(own, host="0.0.0.0", port=0)


def test_a_model_moves_to_other_workers_while_a_text_goes_on(folder: Path) -> None:
    built = mesh.AsyncMesh.builder().mesh("sim").simulate(2)

    async def work() -> None:
        async with await built.build_async() as own:
            server = AsyncModelServer(own)
            first, second = (Options(strategy=mesh.Auto(workers=(node.name,))) for node in await own.nodes())
            await server.load_model("llama", folder, first)
            old = server._served.text("llama")
            wanted = await tokens_of(await old.begin(REQUEST, ""))
            answer = await old.begin(REQUEST, "")
            telling = asyncio.ensure_future(tokens_of(answer))
            await server.reload_model("llama", options=second)
            new = server._served.text("llama")
            assert new is not old and new.residence.there, "who asks next need not wait"
            assert await tokens_of(await old.begin(REQUEST, "")) == wanted, "who was late goes to the new one"
            assert new.admission.running == 0
            assert await telling == wanted
            await asyncio.gather(*server._retiring)
            assert await tokens_of(await new.begin(REQUEST, "")) == wanted
            await server.close()

    virtually(work())


@pytest.mark.parametrize("turns", [2, 8, 16])
def test_a_server_is_closed_to_the_end_though_whoever_closes_it_is_cancelled(folder: Path, turns: int) -> None:
    built = mesh.AsyncMesh.builder().mesh("sim").simulate(1)

    async def work() -> None:
        async with await built.build_async() as own:
            server = AsyncModelServer(own)
            for name in ("llama", "other"):
                await server.load_model(name, folder)
                await tokens_of(await server._served.text(name).begin(REQUEST, ""))
            closing = asyncio.ensure_future(server.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await asyncio.sleep(5)
            assert not server._served.by_name and own.simulation.coordinator.sessions.idle

    virtually(work())


def test_a_model_that_cannot_be_loaded_anew_stays(folder: Path) -> None:
    built = mesh.AsyncMesh.builder().mesh("sim").simulate(1)

    async def work() -> None:
        async with await built.build_async() as own:
            server = AsyncModelServer(own)
            await server.load_model("llama", folder)
            old = server._served.text("llama")
            wanted = await tokens_of(await old.begin(REQUEST, ""))
            gone = Options(strategy=mesh.Auto(workers=("nobody",)))
            with pytest.raises(PlacementError, match="none is there"):
                await server.reload_model("llama", options=gone)
            with pytest.raises(InputError, match="does not exist"):
                await server.reload_model("llama", "/nowhere")
            with pytest.raises(InputError, match="no model is called 'other'"):
                await server.reload_model("other")
            assert server._served.text("llama") is old
            assert await tokens_of(await old.begin(REQUEST, "")) == wanted
            await server.close()

    virtually(work())


REQUEST = TextRequest(("Hello, how are you?",), GREEDY, 30)


async def tokens_of(answer: Answer) -> str:
    (said,) = await whole(answer)
    return said.text


def virtually(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


@pytest.mark.parametrize(("host", "loopback"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_a_server_on_every_address_names_one_that_can_be_opened(tmp_path: Path, host: str, loopback: str) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    keys = tmp_path / "keys.json"
    key = ApiKeys(keys).create("ann")
    with mesh.Mesh.builder().build() as own, ModelServer(own, host=host, port=0, keys=keys) as server:
        assert server.url.startswith(f"http://{loopback}:")
        asked = urllib.request.Request(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 200


def test_whoever_reads_an_answer_hears_of_a_panic() -> None:
    class Panic(BaseException):
        """As libraries in Rust raise it."""

    class Stream:
        reason = ""

        async def next(self) -> Any:
            raise Panic("wrong")

        def cancel(self) -> None: ...

    async def read() -> None:
        answer = answer_of(Stream())
        async with asyncio.timeout(120):
            with pytest.raises(RuntimeError, match="Panic"):
                [event async for event in answer.events()]
        answer.close()

    asyncio.run(read())


def test_an_answer_that_nobody_waits_for_any_more_is_free_without_a_search_for_cycles() -> None:
    """It knows the batch that it is of, and so the model."""

    class Stream:
        reason = ""

        async def next(self) -> Any:
            await asyncio.Event().wait()

        def cancel(self) -> None: ...

    async def leave() -> None:
        stream = Stream()
        answer = answer_of(stream)
        reading = asyncio.ensure_future(anext(answer.events()))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        answer.close()
        held = weakref.ref(stream)
        del answer, stream, reading
        await asyncio.sleep(0.01)
        assert held() is None

    gc.disable()
    try:
        asyncio.run(leave())
    finally:
        gc.enable()


def answer_of(stream: Any) -> Answer:
    tokenizer: Any = SimpleNamespace(stream=lambda special: None)
    request = TextRequest(("Hello",), GREEDY)
    return Answer(request, [stream], tokenizer, frozenset(), Usage(1), str, lambda: None, lambda choice: None)
