"""Conversations in OpenAI's form, for the templates of many families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mesh.errors import InputError
from mesh.inference import Sampling
from mesh.serving.api_error import ApiError
from mesh.serving.chat_template import ChatTemplate
from mesh.serving.conversation import AUTO, REQUIRED, for_template, read_messages, read_tool_choice, read_tools
from mesh.serving.fields import Fields
from mesh.serving.served_text import new_call_id

TEMPLATES = Path(__file__).parents[2] / "golden" / "chat_templates"
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "description": "A number"}}}},
}  # fmt: skip
CALL = {"id": new_call_id(), "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "and one?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "2"},
]


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "hermes3", "llama3.1", "mistral-nemo", "command-r-tools"])
def test_calls_and_their_results_are_rendered_as_each_family_expects(family: str) -> None:
    source = (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    messages = for_template(read_messages(Fields({"messages": TALK})), source)
    rendered = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, [TOOL])
    assert "One and one?" in rendered
    if family != "deepseek-r1":
        assert '"a": 1' in rendered
        assert '\\"a' not in rendered  # not a text within a text


def test_arguments_are_a_text_where_a_template_joins_them_to_others() -> None:
    joined = (TEMPLATES / "deepseek-r1.jinja").read_text("utf-8")
    (_, _, message, _) = for_template(read_messages(Fields({"messages": TALK})), joined)
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(("source", "role"), [("{{ x }}", "system"), ("developer", "developer")])
def test_developers_are_the_system_where_a_template_does_not_know_them(source: str, role: str) -> None:
    messages = read_messages(Fields({"messages": [{"role": "developer", "content": "x"}]}))
    assert for_template(messages, source)[0]["role"] == role


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (3, "messages[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant",
          "tool_calls": [{"function": {"name": "f", "arguments": '{"a": ' * 900 + "1" + "}" * 900}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [3]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "name": {}}, "messages[0].name"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_messages(Fields({"messages": [message]}))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "tool", [3, {}, {"type": "retrieval"}, {"function": {"name": "a b"}}, {"function": {"name": "f", "parameters": 3}}]
)
def test_a_wrong_tool_is_refused(tool: Any) -> None:
    with pytest.raises(ApiError):
        read_tools(Fields({"tools": [tool]}))


def test_a_number_that_no_float_holds_is_wrong() -> None:
    with pytest.raises(ApiError, match="temperature is a number from 0 to 2"):
        Fields({"temperature": 10**400}).number("temperature", 0, 2, 1)
    with pytest.raises(InputError, match="temperature is a number"):
        Sampling(temperature=10**400)


def test_the_choice_of_a_tool() -> None:
    tools = read_tools(Fields({"tools": [TOOL]}))
    for given, wanted in (
        (None, AUTO),
        ("required", REQUIRED),
        ({"type": "function", "function": {"name": "add"}}, "add"),
    ):
        assert read_tool_choice(Fields({"tool_choice": given}), tools) == wanted
    for given in ("add", 3, {}, {"function": {}}, []):
        with pytest.raises(ApiError, match="tool_choice"):
            read_tool_choice(Fields({"tool_choice": given}), tools)
