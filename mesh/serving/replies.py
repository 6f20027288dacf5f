"""Replies: what an API's function gives to whoever writes it to the network: one JSON value, or a stream of frames."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .api_error import ApiError

EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON_LINES = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class JsonReply:
    """A whole answer."""

    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamReply:
    """An answer as it comes.

    `failed` makes the last frame of an error in the middle.  `close` ends what still runs, whether the frames were read
    or not.
    """

    content_type: str
    frames: AsyncIterator[bytes]
    failed: Callable[[ApiError], bytes]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TextReply:
    """A whole answer that is no JSON."""

    content_type: str
    text: str


Reply = JsonReply | TextReply | StreamReply


def data_frame(value: Any) -> bytes:
    """A server-sent event with JSON."""
    return b"data: " + to_json(value) + b"\n\n"


def named_frame(name: str, value: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + data_frame(value)


def line_frame(value: Any) -> bytes:
    """A line of JSON."""
    return to_json(value) + b"\n"


def to_json(value: Any) -> bytes:
    """JSON in UTF-8, on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


DONE = b"data: [DONE]\n\n"
