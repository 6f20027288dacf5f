"""A GGUF file and nothing else, served: its own tokenizer, chat template and pooling answer OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from support.cases.gguf_encoders import small_folder, write_encoder
from support.cases.gguf_files import write_model
from support.cases.gguf_tokenizers import CHAT, WORDS, byte_level, template, written
from support.processes.commands import Daemon, environment, run
from support.processes.model_servers import model_server, openai_client

import mesh
from mesh.importers.minilm import model_folder
from mesh.inference.tokenizer import Tokenizer
from mesh.serving.chat_template import load_chat_template

HOW: Any = {"messages": CHAT, "max_completion_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small-F16.gguf"
    vocabulary = written(byte_level("qwen2"), "qwen2", chat_template=template("qwen2.5"))
    write_model(path, "llama", "F16", words=WORDS, positions=1024, vocabulary=vocabulary)
    return path


@pytest.fixture(scope="module")
def server(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with model_server(tmp_path_factory.mktemp("server"), str(file)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Daemon) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def test_a_conversation_is_answered_by_the_template_and_tokens_of_the_file(file: Path, client: openai.OpenAI) -> None:
    model = mesh.load(file)
    assert model.text is not None and [each.id for each in client.models.list()] == ["small-F16"]
    chat, own = load_chat_template(file.parent, model.text.metadata), byte_level("qwen2")
    assert chat is not None
    prompt = own.encode(chat.render(CHAT), add_special_tokens=False).ids
    wanted = own.decode(model.generate(prompt, max_new_tokens=12))
    answer = client.chat.completions.create(model="small-F16", **HOW)
    assert answer.choices[0].message.content == wanted
    assert answer.usage is not None and answer.usage.prompt_tokens == len(prompt)
    pieces = client.chat.completions.create(model="small-F16", stream=True, **HOW)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == wanted


def test_a_schema_is_met_with_the_tokens_of_the_file(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": {**schema, "additionalProperties": False}},
    }
    answer = client.chat.completions.create(
        model="small-F16", response_format=form, **{**HOW, "max_completion_tokens": 40}
    )
    assert answer.choices[0].message.content == '{"city": "Rome"}'


def test_a_file_whose_tokenizer_is_not_known_is_refused_at_the_start(tmp_path: Path) -> None:
    write_model(
        tmp_path / "own.gguf", "llama", "F32", words=WORDS, vocabulary=written(byte_level("qwen2"), "poro-chat")
    )
    found = run(
        "coord", "serve-model", str(tmp_path / "own.gguf"), "--port", "0", "--local", "1", "--engine", "cpu",
        env=environment(tmp_path),
    )  # fmt: skip
    assert found.returncode == 1
    assert "has the pre-tokenizer 'poro-chat'. Put the tokenizer.json" in found.stderr


def test_an_encoder_embeds_by_the_tokens_and_the_pooling_of_the_file(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "bert", model_folder())
    for name, pooling in (("mean", 1), ("first", 2)):
        write_encoder(tmp_path / f"{name}.gguf", folder, bert__pooling_type=pooling)
    texts = ["Hello, world", "An unaffable word, and a longer text of some more words"]
    model, tokenizer = mesh.load(folder), Tokenizer(folder)
    wanted: dict[str, list[Any]] = {"mean": [], "first": []}
    for text in texts:
        ids = np.array([tokenizer.ids(text)], np.int32)
        outputs: Any = model({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        hidden = np.asarray(outputs["last_hidden_state"] if isinstance(outputs, dict) else outputs)[0]
        for name, row in (("mean", hidden.mean(axis=0)), ("first", hidden[0])):
            wanted[name].append(row / np.linalg.norm(row))
    (tmp_path / "server").mkdir()
    files = [str(tmp_path / f"{name}.gguf") for name in wanted]
    with model_server(tmp_path / "server", *files) as server, openai_client(server) as client:
        assert sorted(each.id for each in client.models.list()) == ["first", "mean"]
        for name, rows in wanted.items():
            found = client.embeddings.create(model=name, input=texts)
            np.testing.assert_allclose([each.embedding for each in found.data], rows, rtol=0, atol=1e-5)


def test_an_encoder_of_another_pooling_is_refused_at_the_start(tmp_path: Path) -> None:
    write_encoder(tmp_path / "own.gguf", small_folder(tmp_path / "bert", model_folder()), bert__pooling_type=4)
    found = run(
        "coord", "serve-model", str(tmp_path / "own.gguf"), "--port", "0", "--local", "1", "--engine", "cpu",
        env=environment(tmp_path),
    )  # fmt: skip
    assert found.returncode == 1
    assert "pools by rank. Known: mean of the tokens, first token" in found.stderr
