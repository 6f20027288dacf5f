"""Manifest: where a session's state is, so that a coordinator that is started anew can go on with it.  Pure data.

It names the copies of the state, and the plan that steps run by with what each of its workers makes.  It is written
whenever one of these changes, and before anything that an earlier one names is dropped; the feeds that a copy needs
stay with the client until then, too.  What this process itself holds is not in it: that ends with the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wire.errors import JournalDamaged

from ..planning.model.plan import FromState, Window
from .events import Checked, Contents, Holders, Piece


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy that workers hold.  `contents` None: what the client gave, which is written down with the program."""

    number: int
    value: int
    contents: Contents | None
    holders: Holders = field(default_factory=dict)
    checked: tuple[Checked, ...] = ()
    regular: bool = False


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan that steps run by, the value that it began with, and the node that makes each piece."""

    generation: int
    start: int
    owners: Holders


@dataclass(frozen=True, slots=True)
class Manifest:
    copies: tuple[CopyRecord, ...]
    plan: PlanRecord | None = None

    @property
    def generations(self) -> frozenset[int]:
        """The copies and the plan that workers are to keep, by generation."""
        copies = {copy.number for copy in self.copies if copy.contents is not None}
        return frozenset(copies | ({self.plan.generation} if self.plan else set()))

    @property
    def places(self) -> list[tuple[int, str]]:
        """All that workers hold: a generation, and a worker that has some of it."""
        held = {(copy.number, node) for copy in self.copies for node in _nodes(copy)}
        if self.plan is not None:
            held |= {(self.plan.generation, node) for nodes in self.plan.owners.values() for node in nodes}
        return sorted(held)

    @property
    def least(self) -> int:
        """The number of steps that are done for certain."""
        return max([self.plan.start if self.plan else 0, *(copy.value for copy in self.copies)])

    def before(self, value: int, since: int = 0) -> Manifest:
        """What is of use to a client that has the answers of the first `value` steps: no copy that came later, nor one
        from before the steps `since` which it has the feeds."""
        copies = tuple(copy for copy in self.copies if since <= copy.value <= value)
        return Manifest(copies, self.plan if self.plan is not None and self.plan.start < value else None)

    def first_feed(self, value: int, since: int = 0) -> int:
        """The first step whose feed may be needed by a session that goes on after `value` steps."""
        return min((copy.value for copy in self.before(value, since).copies), default=value)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What is written down of a session.  `pieces` are those that the outputs of the plan's parts are, by part and
    output, and `epochs` those in which the plan and the copies were made, by generation."""

    manifest: Manifest
    pieces: Mapping[tuple[int, int], FromState]
    epochs: Mapping[int, int]


def _nodes(copy: CopyRecord) -> set[str]:
    keepers = {node for group in copy.checked for node, _ in group.checks}
    return keepers.union(*copy.holders.values())


# -- as JSON, whose keys are texts: so mappings by piece are lists of pairs


def as_json(record: SessionRecord) -> dict[str, Any]:
    """The record as plain data."""
    manifest = record.manifest
    copies = [
        {
            "number": copy.number,
            "value": copy.value,
            "regular": copy.regular,
            "contents": None
            if copy.contents is None
            else [[_piece_json(piece), address.hex()] for piece, address in copy.contents.items()],
            "holders": _holders_json(copy.holders),
            "checked": [
                [
                    [_piece_json(piece) for piece in group.pieces],
                    group.size_bytes,
                    [[node, blob.hex()] for node, blob in group.checks],
                ]
                for group in copy.checked
            ],
        }
        for copy in manifest.copies
    ]
    plan = manifest.plan
    return {
        "copies": copies,
        "plan": plan and [plan.generation, plan.start, _holders_json(plan.owners)],
        "pieces": [[part, output, _piece_json(piece)] for (part, output), piece in record.pieces.items()],
        "epochs": sorted(record.epochs.items()),
    }


def from_json(data: Any) -> SessionRecord:
    """The record that `as_json` made plain; JournalDamaged if it is none."""
    with reading_journal():
        copies = tuple(
            CopyRecord(
                copy["number"],
                copy["value"],
                None
                if copy["contents"] is None
                else {_piece_from(piece): bytes.fromhex(address) for piece, address in copy["contents"]},
                _holders_from(copy["holders"]),
                tuple(
                    Checked(
                        tuple(_piece_from(piece) for piece in pieces),
                        size_bytes,
                        tuple((node, bytes.fromhex(blob)) for node, blob in checks),
                    )
                    for pieces, size_bytes, checks in copy["checked"]
                ),
                copy["regular"],
            )
            for copy in data["copies"]
        )
        plan = data["plan"]
        known = PlanRecord(plan[0], plan[1], _holders_from(plan[2])) if plan is not None else None
        pieces = {(part, output): _piece_from(piece) for part, output, piece in data["pieces"]}
        epochs = {int(generation): int(epoch) for generation, epoch in data["epochs"]}
        return SessionRecord(Manifest(copies, known), pieces, epochs)


@contextlib.contextmanager
def reading_journal() -> Iterator[None]:
    """Raise JournalDamaged where a session's entry has not the fields that this version writes."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise JournalDamaged(
            "what the journal says of a session cannot be read",
            cause=f"{type(error).__name__}: {error}",
            next_step="Start the version of mesh-coord that wrote it, or move its jobs folder away, with all jobs and "
            "sessions in it",
        ) from None


def _piece_json(piece: Piece) -> list[Any]:
    window = piece.window and [piece.window.starts, piece.window.sizes]
    return [piece.name, window, piece.values]


def _piece_from(data: Any) -> FromState:
    name, window, values = data
    return FromState(name, Window(tuple(window[0]), tuple(window[1])) if window else None, values)


def _holders_json(holders: Holders) -> list[Any]:
    return [[_piece_json(piece), sorted(nodes)] for piece, nodes in holders.items()]


def _holders_from(data: Any) -> dict[Piece, frozenset[str]]:
    return {_piece_from(piece): frozenset(nodes) for piece, nodes in data}
