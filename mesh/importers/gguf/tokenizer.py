"""The tokenizer in the metadata of a GGUF file, as the tokenizer.json of the library `tokenizers`.

Three kinds are known.  "gpt2" merges bytes by a list of merges, in pieces that a pattern splits (`pre_tokenizers.py`).
"llama" merges characters by the scores of tokens, as SentencePiece does, and writes bytes for characters that are no
token.  "bert" splits words into the longest pieces that are tokens.  What is not known is refused by name: other tokens
than a model was trained on give nonsense and no error.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wire.errors import InputError, Unsupported

from .file import File
from .pre_tokenizers import PRE_TOKENIZERS

BESIDE = "Put the tokenizer.json of the model's Hugging Face folder beside it"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TYPES = range(BYTE + 1)  # 0 is said to be undefined, and is as normal
TOKEN_CHARACTERS_MAX = 1024  # of those whose merges are looked for
SPACE = "\u2581"  # what SentencePiece writes for a space
WITHIN, WORD_CHARACTERS_MAX = "##", 100  # before a piece within a word, and of a word: a longer one is unknown
SPECIAL = {  # by the name that templates have for it
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
ENDS = frozenset({  # control tokens that end what a model says, where the file tells of one of several
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<|end_of_text|>", "<EOT>", "[EOT]", "<end_of_utterance>", "<｜end▁of▁sentence｜>",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokens with their numbers, scores (None where there are none) and types, each as long as the others."""

    tokens: list[str]
    scores: list[float] | None
    types: list[int]

    def numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


