"""The tokenizer and the chat template in a GGUF file give the tokens and texts of those that it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from support.cases.gguf_files import write_model
from support.cases.gguf_tokenizers import (
    CHAT,
    ORIGINALS,
    REFERENCES,
    SPECIAL,
    TEXTS,
    THINK,
    WORDS,
    byte_level,
    pieces_written,
    sentence_pieces,
    written,
)

import mesh
from mesh.errors import InputError, Unsupported
from mesh.importers.gguf.file import File, read
from mesh.importers.gguf.pre_tokenizers import PRE_TOKENIZERS
from mesh.importers.gguf.tokenizer import TOKEN_CHARACTERS_MAX, tokenizer_json
from mesh.inference.drafting import check_draft
from mesh.inference.generation_runner import text_of
from mesh.inference.tokenizer import Detokenizer, Tokenizer, tokenizer_of
from mesh.models.decoder import TextMetadata
from mesh.serving.chat_template import load_chat_template

tokenizers = pytest.importorskip("tokenizers")
FOLDER = Path(__file__).resolve().parents[2] / "golden" / "gguf"
STRIPPED = (TEXTS.index("<|im_start|>user\nHello<|im_end|>\n"), TEXTS.index("text <|im_end|> text"))


def model_of(path: Path, vocabulary: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> mesh.Model:
    write_model(path, architecture, "F32", layers=1, words=WORDS, positions=512, vocabulary=vocabulary)
    return mesh.load(path)


def metadata_of(file: Path) -> TextMetadata:
    model = mesh.load(file)
    assert model.text is not None and model.text.metadata is not None
    return model.text.metadata


@pytest.mark.parametrize("pre", ORIGINALS)
def test_tokens_are_those_of_the_tokenizer_that_a_file_was_made_from(pre: str, tmp_path: Path) -> None:
    original = byte_level(pre)
    found = tokenizer_of(text_of(model_of(tmp_path / "own.gguf", written(original, pre))))
    for text in TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        assert found.ids(text, framed=False) == ids, text
        assert found.text(ids) == original.decode(ids)
        assert found.text(ids, special=True) == original.decode(ids, skip_special_tokens=False)
    assert found.tokens() == original.get_vocab()


@pytest.mark.parametrize("name", REFERENCES)
def test_tokens_and_chats_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    wanted = json.loads((FOLDER / "tokens.json").read_text())[name]
    own = tokenizers.Tokenizer.from_str(tokenizer_json(read(FOLDER / f"{name}.gguf")))
    for place, (text, ids, decoded) in enumerate(zip(TEXTS, wanted["ids"], wanted["texts"], strict=True)):
        if name == "pieces-phi3" and place in STRIPPED:
            continue  # Phi-3's own tokenizer takes spaces behind control tokens, which transformers leaves from a GGUF
        assert own.encode(text, add_special_tokens=False).ids == ids, text
        assert own.decode(ids, skip_special_tokens=False) == decoded
    architecture, write = REFERENCES[name]
    metadata = metadata_of(model_file(tmp_path, write, architecture))
    found = load_chat_template(tmp_path, metadata)
    assert found is not None and found.render(CHAT) == wanted["chat"]


def model_file(folder: Path, write: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> Path:
    write_model(folder / "own.gguf", architecture, "F32", layers=1, words=WORDS, vocabulary=write)
    return folder / "own.gguf"


def merged_by_scores(text: str, scores: Mapping[str, float], numbers: Mapping[str, int]) -> list[int]:
    """SentencePiece's merging as its paper has it: the neighbours whose union scores best, the first of several."""
    pieces = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(pieces))
            if left + right in scores
        ]
        if not pairs:
            break
        _, place = min(pairs)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    known = [[numbers[piece]] if piece in scores else as_bytes(piece, numbers) for piece in pieces]
    return [token for each in known for token in each]


def as_bytes(piece: str, numbers: Mapping[str, int]) -> list[int]:
    return [numbers[f"<0x{byte:02X}>"] for byte in piece.encode()]


def test_pieces_merge_by_their_scores_and_strange_characters_are_bytes() -> None:
    file = read(FOLDER / "pieces-phi3.gguf")
    tokens, scores = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
    numbers = {piece: number for number, piece in enumerate(tokens)}
    normal = {piece: score for piece, score in zip(tokens, scores, strict=True) if score < 0 and piece != THINK}
    own = tokenizers.Tokenizer.from_str(tokenizer_json(file))
    plain = [text for text in TEXTS if text and not any(each in text for each in (*SPECIAL, THINK))]
    assert len(plain) > 40
    for text in plain:
        assert own.encode(text, add_special_tokens=False).ids == merged_by_scores(text, normal, numbers), text
        assert own.decode(own.encode(text).ids) == text.replace("\u2581", " "), "nothing is lost"


