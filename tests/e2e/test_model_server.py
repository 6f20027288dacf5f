"""Models behind HTTP, asked by the official client of OpenAI: a server process, a worker, a Llama and MiniLM."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openai
import psutil
import pytest
from openai.types.chat import ChatCompletion
from support.cases.served_models import GOLDEN, llama_folder
from support.processes.commands import Daemon, command, daemon, environment, run, wait_for
from support.processes.model_servers import model_server, openai_client

import mesh
from coordinator.authority.authority import Authority
from mesh.backends.enrolment import authority_folder
from mesh.commands.exit_codes import OK
from mesh.importers.minilm import embed, model_folder
from mesh.inference.kv_pages import PAGE
from mesh.inference.tokenizer import Tokenizer
from mesh.serving.chat_template import load_chat_template
from wire.text import printable

HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, how are you?"}]
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "colour": {"enum": ["red", "green"]}},
    "required": ["age", "colour"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
OTHER: Any = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    own = tmp_path_factory.mktemp("server")
    plain = llama_folder(own / "plain", template="", positions=64, seed=1)
    models = str(folder), f"minilm={model_folder()}", f"plain={plain}"
    with model_server(own, *models, "--max-batch", "4", "--queue", "4") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Daemon) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def said(client: openai.OpenAI, **more: Any) -> ChatCompletion:
    wanted: dict[str, Any] = {"model": "llama", "messages": HELLO, "max_completion_tokens": 12, **more}
    answer: ChatCompletion = client.chat.completions.create(**wanted)
    return answer


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["llama", "minilm", "plain"]
    assert client.models.retrieve("minilm").owned_by == "graph-mesh"
    with pytest.raises(openai.NotFoundError, match="no model 'nothing'"):
        client.models.retrieve("nothing")


def test_an_answer_is_what_the_model_says_to_the_rendered_template(client: openai.OpenAI, folder: Path) -> None:
    template, tokenizer, model = load_chat_template(folder), Tokenizer(folder), mesh.load(folder)
    assert template is not None
    ids = tokenizer.ids(template.render(HELLO), framed=False)
    ends = [0, tokenizer.id_of("<|im_end|>")]
    tokens = [token for token in model.generate(ids, max_new_tokens=12, ends=ends) if token not in ends]
    answer = said(client, temperature=0)
    assert answer.choices[0].message.content == tokenizer.text(tokens)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 12)
    assert answer.choices[0].finish_reason == "length"


def test_the_usage_says_how_many_tokens_of_the_prompt_were_known(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "The usage says how many of these tokens needed no reading. " * 4}]
    first, again = (said(client, messages=long, n=2).usage for _ in range(2))
    assert first is not None and first.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens < PAGE
    assert again is not None and again.prompt_tokens_details is not None
    assert again.prompt_tokens_details.cached_tokens == (again.prompt_tokens - 1) // PAGE * PAGE


def test_a_stream_has_the_same_text_and_ends_with_the_usage(client: openai.OpenAI) -> None:
    whole = said(client, seed=5)
    chunks = list(
        client.chat.completions.create(
            model="llama", messages=HELLO, max_completion_tokens=12, seed=5, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(each.delta.content or "" for each in deltas) == whole.choices[0].message.content
    assert [each.finish_reason for each in deltas if each.finish_reason] == [whole.choices[0].finish_reason]
    assert deltas[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage
    assert not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_is_server_sent_events_that_end_in_done(client: openai.OpenAI) -> None:
    with posted(client, {"model": "llama", "messages": HELLO, "max_tokens": 3, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = answer.read().decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: {") for frame in frames[:-2])


def posted(client: openai.OpenAI, body: Any) -> Any:
    """The answer to a chat request that no client has made."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{client.base_url}chat/completions", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(asked, timeout=120)


def test_half_of_a_character_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        posted(client, {"model": "llama", "messages": [{"role": "user", "content": "\ud800"}]})
    assert json.loads(caught.value.read())["error"]["param"] == "messages[0].content"


