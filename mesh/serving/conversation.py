"""Conversation: messages, tools and answer formats as OpenAI's API has them, in the form that chat templates take.

The other APIs are translated to this form first (`anthropic_messages.py`, `ollama.py`, `openai_responses.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .answer import TextRequest
from .api_error import ApiError, wrong
from .fields import Fields, parsed_json, whole_characters
from .grammar import ANY_OBJECT, Grammar
from .served_text import ServedText
from .special_tokens import mark_for, marked
from .tool_format import format_of, grammar

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
TOOLS_MAX = 128
AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat request says beside how its answer is sampled.

    `tool_choice` is AUTO, NONE, REQUIRED or the name of a tool.  `template` are further variables of the template.  The
    answer goes on with the last message where this is `continued`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = AUTO
    format: Grammar | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    continued: bool = False


async def asked(model: ServedText, chat: Conversation, how: TextRequest) -> TextRequest:
    """The request for a model: its prompt by the model's template, its grammar by tools or format.

    A template takes time and is another's program, so it runs in a thread.
    """
    return await asyncio.to_thread(_asked, model, chat, how)


def _asked(model: ServedText, chat: Conversation, how: TextRequest) -> TextRequest:
    source = model.template.source(bool(chat.tools)) if model.template else ""
    tools = chat.tools if chat.tool_choice != NONE else ()
    if tools and "tools" not in source:
        raise ApiError(
            400, f"the chat template of {model.facts.name!r} has no tools", code="unsupported_parameter", param="tools"
        )
    prompt = _prompt(model, for_template(chat.messages, source), tools, chat)
    if not tools:
        return replace(how, prompts=(prompt,), grammar=chat.format)
    row = format_of(source)
    if chat.tool_choice == AUTO:
        return replace(how, prompts=(prompt,), grammar=chat.format, tools=None if chat.format else row)
    named = [tool for tool in tools if chat.tool_choice in (REQUIRED, tool["function"]["name"])]
    if not named:
        raise wrong(f"tool_choice names {chat.tool_choice!r}, which is none of the tools", "tool_choice")
    return replace(how, prompts=(prompt,), grammar=grammar(row, named, model.tokenizer.id_of), tools=row)


def _prompt(
    model: ServedText, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], chat: Conversation
) -> str | tuple[int, ...]:
    """The text of a conversation; its tokens where a text in it spells a special one."""
    tokens, more = model.tokenizer.special_tokens, dict(chat.template)
    mark = mark_for((messages, tools, more), tokens)
    if not mark:
        return model.prompt_of(messages, tools, more, chat.continued)
    messages, tools, more = (marked(each, tokens, mark) for each in (messages, tools, more))
    return tuple(model.tokenizer.marked(model.prompt_of(messages, tools, more, chat.continued), mark))


# -- reading


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """The messages of a request, each checked; ApiError names the one that is wrong."""
    given = fields.items("messages", required=True)
    return [_message(Fields(each, f"messages[{place}]")) for place, each in enumerate(given)]


def is_continued(fields: Fields, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the answer goes on with the last message; ApiError 400 if that is no text of the assistant."""
    if not fields.boolean("continue_final_message", False):
        return False
    if not ends_with_assistant(messages):
        raise wrong("continue_final_message needs a last message that is a text of the assistant", "messages")
    return True


def ends_with_assistant(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is a text of the assistant."""
    last = messages[-1] if messages else {"role": ""}
    return last["role"] == "assistant" and not last.get("tool_calls") and bool((last["content"] or "").strip())


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    """The tools of a request, as templates take them."""
    given = fields.items("tools")
    if len(given) > TOOLS_MAX:
        raise wrong(f"tools has {TOOLS_MAX} items at most, got {len(given)}", "tools")
    return [_tool(Fields(each, f"tools[{place}]")) for place, each in enumerate(given)]


def function_tool(name: str, description: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A tool as chat templates take it."""
    shown = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **shown, "parameters": parameters or dict(ANY_OBJECT)}}