@pytest.mark.parametrize("name", REFERENCES)
def test_a_stream_gives_whole_characters_and_the_whole_text(name: str, tmp_path: Path) -> None:
    architecture, write = REFERENCES[name]
    own = Tokenizer(tmp_path, metadata_of(model_file(tmp_path, write, architecture)))
    for text in TEXTS:
        ids, stream = own.ids(text, framed=False), Detokenizer(own, special=True)
        pieces = [stream.add(token) for token in ids]
        assert not any("\ufffd" in piece for piece in pieces), "no character is cut"
        assert "".join(pieces) + stream.rest() == own.text(ids, special=True)


@pytest.mark.parametrize(
    ("pre", "more", "framed"),
    [
        ("llama-bpe", {}, [0]),  # as llama.cpp takes it for granted
        ("qwen2", {}, []),
        ("qwen2", {"add_bos_token": True}, [0]),
        ("llama-bpe", {"add_bos_token": False}, []),
        ("llama-bpe", {"bos_token_id": None}, []),
    ],
)
def test_what_stands_before_a_text_is_what_the_file_says(
    pre: str, more: dict[str, Any], framed: list[int], tmp_path: Path
) -> None:
    own = tokenizer_of(text_of(model_of(tmp_path / "own.gguf", written(byte_level(pre), pre, **more))))
    assert own.ids("hello") == framed + own.ids("hello", framed=False)


