"""Requests to a server of models whose answers are known: greedy ones and those with a seed, of each API.

`CASES` are the bodies.  `Asker` asks for one by the official clients, whole or as a stream, and gives what was said in
one form, which is the same for both.  The models are "llama", a Llama of `served_models.llama_folder`, and "minilm".
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Answered = dict[str, Any]
SYSTEM = "You are a careful helper of people who join many computers into one. " * 12
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "colour": {"enum": ["red", "green"]}},
    "required": ["age", "colour"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}}
OWN_TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": CITY}
TEXTS = ["A cat sat.", "Wie spät ist es?", "word " * 100]


def user(text: str, system: str = "") -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": text}]


@dataclass(frozen=True, slots=True)
class Case:
    """A request: `asks` is the method of Asker that takes it."""

    name: str
    asks: str
    body: dict[str, Any] = field(default_factory=dict)
    streams: bool = True


def _chat(name: str, text: str, system: str = "", **more: Any) -> Case:
    how = {"temperature": 0, "max_completion_tokens": 24, **more}
    return Case(f"openai chat: {name}", "chat", {"messages": user(text, system), **how})


def _completion(name: str, prompt: Any, **more: Any) -> Case:
    how = {"temperature": 0.8, "max_tokens": 24, "seed": 5, **more}
    return Case(f"openai completion: {name}", "completion", {"prompt": prompt, **how})


def _message(name: str, text: str, **more: Any) -> Case:
    how = {"max_tokens": 24, "extra_body": {"temperature": 0}, **more}
    return Case(f"anthropic: {name}", "message", {"messages": user(text), **how})


def _ollama(name: str, text: str, options: dict[str, Any], **more: Any) -> Case:
    how = {"options": {"num_predict": 24, **options}, **more}
    return Case(f"ollama chat: {name}", "ollama_chat", {"messages": user(text), **how})


FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
CASES: tuple[Case, ...] = (
    _chat("greedy", "Hello, how are you?"),
    _chat("with a seed", "Tell me of the sea.", temperature=0.9, seed=3),
    _chat("several choices", "Name a city.", temperature=1.0, seed=11, n=3),
    _chat("a stop", "Hello, how are you?", stop=["e", " the"]),
    _chat("probabilities", "What is the time?", logprobs=True, top_logprobs=3),
    _chat("a schema", "Who are you?", temperature=1.2, seed=4, response_format=FORM, max_completion_tokens=60),
    _chat("a tool", "Is it warm?", temperature=1.0, seed=8, tools=[TOOL], tool_choice="required",
          max_completion_tokens=60),
    _chat("penalties and biases", "Say it again.", presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"300": 3}),
    *[_chat(f"a long beginning, {place}", f"Question {place}?", SYSTEM, seed=place, temperature=0.7)
      for place in range(4)],
    _chat("a long answer", "Tell me a long story.", temperature=0.8, seed=21, max_completion_tokens=200),
    _completion("tokens", [5, 6, 7, 300, 301]),
    _completion("several prompts and choices", ["Once upon", "There was"], n=2, max_tokens=12),
    _completion("probabilities", "Once upon a time", logprobs=2, max_tokens=12),
    _completion("a long prompt", [3 + place % 500 for place in range(600)], max_tokens=16, temperature=0),
    Case("openai responses: greedy", "response", {"input": "Hello there", "temperature": 0, "max_output_tokens": 16}),
    Case("openai embeddings", "embeddings", {"input": TEXTS}, streams=False),
    _message("greedy", "Hello, how are you?", system="Be brief."),
    _message("a long beginning", "And then?", system=SYSTEM),
    _message("a stop", "Hello, how are you?", stop_sequences=["e"]),
    _message("a tool", "Is it warm?", tools=[OWN_TOOL], tool_choice={"type": "any"}, max_tokens=60),
    Case("anthropic: tokens", "count", {"messages": user("How many are these?")}, streams=False),
    _ollama("with a seed", "Hello, how are you?", {"seed": 6}),
    _ollama("greedy", "What is a mesh?", {"temperature": 0}),
    _ollama("a schema", "Who are you?", {"seed": 2, "num_predict": 60}, format=SCHEMA),
    _ollama("penalties", "Say it again.", {"seed": 2, "repeat_penalty": 1.3, "repeat_last_n": 16}),
    Case("ollama generate", "ollama_generate",
         {"prompt": "Once upon", "raw": True, "options": {"seed": 9, "num_predict": 24}}),
    Case("ollama embed", "ollama_embed", {"input": TEXTS[0]}, streams=False),
)  # fmt: skip
VECTORS = ("embeddings", "ollama_embed")  # whose answers are numbers that are rounded, in batches of any size


@contextmanager
def without_certificates() -> Iterator[None]:
    """Without the empty file of certificates that tests have, of which some clients make a context."""
    file = os.environ.pop("SSL_CERT_FILE", None)
    try:
        yield
    finally:
        if file is not None:
            os.environ["SSL_CERT_FILE"] = file


class Asker:
    """The official clients of one server, with a key."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        how: dict[str, Any] = {"api_key": key, "max_retries": 0, "timeout": timeout_s}
        with without_certificates():
            import anthropic  # which takes 2 s
            import ollama
            import openai

            self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", **how)
            self._anthropic = anthropic.AsyncAnthropic(base_url=url, **how)
            self._ollama = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout_s)

    async def ask(self, case: Case, stream: bool = False) -> Answered:
        """What the server says to a case; the error of the API's client where it refuses."""
        asks: Callable[..., Awaitable[Answered]] = getattr(self, f"_{case.asks}")
        return await asks(case.body, stream)

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()

    async def unload(self, model: str) -> None:
        """Have a model leave the workers once nobody asks for it."""
        if model == "minilm":
            await self._ollama.embed("minilm", "bye", keep_alive=0)
        else:
            await self._ollama.generate(model, keep_alive=0)

    async def _chat(self, body: dict[str, Any], stream: bool) -> Answered:
        create: Any = self._openai.chat.completions.create
        said = _Choices()
        if not stream:
            answer = await create(model="llama", **body)
            for choice in answer.choices:
                said.add(choice.index, choice.message.content or "", choice.finish_reason)
                said.call(choice.index, choice.message.tool_calls or ())
                said.score(choice.index, choice.logprobs.content if choice.logprobs else ())
            return said.form(answer.usage.completion_tokens)
        used = None
        async for chunk in await create(model="llama", **body, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                said.add(choice.index, choice.delta.content or "", choice.finish_reason)
                said.call(choice.index, choice.delta.tool_calls or ())
                said.score(choice.index, choice.logprobs.content if choice.logprobs else ())
            used = chunk.usage or used
        return said.form(used.completion_tokens if used else -1)

    async def _completion(self, body: dict[str, Any], stream: bool) -> Answered:
        create: Any = self._openai.completions.create
        said = _Choices()

        def hear(choice: Any) -> None:
            said.add(choice.index, choice.text, choice.finish_reason)
            if choice.logprobs is not None:
                found = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
                said.scores.setdefault(choice.index, []).extend([[token, score, []] for token, score in found])

        if not stream:
            answer = await create(model="llama", **body)
            for choice in answer.choices:
                hear(choice)
            return said.form(answer.usage.completion_tokens)
        used = None
        async for chunk in await create(model="llama", **body, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                hear(choice)
            used = chunk.usage or used
        return said.form(used.completion_tokens if used else -1)

    async def _response(self, body: dict[str, Any], stream: bool) -> Answered:
        create: Any = self._openai.responses.create
        if not stream:
            answer = await create(model="llama", **body)
            return {"text": answer.output_text, "status": answer.status, "tokens": answer.usage.output_tokens}
        text, last = "", None
        async for event in await create(model="llama", **body, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            last = getattr(event, "response", None) or last
        assert last is not None
        return {"text": text, "status": last.status, "tokens": last.usage.output_tokens}

    async def _embeddings(self, body: dict[str, Any], stream: bool) -> Answered:
        answer = await self._openai.embeddings.create(model="minilm", **body)
        return {"rows": [each.embedding for each in answer.data]}

    async def _message(self, body: dict[str, Any], stream: bool) -> Answered:
        if stream:
            async with self._anthropic.messages.stream(model="llama", **body) as coming:
                message = await coming.get_final_message()
        else:
            message = await self._anthropic.messages.create(model="llama", **body)
        blocks = [block.text if block.type == "text" else [block.name, block.input] for block in message.content]  # type: ignore[union-attr]
        return {
            "blocks": blocks, "reason": message.stop_reason, "stop": message.stop_sequence,
            "tokens": message.usage.output_tokens,
        }  # fmt: skip

    async def _count(self, body: dict[str, Any], stream: bool) -> Answered:
        return {"tokens": (await self._anthropic.messages.count_tokens(model="llama", **body)).input_tokens}

    async def _ollama_chat(self, body: dict[str, Any], stream: bool) -> Answered:
        return await _pieces(
            await self._ollama.chat("llama", **body, stream=stream), stream, lambda each: each.message.content
        )

    async def _ollama_generate(self, body: dict[str, Any], stream: bool) -> Answered:
        return await _pieces(
            await self._ollama.generate("llama", **body, stream=stream), stream, lambda each: each.response
        )

    async def _ollama_embed(self, body: dict[str, Any], stream: bool) -> Answered:
        return {"rows": [list(row) for row in (await self._ollama.embed("minilm", **body)).embeddings]}


async def _pieces(answer: Any, stream: bool, text_of: Callable[[Any], str | None]) -> Answered:
    """What Ollama's client gives, whole or piece by piece."""
    text, last = "", answer
    if stream:
        async for last in answer:
            text += text_of(last) or ""
    else:
        text = text_of(answer) or ""
    return {"text": text, "reason": last.done_reason, "tokens": last.eval_count}


@dataclass(slots=True)
class _Choices:
    """The choices of an answer of OpenAI's, by place: texts, ends, calls and scores, which may come in pieces."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    calls: dict[int, dict[int, list[str]]] = field(default_factory=dict)
    scores: dict[int, list[Any]] = field(default_factory=dict)

    def add(self, place: int, text: str, reason: str | None) -> None:
        self.texts[place] = self.texts.get(place, "") + text
        if reason is not None:
            self.reasons[place] = reason

    def call(self, place: int, calls: Any) -> None:
        for number, call in enumerate(calls):
            at = getattr(call, "index", None)
            held = self.calls.setdefault(place, {}).setdefault(number if at is None else at, ["", ""])
            held[0] += call.function.name or ""
            held[1] += call.function.arguments or ""

    def score(self, place: int, tokens: Any) -> None:
        for token in tokens or ():
            likeliest = [[each.token, each.logprob] for each in token.top_logprobs]
            self.scores.setdefault(place, []).append([token.token, token.logprob, likeliest])

    def form(self, tokens: int) -> Answered:
        places = sorted(self.texts)
        return {
            "texts": [self.texts[place] for place in places],
            "reasons": [self.reasons.get(place, "none") for place in places],
            "calls": [list(self.calls.get(place, {}).values()) for place in places],
            "scores": [self.scores.get(place, []) for place in places],
            "tokens": tokens,
        }