def test_seeds_choices_and_stops(client: openai.OpenAI) -> None:
    first, again, other = (said(client, seed=seed, n=2) for seed in (3, 3, 4))
    texts = [[choice.message.content for choice in each.choices] for each in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]
    whole = said(client, temperature=0).choices[0].message.content
    assert whole is not None
    stop = whole[3:5]
    cut = said(client, temperature=0, stop=[stop, "never"]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_probabilities_are_those_of_the_tokens(client: openai.OpenAI) -> None:
    choice = said(client, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    for token in choice.logprobs.content:
        assert token.top_logprobs[0].token == token.token  # greedy
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert [each.logprob for each in token.top_logprobs] == sorted(
            (each.logprob for each in token.top_logprobs), reverse=True
        )
    data = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
    assert data.decode("utf-8", "replace") == choice.message.content


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_meets_its_json_schema(client: openai.OpenAI, temperature: float) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        choice = said(
            client, temperature=temperature, seed=seed, response_format=form, max_completion_tokens=60
        ).choices[0]
        found = json.loads(choice.message.content or "")
        assert found.keys() == {"age", "colour"}
        assert 0 <= found["age"] <= 99
        assert found["colour"] in ("red", "green")
        assert choice.finish_reason == "stop"


def test_a_tool_is_called_where_it_has_to_be(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        tools = [TOOL] if choice == "required" else [OTHER, TOOL]
        answer = said(client, tools=tools, tool_choice=choice, max_completion_tokens=60).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        (call,) = answer.message.tool_calls or ()
        assert call.type == "function"
        assert call.function.name == "get_weather"
        arguments = json.loads(call.function.arguments)
        assert arguments["city"] in ("Rome", "Oslo")
        assert 1 <= arguments["days"] <= 9
        back: Any = [*HELLO, answer.message.model_dump(exclude_none=True)]
        back.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        assert said(client, messages=back, tools=tools, temperature=0).choices[0].message.content
    stream = client.chat.completions.create(
        model="llama", messages=HELLO, tools=[TOOL], tool_choice="required", stream=True, max_completion_tokens=60
    )
    deltas = [chunk.choices[0] for chunk in stream]
    (told,) = [call for each in deltas for call in each.delta.tool_calls or ()]
    assert told.function is not None
    assert json.loads(told.function.arguments or "")["city"] in ("Rome", "Oslo")
    assert deltas[-1].finish_reason == "tool_calls"


def test_plain_texts_go_on(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="plain", prompt=["Once upon", "There was"], max_tokens=5, n=2, seed=1, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert len(choice.logprobs.tokens) == 5
    chunks = client.completions.create(model="plain", prompt=[5, 6, 7], max_tokens=5, seed=1, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_an_answer_continues_the_last_message_where_it_is_asked_to(client: openai.OpenAI, folder: Path) -> None:
    template, tokenizer, model = load_chat_template(folder), Tokenizer(folder), mesh.load(folder)
    assert template is not None
    asked = {"role": "user", "content": "Tell me a story."}
    begun: Any = [asked, {"role": "assistant", "content": "Once upon"}]
    text = template.render(begun, continued=True)
    assert text.endswith("assistant\nOnce upon")
    ids = tokenizer.ids(text, framed=False)
    wanted = tokenizer.text(model.generate(ids, max_new_tokens=6))
    how = {"max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(
        model="llama", messages=begun, extra_body={"continue_final_message": True}, **how
    )
    assert answer.choices[0].message.content == wanted
    assert client.chat.completions.create(model="llama", messages=begun, **how).usage.prompt_tokens > len(ids)
    raw: Any = client.post("/messages", body={"model": "llama", "messages": begun, **how}, cast_to=object)
    assert raw["content"] == [{"type": "text", "text": wanted}]
    spaced = [asked, {"role": "assistant", "content": "Once upon "}]
    with pytest.raises(openai.BadRequestError, match="ends with whitespace"):
        client.post("/messages", body={"model": "llama", "messages": spaced, **how}, cast_to=object)


def test_penalties_and_biases_change_what_is_chosen(client: openai.OpenAI, folder: Path) -> None:
    tokenizer, model = Tokenizer(folder), mesh.load(folder)
    prompt, (forced, other) = [5, 6, 7], tokenizer.ids("a b", framed=False)[:2]
    how: dict[str, Any] = {"model": "llama", "prompt": prompt, "max_tokens": 6, "temperature": 0}

    def went_on(**more: Any) -> str:
        return str(client.completions.create(**how, **more).choices[0].text)

    plain = tokenizer.text(model.generate(prompt, max_new_tokens=6, ends=()))
    assert went_on(logit_bias={}, presence_penalty=0, frequency_penalty=0) == went_on() == plain
    assert went_on(logit_bias={str(forced): 100}) == tokenizer.text([forced] * 6)
    # the bias outweighs all logits of this model; the penalty tells the two tokens apart, whichever comes first
    both = went_on(logit_bias={str(forced): 100, str(other): 100}, presence_penalty=2, frequency_penalty=2)
    ids = wanted_tokens(model, prompt, 6, {forced: 100, other: 100}, 2, 2)
    assert {forced, other} == set(ids)
    assert both == tokenizer.text(ids)
    for more in ({"n": 2}, {"stream": True}):
        answer = client.chat.completions.create(
            model="llama", messages=HELLO, max_tokens=4, logit_bias={str(forced): 100}, frequency_penalty=0.1, **more
        )
        texts = (
            ["".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)]
            if "stream" in more
            else [choice.message.content for choice in answer.choices]
        )
        assert set(texts) == {tokenizer.text([forced] * 4)}


def wanted_tokens(
    model: mesh.Model, prompt: list[int], count: int, biases: dict[int, float], presence: float, frequency: float
) -> list[int]:
    """The likeliest tokens by the formula of OpenAI's reference."""
    chosen: list[int] = []
    for _ in range(count):
        logits = np.asarray(model(input_ids=np.array([prompt + chosen], np.int32)), np.float32)[0, -1].copy()
        for token, bias in biases.items():
            logits[token] += bias
        for token in set(chosen):
            logits[token] -= chosen.count(token) * frequency + presence
        chosen.append(int(np.argmax(logits)))
    return chosen


def test_embeddings_are_the_demos(client: openai.OpenAI) -> None:
    texts = ["A cat sat.", "Wie spät ist es?", "word " * 100]
    with mesh.Mesh.builder().build() as own:
        wanted = embed(own, texts)
    found = client.embeddings.create(model="minilm", input=texts)  # in base64, as this client asks
    np.testing.assert_allclose([each.embedding for each in found.data], wanted, atol=2e-6)
    plain = client.embeddings.create(model="minilm", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, wanted[0], atol=2e-6)
    raw: Any = client.post(
        "/embeddings", body={"model": "minilm", "input": [texts[0]], "encoding_format": "base64"}, cast_to=object
    )
    row = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(row, wanted[0], atol=2e-6)


@pytest.mark.parametrize(
    ("more", "status", "param", "why"),
    [
        ({"model": "nothing"}, 404, "model", "no model 'nothing'"),
        ({"model": "minilm"}, 404, "model", "'minilm' gives embeddings and generates no text"),
        ({"model": 3}, 400, "model", "is a text"),
        ({"model": "plain"}, 400, "messages", "no chat template"),
        ({"messages": []}, 400, "messages", "at least one"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role", "one of system"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "required"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400,
         "messages[0].content[0]", "reads text alone"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "messages", "context is 2048 tokens"),
        ({"temperature": 3}, 400, "temperature", "from 0 to 2"),
        ({"temperature": "hot"}, 400, "temperature", "from 0 to 2"),
        ({"top_p": -1}, 400, "top_p", "from 0 to 1"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens", "from 1"),
        ({"n": 99}, 400, "n", "from 1 to 16"),
        ({"stop": [""]}, 400, "stop", "a list of up to 16"),
        ({"frequency_penalty": 2.1}, 400, "frequency_penalty", "a number from -2 to 2, got 2.1"),
        ({"presence_penalty": "much"}, 400, "presence_penalty", "a number from -2 to 2, got 'much'"),
        ({"logit_bias": [1]}, 400, "logit_bias", "a JSON object"),
        ({"logit_bias": {"one": 1}}, 400, "logit_bias", "the numbers of tokens, counted from 0, got 'one'"),
        ({"logit_bias": {"-1": 1}}, 400, "logit_bias", "the numbers of tokens, counted from 0, got '-1'"),
        ({"logit_bias": {"7": 1, "07": 1}}, 400, "logit_bias", "token 7 twice"),
        ({"logit_bias": {"7": 101}}, 400, "logit_bias.7", "a number from -100 to 100, got 101"),
        ({"logit_bias": {"7": None}}, 400, "logit_bias.7", "a number from -100 to 100, got None"),
        ({"logit_bias": {"9999999": 1}}, 400, "logit_bias", "no token 9999999: the vocabulary has"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, 400, "logit_bias", "300 tokens at most, got 301"),
        ({"best_of": 2}, 400, "best_of", "does not support best_of"),
        ({"continue_final_message": True}, 400, "messages", "a last message that is a text"),
        ({"colour": "red"}, 400, "colour", "unknown parameter"),
        ({"top_logprobs": 3}, 400, "top_logprobs", "needs logprobs"),
        ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name", "required"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, "tool_choice", "none"),
        ({"tool_choice": "required"}, 400, "tool_choice", "needs tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}}, 400,
         "response_format", "cannot be met"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "integer", "minimum": 3, "maximum": 2}}}}, 400, "response_format", "cannot be met"),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type", "one of text"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_with_its_parameter(
    client: openai.OpenAI, more: dict[str, Any], status: int, param: str, why: str
) -> None:
    body = {"model": "llama", "messages": HELLO, "max_completion_tokens": 4, **more}
    with pytest.raises(openai.APIStatusError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param
    assert why in caught.value.body["message"]


def test_a_long_embedding_input_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="the model reads 256"):
        client.embeddings.create(model="minilm", input="word " * 400)
    with pytest.raises(openai.BadRequestError, match="input"):
        client.embeddings.create(model="minilm", input=[])
    with pytest.raises(openai.BadRequestError, match="a token that the model does not have"):
        client.embeddings.create(model="minilm", input=[1, 10**6])


def test_a_client_that_hangs_up_leaves_its_place_and_a_crowd_is_told_to_wait(client: openai.OpenAI) -> None:
    """Four answers and four in the queue: the ninth request is refused, and all places are free once they hang up."""
    streams = [
        client.chat.completions.create(
            model="llama", messages=HELLO, max_completion_tokens=1900, stream=True, temperature=0
        )
        for _ in range(4)
    ]
    for stream in streams:
        next(iter(stream))
    host, port = client.base_url.host, client.base_url.port
    body = {"model": "llama", "messages": HELLO, "temperature": 0, "max_completion_tokens": 1900}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    waiting = [socket.create_connection((host, port)) for _ in range(4)]
    for each in waiting:
        each.sendall(head + data)
    with pytest.raises(openai.RateLimitError) as caught:
        until_refused(client)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    for each in waiting:
        each.close()
    for stream in streams:
        stream.close()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: said(client, seed=seed, max_completion_tokens=2), range(4)))
    assert all(answer.usage is not None for answer in answers)