def tokenizer_json(file: File) -> str:
    """The tokenizer of the file.

    InputError for metadata that are missing, damaged or do not fit each other; Unsupported naming a tokenizer or a
    pre-tokenizer that is not known.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str):
        raise InputError(f"{file.path} has no tokenizer: it does not tell tokenizer.ggml.model", next_step=BESIDE)
    if kind not in _KINDS:
        raise Unsupported(
            f"{file.path} has a tokenizer of the kind {kind!r:.60}", next_step=f"Known: {', '.join(_KINDS)}. {BESIDE}"
        )
    return json.dumps(_KINDS[kind](file, _vocabulary(file)), ensure_ascii=False)


def special_tokens(file: File) -> dict[str, str]:
    """The special tokens that the file tells, by the names that templates have for them; InputError for one that is no
    token."""
    tokens = _strings(file, "tokens")
    numbers = {name: _number(file, kind, len(tokens)) for name, kind in SPECIAL.items()}
    return {name: tokens[number] for name, number in numbers.items() if number is not None}


def end_tokens(file: File) -> list[int]:
    """The tokens that end what the model says: those that the file names, and control tokens that are known to."""
    tokens, types = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    ends = [number for number in named if type(number) is int]
    if isinstance(tokens, list) and isinstance(types, list):
        each = enumerate(zip(tokens, types, strict=False))
        ends += [number for number, (token, kind) in each if kind == CONTROL and token in ENDS]
    return list(dict.fromkeys(ends))


def templates(file: File) -> dict[str, str]:
    """The chat templates by name, "default" for the one that has none; InputError for one that is no text."""
    key = "tokenizer.chat_template"
    found = {
        name.removeprefix(f"{key}.") if name != key else "default": value
        for name, value in file.metadata.items()
        if name == key or name.startswith(f"{key}.")
    }
    for name, value in found.items():
        if not isinstance(value, str):
            raise InputError(f"{file.path}: the chat template {name!r:.60} is a text, got {value!r:.60}")
    return found


# -- kinds


def _bytes_merged(file: File, words: _Vocabulary) -> dict[str, Any]:
    """A tokenizer that merges bytes, which GPT-2 had first (Radford et al., 2019)."""
    name = file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        raise InputError(
            f"{file.path} does not tell tokenizer.ggml.pre, how its tokenizer splits texts",
            next_step=f"{BESIDE}, or convert the model again with llama.cpp's convert_hf_to_gguf.py",
        )
    row = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if row is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise Unsupported(f"{file.path} has the pre-tokenizer {name!r:.60}", next_step=f"{BESIDE}. Known: {known}")
    numbers = words.numbers()
    merges = [_merge(file, merge, numbers) for merge in _strings(file, "merges")]
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in row.patterns
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "added_tokens": _added(words),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, as_bytes]},
        "post_processor": _frame(file, words, begins=row.begins),
        "decoder": as_bytes,
        "model": _model(numbers, merges, ignore_merges=row.whole),
    }


def _characters_merged(file: File, words: _Vocabulary) -> dict[str, Any]:
    """A tokenizer that merges characters by scores (Kudo and Richardson, 2018)."""
    if words.scores is None:
        raise InputError(f"{file.path} does not tell tokenizer.ggml.scores, which order its merges", next_step=BESIDE)
    numbers = words.numbers()
    unknown = _number(file, "unknown", len(words.tokens))
    if unknown is None and UNKNOWN in words.types:
        unknown = words.types.index(UNKNOWN)
    if unknown is None and not all(f"<0x{byte:02X}>" in numbers for byte in range(256)):
        raise InputError(
            f"{file.path} has neither tokens for all bytes nor tokenizer.ggml.unknown_token_id", next_step=BESIDE
        )
    spaced = _flag(file, "add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    begin = [{"type": "Prepend", "prepend": SPACE}] if spaced else []
    end = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "added_tokens": _added(words, strips=file.metadata.get("general.architecture") == "phi3"),
        "normalizer": {"type": "Sequence", "normalizers": [*begin, spaces]},
        "pre_tokenizer": None,
        "post_processor": _frame(file, words, begins=True),
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *end]},
        "model": _model(
            numbers, _merges_by_score(file, words), byte_fallback=True, fuse_unk=True,
            unk_token=None if unknown is None else words.tokens[unknown],
        ),
    }  # fmt: skip


def _word_pieces(file: File, words: _Vocabulary) -> dict[str, Any]:
    """A tokenizer of the longest pieces of words (Wu et al., 2016).

    Where its vocabulary had ## before a piece within a word, the file has nothing, and SPACE before other pieces.  It
    does not say whether texts are written in lower case first: they are if no token has a capital.
    """
    unknown, first, last = (
        next((number for kind in kinds if (number := _number(file, kind, len(words.tokens))) is not None), None)
        for kinds in (("unknown",), ("cls", "bos"), ("seperator", "eos"))
    )
    if unknown is None or first is None or last is None:
        lacks = [f"{kind}_token_id" for kind, number in
                 (("unknown", unknown), ("cls", first), ("seperator", last)) if number is None]  # fmt: skip
        raise InputError(f"{file.path} does not tell tokenizer.ggml.{lacks[0]}", next_step=BESIDE)
    pieces = [_piece(token, kind) for token, kind in zip(words.tokens, words.types, strict=True)]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if len(numbers) < len(pieces):
        twice = next(piece for piece, count in Counter(pieces).items() if count > 1)
        raise InputError(f"{file.path} has the piece {twice!r:.60} twice", next_step=BESIDE)
    ordinary = [piece for piece, kind in zip(pieces, words.types, strict=True) if kind in (0, NORMAL)]
    lower = all(piece == piece.lower() for piece in ordinary)
    ends = {place: words.tokens[number] for place, number in (("first", first), ("last", last))}
    frame = [{"SpecialToken": {"id": ends["first"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
             {"SpecialToken": {"id": ends["last"], "type_id": 0}}]  # fmt: skip
    pair = [*frame, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": ends["last"], "type_id": 1}}]
    named = {token: {"id": token, "ids": [numbers[token]], "tokens": [token]} for token in ends.values()}
    return {
        "added_tokens": _added(words),
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": frame, "pair": pair, "special_tokens": named
        },
        "decoder": {"type": "WordPiece", "prefix": WITHIN, "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": words.tokens[unknown], "continuing_subword_prefix": WITHIN,
            "max_input_chars_per_word": WORD_CHARACTERS_MAX, "vocab": numbers,
        },
    }  # fmt: skip


def _piece(token: str, kind: int) -> str:
    """A token as its vocabulary had it.  Older converters leave what stands in brackets as it is."""
    if kind not in (0, NORMAL) or (token.startswith("[") and token.endswith("]") and len(token) > 2):
        return token
    return token[len(SPACE) :] if token.startswith(SPACE) else WITHIN + token


_KINDS: Mapping[str, Callable[[File, _Vocabulary], dict[str, Any]]] = {
    "bert": _word_pieces,
    "gpt2": _bytes_merged,
    "llama": _characters_merged,
}


# -- parts


def _model(numbers: Mapping[str, int], merges: list[list[str]], **how: Any) -> dict[str, Any]:
    plain = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    return {**plain, **how, "vocab": numbers, "merges": merges}


def _merge(file: File, merge: str, numbers: Mapping[str, int]) -> list[str]:
    left, _, right = merge.partition(" ") if not merge.startswith(" ") else (" ", "", "")
    for part in (left, right, left + right):
        if not part or part not in numbers:
            raise InputError(f"{file.path}: the merge {merge!r:.60} is not of two tokens to a third", next_step=BESIDE)
    return [left, right]


def _merges_by_score(file: File, words: _Vocabulary) -> list[list[str]]:
    """Every two tokens that make a third one, the best third first, as transformers orders those that tie."""
    assert words.scores is not None
    numbers = {token: number for number, token in enumerate(words.tokens) if words.types[number] in (0, NORMAL)}
    found: list[tuple[float, int, int, int, int]] = []
    for token, number in numbers.items():
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise InputError(f"{file.path}: the token {number} has {len(token)} characters", next_step=BESIDE)
        for cut in range(1, len(token)):
            left, right = numbers.get(token[:cut]), numbers.get(token[cut:])
            if left is not None and right is not None:
                found.append((-words.scores[number], -cut, number, left, right))
    found.sort()
    return [[words.tokens[left], words.tokens[right]] for *_, left, right in found]


def _added(words: _Vocabulary, strips: bool = False) -> list[dict[str, Any]]:
    """The tokens that are found in a text as they are; control tokens are no part of a text that is given back.

    Phi-3's take the spaces behind them, which its file does not say (`strips`).
    """
    plain = {"single_word": False, "lstrip": False, "normalized": False}
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return [
        {"id": number, "content": token, **plain, "special": kind != USER_DEFINED,
         "rstrip": strips and (kind == CONTROL or token == "</s>") and token not in kept}
        for number, (token, kind) in enumerate(zip(words.tokens, words.types, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
    ]  # fmt: skip


def _frame(file: File, words: _Vocabulary, begins: bool) -> dict[str, Any] | None:
    """What the tokenizer puts before and behind a text."""
    framing: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    named = {}
    for flag, kind, default, place in (("add_bos_token", "bos", begins, 0), ("add_eos_token", "eos", False, 2)):
        if not _flag(file, flag, default):
            continue
        number = _number(file, kind, len(words.tokens))
        if number is None:
            if f"tokenizer.ggml.{flag}" not in file.metadata:
                continue
            raise InputError(f"{file.path} tells tokenizer.ggml.{flag}, and no {kind}_token_id", next_step=BESIDE)
        token = words.tokens[number]
        named[token] = {"id": token, "ids": [number], "tokens": [token]}
        framing.insert(place, {"SpecialToken": {"id": token, "type_id": 0}})
    if not named:
        return None
    pair = [*framing, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": framing, "pair": pair, "special_tokens": named}


# -- metadata


def _vocabulary(file: File) -> _Vocabulary:
    tokens = _strings(file, "tokens")
    if len(set(tokens)) < len(tokens):
        twice = next(token for token, count in Counter(tokens).items() if count > 1)
        raise InputError(f"{file.path} has the token {twice!r:.60} twice", next_step=BESIDE)
    table = file.tensors.get("token_embd.weight")
    if table is not None and table.shape and len(tokens) > table.shape[0]:
        raise InputError(
            f"{file.path} has {len(tokens)} tokens, and the model {table.shape[0]} rows for them", next_step=BESIDE
        )
    types = _list(file, "token_type", len(tokens), lambda value: type(value) is int and value in TYPES)
    scores = _list(file, "scores", len(tokens), lambda value: isinstance(value, int | float) and math.isfinite(value))
    return _Vocabulary(tokens, scores, types or [NORMAL] * len(tokens))


def _list(file: File, key: str, count: int, fits: Callable[[Any], bool]) -> list[Any] | None:
    """A list with an element for each token, None where the file has none."""
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != count:
        found = f"{len(values)} elements" if isinstance(values, list) else f"{values!r:.60}"
        raise InputError(f"{file.path}: tokenizer.ggml.{key} has {found}, for {count} tokens", next_step=BESIDE)
    wrong = next((place for place, value in enumerate(values) if not fits(value)), None)
    if wrong is not None:
        raise InputError(
            f"{file.path}: tokenizer.ggml.{key} of the token {wrong} is {values[wrong]!r:.60}", next_step=BESIDE
        )
    return values


def _strings(file: File, key: str) -> list[str]:
    values = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        problem = "is missing" if values is None else "is no list of texts"
        raise InputError(f"{file.path}: tokenizer.ggml.{key} {problem}", next_step=BESIDE)
    return values


def _number(file: File, kind: str, count: int) -> int | None:
    """The number of a special token, None where the file does not tell it."""
    key = f"tokenizer.ggml.{kind}_token_id"
    number = file.metadata.get(key)
    if number is None:
        return None
    if type(number) is not int or not 0 <= number < count:
        raise InputError(f"{file.path}: {key} is {number!r:.60}, of {count} tokens", next_step=BESIDE)
    return number


def _flag(file: File, key: str, default: bool) -> bool:
    value = file.metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise InputError(f"{file.path}: tokenizer.ggml.{key} is true or false, got {value!r:.60}", next_step=BESIDE)
    return value
