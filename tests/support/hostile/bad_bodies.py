"""Bodies of requests to a server of models that are nearly right: one of each path, with junk in some places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Path_ = tuple[Any, ...]
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": "llama",
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
                },
            }
        ],
        "tool_choice": "auto",
        "temperature": 0.5,
        "top_p": 0.5,
        "n": 1,
        "seed": 1,
        "stop": ["x"],
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": 1},
        "logit_bias": {"5": 1},
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    "/v1/completions": {
        "model": "llama",
        "prompt": ["a"],
        "max_tokens": 2,
        "logprobs": 1,
        "n": 1,
        "stop": "x",
        "echo": False,
    },
    "/v1/embeddings": {"model": "minilm", "input": ["a"], "encoding_format": "float"},
    "/v1/responses": {
        "model": "llama",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "x"},
        ],
        "instructions": "i",
        "max_output_tokens": 2,
        "text": {"format": {"type": "json_object"}},
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": "auto",
    },
    "/v1/messages": {
        "model": "llama",
        "max_tokens": 2,
        "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
        ],
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
        "top_k": 3,
    },
    "/v1/messages/count_tokens": {"model": "llama", "messages": [{"role": "user", "content": "x"}]},
    "/api/chat": {
        "model": "llama",
        "messages": [
            {"role": "user", "content": "x", "images": []},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        ],
        "stream": False,
        "format": "json",
        "options": {"num_predict": 2, "temperature": 0.1, "stop": ["x"], "mirostat": 0},
        "tools": [],
        "keep_alive": "5m",
        "think": False,
    },
    "/api/generate": {
        "model": "llama",
        "prompt": "x",
        "system": "y",
        "raw": False,
        "stream": False,
        "options": {"num_predict": 2, "repeat_penalty": 1.1, "presence_penalty": 0.5, "repeat_last_n": 8},
        "format": {"type": "object"},
    },
    "/api/embed": {"model": "minilm", "input": ["a"], "truncate": True},
    "/api/embeddings": {"model": "minilm", "prompt": "a", "options": {}},
    "/api/show": {"model": "llama", "verbose": True},
}
LIMITS: dict[str, Path_] = {  # where a body says how many tokens it wants at most
    "/v1/chat/completions": ("max_tokens",), "/v1/completions": ("max_tokens",), "/v1/messages": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",), "/api/chat": ("options", "num_predict"),
    "/api/generate": ("options", "num_predict"),
}  # fmt: skip
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1e308,
    1.5,
    "",
    "x",
    "\ud800",
    "a" * 300,
    [],
    [None],
    [1, 2],
    [[1]],
    {},
    {"a": 1},
    {"type": "text"},
    {"type": {}},
    10**30,
    [[]],
    {"type": "object", "properties": 3},
    {"$ref": "#/x"},
    {"function": {}},
    ["x"] * 20,
]


def paths(value: Any, before: Path_ = ()) -> Iterator[Path_]:
    """Every place in a value."""
    yield before
    places = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for place in places:
        yield from paths(value[place], (*before, place))


def changed(value: Any, path: Path_, new: Any) -> Any:
    """A copy with something else in one place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def nearly_right(chance: random.Random, path: str, places: int) -> Any:
    """The body of a path with something else in so many places."""
    body = BODIES[path]
    for _ in range(places):
        body = changed(body, chance.choice(list(paths(body))), chance.choice(JUNK))
    return body


def asks_for_few(path: str, body: Any) -> bool:
    """Whether a body asks for no text, or for one of as many tokens as that of its path."""
    wanted, value = BODIES[path], body
    for place in LIMITS.get(path, ()):
        wanted, value = wanted[place], value.get(place) if isinstance(value, dict) else None
    return path not in LIMITS or (isinstance(value, int) and 0 < value <= wanted)