def read_tool_choice(fields: Fields, tools: Sequence[Mapping[str, Any]]) -> str:
    """AUTO, NONE, REQUIRED or the name of a tool."""
    value = fields.get("tool_choice")
    if value is None:
        return AUTO
    named = value.get("function", value) if isinstance(value, dict) else None
    choice = named.get("name") if isinstance(named, dict) else value
    if not isinstance(choice, str) or (named is None and choice not in (AUTO, NONE, REQUIRED)):
        raise fields.wrong("tool_choice", 'auto, none, required, or {"type": "function", ...}', value)
    if choice not in (AUTO, NONE) and not tools:
        raise wrong("tool_choice needs tools", "tool_choice")
    return choice


def read_format(fields: Fields, field: str = "response_format") -> Grammar | None:
    """What the answer has to be; None for any text."""
    given = fields.object(field)
    if given is None:
        return None
    inner = Fields(given, fields.name(field))
    kind = inner.choice("type", ("text", "json_object", "json_schema"), "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(fields.name(field), dict(ANY_OBJECT))
    nested = inner.object("json_schema")
    schema = (nested or given).get("schema")
    if not isinstance(schema, dict):
        raise inner.wrong("json_schema.schema" if nested else "schema", "a JSON schema", schema)
    return Grammar(fields.name(field), schema)


def joined_text(content: Any, name: str) -> str:
    """The text of a message's content: a text, or parts that are all text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return whole_characters(content, name)
    if not isinstance(content, list):
        raise wrong(f"{name} is a text or a list of parts", name)
    pieces = []
    for place, part in enumerate(content):
        where = f"{name}[{place}]"
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            pieces.append(part["refusal"])
            continue
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ApiError(
                400, f"{where} is no text: this model reads text alone", code="unsupported_content", param=where
            )
        pieces.append(whole_characters(part["text"], where))
    return "".join(pieces)


def _message(fields: Fields) -> dict[str, Any]:
    role = fields.choice("role", ROLES, "")
    if not role:
        raise fields.wrong("role", f"one of {', '.join(ROLES)}", None)
    content, calls = fields.get("content"), fields.items("tool_calls")
    if content is None and not calls:
        raise fields.wrong("content", "a text", None)
    message: dict[str, Any] = {"role": role, "content": joined_text(content, fields.name("content"))}
    if calls:
        message["tool_calls"] = [
            read_call(Fields(each, fields.name(f"tool_calls[{at}]"))) for at, each in enumerate(calls)
        ]
        if content is None:
            message["content"] = None
    for name in ("name", "tool_call_id", "reasoning_content"):
        if fields.get(name) is not None:
            message[name] = fields.text(name)
    for name in ("refusal", "annotations", "audio", "function_call", "reasoning", "thinking"):
        fields.get(name)  # of answers that a client sends back
    return message


def read_call(fields: Fields) -> dict[str, Any]:
    """A tool call that a model made, as a client sends it back."""
    fields.choice("type", ("function",), "function")
    inner = Fields(fields.get("function"), fields.name("function"))
    given = inner.get("arguments")
    try:
        arguments = parsed_json(given) if isinstance(given, str) and given else given or {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise inner.wrong("arguments", "a JSON object as a text", given)
    call_id = {"id": fields.text("id")} if fields.get("id") is not None else {}
    return {**call_id, "type": "function", "function": {"name": inner.text("name"), "arguments": arguments}}


def _tool(fields: Fields) -> dict[str, Any]:
    fields.choice("type", ("function",), "function")
    inner = Fields(fields.get("function"), fields.name("function")) if "function" in fields.body else fields
    name = inner.text("name")
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", name):
        raise inner.wrong("name", "up to 128 letters, digits, _ . : and -", name)
    return function_tool(name, inner.text("description", ""), inner.object("parameters"))


# -- for templates


def for_template(messages: Sequence[Mapping[str, Any]], source: str) -> list[Mapping[str, Any]]:
    """Messages with roles and arguments as this template expects them."""
    as_text = bool(re.search(r"""arguments['"]?\]?\s*\+""", source))  # joined to other text as it is
    return [_fitting(message, source, as_text) for message in messages]


def _fitting(message: Mapping[str, Any], source: str, as_text: bool) -> Mapping[str, Any]:
    if message["role"] == "developer" and "developer" not in source:
        message = {**message, "role": "system"}
    if as_text and message.get("tool_calls"):
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
        message = {**message, "tool_calls": calls}
    return message
