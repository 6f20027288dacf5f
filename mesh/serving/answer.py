"""Answer: what a model says to a request, as events that each API writes in its own form.

A request may have several prompts, and several choices for each.  Their tokens come side by side; here they become
text, tool calls and ends.  Whoever reads the events has to close the answer: that ends what is not wanted any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..inference.continuous_batching import FAILED, ChosenToken
from ..inference.logit_adjustment import LogitAdjustment
from ..inference.settings import Sampling
from ..inference.tokenizer import Detokenizer, Tokenizer
from .api_error import ApiError
from .grammar import Grammar
from .tool_format import Reader, ToolCall, ToolFormat


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What is asked of a model, whichever the API: to go on with each prompt, a text or tokens, `choices` times.

    `framed` prompts get what the tokenizer puts before and behind a text; a chat template has written that itself.
    `likeliest` is how many of the likeliest tokens come with every token, None without probabilities.  `adjustment` is
    what changes logits before a token is chosen, None for nothing.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    sampling: Sampling
    tokens_max: int | None = None
    choices: int = 1
    stops: tuple[str, ...] = ()
    likeliest: int | None = None
    grammar: Grammar | None = None
    tools: ToolFormat | None = None
    adjustment: LogitAdjustment | None = None
    framed: bool = False
    param: str = "messages"  # what errors about the prompt name


class TokenSource(Protocol):
    """The tokens of one text, as they come: `mesh.inference.TokenStream` is one."""

    reason: str

    async def next(self) -> ChosenToken | None: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token as a text and as bytes, the logarithm of its probability, and the likeliest ones in its place."""

    text: str
    data: bytes
    logprob: float
    likeliest: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of a choice's text; "" where only the scores of its tokens are new."""

    choice: int
    text: str
    scores: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A call in a choice, the `number`-th one, from 0."""

    choice: int
    number: int
    call_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is over: "stop", "length" or "tool_calls"; `stop` is the stop text that ended it."""

    choice: int
    reason: str
    stop: str = ""


Event = TextPiece | ToolCalled | Ended


@dataclass(slots=True)
class Usage:
    """Tokens of the prompts, those that came until now, and those of the prompts that needed no reading: a text before
    began with them."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Answer:
    """The events of a request.  `new_id` names tool calls; `over` is called once, when nothing of it runs any more."""

    request: TextRequest
    streams: Sequence[TokenSource]
    tokenizer: Tokenizer
    ends: frozenset[int]
    usage: Usage
    new_id: Callable[[], str]
    over: Callable[[], None]
    came: Callable[[int], None]  # it is given the choice of every token
    _closed: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _events: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)

    async def events(self) -> AsyncIterator[Event]:
        """Every event, each when it is there; ApiError or MeshError if a choice fails."""
        self._tasks = [asyncio.create_task(self._follow(place)) for place in range(len(self.streams))]
        left = len(self.streams)
        while left:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            left -= isinstance(event, Ended)
            yield event

    def close(self) -> None:
        """End what still runs."""
        if self._closed:
            return
        self._closed = True
        for stream in self.streams:
            stream.cancel()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()  # the traceback of a cancelled task refers to this
        self.over()

    async def _follow(self, choice: int) -> None:
        try:
            await self._read(choice, self.streams[choice])
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # whoever reads the events raises it; a panic of a library is no Exception
            self._events.put_nowait(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    async def _read(self, choice: int, stream: TokenSource) -> None:
        writing = Detokenizer(self.tokenizer, self.request.stops, special=self.request.tools is not None)
        reader = Reader(self.request.tools) if self.request.tools else None
        called, scores, first = 0, list[ScoredToken](), True

        def tell(text: str) -> None:
            nonlocal called, scores
            text = reader.add(text) if reader else text
            if text or scores:
                self._events.put_nowait(TextPiece(choice, text, tuple(scores)))
                scores = []
            for call in reader.calls[called:] if reader else ():
                self._events.put_nowait(ToolCalled(choice, called, self.new_id(), call))
                called += 1

        while not writing.stopped and (token := await stream.next()) is not None:
            self.usage.completion_tokens += 1
            self.came(choice)
            if first and choice % self.request.choices == 0:  # a prompt counts once, whatever its choices
                self.usage.cached_tokens += token.cached
            first = False
            if token.token in self.ends:
                continue
            if token.score is not None:
                scores.append(self._scored(token))
            tell(writing.add(token.token))
        if writing.stopped:
            stream.cancel()
        elif stream.reason == FAILED:
            raise ApiError(500, "the answer could not be continued within its schema", code="schema_failed")
        tell(writing.rest())
        if reader and (rest := reader.rest()):
            self._events.put_nowait(TextPiece(choice, rest))
        elif reader:
            tell("")
        called = reader is not None and bool(reader.calls)
        reason = "tool_calls" if called else "stop" if writing.stopped else stream.reason
        self._events.put_nowait(Ended(choice, reason, writing.stop))

    def _scored(self, token: ChosenToken) -> ScoredToken:
        assert token.score is not None
        likeliest = token.score.likeliest[: self.request.likeliest or 0]
        others = tuple([self._shown(number, logprob) for number, logprob in likeliest])
        return self._shown(token.token, token.score.logprob, others)

    def _shown(self, token: int, logprob: float, others: tuple[ScoredToken, ...] = ()) -> ScoredToken:
        data = self.tokenizer.data_of(token)
        return ScoredToken(data.decode("utf-8", "replace"), data, logprob, others)


@dataclass(frozen=True, slots=True)
class Said:
    """A choice that is over: all of its text, its calls and scores, and how it ended."""

    text: str
    calls: tuple[ToolCalled, ...]
    scores: tuple[ScoredToken, ...]
    reason: str
    stop: str


async def whole(answer: Answer) -> list[Said]:
    """Every choice of an answer, once all are over; the answer is closed."""
    count = len(answer.streams)
    texts: list[list[str]] = [[] for _ in range(count)]
    calls: list[list[ToolCalled]] = [[] for _ in range(count)]
    scores: list[list[ScoredToken]] = [[] for _ in range(count)]
    ends: list[Ended] = [Ended(place, "stop") for place in range(count)]
    try:
        async for event in answer.events():
            if isinstance(event, TextPiece):
                texts[event.choice].append(event.text)
                scores[event.choice] += event.scores
            elif isinstance(event, ToolCalled):
                calls[event.choice].append(event)
            else:
                ends[event.choice] = event
    finally:
        answer.close()
    return [
        Said("".join(text), tuple(called), tuple(scored), end.reason, end.stop)
        for text, called, scored, end in zip(texts, calls, scores, ends, strict=True)
    ]
