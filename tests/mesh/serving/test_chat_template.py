"""Chat templates: byte for byte what transformers renders, and a clear error for what does not render."""

from __future__ import annotations

import json
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from golden.make_chat_reference import NOW, SPECIAL_TOKENS, arguments, references

from mesh.errors import InputError
from mesh.serving.chat_template import CHARACTERS_MAX, ChatTemplate, load_chat_template

GOLDEN = Path(__file__).parents[2] / "golden"
CONVERSATIONS = json.loads((GOLDEN / "chat_conversations.json").read_text("utf-8"))
RENDERED = json.loads((GOLDEN / "chat_rendered.json").read_text("utf-8"))
HELLO = [{"role": "user", "content": "hello"}]


def fixed_time() -> datetime:
    return NOW


def template(source: str, **named: str) -> ChatTemplate:
    return ChatTemplate({"default": source, **named}, SPECIAL_TOKENS, fixed_time)


def rendered(source: str, conversation: dict[str, Any]) -> dict[str, str]:
    how = arguments(conversation)
    known = {name: how.pop(name) for name in ("tools", "documents", "add_generation_prompt")}
    try:
        return {"text": template(source).render(conversation["messages"], **known, more=how)}
    except InputError as error:
        return {"error": error.cause}


def test_there_are_twenty_families_and_ten_conversations() -> None:
    assert len(RENDERED) >= 20
    assert all(len(results) == len(CONVERSATIONS) == 10 for results in RENDERED.values())


@pytest.mark.parametrize("family", RENDERED)
def test_a_template_renders_what_transformers_renders(family: str) -> None:
    source = (GOLDEN / "chat_templates" / f"{family}.jinja").read_text("utf-8")
    for conversation, wanted in zip(CONVERSATIONS, RENDERED[family], strict=True):
        got = rendered(source, conversation)
        if "error" in wanted:
            assert got.get("error", "no error") in wanted["error"], conversation["name"]
        else:
            assert got == wanted, conversation["name"]


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_references_are_those_of_the_installed_transformers() -> None:
    assert references() == RENDERED


def save(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return folder


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(save(tmp_path, tokenizer_config_DOT_json={"bos_token": "<s>"})) is None


def test_a_template_file_comes_before_the_settings(tmp_path: Path) -> None:
    config = {"chat_template": "settings", "bos_token": {"content": "<a>"}, "eos_token": "<b>"}
    save(tmp_path, tokenizer_config_DOT_json=config)
    found = load_chat_template(tmp_path)
    assert found is not None
    assert found.render(HELLO) == "settings"
    assert found.special_tokens == {"bos_token": "<a>", "eos_token": "<b>"}
    save(tmp_path, chat_template_DOT_json={"chat_template": "json {{ bos_token }}"})
    assert load_chat_template(tmp_path).render(HELLO) == "json <a>"  # type: ignore[union-attr]
    save(tmp_path, chat_template_DOT_jinja="file", additional_chat_templates__tool_use_DOT_jinja="tools")
    found = load_chat_template(tmp_path)
    assert found is not None
    assert found.render(HELLO) == "file"
    assert found.render(HELLO, tools=[{}]) == "tools"


def test_several_templates_have_names(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    found = load_chat_template(save(tmp_path, tokenizer_config_DOT_json={"chat_template": several}))
    assert found is not None
    assert (found.render(HELLO), found.render(HELLO, tools=[])) == ("plain", "tools")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"tokenizer_config_DOT_json": "{"}, "cannot be read as JSON"),
        ({"tokenizer_config_DOT_json": "[]"}, "holds no JSON object"),
        ({"tokenizer_config_DOT_json": {"chat_template": 3}}, "neither a text nor a list"),
        ({"tokenizer_config_DOT_json": {"chat_template": [{"name": "x"}]}}, "neither a text nor a list"),
        ({"chat_template_DOT_jinja": "{% for %}"}, "wrong in line 1"),
        ({"chat_template_DOT_jinja": "{{ x|nothing }}"}, "wrong in line 1"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        load_chat_template(save(tmp_path, **files))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError|has no attribute"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable|immutable"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% set ns = namespace(_x=1) %}", "stores no '_x'"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_a_template_that_does_not_render_is_an_input_error(source: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        template(source).render(HELLO)


def test_a_template_cannot_render_without_end() -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}" + "x" * 999 + "{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match=f"more than {CHARACTERS_MAX} characters"):
        template(source).render(HELLO)


def test_a_conversation_has_a_message() -> None:
    with pytest.raises(InputError, match="at least one message"):
        template("x").render([])


@pytest.mark.parametrize("family", RENDERED)
def test_a_conversation_that_is_continued_ends_with_its_last_message(family: str) -> None:
    source = (GOLDEN / "chat_templates" / f"{family}.jinja").read_text("utf-8")
    messages = [*HELLO, {"role": "assistant", "content": "It is a"}]
    whole = template(source).render(messages, add_generation_prompt=False)
    text = template(source).render(messages, continued=True)
    assert whole.startswith(text) and text.endswith("It is a")


def test_spaces_at_the_end_of_a_message_that_is_continued_are_those_that_the_template_writes() -> None:
    messages = [*HELLO, {"role": "assistant", "content": " it is  "}]
    plain = "{% for each in messages %}<{{ each.role }}>{{ each.content }}</s>{% endfor %}"
    assert template(plain).render(messages, continued=True) == "<user>hello</s><assistant> it is  "
    trimmed = plain.replace("each.content", "each.content | trim")
    assert template(trimmed).render(messages, continued=True) == "<user>hello</s><assistant>it is"


def test_a_template_without_the_last_message_says_so() -> None:
    with pytest.raises(InputError, match="does not write the last message as it is"):
        template("{{ messages[0].content }}").render([*HELLO, {"role": "assistant", "content": "it"}], continued=True)
