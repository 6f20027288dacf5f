"""Plain data: the base of what is made for every frame, event and action, and never changes.

A class of it is as a frozen dataclass is: made of its fields in order or by name, compared and hashed by them, matched
by them.  It is made in an eighth of the time, which counts where a call of a small graph makes some thirty of them.
"""

from __future__ import annotations

from msgspec import Struct


class PlainData(Struct, frozen=True):
    """Frozen data; a class derived from it names its fields."""


def text_without(data: PlainData, name: str) -> str:
    """The text of some data for logs, without the field of this name, which is long."""
    shown = (f"{each}={getattr(data, each)!r}" for each in data.__struct_fields__ if each != name)
    return f"{type(data).__name__}({', '.join(shown)})"
