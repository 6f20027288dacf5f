"""Models behind HTTP, asked by the official clients of Anthropic and Ollama, and by OpenAI's responses."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openai
import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import Daemon
from support.processes.model_servers import model_server, openai_client

import mesh
from mesh.importers.minilm import model_folder
from mesh.inference.kv_pages import PAGE
from mesh.inference.tokenizer import Tokenizer

with pytest.MonkeyPatch.context() as _patch:  # it makes a client when it is imported
    _patch.delenv("SSL_CERT_FILE", raising=False)
    import ollama

if TYPE_CHECKING:  # importing it takes 1.5 s, and every process of the tests imports this file
    import anthropic

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
HELLO: Any = [{"role": "user", "content": "Hello, how are you?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with model_server(tmp_path_factory.mktemp("server"), str(folder), f"minilm={model_folder()}") as started:
        yield started


@pytest.fixture(scope="module")
def claude(server: Daemon) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.ready["url"], api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def llamas(server: Daemon) -> ollama.Client:
    return ollama.Client(host=server.ready["url"])


@pytest.fixture(scope="module")
def openais(server: Daemon) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


# -- Anthropic

WEATHER: Any = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}


def read_of(message: anthropic.types.Message) -> int:
    """All tokens of a prompt, known before or not."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_anthropic_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    how: Any = {"model": "llama", "max_tokens": 9, "messages": HELLO, "system": "Be brief."}
    how["extra_body"] = {"temperature": 0}
    whole = claude.messages.create(**how)
    assert (whole.stop_reason, whole.role, whole.usage.output_tokens) == ("max_tokens", "assistant", 9)
    (block,) = whole.content
    assert block.type == "text"
    with claude.messages.stream(**how) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == block.text
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert claude.messages.count_tokens(model="llama", messages=HELLO, system="Be brief.").input_tokens == (
        asked := read_of(whole)
    )
    found = last.usage.cache_read_input_tokens
    assert found == (asked - 1) // PAGE * PAGE > 0, "the whole answer's prompt was read before"
    assert last.usage.input_tokens == asked - found
    stop = text[2:4]
    cut = claude.messages.create(**how, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert [model.id for model in claude.models.list()] == ["llama", "minilm"]


def test_anthropic_tools_and_their_results(claude: anthropic.Anthropic) -> None:
    how: Any = {"model": "llama", "max_tokens": 60, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    answer = claude.messages.create(messages=HELLO, **how)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert call.input["city"] in ("Rome", "Oslo")
    with claude.messages.stream(messages=HELLO, **how) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input["city"] in ("Rome", "Oslo")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    back: Any = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    more = claude.messages.create(model="llama", max_tokens=5, messages=back, tools=[WEATHER])
    assert read_of(more) > read_of(answer)


@pytest.mark.parametrize(
    ("more", "status", "kind", "why"),
    [
        ({"model": "nothing"}, 404, "not_found_error", "no model 'nothing'"),
        (
            {"model": "minilm"},
            404,
            "not_found_error",
            "'minilm' gives embeddings and generates no text; models that do",
        ),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "text alone"),
        ({"temperature": 2}, 400, "invalid_request_error", "from 0 to 1"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "x"}]},
            400,
            "invalid_request_error",
            "no tools of its own",
        ),
        ({"tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "tools"),
        ({"colour": 1}, 400, "invalid_request_error", "unknown parameter"),
    ],
)
def test_anthropic_errors(claude: anthropic.Anthropic, more: dict[str, Any], status: int, kind: str, why: str) -> None:
    import anthropic

    body = {"model": "llama", "max_tokens": 5, "messages": HELLO, **more}
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.post("/v1/messages", body=body, cast_to=object)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert why in caught.value.body["error"]["message"]


# -- Ollama


def test_ollama_whole_and_streamed(llamas: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 9, "num_ctx": 4096}
    whole = llamas.chat("llama:latest", HELLO, options=options)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 9)
    pieces = list(llamas.chat("llama", HELLO, stream=True, options=options))
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].prompt_eval_count == whole.prompt_eval_count
    told = llamas.generate("llama", "Once upon", options=options)
    assert told.eval_count == 9
    assert "".join(piece.response for piece in llamas.generate("llama", "Once upon", stream=True, options=options)) == (
        told.response
    )
    raw = llamas.generate("llama", "Once upon", raw=True, options=options)
    assert raw.prompt_eval_count is not None
    assert told.prompt_eval_count is not None
    assert raw.prompt_eval_count < told.prompt_eval_count


