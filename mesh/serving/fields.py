"""Fields: the parameters of a request, each read once and checked; whatever is not read is refused by name.

A parameter that changes nothing here (who the caller's user is, say) is in IGNORED.  One that would change the answer,
and that this server does not have, may only have the value that means nothing: NEUTRAL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from .api_error import ApiError, wrong

DEPTH_MAX = 100  # of arrays and objects within each other: what reads them calls itself
IGNORED = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "stream_options", "parallel_tool_calls", "keep_alive", "verbosity", "include", "background", "container",
        "context_management", "inference_geo",
    }
)  # fmt: skip
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": (),
    "function_call": (),
    "reasoning_effort": ("none",),
    "reasoning": ({},),
    "thinking": ({"type": "disabled"},),
    "mcp_servers": ([],),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),  # of /v1/responses: a stored one
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "best_of": (1,),
    "suffix": ("",),
    "images": ([],),
    "context": ([],),
    "template": ("",),
    "raw": (False,),
    "think": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "dimensions": (),
    "truncate": (True,),
}


class Fields:
    """A request's object, read field by field; ApiError 400 with the field's name for one that is wrong."""

    def __init__(self, body: Any, where: str = "") -> None:
        if not isinstance(body, dict):
            raise wrong(f"{where or 'the body'} is a JSON object, got {_shown(body)}", where or None)
        self.body = body
        self._where = where
        self._read: set[str] = set()

    def name(self, field: str) -> str:
        """The field's whole name, such as messages[2].content."""
        return f"{self._where}.{field}" if self._where else field

    def get(self, field: str) -> Any:
        """Get what the field holds, None if it is not there."""
        self._read.add(field)
        return self.body.get(field)

    def number(self, field: str, least: float, most: float, default: float) -> float:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(field, f"a number from {least:g} to {most:g}", value)
        return float(value)

    def integer(self, field: str, least: int, most: int, default: Any = None) -> Any:
        """An int from `least` to `most`, else `default`."""
        value = self.get(field)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(field, f"an integer from {least} to {most}", value)
        return value

    def boolean(self, field: str, default: bool) -> bool:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false", value)
        return value

    def text(self, field: str, default: str | None = None) -> str:
        """A text; one that has to be there, if there is no default."""
        value = self.get(field)
        if value is None:
            if default is None:
                raise ApiError(400, f"{self.name(field)} is required", code="missing", param=self.name(field))
            return default
        if not isinstance(value, str):
            raise self.wrong(field, "a text", value)
        return whole_characters(value, self.name(field))

    def choice(self, field: str, among: Collection[str], default: str) -> str:
        value = self.get(field)
        if value is None:
            return default
        if value not in among:
            raise self.wrong(field, f"one of {', '.join(among)}", value)
        return str(value)

    def texts(self, field: str, most: int) -> tuple[str, ...]:
        """A text or a list of texts, none of them empty."""
        value = self.get(field)
        given = [value] if isinstance(value, str) else value or []
        if (
            not isinstance(given, list)
            or len(given) > most
            or not all(isinstance(each, str) and each for each in given)
        ):
            raise self.wrong(field, f"a text or a list of up to {most} texts", value)
        return tuple(given)

    def items(self, field: str, required: bool = False) -> list[Any]:
        value = self.get(field)
        if value is None and not required:
            return []
        if not isinstance(value, list) or (required and not value):
            raise self.wrong(field, "a list with at least one item" if required else "a list", value)
        return value

    def object(self, field: str) -> dict[str, Any] | None:
        value = self.get(field)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(field, "a JSON object", value)
        return value

    def done(self) -> None:
        """Refuse what was not read, and is not known to change nothing."""
        for field, value in self.body.items():
            if field in self._read or field in IGNORED or value is None:
                continue
            if field not in NEUTRAL:
                raise ApiError(400, f"unknown parameter {self.name(field)}", code="unknown_parameter", param=field)
            if value not in NEUTRAL[field]:
                message = f"this server does not support {self.name(field)}: leave it out"
                raise ApiError(400, message, code="unsupported_parameter", param=self.name(field))

    def wrong(self, field: str, wanted: str, value: Any) -> ApiError:
        """The error for a field that is something else than wanted."""
        name = self.name(field)
        if value is None:
            return ApiError(400, f"{name} is required: {wanted}", code="missing", param=name)
        return wrong(f"{name} is {wanted}, got {_shown(value)}", name)


def parsed_json(text: str) -> Any:
    """The value that JSON holds; ValueError or RecursionError for other text, and for one that is nested too deep."""
    value = json.loads(text)
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise ValueError(f"arrays and objects are nested more than {DEPTH_MAX} deep")
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [member for some in members for member in some if isinstance(member, dict | list)]
    return value


def whole_characters(text: str, name: str) -> str:
    """The text; ApiError if it has half of a surrogate pair, which JSON can write and no text has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong(f"{name} has half of a surrogate pair at {error.start}", name) from None
    return text


def _shown(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 else f"{text[:57]}..."
