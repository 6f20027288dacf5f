"""Anthropic's messages: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..inference.settings import Sampling
from .answer import Answer, Ended, TextPiece, TextRequest, ToolCalled, Usage, whole
from .api_error import ApiError, anthropic_shape
from .calls import Call
from .conversation import AUTO, NONE, REQUIRED, Conversation, asked, ends_with_assistant, function_tool, joined_text
from .fields import Fields
from .openai_chat import TOKENS_LIMIT, TOP_K_MAX
from .replies import EVENT_STREAM, JsonReply, Reply, StreamReply, named_frame

REASONS: Mapping[str, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
CHOICES: Mapping[str, str] = {"auto": AUTO, "any": REQUIRED, "none": NONE}


async def messages(call: Call) -> Reply:
    """Answer a conversation."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    chat = _conversation(fields)
    tokens_max = fields.integer("max_tokens", 1, TOKENS_LIMIT)
    if tokens_max is None:
        raise fields.wrong("max_tokens", "an integer", None)
    warmth, top_p = fields.number("temperature", 0, 1, 1.0), fields.number("top_p", 0, 1, 1.0)
    how = TextRequest(
        (), Sampling(warmth, fields.integer("top_k", 0, TOP_K_MAX, 0), max(top_p, 1e-6), call.new_seed()),
        tokens_max, stops=fields.texts("stop_sequences", 16),
    )  # fmt: skip
    stream = fields.boolean("stream", False)
    fields.done()
    answer = await model.begin(await asked(model, chat, how), call.client)
    head = {"id": call.new_id("msg_"), "type": "message", "role": "assistant", "model": model.facts.name}
    if stream:
        return StreamReply(EVENT_STREAM, _frames(head, answer), failed_message, answer.close)
    (said,) = await whole(answer)
    content: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text or not said.calls else []
    content += [{**_tool_use(called), "input": json.loads(called.call.arguments)} for called in said.calls]
    ended = _ended(Ended(0, said.reason, said.stop))
    return JsonReply({**head, "content": content, **ended, "usage": _usage(answer.usage)})


async def count_tokens(call: Call) -> Reply:
    """Count the tokens of a conversation."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    chat = _conversation(fields)
    fields.done()
    (prompt,) = (await asked(model, chat, TextRequest((), Sampling()))).prompts
    tokens = await asyncio.to_thread(model.tokenizer.ids, prompt, framed=False) if isinstance(prompt, str) else prompt
    return JsonReply({"input_tokens": len(tokens)})


# -- reading


def _conversation(fields: Fields) -> Conversation:
    tools = [_tool(Fields(each, f"tools[{place}]")) for place, each in enumerate(fields.items("tools"))]
    system = joined_text(fields.get("system"), "system")
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for place, each in enumerate(fields.items("messages", required=True)):
        messages += _messages(Fields(each, f"messages[{place}]"))
    continued = ends_with_assistant(messages)  # the answer goes on with it
    if continued and messages[-1]["content"] != messages[-1]["content"].rstrip():
        raise ApiError(400, "the last message of the assistant ends with whitespace: leave that out", param="messages")
    return Conversation(messages, tools, _tool_choice(fields, tools), continued=continued)


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """A message, and those of the tools whose results it has."""
    role = fields.choice("role", ("user", "assistant"), "")
    content = fields.get("content")
    if not role or content is None:
        raise fields.wrong("content" if role else "role", "user or assistant" if not role else "a text or blocks", None)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise fields.wrong("content", "a text or a list of blocks", content)
    texts, calls, results = [], [], []
    for place, each in enumerate(blocks):
        block = Fields(each, fields.name(f"content[{place}]"))
        kind = block.text("type")
        if kind == "tool_use":
            function = {"name": block.text("name"), "arguments": block.object("input") or {}}
            calls.append({"id": block.text("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = joined_text(block.get("content"), block.name("content"))
            results.append({"role": "tool", "tool_call_id": block.text("tool_use_id"), "content": result})
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(joined_text([each], fields.name("content")))
    message: dict[str, Any] = {"role": role, "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return [*results, *([message] if texts or calls or not results else [])]


def _tool(fields: Fields) -> dict[str, Any]:
    kind = fields.get("type")
    if kind not in (None, "custom"):
        raise ApiError(
            400, f"{fields.name('type')} is {kind!r}: this server runs no tools of its own",
            code="unsupported_parameter", param=fields.name("type"),
        )  # fmt: skip
    return function_tool(fields.text("name"), fields.text("description", ""), fields.object("input_schema"))


def _tool_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> str:
    given = fields.object("tool_choice")
    if given is None:
        return AUTO
    inner = Fields(given, "tool_choice")
    kind = inner.choice("type", ("auto", "any", "tool", "none"), "auto")
    if kind in ("any", "tool") and not tools:
        raise fields.wrong("tools", "a list of tools, as tool_choice needs one", None)
    return inner.text("name") if kind == "tool" else CHOICES[kind]


# -- writing


def _ended(event: Ended) -> dict[str, Any]:
    reason = "stop_sequence" if event.stop and event.reason == "stop" else REASONS[event.reason]
    return {"stop_reason": reason, "stop_sequence": event.stop or None}


def _usage(usage: Usage) -> dict[str, int]:
    """The tokens as Anthropic counts them: those that were found are not among those of the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens, "output_tokens": usage.completion_tokens,
    }  # fmt: skip


def _tool_use(called: ToolCalled) -> dict[str, Any]:
    return {"type": "tool_use", "id": called.call_id, "name": called.call.name, "input": {}}


def failed_message(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return _frame("error", **anthropic_shape(error))


def _frame(kind: str, **fields: Any) -> bytes:
    return named_frame(kind, {**fields, "type": kind})


@dataclass(slots=True)
class _Blocks:
    """The blocks of a streamed message: which one is open."""

    index: int = -1
    open: bool = False

    def start(self, block: dict[str, Any]) -> bytes:
        self.index, self.open = self.index + 1, True
        return _frame("content_block_start", index=self.index, content_block=block)

    def delta(self, delta: dict[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self.index, delta=delta)

    def stop(self) -> list[bytes]:
        frames = [_frame("content_block_stop", index=self.index)] if self.open else []
        self.open = False
        return frames


async def _frames(head: Mapping[str, Any], answer: Answer) -> AsyncIterator[bytes]:
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(answer.usage)}
    yield _frame("message_start", message={**head, **empty})
    blocks = _Blocks()
    async for event in answer.events():
        if isinstance(event, TextPiece):
            if not blocks.open:
                yield blocks.start({"type": "text", "text": ""})
            yield blocks.delta({"type": "text_delta", "text": event.text})
        elif isinstance(event, ToolCalled):
            for frame in blocks.stop():
                yield frame
            yield blocks.start(_tool_use(event))
            yield blocks.delta({"type": "input_json_delta", "partial_json": event.call.arguments})
            for frame in blocks.stop():
                yield frame
        else:
            for frame in blocks.stop():
                yield frame
            yield _frame("message_delta", delta=_ended(event), usage=_usage(answer.usage))
    yield _frame("message_stop")