def test_ollama_loads_a_model_when_nothing_is_said(llamas: ollama.Client) -> None:
    assert llamas.generate("llama").done_reason == "load"
    assert llamas.chat("llama").done_reason == "load"
    assert "llama" in [model.model for model in llamas.ps().models]


def test_ollama_formats_and_models(llamas: ollama.Client) -> None:
    answer = llamas.chat("llama", HELLO, format=SCHEMA, options={"num_predict": 60})
    assert json.loads(answer.message.content or "")["city"] in ("Rome", "Oslo")
    assert [model.model for model in llamas.list().models] == ["llama", "minilm"]
    shown = llamas.show("llama")
    assert shown.capabilities == ["completion", "tools"]
    assert (shown.modelinfo or {})["llama.context_length"] == 2048
    assert llamas.show("minilm").capabilities == ["embedding"]
    rows = llamas.embed("minilm", ["A cat sat.", "word " * 400]).embeddings
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(llamas.embeddings("minilm", "A cat sat.").embedding, rows[0], rtol=0, atol=1e-6)


def test_ollama_penalties_are_for_the_last_tokens(llamas: ollama.Client, folder: Path) -> None:
    tokenizer, model = Tokenizer(folder), mesh.load(folder)
    prompt = "the cat and the dog and the cat"
    ids = tokenizer.ids(prompt, framed=True)

    def went_on(**options: Any) -> str:
        given = {"num_predict": 8, "temperature": 0, **options}
        return str(llamas.generate("llama", prompt, raw=True, options=given).response)

    def wanted(repeat: float, presence: float, last: int) -> str:
        tokens = list(ids)
        for _ in range(8):
            logits = np.asarray(model(input_ids=np.array([tokens], np.int32)), np.float32)[0, -1].copy()
            for token in set(tokens[-last:] if last else ()):
                logits[token] = (logits[token] / repeat if logits[token] > 0 else logits[token] * repeat) - presence
            tokens.append(int(np.argmax(logits)))
        return tokenizer.text(tokens[len(ids) :])

    # of this prompt no plain answer repeats anything, so the penalties here are rewards, which change every answer
    plain, all_of_it, few = wanted(1, 0, 0), wanted(0.3, -1, 64), wanted(0.3, -1, 4)
    assert len({plain, all_of_it, few}) == 3
    assert went_on() == went_on(repeat_penalty=0.3, repeat_last_n=0) == plain
    assert went_on(repeat_penalty=0.3, presence_penalty=-1) == all_of_it
    assert went_on(repeat_penalty=0.3, presence_penalty=-1, repeat_last_n=-1) == all_of_it
    assert went_on(repeat_penalty=0.3, presence_penalty=-1, repeat_last_n=4) == few


@pytest.mark.parametrize(
    ("more", "status", "why"),
    [
        ({"model": "nothing"}, 404, "no model 'nothing'"),
        ({"options": {"repeat_penalty": 0}}, 400, "options.repeat_penalty is a number from 0.01 to 100, got 0"),
        ({"options": {"presence_penalty": 3}}, 400, "options.presence_penalty is a number from -2 to 2, got 3"),
        ({"options": {"repeat_last_n": -2}}, 400, "options.repeat_last_n is an integer from -1"),
        ({"options": {"mirostat": 1}}, 400, "does not support options.mirostat"),
        ({"options": {"temperature": "hot"}}, 400, "options.temperature"),
        ({"options": {"colour": 1}}, 400, "unknown parameter options.colour"),
        ({"messages": [{"role": "user", "content": "x", "images": [b"x"]}]}, 400, "reads text alone"),
        ({"format": {"type": "wrong"}}, 400, "cannot be met"),
    ],
)
def test_ollama_errors(llamas: ollama.Client, more: dict[str, Any], status: int, why: str) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        llamas.chat(**{"model": "llama", "messages": HELLO, **more})
    assert caught.value.status_code == status
    assert why in caught.value.error


# -- programs that send requests of their own

