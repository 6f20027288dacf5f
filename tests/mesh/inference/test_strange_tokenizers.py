"""Tokenizer files of a stranger: whatever they say, they cost an error and neither the process nor its memory."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hostile.tampering import tamper

from mesh.inference.tokenizer import GROWTH_MAX, Tokenizer
from wire.errors import InputError

tokenizers = pytest.importorskip("tokenizers")
TEXT = "a b a" + "a" * 40 + "!"
CASES = 300

WORDS = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
}  # fmt: skip


def replacing(*contents: str, pattern: str = "a") -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {"String": pattern}, "content": content} for content in contents]
    return {"type": "Sequence", "normalizers": steps}


def opened(folder: Path, **changes: Any) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(WORDS | changes))
    return Tokenizer(folder)


def test_a_plain_one_works(tmp_path: Path) -> None:
    found = opened(tmp_path, normalizer=replacing("aa"))
    assert found.ids("b") == [1] and found.text([0, 1]) == "a b"


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_one_that_makes_a_text_of_a_terabyte_is_refused_before_any_text(tmp_path: Path, part: str) -> None:
    bomb = replacing(*["a" * 1000] * 4)
    if part == "decoder":
        bomb = {"type": "Sequence", "decoders": bomb["normalizers"]}
    with pytest.raises(InputError, match=rf"its {part} may make a text 1,004,006,004,001 times as long"):
        opened(tmp_path, **{part: bomb})
    opened(tmp_path, normalizer=replacing("a" * (GROWTH_MAX - 1)))


@pytest.mark.parametrize("decoder", [None, {"type": "ByteLevel"}])
def test_bytes_are_those_of_the_text_that_a_token_stands_for(tmp_path: Path, decoder: dict[str, str] | None) -> None:
    more = ("<\uff5cend\u2581of\uff5c>", "\u00e9", "\u2581")
    added = [
        {"id": 3 + place, "content": content, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for place, content in enumerate(more)
    ]  # fmt: skip
    model = {**WORDS["model"], "vocab": {"<0xZZ>": 0, "<0xe9>": 1, "[UNK]": 2}}
    found = opened(tmp_path, added_tokens=added, model=model, decoder=decoder and {**decoder, **BY_BYTES})
    byte = b"<0xe9>" if decoder else b"\xe9"  # to a tokenizer of bytes it is text
    wanted = [b"<0xZZ>", byte, b"[UNK]", *[content.encode() for content in more], b""]
    assert [found.data_of(token) for token in range(7)] == wanted


BY_BYTES = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
STRANGE: dict[str, dict[str, Any]] = {
    "a pattern that takes time without end": {"pre_tokenizer": REGEX},
    "merges of what is not in the vocabulary": {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"], ["x", "y"]]}
    },
}


@pytest.mark.parametrize("what", STRANGE)
def test_where_the_library_panics_it_is_an_error_with_the_file(tmp_path: Path, what: str) -> None:
    with pytest.raises(InputError, match=r"tokenizer\.json cannot"):
        opened(tmp_path, **STRANGE[what]).ids(TEXT)


def test_texts_are_neither_padded_nor_cut_whatever_a_file_wants(tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 10**15}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    cut = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    assert opened(tmp_path, padding=padding, truncation=cut).ids("a b a") == [0, 1, 0]


def test_of_damaged_files_each_works_or_is_an_error(tmp_path: Path) -> None:
    rng, file = random.Random(0), tmp_path / "tokenizer.json"
    wholes = [json.dumps(WORDS).encode(), json.dumps(WORDS | {"normalizer": replacing("ab")}).encode()]
    came: dict[bool, int] = {True: 0, False: 0}
    for number in range(CASES):
        file.write_bytes(tamper(rng, wholes[number % 2], wholes))
        came[works(lambda: Tokenizer(tmp_path).ids(TEXT))] += 1
    assert came[True] and came[False], "neither all nor none of them"


def works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except InputError:
        return False
    return True
