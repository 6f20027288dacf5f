"""OpenAI's responses, as far as text and tools go: POST /v1/responses.  Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from .answer import Answer, Ended, TextPiece, TextRequest, ToolCalled, Usage, whole
from .api_error import ApiError, openai_shape
from .calls import Call
from .conversation import Conversation, asked, joined_text, read_call, read_format, read_tool_choice, read_tools
from .fields import Fields, whole_characters
from .grammar import Grammar
from .openai_chat import TOKENS_LIMIT, read_sampling
from .replies import EVENT_STREAM, JsonReply, Reply, StreamReply, named_frame


async def responses(call: Call) -> Reply:
    """Answer an input."""
    fields = Fields(call.body)
    model = call.models.text(fields.text("model"))
    tools = read_tools(fields)
    chat = Conversation(_messages(fields), tools, read_tool_choice(fields, tools), _format(fields))
    sampling = read_sampling(fields, call)
    how = TextRequest((), sampling, fields.integer("max_output_tokens", 1, TOKENS_LIMIT), param="input")
    stream = fields.boolean("stream", False)
    fields.done()
    answer = await model.begin(await asked(model, chat, how), call.client)
    settings = {
        "instructions": call.body.get("instructions"), "temperature": sampling.temperature, "top_p": sampling.top_p,
        "max_output_tokens": how.tokens_max, "tools": call.body.get("tools") or [], "tool_choice": chat.tool_choice,
        "parallel_tool_calls": True, "metadata": call.body.get("metadata") or {}, "previous_response_id": None,
        "store": False, "text": call.body.get("text") or {"format": {"type": "text"}}, "truncation": "disabled",
    }  # fmt: skip
    head = _Head(call.new_id("resp_"), call.now_s(), model.facts.name, settings, call.new_id)
    if stream:
        return StreamReply(EVENT_STREAM, _frames(head, answer), failed_response, answer.close)
    (said,) = await whole(answer)
    items = [_message(head.new_id("msg_"), said.text)] if said.text or not said.calls else []
    items += [_call_item(head.new_id("fc_"), called) for called in said.calls]
    return JsonReply(head.response(items, said.reason, answer.usage))


# -- reading


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """The input and the instructions as messages."""
    instructions, given = fields.text("instructions", ""), fields.get("input")
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": whole_characters(given, "input")}]
    for place, each in enumerate(fields.items("input", required=True)):
        messages.append(_item(Fields(each, f"input[{place}]")))
    return messages


def _item(fields: Fields) -> dict[str, Any]:
    kind = fields.choice("type", ("message", "function_call", "function_call_output"), "message")
    if kind == "message":
        role = fields.choice("role", ("system", "developer", "user", "assistant"), "user")
        return {"role": role, "content": joined_text(fields.get("content"), fields.name("content"))}
    if kind == "function_call_output":
        output = joined_text(fields.get("output"), fields.name("output"))
        return {"role": "tool", "tool_call_id": fields.text("call_id"), "content": output}
    arguments = Fields(
        {"type": "function", "id": fields.get("call_id"), "function": {
            "name": fields.get("name"), "arguments": fields.get("arguments")}}, fields.name("call"),
    )  # fmt: skip
    return {"role": "assistant", "content": None, "tool_calls": [read_call(arguments)]}


def _format(fields: Fields) -> Grammar | None:
    given = fields.object("text")
    return None if given is None else read_format(Fields(given, "text"), "format")


# -- writing


@dataclass(frozen=True, slots=True)
class _Head:
    """What every object of an answer begins with."""

    response_id: str
    created_s: int
    model: str
    settings: Mapping[str, Any]
    new_id: Any

    def response(self, items: list[dict[str, Any]], reason: str | None, usage: Usage | None) -> dict[str, Any]:
        """The response as far as it is there; `reason` None while it goes on."""
        cut = {"reason": "max_output_tokens"} if reason == "length" else None
        status = "in_progress" if reason is None else "incomplete" if cut else "completed"
        return {
            "id": self.response_id, "object": "response", "created_at": self.created_s, "status": status, "error": None,
            "incomplete_details": cut, "model": self.model, "output": items, **self.settings,
            "usage": None if usage is None else _usage(usage),
        }  # fmt: skip


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens, "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }  # fmt: skip


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(item_id: str, text: str, status: str = "completed") -> dict[str, Any]:
    content = [_part(text)] if status == "completed" else []
    return {"type": "message", "id": item_id, "status": status, "role": "assistant", "content": content}


def _call_item(item_id: str, called: ToolCalled) -> dict[str, Any]:
    return {
        "type": "function_call", "id": item_id, "call_id": called.call_id, "name": called.call.name,
        "arguments": called.call.arguments, "status": "completed",
    }  # fmt: skip


def failed_response(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    shaped = openai_shape(error)["error"]
    return named_frame("error", {"type": "error", "code": shaped["code"], "message": shaped["message"], "param": None})


class _Events:
    """The frames of a streamed response, numbered; at most one message is open."""

    def __init__(self, head: _Head) -> None:
        self.items: list[dict[str, Any]] = []
        self._head = head
        self._number = -1
        self._message = ""
        self._text = ""

    def frame(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return named_frame(name, {"type": name, "sequence_number": self._number, **fields})

    def text(self, text: str) -> list[bytes]:
        frames = [] if self._message else self._open()
        self._text += text
        return [*frames, self.frame("output_text.delta", **self._place(), delta=text, logprobs=[])]

    def close(self) -> list[bytes]:
        """End the message that is open, if one is."""
        if not self._message:
            return []
        place, item = self._place(), _message(self._message, self._text)
        frames = [
            self.frame("output_text.done", **place, text=self._text, logprobs=[]),
            self.frame("content_part.done", **place, part=_part(self._text)),
            self.frame("output_item.done", output_index=len(self.items), item=item),
        ]
        self.items.append(item)
        self._message = self._text = ""
        return frames

    def call(self, called: ToolCalled) -> list[bytes]:
        item, index = _call_item(self._head.new_id("fc_"), called), len(self.items)
        begun = {**item, "arguments": "", "status": "in_progress"}
        where = {"item_id": item["id"], "output_index": index}
        frames = [
            self.frame("output_item.added", output_index=index, item=begun),
            self.frame("function_call_arguments.delta", **where, delta=item["arguments"]),
            self.frame("function_call_arguments.done", **where, arguments=item["arguments"], name=item["name"]),
            self.frame("output_item.done", output_index=index, item=item),
        ]
        self.items.append(item)
        return frames

    def _open(self) -> list[bytes]:
        self._message = self._head.new_id("msg_")
        item = _message(self._message, "", "in_progress")
        return [
            self.frame("output_item.added", output_index=len(self.items), item=item),
            self.frame("content_part.added", **self._place(), part=_part("")),
        ]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message, "output_index": len(self.items), "content_index": 0}


async def _frames(head: _Head, answer: Answer) -> AsyncIterator[bytes]:
    events = _Events(head)
    for kind in ("created", "in_progress"):
        yield events.frame(kind, response=head.response([], None, None))
    async for event in answer.events():
        frames = events.text(event.text) if isinstance(event, TextPiece) else events.close()
        if isinstance(event, ToolCalled):
            frames += events.call(event)
        elif isinstance(event, Ended):
            if not events.items:
                frames += [*events.text(""), *events.close()]
            kind = "incomplete" if event.reason == "length" else "completed"
            frames.append(events.frame(kind, response=head.response(events.items, event.reason, answer.usage)))
        for frame in frames:
            yield frame
