"""OpenAI's chat completions: POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from ..inference.logit_adjustment import BIAS_MAX, BIASES_MAX, PENALTY_MAX, LogitAdjustment
from ..inference.settings import Sampling
from .answer import Answer, Ended, Event, Said, ScoredToken, TextPiece, TextRequest, ToolCalled, Usage, whole
from .api_error import ApiError, openai_shape, wrong
from .calls import Call
from .conversation import Conversation, asked, is_continued, read_format, read_messages, read_tool_choice, read_tools
from .fields import Fields
from .replies import DONE, EVENT_STREAM, JsonReply, Reply, StreamReply, data_frame
from .served_text import CHOICES_MAX

TOKENS_LIMIT = 1 << 30
SEED_MAX = (1 << 63) - 1
TOP_K_MAX = (1 << 31) - 1
TOKEN_DIGITS_MAX = 10  # of the number of a token


async def chat_completions(call: Call) -> Reply:
    """Answer a conversation."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    tools = read_tools(fields)
    messages = read_messages(fields)
    chat = Conversation(
        messages,
        tools,
        read_tool_choice(fields, tools),
        read_format(fields),
        fields.object("chat_template_kwargs") or {},
        is_continued(fields, messages),
    )
    wanted = fields.boolean("logprobs", False)
    likeliest = fields.integer("top_logprobs", 0, 20)
    if likeliest is not None and not wanted:
        raise wrong("top_logprobs needs logprobs: true", "top_logprobs")
    how = TextRequest(
        (), read_sampling(fields, call), read_tokens_max(fields), fields.integer("n", 1, CHOICES_MAX, 1),
        fields.texts("stop", 16), (likeliest or 0) if wanted else None,
        adjustment=read_adjustment(fields),
    )  # fmt: skip
    stream, usage = fields.boolean("stream", False), wants_usage(fields)
    fields.done()
    answer = await model.begin(await asked(model, chat, how), call.client)
    head = Head(call.new_id("chatcmpl-"), call.now_s(), model.facts.name, wanted)
    if stream:
        return StreamReply(EVENT_STREAM, _frames(head, answer, usage), failed_frame, answer.close)
    choices = [_choice(place, said, wanted) for place, said in enumerate(await whole(answer))]
    return JsonReply({**head.fields("chat.completion"), "choices": choices, "usage": usage_of(answer.usage)})


def failed_frame(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return data_frame(openai_shape(error))


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of an answer begins with."""

    answer_id: str
    created_s: int
    model: str
    scored: bool

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created_s, "model": self.model}


def read_sampling(fields: Fields, call: Call, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Sampling:
    """How tokens are drawn; a seed that is not given is one that nobody knows."""
    warmth = fields.number("temperature", 0, 2, temperature)
    most = fields.number("top_p", 0, 1, top_p)
    seed = fields.integer("seed", -SEED_MAX, SEED_MAX)
    return Sampling(
        warmth, fields.integer("top_k", -1, TOP_K_MAX, top_k) if fields.get("top_k") != -1 else 0,
        max(most, 1e-6), call.new_seed() if seed is None else seed,
    )  # fmt: skip


def read_adjustment(fields: Fields) -> LogitAdjustment | None:
    """What changes the logits; None for nothing, so that such a text runs as one that does not name it."""
    presence, frequency = (
        fields.number(name, -PENALTY_MAX, PENALTY_MAX, 0) for name in ("presence_penalty", "frequency_penalty")
    )
    adjustment = LogitAdjustment(_read_biases(fields), presence, frequency)
    return None if adjustment.neutral else adjustment


def _read_biases(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.object("logit_bias") or {}
    if len(given) > BIASES_MAX:
        raise wrong(f"logit_bias has {BIASES_MAX} tokens at most, got {len(given)}", "logit_bias")
    biases: dict[int, float] = {}
    inner = Fields(given, "logit_bias")
    for name in given:
        if not (name.isascii() and name.isdigit() and len(name) <= TOKEN_DIGITS_MAX):
            raise wrong(f"logit_bias has the numbers of tokens, counted from 0, got {name!r:.60}", "logit_bias")
        if int(name) in biases:
            raise wrong(f"logit_bias has token {int(name)} twice", "logit_bias")
        if inner.get(name) is None:
            message = f"logit_bias.{name} is a number from {-BIAS_MAX:g} to {BIAS_MAX:g}, got None"
            raise wrong(message, f"logit_bias.{name}")
        biases[int(name)] = inner.number(name, -BIAS_MAX, BIAS_MAX, 0)
    return tuple(biases.items())


def read_tokens_max(fields: Fields) -> int | None:
    """How many tokens may come, by either of its names; None if nobody says."""
    new, old = (fields.integer(name, 1, TOKENS_LIMIT) for name in ("max_completion_tokens", "max_tokens"))
    limit: int | None = new if new is not None else old
    return limit


def wants_usage(fields: Fields) -> bool:
    """Whether a stream ends with the number of tokens."""
    options = fields.object("stream_options")
    return Fields(options, "stream_options").boolean("include_usage", False) if options else False


def usage_of(usage: Usage) -> dict[str, Any]:
    """How many tokens there were, as OpenAI counts them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def scores_of(scores: tuple[ScoredToken, ...]) -> dict[str, Any]:
    """The probabilities of tokens, as chat completions have them."""
    return {"content": [{**_score(each), "top_logprobs": [*map(_score, each.likeliest)]} for each in scores]}


def _score(token: ScoredToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def call_of(called: ToolCalled) -> dict[str, Any]:
    """A tool call, as chat completions have it."""
    function = {"name": called.call.name, "arguments": called.call.arguments}
    return {"id": called.call_id, "type": "function", "function": function}


def _choice(place: int, said: Said, scored: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said.text or (None if said.calls else ""),
        "refusal": None,
    }
    if said.calls:
        message["tool_calls"] = [call_of(called) for called in said.calls]
    scores = scores_of(said.scores) if scored else None
    return {"index": place, "message": message, "logprobs": scores, "finish_reason": said.reason}


async def _frames(head: Head, answer: Answer, usage: bool) -> AsyncIterator[bytes]:
    fields = head.fields("chat.completion.chunk") | ({"usage": None} if usage else {})
    for place in range(len(answer.streams)):
        yield data_frame({**fields, "choices": [_delta(place, {"role": "assistant", "content": ""})]})
    async for event in answer.events():
        yield data_frame({**fields, "choices": [_event(event, head.scored)]})
    if usage:
        yield data_frame({**fields, "choices": [], "usage": usage_of(answer.usage)})
    yield DONE


def _event(event: Event, scored: bool) -> dict[str, Any]:
    if isinstance(event, Ended):
        return _delta(event.choice, {}, event.reason)
    if isinstance(event, ToolCalled):
        return _delta(event.choice, {"tool_calls": [{"index": event.number, **call_of(event)}]})
    assert isinstance(event, TextPiece)
    scores = {"logprobs": scores_of(event.scores)} if scored else {}
    return _delta(event.choice, {"content": event.text}) | scores


def _delta(place: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": place, "delta": delta, "logprobs": None, "finish_reason": reason}
