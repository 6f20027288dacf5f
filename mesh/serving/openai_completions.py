"""OpenAI's completions of plain texts: POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

from .answer import Answer, Ended, ScoredToken, TextPiece, TextRequest, whole
from .api_error import wrong
from .calls import Call
from .conversation import read_format
from .fields import Fields, whole_characters
from .openai_chat import Head, failed_frame, read_adjustment, read_sampling, read_tokens_max, usage_of, wants_usage
from .replies import DONE, EVENT_STREAM, JsonReply, Reply, StreamReply, data_frame
from .served_text import CHOICES_MAX

TOKENS_MAX = 16  # of an answer, where the request does not say: OpenAI's own default


async def completions(call: Call) -> Reply:
    """Go on with texts."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    likeliest = fields.integer("logprobs", 0, 20)
    echo = fields.boolean("echo", False)
    if echo:
        raise wrong("this server does not support echo: leave it out", "echo", "unsupported_parameter")
    how = TextRequest(
        read_prompts(fields.get("prompt"), "prompt"), read_sampling(fields, call),
        read_tokens_max(fields) or TOKENS_MAX, fields.integer("n", 1, CHOICES_MAX, 1), fields.texts("stop", 16),
        likeliest, read_format(fields), adjustment=read_adjustment(fields), framed=True, param="prompt",
    )  # fmt: skip
    stream, usage = fields.boolean("stream", False), wants_usage(fields)
    fields.done()
    answer = await model.begin(how, call.client)
    head = Head(call.new_id("cmpl-"), call.now_s(), model.facts.name, likeliest is not None)
    if stream:
        return StreamReply(EVENT_STREAM, _frames(head, answer, usage), failed_frame, answer.close)
    choices = [
        _choice(head, place, said.text, said.scores, said.reason) for place, said in enumerate(await whole(answer))
    ]
    return JsonReply({**head.fields("text_completion"), "choices": choices, "usage": usage_of(answer.usage)})


def read_prompts(value: Any, name: str) -> tuple[str | tuple[int, ...], ...]:
    """One or more prompts, each a text or a list of tokens."""
    several = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    prompts: list[str | tuple[int, ...]] = []
    for place, each in enumerate(several):
        if isinstance(each, str):
            prompts.append(whole_characters(each, name))
        elif isinstance(each, list) and each and all(type(token) is int for token in each):
            prompts.append(tuple(each))
        else:
            raise wrong(f"{name}[{place}] is a text or a list of tokens", name)
    return tuple(prompts)


def _choice(head: Head, place: int, text: str, scores: tuple[ScoredToken, ...], reason: str | None) -> dict[str, Any]:
    return {"index": place, "text": text, "logprobs": _scores(scores) if head.scored else None, "finish_reason": reason}


def _scores(scores: tuple[ScoredToken, ...]) -> dict[str, Any]:
    return {
        "tokens": [each.text for each in scores],
        "token_logprobs": [each.logprob for each in scores],
        "top_logprobs": [{other.text: other.logprob for other in each.likeliest} for each in scores],
        "text_offset": list(accumulate((len(each.text) for each in scores[:-1]), initial=0)) if scores else [],
    }


async def _frames(head: Head, answer: Answer, usage: bool) -> AsyncIterator[bytes]:
    fields = head.fields("text_completion") | ({"usage": None} if usage else {})
    async for event in answer.events():
        if isinstance(event, TextPiece):
            yield data_frame({**fields, "choices": [_choice(head, event.choice, event.text, event.scores, None)]})
        elif isinstance(event, Ended):
            yield data_frame({**fields, "choices": [_choice(head, event.choice, "", (), event.reason)]})
    if usage:
        yield data_frame({**fields, "choices": [], "usage": usage_of(answer.usage)})
    yield DONE
