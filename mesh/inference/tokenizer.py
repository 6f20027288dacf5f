"""Tokenizer: text to the ids that a model knows, and ids to text as they come.

The door of the tokenizers library, which reads the folder's tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from wire.errors import ConfigError, InputError


class Tokenizer:
    """A folder's tokenizer.json; InputError if there is none or it is damaged, ConfigError without the library."""

    def __init__(self, folder: Path) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError:
            raise ConfigError(
                "text needs the package 'tokenizers', which is not installed",
                next_step="pip install tokenizers, or give tokens instead of text",
            ) from None
        file = folder / "tokenizer.json"
        if not file.exists():
            raise InputError(f"{file} does not exist", next_step="Give tokens instead of text")
        try:
            self._own = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"{file} cannot be read", cause=str(error)[:200]) from None
        self._new_stream = partial(tokenizers.decoders.DecodeStream, skip_special_tokens=True)

    def ids(self, text: str) -> list[int]:
        """The text's tokens, with what the tokenizer puts before and behind a text; InputError for what is no text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise InputError(
                f"the prompt has {text[error.start : error.end]!r} at {error.start}, which is no character",
                next_step="Decode its bytes with errors='replace'",
            ) from None
        return list(self._own.encode(text).ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text of these tokens, without special tokens such as the one that ends a text."""
        text: str = self._own.decode(list(ids))
        return text

    def stream(self) -> Callable[[int], str]:
        """A function of the next token that gives the text which it completes, "" if it completes none."""
        stream = self._new_stream()

        def step(token: int) -> str:
            nonlocal stream
            try:
                return stream.step(self._own, token) or ""
            except Exception:  # the library's "Invalid prefix": bytes that are no text made it lose its place
                stream = self._new_stream()
                return stream.step(self._own, token) or ""

        return step


class Detokenizer:
    """Tokens that come one by one, as text: `add` gives what is new and final, `rest` what was held back.

    A character is never split: bytes of one that is not complete wait for the others.  Nor is one of `stops`: what may
    be its beginning waits too, and where one is complete, `stopped` says so and the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._step = tokenizer.stream()
        self._stops = tuple(stops)
        self._written: list[int] = []  # the tokens of the last piece, beside which those that wait are decoded
        self._waiting: list[int] = []
        self._held = ""

    def add(self, token: int) -> str:
        self._waiting.append(token)
        new = self._step(token)
        if new:
            self._written, self._waiting = self._waiting, []
        return self._released(new)

    def rest(self) -> str:
        """What was held back, now that nothing more comes; bytes that never became a character are marked as such."""
        if self.stopped:
            return ""
        before = self._tokenizer.text(self._written)
        new = self._released(self._tokenizer.text([*self._written, *self._waiting])[len(before) :])
        self._waiting = []
        held, self._held = self._held, ""
        return new if self.stopped else new + held

    def _released(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        ends = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