def until_refused(client: openai.OpenAI) -> None:
    """Ask until the queue is full: the requests before may be on their way still."""
    impatient = client.with_options(timeout=2.0)
    for _ in range(60):
        with contextlib.suppress(openai.APITimeoutError):
            said(impatient, temperature=0, max_completion_tokens=1900)


def test_chat_in_the_terminal(server: Daemon, tmp_path: Path) -> None:
    env = environment(tmp_path)

    def talk(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("coord", "chat", *arguments), env=env, input="Hello\nAgain\n", capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    found = talk("llama", "--url", server.ready["url"], "--max-tokens", "5", "--temperature", "0")
    assert (found.returncode, len(found.stdout.strip().splitlines()) >= 2) == (0, True), found.stderr
    told = talk("llama", "--url", server.ready["url"], "--max-tokens", "5", "--temperature", "0", "--json")
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [answer["role"] for answer in answers] == ["assistant", "assistant"]
    shown = [printable(word) for answer in answers for word in answer["content"].split()]
    assert shown == found.stdout.split()
    wrong = talk("nothing", "--url", server.ready["url"])
    assert wrong.returncode == 2
    assert "no model 'nothing'" in wrong.stderr
    nobody = talk("llama", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 4
    assert "does not answer" in nobody.stderr


class Stranger(BaseHTTPRequestHandler):
    """A server that answers everything with an event of its own."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"words": "hello"}]}\n\n')

    def log_message(self, *_: object) -> None:
        pass


def test_chat_with_a_server_of_another_kind_says_so(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        found = subprocess.run(
            command("coord", "chat", "llama", "--url", url), env=environment(tmp_path), input="Hello\n",
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        stranger.shutdown()
    assert found.returncode == 4
    assert "which is no part of an answer. Check --url" in found.stderr
    assert "Traceback" not in found.stderr


def test_without_a_mesh_one_worker_of_this_machine_computes(folder: Path, tmp_path: Path) -> None:
    """As docs/serving.md says of a user who has joined no mesh."""
    arguments = ("serve-model", str(folder), "--engine", "cpu", "--port", "0", "--preset", "test")
    with daemon("coord", *arguments, env=environment(tmp_path), log=tmp_path / "log") as started:
        asked = {"model": "llama", "messages": HELLO, "max_completion_tokens": 2, "temperature": 0}
        body = json.dumps(asked).encode()
        url, headers = f"{started.ready['url']}/v1/chat/completions", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 2
        assert started.stop(signal.SIGTERM) == 0


def test_a_model_with_a_drafter_answers_as_it_does_without(client: openai.OpenAI, folder: Path, tmp_path: Path) -> None:
    draft = llama_folder(tmp_path / "draft", layers=1)
    arguments = (
        "serve-model", str(folder), "--draft", str(draft), "--draft-tokens", "3", "--draft-on", "local-1",
        "--port", "0", "--local", "2", "--engine", "cpu", "--preset", "test",
    )  # fmt: skip
    asked: list[dict[str, Any]] = [
        {"temperature": 0}, {"seed": 5}, {"seed": 6, "top_p": 0.9, "stop": ["e"]}, {"seed": 7, "n": 3},
        {"seed": 8, "logprobs": True, "top_logprobs": 2}, {"seed": 9, "frequency_penalty": 1.0},
    ]  # fmt: skip

    def answers(client: openai.OpenAI) -> list[Any]:
        said_now = [said(client, max_completion_tokens=24, **more) for more in asked]
        return [(answer.choices, answer.usage and answer.usage.completion_tokens) for answer in said_now]

    with daemon("coord", *arguments, env=environment(tmp_path), log=tmp_path / "log") as started:
        url = started.ready["url"] + "/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as other:
            assert answers(other) == answers(client)
        assert started.stop(signal.SIGTERM) == 0, started.log.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--draft", "/nowhere"], "there is no folder or file /nowhere"),
        (["--draft", "GPT2"], "it has 50 tokens, and llama has 512"),
        (["--draft", "LLAMA", "--draft-on", "anna"], "no worker is called 'anna'. Workers now: local-0"),
        (["--draft", "LLAMA", "--draft-tokens", "16"], "a step reads chunk = 16 tokens of a text"),
        (["--draft-on", "local-0"], "draft_on is where the drafter is computed, and there is none"),
        (["more=LLAMA", "--draft", "LLAMA"], "--draft is for one model"),
    ],
)
def test_a_drafter_that_cannot_be_is_told_and_nothing_is_served(
    folder: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    names = {"GPT2": str(GOLDEN / "huggingface" / "gpt2"), "LLAMA": str(folder)}
    given = [each.replace("LLAMA", names["LLAMA"]).replace("GPT2", names["GPT2"]) for each in arguments]
    env = environment(tmp_path)
    found = run("coord", "serve-model", str(folder), *given, "--local", "1", "--engine", "cpu", "--port", "0", env=env)
    assert found.returncode != OK and says in found.stderr


def test_a_signal_ends_the_wait_for_a_coordinator(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    with daemon("coord", "serve", "--port", "0", "--no-mdns", env=env, log=tmp_path / "coordinator.log") as coordinator:
        coordinator.process.send_signal(signal.SIGSTOP)  # the system takes connections for it
        words = ("serve-model", str(folder), "--port", "0", "--coordinator", coordinator.address)
        asking = subprocess.Popen(command("coord", *words, "--timeout", "dial_s=600"), env=env)
        try:
            wait_for(lambda: bool(psutil.Process(asking.pid).net_connections()), 120)
            asking.send_signal(signal.SIGTERM)
            assert asking.wait(120) == OK
        finally:
            asking.kill()
            coordinator.process.send_signal(signal.SIGCONT)


def test_a_signal_ends_a_download(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # which takes connections, and answers nothing
        hub.settimeout(120)
        env = environment(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{hub.getsockname()[1]}")
        env.pop("SSL_CERT_FILE", None)
        asking = subprocess.Popen(command("coord", "serve-model", "org/name"), env=env)
        try:
            with hub.accept()[0]:
                asking.send_signal(signal.SIGTERM)  # as Ctrl-C, which jobs in the background ignore
                assert asking.wait(60) == OK
        finally:
            asking.kill()


def test_other_machines_need_a_key_and_tls(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)

    def refused(*arguments: str) -> str:
        found = run("coord", "serve-model", str(folder), "--local", "1", "--port", "0", *arguments, env=env)
        assert found.returncode == 2, found.stderr
        return found.stderr

    assert "without API keys" in refused("--host", "0.0.0.0")
    key = run("coord", "keys", "create", "laptop", env=env).stdout.strip()
    assert key.startswith("gm-")
    assert "without TLS" in refused("--host", "0.0.0.0")
    assert "is not on this machine" in refused("--host", "0.0.0.0", "--tls-mesh")
    assert "go together" in refused("--tls-cert", "x.pem")
    assert "no certificate and its key" in refused("--tls-cert", "x.pem", "--tls-key", "x.key")
    (listed,) = json.loads(run("coord", "keys", "list", "--json", env=env).stdout)
    assert listed["name"] == "laptop"
    assert key not in json.dumps(listed)
    assert run("coord", "keys", "rm", listed["id"], env=env).returncode == 0
    assert json.loads(run("coord", "keys", "list", "--json", env=env).stdout) == []


def test_https_by_the_authority_of_the_mesh(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    state = Path(env["XDG_STATE_HOME"]) / "graph-mesh"
    Authority(authority_folder("home", str(state)), "home")  # as mesh-coord serve makes it
    key = run("coord", "--mesh", "home", "keys", "create", "laptop", env=env).stdout.strip()
    arguments = ("--mesh", "home", "serve-model", str(folder), "--local", "1", "--engine", "cpu", "--port", "0")
    secured = (*arguments, "--preset", "test", "--host", "0.0.0.0", "--tls-mesh")
    with daemon("coord", *secured, env=env, log=tmp_path / "log") as started, pytest.MonkeyPatch.context() as patch:
        url = started.ready["url"].replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        patch.setenv("SSL_CERT_FILE", str(authority_folder("home", str(state)) / "authority.pem"))
        with openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as trusting:
            assert said(trusting, max_completion_tokens=3).usage is not None
        stranger = openai.OpenAI(base_url=url + "/v1", api_key="gm-x", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError, match="does not know the API key"):
            stranger.models.list()
        assert started.stop(signal.SIGTERM) == 0
