"""Replies: what comes back for a prompt, piece by piece: tokens for tokens, text for text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wire.errors import InputError

from .generating import Generating, TokenStream
from .settings import Sampling
from .tokens import Tokenizer, Writing

Prompt = str | Sequence[int]
Stop = str | int | Sequence[str | int] | None


@dataclass(frozen=True, slots=True)
class Request:
    """How to go on with prompts: see `mesh.Model.generate`."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: Stop = None
    ends: int | Iterable[int] | None = None

    def begin(self, generating: Generating, tokenizer: Tokenizer | None, prompt: Prompt, place: int = 0) -> Reply:
        """Begin with the prompt in this place among several; its seed is so much more."""
        strings, tokens = _stops(self.stop)
        if isinstance(prompt, str):
            assert tokenizer is not None
            writing, ids = Writing(tokenizer, strings), tokenizer.ids(prompt)
        elif strings:
            raise InputError(f"stop={strings[0]!r} is text, and the prompt is tokens", next_step="Give a token")
        else:
            writing, ids = None, _ids(prompt)
        how = replace(Sampling(self.temperature, self.top_k, self.top_p, self.seed), seed=self.seed + place)
        ends = {*(generating.ends if self.ends is None else _ends(self.ends)), *tokens}
        return Reply(generating.begin(ids, self.max_new_tokens, how, ends), writing)


class Reply:
    """An async iterator of pieces, each when it is there; `tokens` are all until now, `reason` says how it ended:
    "stop" at an end token or a stop text, "length" with all that was asked for, "cancelled"."""

    def __init__(self, stream: TokenStream, writing: Writing | None) -> None:
        self.tokens: list[int] = []
        self.reason = ""
        self._stream = stream
        self._writing = writing

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self.reason:
            token = await anext(self._stream, None)
            if token is None:
                self.reason = self._stream.reason
                break
            self.tokens.append(token)
            if self._writing is None:
                return token
            piece = self._writing.add(token)
            if self._writing.stopped:
                self._stream.cancel()
                self.reason = "stop"
            if piece:
                return piece
        rest = "" if self._writing is None else self._writing.rest()
        if rest:
            return rest
        raise StopAsyncIteration

    async def all(self) -> Any:
        """All that is to come at once: the text, or the list of tokens."""
        pieces = [piece async for piece in self]
        return pieces if self._writing is None else "".join(pieces)

    def cancel(self) -> None:
        """Want no more of it."""
        self._stream.cancel()
        self.reason = self.reason or "cancelled"


def is_one(prompts: Any) -> bool:
    """Whether this is one prompt and not several."""
    if isinstance(prompts, str):
        return True
    if not hasattr(prompts, "__len__") or not len(prompts):
        raise InputError("there is no prompt", next_step="Give a text, a list of tokens, or several of these")
    return np.ndim(prompts[0]) == 0 and not isinstance(prompts[0], str)


def _ids(prompt: Any) -> list[int]:
    array = np.asarray(prompt)
    if array.shape == (0,):
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"a prompt is a text or a list of tokens, got {array.dtype}{list(array.shape)}")
    found: list[int] = array.tolist()
    return found


def _ends(ends: Any) -> tuple[int, ...]:
    found = tuple(ends) if isinstance(ends, Iterable) else (ends,)
    if not all(isinstance(one, int | np.integer) for one in found):
        raise InputError(f"ends={ends!r} is no token, nor several of them")
    return tuple(map(int, found))


def _stops(stop: Stop) -> tuple[list[str], list[int]]:
    each = [stop] if isinstance(stop, str | int) else list(stop or ())
    strings = [one for one in each if isinstance(one, str)]
    if "" in strings or not all(isinstance(one, str | int) for one in each):
        raise InputError(f"stop={stop!r} is no text or token, nor several of them")
    return strings, [one for one in each if isinstance(one, int)]
