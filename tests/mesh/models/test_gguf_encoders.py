"""An encoder in a GGUF file is the one of the folder that it was made from: its vectors, its tokens, its pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.gguf_encoders import small_folder, write_encoder
from support.cases.gguf_files import dequantised
from support.cases.gguf_tokenizers import TEXTS

import mesh
from mesh.errors import InputError, Unsupported
from mesh.importers.minilm import model_folder
from mesh.inference.tokenizer import Tokenizer
from mesh.models.decoder import EncoderMetadata

pytest.importorskip("tokenizers")
FOLDER = model_folder()
IDS, MASK = np.array([[101, 7592, 2088, 102, 0, 0]], np.int32), np.array([[1, 1, 1, 1, 0, 0]], np.int32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "minilm-F32.gguf"
    write_encoder(path, FOLDER)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small") / "bert", FOLDER)


def told_by(path: Path) -> EncoderMetadata:
    told = mesh.load(path).encoder
    assert told is not None
    return told


def vectors(model: mesh.Model) -> NDArray[Any]:
    found: Any = model({"input_ids": IDS, "attention_mask": MASK})
    return np.asarray(found["last_hidden_state"] if isinstance(found, dict) else found)[:, :4]


def test_vectors_are_those_of_the_folder(file: Path) -> None:
    model = mesh.load(file)
    assert model.text is None
    assert "last_hidden_state" in model.outputs
    np.testing.assert_array_equal(vectors(model), vectors(mesh.load(FOLDER)))


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_packed_weights_are_read_as_the_package_dequantises_them(kind: str, tmp_path: Path) -> None:
    write_encoder(tmp_path / "packed.gguf", FOLDER, kind)
    dequantised(tmp_path / "packed.gguf", tmp_path / "plain.gguf")
    packed, plain = (vectors(mesh.load(tmp_path / name)) for name in ("packed.gguf", "plain.gguf"))
    np.testing.assert_allclose(packed, plain, rtol=0, atol=1e-4 * float(np.abs(plain).max()))


@pytest.mark.parametrize("old", [False, True])
def test_tokens_are_those_of_the_folder(old: bool, tmp_path: Path) -> None:
    write_encoder(tmp_path / "own.gguf", FOLDER, "Q8_0", old=old)
    original, found = Tokenizer(FOLDER), Tokenizer(tmp_path, told_by(tmp_path / "own.gguf").text)
    assert found.size == original.size
    for text in (*TEXTS, "[MASK] and [CLS], unaffable [unused5]", "HÉLLO Wörld", "x" * 101, "中文 text"):
        assert found.ids(text) == original.ids(text), text
        assert found.ids(text, framed=False) == original.ids(text, framed=False), text


def test_texts_of_a_vocabulary_with_capitals_keep_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "cased"
    folder.mkdir()
    read = json.loads((FOLDER / "tokenizer.json").read_text("utf-8"))
    vocab = read["model"]["vocab"]
    vocab["Paris"] = vocab.pop("paris")
    read["normalizer"] |= {"lowercase": False, "strip_accents": None}
    (folder / "tokenizer.json").write_text(json.dumps(read), "utf-8")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(FOLDER / name)
    write_encoder(tmp_path / "cased.gguf", folder, "Q4_0")
    original, found = Tokenizer(folder), Tokenizer(tmp_path, told_by(tmp_path / "cased.gguf").text)
    for text in ("Paris and paris", "HÉLLO Paris"):
        assert found.ids(text) == original.ids(text)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [(None, ""), (0, ""), (1, "mean"), (2, "first"), (3, "last"), (4, "rank"), (9, "pooling_type 9")],
)
def test_the_pooling_is_the_files(kind: int | None, pooling: str, small: Path, tmp_path: Path) -> None:
    write_encoder(tmp_path / "own.gguf", small, "Q4_0", bert__pooling_type=kind)
    told = told_by(tmp_path / "own.gguf")
    assert (told.pooling, told.text.architecture) == (pooling, "bert")
    assert mesh.load(tmp_path / "own.gguf").positions_max == 512


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a decoder": ({"bert__attention__causal": True}, "bert.attention.causal is True"),
    "no length": ({"bert__context_length": None}, "does not tell bert.context_length"),
    "no layers": ({"bert__block_count": None}, "does not tell bert.block_count"),
    "another length": ({"bert__context_length": 400}, "context_length is 400, and there are 512 positions"),
    "a length that is no number": ({"bert__context_length": "long"}, "context_length is 'long'"),
    "a setting of another model": ({"bert__rope__freq_base": 1e4}, "bert.rope.freq_base"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_file_is_named(name: str, small: Path, tmp_path: Path) -> None:
    more, words = WRONG[name]
    write_encoder(tmp_path / "own.gguf", small, "Q4_0", **more)
    with pytest.raises((InputError, Unsupported), match=words):
        mesh.load(tmp_path / "own.gguf")


@pytest.mark.parametrize(("key", "said"), [("unknown", "unknown"), ("cls", "cls"), ("seperator", "seperator")])
def test_a_tokenizer_without_a_token_that_it_needs_is_refused(key: str, said: str, small: Path, tmp_path: Path) -> None:
    write_encoder(tmp_path / "own.gguf", small, "Q4_0", **{f"tokenizer__ggml__{key}_token_id": None})
    with pytest.raises(InputError, match=f"does not tell tokenizer.ggml.{said}_token_id"):
        Tokenizer(tmp_path, told_by(tmp_path / "own.gguf").text)
