"""Tokenizer: text to the ids that a model knows, and ids to text as they come.

The door of the tokenizers library, which reads the folder's tokenizer.json, or that which a model's file tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from wire.cached_property import cached_property
from wire.errors import ConfigError, InputError

from ..models.decoder import Text, TextMetadata

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The characters by which tokenizers of bytes write them: Radford et al., 2019."""


_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # a token for a byte
FILE = "tokenizer.json"
GROWTH_MAX = 1000  # of a text by what a file replaces in it; the library would take all memory, and the process with it


class Tokenizer:
    """A folder's tokenizer.json, else that of the model's own file; InputError if there is none or it is damaged,
    ConfigError without the library."""

    def __init__(self, folder: Path, metadata: TextMetadata | None = None) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError:
            raise ConfigError(
                "text needs the package 'tokenizers', which is not installed",
                next_step="pip install tokenizers, or give tokens instead of text",
            ) from None
        file = folder / FILE
        self._where = str(file)
        if metadata is not None and not file.exists():
            self._where, text = f"the tokenizer in {metadata.file}", metadata.tokenizer()
        elif not file.exists():
            raise InputError(f"{file} does not exist", next_step="Put the model's tokenizer there, or give tokens")
        else:
            text = _text(file)
        with self._reading("cannot be read"):
            self._own = tokenizers.Tokenizer.from_str(text)
            read = json.loads(text)
        _check_growth(self._where, read)
        self._by_bytes = '"ByteLevel"' in text
        self._own.no_padding()
        self._own.no_truncation()
        self._new_stream = partial(tokenizers.decoders.DecodeStream)

    def ids(self, text: str, framed: bool = True) -> list[int]:
        """The text's tokens, if `framed` with what the tokenizer puts before and behind a text; InputError for what is
        no text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise InputError(
                f"the prompt has {text[error.start : error.end]!r} at {error.start}, which is no character",
                next_step="Decode its bytes with errors='replace'",
            ) from None
        with self._reading("cannot take the text"):
            return list(self._own.encode(text, add_special_tokens=framed).ids)

    def marked(self, text: str, mark: str) -> list[int]:
        """The tokens of a text, unframed, in which `mark` stands within words that only spell special tokens; it is no
        part of the text.  Other special tokens split it, as they do without marks."""
        words = re.compile("|".join(map(re.escape, sorted(self.special_tokens, key=len, reverse=True))))
        ids: list[int] = []
        read = begin = 0  # what has its tokens, and where the text between two special tokens begins
        for end, after in (*(found.span() for found in words.finditer(text)), (len(text), len(text))):
            between = text[begin:end]
            if mark in between:
                ids += self.ids(text[read:begin], framed=False)
                with self._reading("cannot take the text"):
                    ids += self._plain.encode(between.replace(mark, ""), add_special_tokens=False).ids
                read = end
            begin = after
        return ids + self.ids(text[read:], framed=False)

    @cached_property
    def special_tokens(self) -> list[str]:
        """The special tokens that consist of several characters, as texts."""
        added = self._own.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special and len(token.content) > 1]

    @cached_property
    def _added(self) -> dict[int, str]:
        """The tokens that stand in texts as they are, by their numbers."""
        return {number: token.content for number, token in self._own.get_added_tokens_decoder().items()}

    @cached_property
    def _plain(self) -> Any:
        """The same tokenizer, to which special tokens are text."""
        plain = self._own.from_str(self._own.to_str())
        plain.encode_special_tokens = True
        return plain

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of these tokens, without special tokens such as the one that ends a text, unless `special`."""
        with self._reading("cannot give the text"):
            return str(self._own.decode(list(ids), skip_special_tokens=not special))

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Have what the file makes the library raise be an InputError: it raises nothing narrower than Exception, and
        where its own checks are missing, a panic, which is not even that."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise InputError(f"{self._where} {what}", cause=str(error)[:200]) from None

    def json(self) -> str:
        """The tokenizer as a tokenizer.json."""
        return str(self._own.to_str())

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self._own.get_vocab_size())

    def tokens(self) -> dict[str, int]:
        """The number of every token."""
        return dict(self._own.get_vocab())

    def id_of(self, token: str) -> int | None:
        """The number of a token, None if there is none of this text."""
        number: int | None = self._own.token_to_id(token)
        return number

    def data_of(self, token: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters."""
        if token in self._added:
            return self._added[token].encode()
        piece = self._own.id_to_token(token) or ""
        if self._by_bytes and all(letter in BYTES for letter in piece):
            return bytes([BYTES[letter] for letter in piece])
        if _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\u2581", " ").encode()

    def stream(self, special: bool = False) -> Callable[[int], str | None]:
        """A function of the next token that gives the text which it completes, "" if it completes none; None where
        bytes that are no text made the library lose its place, which is behind this token from then on."""
        stream = self._new_stream(skip_special_tokens=not special)

        def step(token: int) -> str | None:
            nonlocal stream
            try:
                return stream.step(self._own, token) or ""
            except Exception:  # the library's "Invalid prefix"
                stream = self._new_stream(skip_special_tokens=not special)
                stream.step(self._own, token)
                return None

        return step


class Detokenizer:
    """Tokens that come one by one, as text: `add` gives what is new and final, `rest` what was held back.

    A character is never split: bytes of one that is not complete wait for the others.  Nor is one of `stops`: what may
    be its beginning waits too, and where one is complete, `stopped` says so, `stop` is it, and the text ends before it.
    `special` tokens are not part of the text without that.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str] = (), special: bool = False) -> None:
        self.stop = ""
        self._special = special
        self._tokenizer = tokenizer
        self._step = tokenizer.stream(special)
        self._stops = tuple(stops)
        self._written: list[int] = []  # the tokens of the last piece, beside which those that wait are decoded
        self._waiting: list[int] = []
        self._held = ""

    @property
    def stopped(self) -> bool:
        """Whether one of the stops was complete."""
        return bool(self.stop)

    def add(self, token: int) -> str:
        self._waiting.append(token)
        new = self._step(token)
        if new is None:
            new = self._unwritten()
        if new:
            self._written, self._waiting = self._waiting, []
        return self._released(new)

    def rest(self) -> str:
        """What was held back, now that nothing more comes; bytes that never became a character are marked as such."""
        if self.stopped:
            return ""
        new = self._released(self._unwritten())
        self._waiting = []
        held, self._held = self._held, ""
        return new if self.stopped else new + held

    def _unwritten(self) -> str:
        """The text of the tokens that wait, with marks for bytes that are no text."""
        before = self._tokenizer.text(self._written, self._special)
        return self._tokenizer.text([*self._written, *self._waiting], self._special)[len(before) :]

    def _released(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        ends = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            (at, self.stop), self._held = min(ends), ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def tokenizer_of(text: Text) -> Tokenizer:
    """The tokenizer of a model; errors as those of Tokenizer."""
    return Tokenizer(text.folder, text.metadata)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read", cause=str(error)[:200]) from None


def _check_growth(where: str, read: Any) -> None:
    """Check that a tokenizer makes no text a thousand times as long, as one of a stranger might."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = _growth(read.get(part))
        if growth > GROWTH_MAX:
            raise InputError(f"{where} cannot be used: its {part} may make a text {growth:,} times as long")


def _growth(step: Any) -> int:
    """How many times as long a step, or all in it, may make a text."""
    if not isinstance(step, dict):
        return 1
    growth = 1 + len(str(step.get("content", ""))) if step.get("type") == "Replace" else 1
    for each in (*step.get("normalizers", ()), *step.get("pretokenizers", ()), *step.get("decoders", ())):
        growth *= _growth(each)
    return growth


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
