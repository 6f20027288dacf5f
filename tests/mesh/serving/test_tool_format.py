"""Tool calls are found in answers as they come, in the form of each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh.serving.tool_format import FORMATS, OTHER, Reader, ToolCall, ToolFormat, closed, format_of, grammar

TEMPLATES = Path(__file__).parents[2] / "golden" / "chat_templates"
ROWS = {row.name: row for row in FORMATS}
CALL = ToolCall("add", '{"a": 1}')
WRITTEN = {
    "hermes": ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', 1),
    "mistral": ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', 1),
    "granite": ('<|tool_call|>[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 1}}]', 2),
    "command-r": ('Action:\n```json\n[{"tool_name": "add", "parameters": {"a": 1}}]\n```', 1),
    "llama": ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', 1),
}


@pytest.mark.parametrize(
    ("template", "name"),
    [("qwen2.5", "hermes"), ("qwen3", "hermes"), ("hermes3", "hermes"), ("mistral-nemo", "mistral"),
     ("granite", "granite"), ("command-r-tools", "command-r"), ("llama3.1", "llama"), ("chatml", "other")],
)  # fmt: skip
def test_the_format_is_known_by_the_template(template: str, name: str) -> None:
    assert format_of((TEMPLATES / f"{template}.jinja").read_text("utf-8")).name == name


def read(row: ToolFormat, text: str, size: int) -> tuple[str, list[ToolCall]]:
    reader = Reader(row)
    pieces = [reader.add(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join(pieces) + reader.rest(), reader.calls


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", WRITTEN)
def test_calls_are_found_however_the_text_is_cut(name: str, size: int) -> None:
    text, count = WRITTEN[name]
    assert read(ROWS[name], text, size) == ("", [CALL] * count)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", ["hermes", "mistral", "command-r"])
def test_text_before_a_call_stays_text(name: str, size: int) -> None:
    text, count = WRITTEN[name]
    assert read(ROWS[name], f"Let me see. {text}", size) == ("Let me see. ", [CALL] * count)


@pytest.mark.parametrize("size", [1, 1000])
def test_several_calls_and_text_between(size: int) -> None:
    text = WRITTEN["hermes"][0]
    assert read(ROWS["hermes"], f"{text}\n{text} and", size) == (" and", [CALL, CALL])


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("row", [*FORMATS, OTHER], ids=lambda row: row.name)
@pytest.mark.parametrize(
    "text",
    ["plain", "", "{", '{"a": 1}', "<tool_call>", "<tool_call>\n{}\n</tool_call>", "a <tool", "[TOOL_CALLS][1]",
     "x < y [", '<tool_call>{"name": 3}</tool_call>', '{"name": "f", "parameters": [1]}', "[" * 9999,
     "Action:\n```json\n[]```"],
)  # fmt: skip
def test_what_is_no_call_is_text(row: ToolFormat, text: str, size: int) -> None:
    assert read(row, text, size) == (text, [])


def test_a_forced_call_is_written_as_the_model_would() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    found = grammar(ROWS["hermes"], [tool], lambda text: 7 if text == "<tool_call>" else None)
    assert found.lark.startswith('start: <[7]> "\\n" call "\\n" "</tool_call>"\ncall: %json {')
    schema = json.loads(found.lark.partition("%json ")[2])
    assert schema["properties"] == {"name": {"const": "add"}, "arguments": {"type": "object"}}


def test_arguments_are_those_that_the_schema_names() -> None:
    inner = {"type": "object", "properties": {"enum": {"enum": [{"properties": {}}]}}}
    schema = {"type": "object", "properties": {"a": inner, "b": {"allOf": [{}], "properties": {}}}}
    found = closed(schema)
    assert found["additionalProperties"] is False
    assert found["properties"]["a"] == {**inner, "additionalProperties": False}
    assert found["properties"]["b"] == schema["properties"]["b"]
    assert closed({"properties": {}, "additionalProperties": True})["additionalProperties"] is True
