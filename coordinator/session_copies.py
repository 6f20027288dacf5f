"""Copies of a session's state: who has which pieces of a value, and one that is being made.  Pure data.

A piece that nobody has any more may be made of others and of the checks of them (`groups.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .profile import CLIENT
from .session_events import Checked, Contents, Holders, Piece


@dataclass(slots=True)
class Copy:
    """A value, piece by piece.  `contents` None: what the client gave."""

    number: int
    value: int
    contents: Contents | None
    holders: dict[Piece, set[str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # who was asked to keep some of it
    failures: int = 0  # of plans to begin with it
    checked: tuple[Checked, ...] = ()
    keepers: set[str] = field(default_factory=set)  # of checks, those that are there

    @property
    def whole(self) -> bool:
        """Whether all of it is there, or can be made of what is."""
        return all(nodes or self._can_be_made(piece) for piece, nodes in self.holders.items())

    def _can_be_made(self, piece: Piece) -> bool:
        group = next((each for each in self.checked if piece in each.pieces), None)
        if group is None:
            return False
        there = sum(bool(self.holders[each]) for each in group.pieces)
        return there + sum(node in self.keepers for node, _ in group.checks) >= len(group.pieces)

    @property
    def here(self) -> bool:
        """Whether this process has all of it."""
        return all(CLIENT in nodes for nodes in self.holders.values())

    @property
    def where(self) -> Holders:
        return {piece: frozenset(nodes) for piece, nodes in self.holders.items()}


@dataclass(slots=True)
class Taking:
    """A copy that is being made of what a plan's step left, and what for: "rescue", "copy", or a request's number."""

    copy: Copy
    purpose: str | int
    sources: dict[Piece, str]
    found: dict[Piece, bytes] = field(default_factory=dict)
    also: dict[Piece, dict[str, bytes]] = field(default_factory=dict)  # what others than its source made of a piece
    snapping: set[str] = field(default_factory=set)
    keeping: set[str] = field(default_factory=set)

    @property
    def nodes(self) -> set[str]:
        return {*self.sources.values(), *self.copy.asked, *self.snapping} - {CLIENT}
