"""Makes tests/golden/chat_rendered.json: what transformers makes of conversations with the templates of many models.

python tests/golden/make_chat_reference.py        needs transformers, which the tests do not

The templates in chat_templates/ are those of the families that they are named after.  Each is rendered for each of
chat_conversations.json, at a fixed time.  Where it raises an exception, the text of that is the result.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NOW = datetime(2026, 2, 3, 4, 5, 6)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city's next days.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name, such as Zürich"},
                "days": {"type": "integer", "description": "How many days"},
            },
            "required": ["city"],
        },
    },
}
TOOLS = {"weather": [WEATHER]}


class FixedTime(datetime):
    """The clock of the references."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def arguments(conversation: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `apply_chat_template` but for the messages."""
    return {
        "tools": TOOLS.get(conversation.get("tools", "")),
        "documents": conversation.get("documents"),
        "add_generation_prompt": conversation.get("add_generation_prompt", True),
        **conversation.get("more", {}),
    }


def rendered(tokenizer: Any, template: str, conversation: dict[str, Any]) -> dict[str, str]:
    how = {"chat_template": template, "tokenize": False, **arguments(conversation)}
    try:
        return {"text": tokenizer.apply_chat_template(conversation["messages"], **how)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def references() -> dict[str, list[dict[str, str]]]:
    """By template, the result for each conversation, by the transformers that is installed."""
    import tokenizers
    import transformers
    import transformers.utils.chat_template_utils as rendering

    empty = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=empty, **SPECIAL_TOKENS)
    conversations = json.loads((HERE / "chat_conversations.json").read_text("utf-8"))
    before, rendering.datetime = rendering.datetime, FixedTime
    try:
        return {
            path.stem: [rendered(tokenizer, path.read_text("utf-8"), one) for one in conversations]
            for path in sorted((HERE / "chat_templates").glob("*.jinja"))
        }
    finally:
        rendering.datetime = before


def main() -> None:
    text = json.dumps(references(), ensure_ascii=False, indent=1)
    (HERE / "chat_rendered.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
