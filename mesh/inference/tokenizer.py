"""Tokenizer: text to the ids that a model knows, and ids to text as they come.

The door of the tokenizers library, which reads the folder's tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError

_HALF = "\ufffd"  # what bytes that are no whole character are decoded to
_BACK = 6  # tokens that are decoded again, so that what depends on its neighbours is right


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

    def ids(self, text: str) -> list[int]:
        """The text's tokens, with what the tokenizer puts before and behind a text; InputError for what is no text."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise InputError(
                f"the prompt has {text[error.start : error.end]!r} at {error.start}, which is no character",
                next_step="Decode its bytes with errors='replace'",
            ) from None
        found: Any = self._own.encode(text)
        return list(found.ids)

    def text(self, ids: Sequence[int]) -> str:
        """Without the tokens that are no text."""
        found: str = self._own.decode(list(ids))
        return found


class Writing:
    """Tokens that come one by one, as text: `add` gives what is new and final, `rest` what was held back.

    A character is never split: bytes of one that is not whole wait for the others.  Nor is one of `stops`: what may be
    its beginning waits too, and where one is complete, `stopped` says so and the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str] = ()) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._from = self._read = 0  # tokens before the first are done with; those before the second were decoded
        self._held = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        before = self._tokenizer.text(self._ids[self._from : self._read])
        now = self._tokenizer.text(self._ids[self._from :])
        if now.endswith(_HALF) or len(now) <= len(before):
            return ""
        self._from, self._read = max(self._from, self._read - _BACK), len(self._ids)
        return self._released(now[len(before) :])

    def rest(self) -> str:
        """What was held back, now that nothing more comes; bytes that never became a character are marked as such."""
        if self.stopped:
            return ""
        before = self._tokenizer.text(self._ids[self._from : self._read])
        now = self._tokenizer.text(self._ids[self._from :])
        self._read = len(self._ids)
        made = self._released(now[len(before) :])
        held, self._held = self._held, ""
        return made if self.stopped else made + held

    def _released(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How long an end of `text` is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
