"""The story of a worker: what its machine went through, for people and for tests.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

STORY_LINES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the story; `routine` lines come with every step."""

    at_s: float
    text: str
    routine: bool
