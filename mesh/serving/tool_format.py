"""Tool format: how the models of a family write that they want a tool called, read and enforced.

One row of FORMATS is one family; a model's is known by what its chat template has.  `Reader` finds the calls in an
answer as it comes, `grammar` makes the answer one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .grammar import ANY_OBJECT, Grammar


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The calls of a family: between `opening` and `closing`, each as a JSON object, or all in one list.

    `sign` is what the template of such a model has.  Without an `opening`, an answer that begins with a brace is
    a call.
    """

    name: str
    sign: str
    opening: str
    closing: str = ""
    between: str = ""  # what the model writes between these and the JSON
    listed: bool = False
    called: str = "name"
    arguments: str = "arguments"


FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("hermes", "<tool_call>", "<tool_call>", "</tool_call>", "\n"),
    ToolFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", listed=True),
    ToolFormat("granite", "<|tool_call|>", "<|tool_call|>", listed=True),
    ToolFormat("command-r", '"tool_name": "', "Action:\n```json", "```", "\n", True, "tool_name", "parameters"),
    ToolFormat("llama", '"parameters": ', "", arguments="parameters"),
)
VALUES = frozenset({"const", "default", "enum", "examples"})  # of a schema, which are no schemas
OPEN = frozenset(
    {"additionalProperties", "allOf", "anyOf", "oneOf", "$ref", "patternProperties", "unevaluatedProperties"}
)
PYTHON = "<|python_tag|>"  # what Llama may write before a call
OTHER = ToolFormat("other", "", "")  # a JSON object with name and arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wants: the tool's name, and its arguments as a JSON text."""

    name: str
    arguments: str


def format_of(template: str) -> ToolFormat:
    """The format of the models with this chat template."""
    return next((row for row in FORMATS if row.sign in template), OTHER)


def grammar(row: ToolFormat, tools: Sequence[Mapping[str, Any]], special_id: Callable[[str], int | None]) -> Grammar:
    """What an answer is that calls one of these tools, and says nothing else."""
    calls = [_call_schema(row, tool) for tool in tools]
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    shape = {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if row.listed else one
    pieces = ["call"]
    if row.opening:
        pieces = [_literal(row.opening, special_id), *_text(row.between), "call"]
        if row.closing:
            pieces += [*_text(row.between), _literal(row.closing, special_id)]
    guidance = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return Grammar(
        "tools", lark=f"start: {' '.join(pieces)}\ncall: %json {json.dumps({**shape, 'x-guidance': guidance})}\n"
    )


def _call_schema(row: ToolFormat, tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    properties = {
        row.called: {"const": function["name"]},
        row.arguments: closed(function.get("parameters") or ANY_OBJECT),
    }
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties but those that it names, where it says nothing of others."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: value if name in VALUES else closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), Mapping) and not OPEN & schema.keys():
        found["additionalProperties"] = False
    return found


def _literal(text: str, special_id: Callable[[str], int | None]) -> str:
    """A text in a grammar: the token that it is, or its characters."""
    number = special_id(text)
    return json.dumps(text) if number is None else f"<[{number}]>"


def _text(text: str) -> list[str]:
    return [json.dumps(text)] if text else []


class Reader:
    """The text of an answer that may have calls in it: `add` gives what is text for sure, `calls` what was called."""

    def __init__(self, row: ToolFormat) -> None:
        self.calls: list[ToolCall] = []
        self._row = row
        self._held = ""  # what may be a call, or the beginning of its opening
        self._inside = False
        self._written = False
        self._line_ends = False

    def add(self, piece: str) -> str:
        """The next piece of the answer; what of it and of what was held back is text."""
        self._held += piece
        text = self._next()
        self._written = self._written or bool(text.strip())
        return text

    def rest(self) -> str:
        """What was held back, now that the answer is over: "" if it is a call."""
        held, self._held = self._held, ""
        body = held[len(self._row.opening) :] if self._inside and self._row.opening else held
        if self._inside and self._read(body.removesuffix(self._row.closing) if self._row.closing else body):
            return ""
        return held

    def _next(self) -> str:
        opening = self._row.opening
        if not opening:
            start = self._held.lstrip()
            code = start.removeprefix(PYTHON).lstrip()
            self._inside = not self._written and (PYTHON.startswith(start) or code[:1] in ("", "{"))
            return "" if self._inside else self._release(len(self._held))
        text = ""
        while True:
            if self._line_ends and self._held:  # what stands between two calls is no text
                self._held, self._line_ends = self._held.removeprefix("\n"), False
            at = self._held.find(opening)
            self._inside = at >= 0
            if at < 0:
                return text + self._release(len(self._held) - overlap(self._held, opening))
            text += self._release(at)
            end = self._held.find(self._row.closing, len(opening)) if self._row.closing else -1
            if end < 0:
                return text
            whole = end + len(self._row.closing)
            if not self._read(self._held[len(opening) : end]):
                text += self._held[:whole]
            self._held = self._held[whole:]
            self._inside = False
            self._line_ends = True

    def _release(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        return text

    def _read(self, body: str) -> bool:
        """Whether this is calls, which are kept then."""
        try:
            found = json.loads(body.strip().removeprefix(PYTHON))
        except (ValueError, RecursionError):
            return False
        called = found if isinstance(found, list) else [found]
        calls = [self._call(each) for each in called]
        if not calls or None in calls:
            return False
        self.calls += [call for call in calls if call is not None]
        return True

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or not isinstance(value.get(self._row.called), str):
            return None
        arguments = value.get(self._row.arguments, {} if self._row.opening else None)
        if not isinstance(arguments, dict):
            return None
        return ToolCall(value[self._row.called], json.dumps(arguments, ensure_ascii=False))


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of `text` that is a beginning of `marker`, and not all of it."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