PERSON = {
    "properties": {"age": {"title": "Age", "type": "integer", "maximum": 99, "minimum": 0}, "ok": {"type": "boolean"}},
    "required": ["age", "ok"], "title": "P", "type": "object",
}  # fmt: skip
# As langchain-openai 1.7.4 sends them for invoke, stream, with_structured_output and bind_tools, and as Open WebUI's
# routers do for a chat and for the title of one (backend/open_webui/utils/payload.py).
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "langchain invoke": ("/v1/chat/completions", {"stream": False, "max_completion_tokens": 9}),
    "langchain stream": ("/v1/chat/completions", {"stream": True, "max_completion_tokens": 9}),
    "langchain json_schema": ("/v1/chat/completions", {
        "stream": False, "max_completion_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {
            "schema": {**PERSON, "additionalProperties": False}, "name": "P", "strict": True}}}),
    "langchain function_calling": ("/v1/chat/completions", {
        "stream": False, "max_completion_tokens": 60, "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "P"}},
        "tools": [{"type": "function", "function": {"name": "P", "description": "", "parameters": PERSON}}]}),
    "open webui chat": ("/v1/chat/completions", {
        "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7, "top_p": 0.9, "max_tokens": 9,
        "frequency_penalty": 0.0, "seed": 42, "stop": ["###"]}),
    "open webui title": ("/v1/chat/completions", {"stream": False, "max_completion_tokens": 9}),
    "open webui ollama": ("/api/chat", {"stream": True, "options": {
        "temperature": 0.7, "top_p": 0.9, "seed": 42, "num_ctx": 2048, "num_predict": 9, "num_thread": 4}}),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_requests_of_other_programs(openais: openai.OpenAI, name: str) -> None:
    path, body = BODIES[name]
    url = f"http://{openais.base_url.host}:{openais.base_url.port}{path}"
    asked = urllib.request.Request(
        url, json.dumps({"model": "llama", "messages": HELLO, **body}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        text = answer.read().decode()
    if path == "/api/chat":
        assert json.loads(text.splitlines()[-1])["done"] is True
    elif body["stream"]:
        assert text.endswith("data: [DONE]\n\n")
    else:
        message = json.loads(text)["choices"][0]["message"]
        calls = message.get("tool_calls")
        found = calls[0]["function"]["arguments"] if calls else message["content"]
        if body["max_completion_tokens"] == 60:
            assert json.loads(found).keys() == {"age", "ok"}


# -- OpenAI's responses


def test_responses_whole_and_streamed(openais: openai.OpenAI) -> None:
    how: Any = {
        "model": "llama",
        "input": "Hello",
        "instructions": "Be brief.",
        "temperature": 0,
        "max_output_tokens": 9,
    }
    whole = openais.responses.create(**how)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.usage is not None
    assert (whole.incomplete_details.reason, whole.usage.output_tokens) == ("max_output_tokens", 9)
    events = list(openais.responses.create(**how, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == whole.output_text
    again = events[-1].response.usage
    assert again is not None
    assert again.input_tokens_details.cached_tokens == (again.input_tokens - 1) // PAGE * PAGE > 0
    turns: Any = [*HELLO, {"role": "assistant", "content": [{"type": "output_text", "text": "Well."}]}, *HELLO]
    assert openais.responses.create(model="llama", input=turns, max_output_tokens=3).usage is not None


def test_responses_formats_and_tools(openais: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA}}
    answer = openais.responses.create(model="llama", input="Hello", text=form)
    assert answer.status == "completed"
    assert json.loads(answer.output_text)["city"] in ("Rome", "Oslo")
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    how: Any = {"model": "llama", "tools": [tool], "tool_choice": "required"}
    (call,) = openais.responses.create(input="Hello", **how).output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    events = list(openais.responses.create(input="Hello", **how, stream=True))
    assert events[-1].type == "response.completed"
    (streamed,) = events[-1].response.output
    assert streamed.type == "function_call"
    assert "".join(each.delta for each in events if each.type == "response.function_call_arguments.delta") == (
        streamed.arguments
    )
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    back: Any = [*HELLO, call.model_dump(), result]
    assert openais.responses.create(model="llama", input=back, tools=[tool], max_output_tokens=3).output
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        openais.responses.create(model="llama", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]"):
        openais.responses.create(model="llama", input=[{"type": "message", "role": "robot", "content": "x"}])  # type: ignore[list-item,misc]
