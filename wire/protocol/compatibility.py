"""Compatibility: a message as a node of minor version 0 knows it.

What is new in minor 1 stands in tables beside the messages (`messages/__init__.py`).  A new message is an error there,
and so is a new field, unless it says nothing or the older node does without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LocalError
from .versions import PROTOCOL, text

Kinds = tuple[type, ...]
Counts = Mapping[type, int]
Dispensable = tuple[type | str, ...]


def as_of_0(message: Any, new: Kinds, appended: Counts, dispensable: Dispensable, with_parts: Counts) -> object:
    """What is encoded: `new` messages are refused; so many fields were `appended`, which `dispensable` messages leave
    out, and others the dispensable fields ("Message.field"); those `with_parts` have some in the field of that number.
    LocalError for what cannot be said."""
    name = type(message).__name__
    if isinstance(message, new):
        raise _unknown(name)
    if type(message) not in appended:
        return message
    fields = _fields(message, appended, dispensable)
    place = with_parts.get(type(message))
    if place is not None:
        parts = fields[place]
        several = isinstance(parts, Sequence)
        fields[place] = (
            [_fields(part, appended, dispensable) for part in parts]
            if several
            else _fields(parts, appended, dispensable)
        )
    return [name, *fields]


def _fields(struct: Any, appended: Mapping[type, int], dispensable: Dispensable) -> list[Any]:
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    first = len(names) - appended[type(struct)]
    kind = type(struct)
    for name, default in zip(names[first:], defaults[len(defaults) + first - len(names) :], strict=True):
        whole = f"{kind.__name__}.{name}"
        if getattr(struct, name) != default and kind not in dispensable and whole not in dispensable:
            raise _unknown(whole)
    return [getattr(struct, name) for name in names[:first]]


def _unknown(what: str) -> LocalError:
    return LocalError(
        f"{what} is of protocol {text(PROTOCOL)}, and the other node speaks {PROTOCOL[0]}.0",
        next_step="Upgrade graph-mesh on the other node",
    )