def test_pieces_have_the_spaces_and_frame_that_the_file_says(tmp_path: Path) -> None:
    pieces = sentence_pieces()
    for number, (more, text) in enumerate(
        [({}, "\u2581hello"), ({"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}, "hello")]
    ):
        own = tokenizer_of(text_of(model_of(tmp_path / f"{number}.gguf", pieces_written(pieces, **more))))
        ids = own.ids("hello")
        told = [own._own.id_to_token(token) for token in ids]
        assert "".join(told) == ("<s>" + text if number == 0 else text + "</s>")
        assert own.text(ids) == "hello"


def test_a_model_of_one_file_goes_on_with_texts_and_stops_where_it_says(tmp_path: Path) -> None:
    own = byte_level("qwen2")
    model = model_of(tmp_path / "own.gguf", written(own, "qwen2", eot_token_id=1))
    assert text_of(model).ends == (2, 1, 0), "eos, eot, and a control token that ends texts"
    tokens = model.generate(own.encode("Hello").ids, max_new_tokens=12, ends=())
    assert model.generate("Hello", max_new_tokens=12, ends=()) == own.decode(tokens)
    folder = mesh.load(tmp_path)
    assert folder.generate("Hello", max_new_tokens=12, ends=()) == own.decode(tokens)


def test_a_folder_with_several_files_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / f"{name}.gguf", "llama", "F32", layers=1)
    with pytest.raises(InputError, match=r"has 2 GGUF files: a.gguf, b.gguf. Name one of them"):
        mesh.load(tmp_path)


def test_files_beside_it_come_first(tmp_path: Path) -> None:
    file = model_file(tmp_path, written(byte_level("qwen2"), "unknown", chat_template="{% wrong"))
    byte_level("gpt-2").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("beside")
    text = text_of(mesh.load(file))
    assert tokenizer_of(text).tokens() == byte_level("gpt-2").get_vocab()
    found = load_chat_template(tmp_path, text.metadata)
    assert found is not None and found.render(CHAT) == "beside"


def test_a_drafter_of_other_tokens_is_refused(tmp_path: Path) -> None:
    first, second = (
        model_of(tmp_path / f"{pre}.gguf", written(byte_level(pre), pre)) for pre in ("qwen2", "deepseek-coder")
    )
    with pytest.raises(InputError, match="their tokenizers differ"):
        check_draft(first, second)
    check_draft(first, first)


# -- metadata that are missing, damaged or mean harm

KEY = "tokenizer.ggml."
BYTES: dict[str, tuple[dict[str, Any], str]] = {  # changes of a tokenizer of bytes; None leaves a key out
    "no model": ({"model": None}, "does not tell tokenizer.ggml.model. Put the tokenizer.json"),
    "another model": ({"model": "rwkv"}, "the kind 'rwkv'. Known: bert, gpt2, llama. Put the tokenizer.json"),
    "a model that is a number": ({"model": 3}, "does not tell tokenizer.ggml.model"),
    "no pre": ({"pre": None}, "does not tell tokenizer.ggml.pre, how its tokenizer splits texts. Put the"),
    "another pre": ({"pre": "poro-chat"}, "has the pre-tokenizer 'poro-chat'. Put the tokenizer.json"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
    "tokens that are numbers": ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is no list of texts"),
    "a token twice": ({"tokens": ["a", "b", "a"]}, "has the token 'a' twice"),
    "more tokens than rows": (
        {"tokens": [f"t{number}" for number in range(WORDS + 1)]}, f"{WORDS + 1} tokens, and the model {WORDS} rows"
    ),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges is missing"),
    "a merge of no tokens": ({"merges": ["zz qq"]}, "the merge 'zz qq' is not of two tokens to a third"),
    "a merge of one": ({"merges": ["a"]}, "the merge 'a' is not of two tokens"),
    "too few types": ({"token_type": [1, 1]}, f"tokenizer.ggml.token_type has 2 elements, for {WORDS} tokens"),
    "a type that there is not": ({"token_type": [9] * WORDS}, "token_type of the token 0 is 9"),
    "an end out of range": ({"bos_token_id": WORDS, "add_bos_token": True}, f"bos_token_id is {WORDS}, of {WORDS}"),
    "a negative number": ({"bos_token_id": -1, "add_bos_token": True}, "bos_token_id is -1"),
    "a begin that is missing": ({"bos_token_id": None, "add_bos_token": True}, "add_bos_token, and no bos_token_id"),
    "a flag that is a number": ({"add_bos_token": 1}, "add_bos_token is true or false, got 1"),
}  # fmt: skip
PIECES: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "does not tell tokenizer.ggml.scores, which order its merges"),
    "too few scores": ({"scores": [0.0]}, f"tokenizer.ggml.scores has 1 elements, for {WORDS} tokens"),
    "a score that is no number": ({"scores": [float("nan")] * WORDS}, "scores of the token 0 is nan"),
    "scores in one number": ({"scores": 7}, f"tokenizer.ggml.scores has 7, for {WORDS} tokens"),
    "an unknown token out of range": ({"unknown_token_id": 10**12}, "unknown_token_id is 1000000000000"),
    "a huge token": (
        {"tokens": ["a" * (TOKEN_CHARACTERS_MAX + 1), "b"], "scores": [0.0, 0.0], "token_type": [1, 1],
         "unknown_token_id": 1},
        f"the token 0 has {TOKEN_CHARACTERS_MAX + 1} characters",
    ),
    "no bytes and nothing unknown": (
        {"tokens": ["a"], "scores": [0.0], "token_type": [1], "unknown_token_id": None, "bos_token_id": None},
        "neither tokens for all bytes nor",
    ),
    "spaces that are a text": ({"add_space_prefix": "yes"}, "add_space_prefix is true or false, got 'yes'"),
}  # fmt: skip


def changed(file: File, changes: Mapping[str, Any]) -> File:
    own = {**file.metadata, **{KEY + name: value for name, value in changes.items()}}
    return replace(file, metadata={key: value for key, value in own.items() if value is not None})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[File, File]:
    own = tmp_path_factory.mktemp("whole")
    write_model(own / "a.gguf", "llama", "F32", layers=1, words=WORDS, vocabulary=written(byte_level("qwen2"), "qwen2"))
    write_model(own / "b.gguf", "llama", "F32", layers=1, words=WORDS, vocabulary=pieces_written(sentence_pieces()))
    return read(own / "a.gguf"), read(own / "b.gguf")


@pytest.mark.parametrize("what", [*BYTES, *PIECES])
def test_metadata_that_do_not_fit_are_named(what: str, whole: tuple[File, File]) -> None:
    changes, says = BYTES.get(what) or PIECES[what]
    file = whole[what in PIECES]
    tokenizer_json(file)
    with pytest.raises((InputError, Unsupported)) as caught:
        tokenizer_json(changed(file, changes))
    assert says in str(caught.value) and "tokenizer.json" in str(caught.value) and str(file.path) in str(caught.value)


def test_a_template_that_does_not_compile_or_is_no_text_is_named(tmp_path: Path) -> None:
    metadata = metadata_of(model_file(tmp_path, written(byte_level("qwen2"), "qwen2", chat_template="{% for %}")))
    with pytest.raises(InputError, match=r"own.gguf: the chat template is wrong in line 1 \(default\)"):
        load_chat_template(tmp_path, metadata)
    metadata = metadata_of(model_file(tmp_path, written(byte_level("qwen2"), "qwen2", chat_template=7)))
    with pytest.raises(InputError, match="the chat template 'default' is a text, got 7"):
        load_chat_template(tmp_path, metadata)
    metadata = metadata_of(model_file(tmp_path, written(byte_level("qwen2"), "qwen2")))
    assert load_chat_template(tmp_path, metadata) is None


def test_templates_with_names_are_for_tools(tmp_path: Path) -> None:
    def write(file: gguf.GGUFWriter) -> None:
        written(byte_level("qwen2"), "qwen2", chat_template="plain {{ eos_token }}")(file)
        file.add_string("tokenizer.chat_template.tool_use", "with tools {{ bos_token }}")

    found = load_chat_template(tmp_path, metadata_of(model_file(tmp_path, write)))
    assert found is not None
    assert found.render(CHAT) == "plain <|im_end|>"
    assert found.render(CHAT, tools=[{"type": "function"}]) == "with tools <|endoftext|>"


def test_every_pattern_of_the_table_is_one() -> None:
    for name, row in PRE_TOKENIZERS.items():
        for pattern in row.patterns:
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            text = "".join(piece for piece, _ in split.pre_tokenize_str("It's 1234 texts,\n\n  so\u00e9 \u4f60\u597d!"))
            assert text == "It's 1234 texts,\n\n  so\u00e9 \u4f60\u597d!", name
