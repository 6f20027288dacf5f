"""Replies: what comes back for a prompt, piece by piece: tokens for tokens, text for text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from wire.errors import InputError

from ..models.model import Prompt, Stop
from ..util.units import counted
from .generation_runner import TokenStream
from .settings import Sampling, count
from .tokenizer import Detokenizer, Tokenizer

PROMPTS = "Give a text, a list of tokens, or several of these"


class TextBatch(Protocol):
    """What goes on with tokens: a `Generating`, or the replicas of a model."""

    vocabulary: int

    @property
    def ends(self) -> tuple[int, ...]: ...

    def begin(
        self, prompt: Iterable[int], tokens_max: int | None, how: Sampling = ..., ends: Iterable[int] | None = ...
    ) -> TokenStream: ...


@dataclass(frozen=True, slots=True)
class Request:
    """How to go on with prompts, as `mesh.Model.generate` takes it."""

    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: Stop = None
    ends: int | Iterable[int] | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "ends"):  # which may be iterators, and are read for each of several prompts
            if isinstance(value := getattr(self, name), Iterator):
                object.__setattr__(self, name, list(value))

    def begin(self, generating: TextBatch, tokenizer: Tokenizer | None, prompt: Prompt, place: int = 0) -> Reply:
        """Begin with the prompt in this place among several; its seed is larger by the place."""
        strings, tokens = _stops(self.stop, generating.vocabulary)
        if isinstance(prompt, str):
            assert tokenizer is not None
            writing, ids = Detokenizer(tokenizer, strings), tokenizer.ids(prompt)
        elif strings:
            raise InputError(f"stop={strings[0]!r} is text, and the prompt is tokens", next_step="Give a token")
        else:
            writing, ids = None, _ids(prompt)
        how = Sampling(self.temperature, self.top_k, self.top_p, self.seed).shifted(place)
        ends = {*(generating.ends if self.ends is None else _ends(self.ends, generating.vocabulary)), *tokens}
        asked = None if self.max_new_tokens is None else count(self.max_new_tokens, "max_new_tokens")
        return Reply(generating.begin(ids, asked, how, ends), writing)


class Reply:
    """What comes back for a prompt: an async iterator of pieces, each when it is there.

    `tokens` are all until now.  `reason` says how it ended: "stop" at an end token or a stop text, "length" with all
    that was asked for, "cancelled".  The text stops, too, where the task that waits for it is cancelled, and where
    nobody has the reply any more.

    Parameters
    ----------
    stream : TokenStream
        The tokens of the text.
    writing : Detokenizer or None
        What makes text of tokens; None for a prompt of tokens.

    Examples
    --------
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import mesh
    >>> from mesh.models.decoder import Decoder, Text
    >>> following = {"rows": np.roll(np.eye(5, dtype=np.float32), 1, axis=1)}  # token 1 follows 0, and so on
    >>> embed, head = lambda params, ids, at: params["rows"][ids], lambda params, x: x
    >>> decoder = Decoder(embed, print, head, (), 1, 1, None, "rows")
    >>> model = mesh.Model("count", print, [], [], following, Text(decoder, Path(), ends=(4,)))
    >>> import asyncio
    >>> async def main():
    ...     async with await mesh.Mesh.builder().build_async() as m, mesh.AsyncInferenceServer(m) as server:
    ...         await server.load_model("count", model)
    ...         reply = server.generate("count", [0])
    ...         print(await anext(reply), await reply.all(), reply.tokens, reply.reason)
    ...         reply.cancel()
    >>> asyncio.run(main())
    1 [2, 3, 4] [1, 2, 3, 4] stop
    """

    def __init__(self, stream: TokenStream, writing: Detokenizer | None) -> None:
        self.tokens: list[int] = []
        self.reason = ""
        self._stream = stream
        self._writing = writing
        finalize(self, _not_wanted, asyncio.get_running_loop(), stream).atexit = False

    def __repr__(self) -> str:
        return f"<Reply: {counted(len(self.tokens), 'token')}, {self.reason or 'running'}>"

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self.reason:
            try:
                token = await anext(self._stream, None)
            except asyncio.CancelledError:
                self.cancel()
                raise
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
        """Wait for all pieces that are to come.

        Returns
        -------
        str or list of int
            The text, or the tokens.

        Raises
        ------
        NodeLost
            If the workers died again and again.
        Cancelled
            If the model was unloaded.
        """
        pieces = [piece async for piece in self]
        return pieces if self._writing is None else "".join(pieces)

    def cancel(self) -> None:
        """Stop the answer; its place in the batch is free from the next step on."""
        self._stream.cancel()
        self.reason = self.reason or "cancelled"


def _not_wanted(loop: asyncio.AbstractEventLoop, stream: TokenStream) -> None:
    if not stream.reason:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the text over
            loop.call_soon_threadsafe(stream.cancel)


def is_one(prompts: Any) -> bool:
    """Whether this is one prompt and not several."""
    if isinstance(prompts, str):
        return True
    scalar = isinstance(prompts, np.ndarray) and not prompts.ndim
    if not isinstance(prompts, Sequence | np.ndarray) or isinstance(prompts, bytes) or scalar:
        raise InputError(f"{prompts!r:.40} is no prompt", next_step=PROMPTS)
    if not len(prompts):
        raise InputError("there is no prompt", next_step=PROMPTS)
    try:
        return np.ndim(prompts[0]) == 0 and not isinstance(prompts[0], str)
    except ValueError:  # rows of different lengths, of which none is a prompt
        return False


def _ids(prompt: Any) -> list[int]:
    try:
        array = np.asarray(prompt)
    except ValueError:  # rows of different lengths
        raise InputError(
            "a prompt is a text or a list of tokens, got several", next_step="Give one at a time"
        ) from None
    if array.shape == (0,):
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"a prompt is a text or a list of tokens, got {array.dtype}{list(array.shape)}")
    ids: list[int] = array.tolist()
    return ids


def _ends(ends: Any, vocabulary: int) -> tuple[int, ...]:
    tokens = _items(ends)
    if not all(_is_token(token) for token in tokens):
        raise InputError(f"ends={ends!r:.60} is no token, nor several of them")
    return tuple([_known(token, "ends", vocabulary) for token in tokens])


def _stops(stop: Any, vocabulary: int) -> tuple[list[str], list[int]]:
    stops = _items(stop) if stop is not None else []
    strings = [item for item in stops if isinstance(item, str)]
    if "" in strings or not all(isinstance(item, str) or _is_token(item) for item in stops):
        raise InputError(f"stop={stop!r:.60} is no text or token, nor several of them")
    return strings, [_known(item, "stop", vocabulary) for item in stops if _is_token(item)]


def _items(value: Any) -> list[Any]:
    alone = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    return [value] if alone or (isinstance(value, np.ndarray) and not value.ndim) else list(value)


def _is_token(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _known(token: Any, what: str, vocabulary: int) -> int:
    if not 0 <= token < vocabulary:
        raise InputError(f"{what}: the model has {vocabulary} tokens, and no token {token}")
    return int(token)
