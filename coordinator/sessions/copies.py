"""Copies of a session's state: which nodes have which pieces of a value, and one that is being made.  Pure data.

A piece that nobody has any more may be made of others and of the checks of them
(`coordinator/planning/redundancy/parity_groups.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ..planning.model.profiles import CLIENT
from .events import Check, Checked, Contents, Holders, Piece
from .manifest import CopyRecord


@dataclass(frozen=True, slots=True)
class _AwayHolder:
    """What a worker that is away held of a copy."""

    pieces: frozenset[Piece]
    keeper: bool  # of a check
    asked: bool


@dataclass(slots=True)
class Copy:
    """A value, piece by piece.  `contents` None: what the client gave."""

    number: int
    value: int
    contents: Contents | None
    holders: dict[Piece, set[str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # the nodes that were asked to keep some of it
    failures: int = 0  # of plans to begin with it
    regular: bool = False  # made in its turn, in all the places that the policy wants
    checked: tuple[Checked, ...] = ()
    keepers: set[str] = field(default_factory=set)  # of checks, those that are there
    thin: bool = False  # something of it was lost
    _gone: dict[str, _AwayHolder] = field(default_factory=dict)  # what those have who are away, and may come back

    @property
    def whole(self) -> bool:
        """Whether all of it is there, or can be made of what is."""
        return self._is_whole(frozenset())

    @property
    def intact(self) -> bool:
        """Whether all of it is in all the places that the policy wants."""
        return self.regular and not self.thin and not self._gone

    @property
    def recoverable(self) -> bool:
        """Whether it is whole again once the workers that are away come back."""
        return self._is_whole(frozenset(self._gone))

    def lose(self, gone: frozenset[str], away: frozenset[str]) -> bool:
        """These workers are gone, of which some are `away` only; whether any was asked to keep some of it."""
        hit = bool(self.asked & gone)
        self.thin |= hit
        for node in gone:
            pieces = frozenset(piece for piece, nodes in self.holders.items() if node in nodes)
            if node in away and (pieces or node in self.asked):
                self._gone[node] = _AwayHolder(pieces, node in self.keepers, node in self.asked)
            self.asked.discard(node)
            self.keepers.discard(node)
            for nodes in self.holders.values():
                nodes.discard(node)
        return hit

    def back(self, node: str, kept: bool) -> None:
        """A worker that was away is back, and has `kept` what it held, or not."""
        had = self._gone.pop(node, None)
        if had is None or not kept:
            self.thin |= had is not None
            return
        for piece in had.pieces:
            self.holders[piece].add(node)
        self.keepers |= {node} if had.keeper else set()
        self.asked |= {node} if had.asked else set()

    def _is_whole(self, back: Collection[str]) -> bool:
        there = {
            piece: nodes or any(piece in self._gone[node].pieces for node in back)
            for piece, nodes in self.holders.items()
        }
        keepers = self.keepers | {node for node in back if self._gone[node].keeper}
        return all(held or self._can_be_made(piece, there, keepers) for piece, held in there.items())

    def _can_be_made(self, piece: Piece, there: Mapping[Piece, object], keepers: Collection[str]) -> bool:
        group = next((checked for checked in self.checked if piece in checked.pieces), None)
        if group is None:
            return False
        pieces = sum(bool(there[member]) for member in group.pieces)
        return pieces + sum(node in keepers for node, _ in group.checks) >= len(group.pieces)

    @property
    def here(self) -> bool:
        """Whether this process has all of it."""
        return all(CLIENT in nodes for nodes in self.holders.values())

    @property
    def where(self) -> Holders:
        return {piece: frozenset(nodes) for piece, nodes in self.holders.items()}

    @property
    def record(self) -> CopyRecord | None:
        """What is written down of it; None for one that ends with this process."""
        if self.contents is None:
            return CopyRecord(self.number, self.value, None)
        away = {node: held.pieces for node, held in self._gone.items()}
        holders = {
            piece: frozenset(nodes - {CLIENT}).union(node for node, pieces in away.items() if piece in pieces)
            for piece, nodes in self.holders.items()
        }
        keepers = self.keepers | {node for node, held in self._gone.items() if held.keeper}
        if not all(nodes or self._can_be_made(piece, holders, keepers) for piece, nodes in holders.items()):
            return None
        return CopyRecord(self.number, self.value, self.contents, holders, self.checked, self.regular)

    @staticmethod
    def recorded(record: CopyRecord) -> Copy:
        """The copy that was written down: every node that holds some of it is away until it joins again."""
        if record.contents is None:
            return Copy(record.number, record.value, None, {CLIENT: {CLIENT}})
        holders = {piece: set[str]() for piece in record.holders}
        copy = Copy(record.number, record.value, record.contents, holders, checked=record.checked)
        copy.regular = record.regular
        keepers = {node for group in record.checked for node, _ in group.checks}
        for node in keepers.union(*record.holders.values()):
            pieces = frozenset(piece for piece, nodes in record.holders.items() if node in nodes)
            copy._gone[node] = _AwayHolder(pieces, node in keepers, True)
        return copy


@dataclass(slots=True)
class PendingCopy:
    """A copy in flight of what a plan's step left.  `purpose` is "rescue", "copy", or the number of a request."""

    copy: Copy
    purpose: str | int
    sources: dict[Piece, str]
    pieces: dict[Piece, bytes] = field(default_factory=dict)
    also: dict[Piece, dict[str, bytes]] = field(default_factory=dict)  # what others than its source made of a piece
    snapping: set[str] = field(default_factory=set)
    keeping: set[str] = field(default_factory=set)

    def spread(
        self, others: Mapping[Piece, Iterable[str]]
    ) -> tuple[dict[str, dict[Piece, bytes]], dict[Piece, frozenset[str]]]:
        """Decide where to store the copy, once all pieces have addresses: the pieces of each node, and the owners of
        each piece or check.  `others` are nodes that hold pieces beside those that made them."""
        copy = self.copy
        copy.contents = self.pieces
        copy.holders = {piece: {node, *others[piece]} for piece, node in self.sources.items()}
        by_node: dict[str, dict[Piece, bytes]] = {}
        for piece, nodes in copy.holders.items():
            for node in nodes:
                by_node.setdefault(node, {})[piece] = self.pieces[piece]
        owners = {piece: frozenset({node}) for piece, node in self.sources.items()}
        for group in copy.checked:
            for node, blob in group.checks:
                check = Check(blob, group.size_bytes)
                by_node.setdefault(node, {})[check] = blob
                owners[check] = frozenset({node})
        copy.asked, self.keeping = set(by_node), set(by_node)
        return by_node, owners

    @property
    def nodes(self) -> set[str]:
        return {*self.sources.values(), *self.copy.asked, *self.snapping} - {CLIENT}
