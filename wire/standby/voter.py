"""Voter: a member whose word decides which coordinator serves.  Pure.

Workers that are named as voters have one, and so have the coordinators themselves.  What it says is kept first: the
shell performs actions in order, and `Keep` has ended once the record is on the disk.

    WOULD    would you vote for this node?  Nothing is promised; no, while the voter hears another coordinator.
    PROMISE  it will accept nothing of a lower ballot any more.
    ACCEPT   it accepts a configuration, unless it promised a higher ballot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from .configuration import Ballot, Configuration, Record


class Stage(IntEnum):
    """What a voter is asked."""

    WOULD = 0
    PROMISE = 1
    ACCEPT = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a voter.  `configuration` comes with ACCEPT, and is what the asker knows otherwise."""

    stage: Stage
    ballot: Ballot
    configuration: Configuration | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What `node` answers, and its record then."""

    stage: Stage
    ballot: Ballot
    node: str
    granted: bool
    record: Record


@dataclass(frozen=True, slots=True)
class Keep:
    """Write the record to the disk before the next action."""

    record: Record


@dataclass(frozen=True, slots=True)
class Say:
    """Send an answer, or a question, to a node."""

    node: str
    message: Asked | Answered


class Voter:
    """The voter of `node`, with the record that was on its disk."""

    def __init__(self, node: str, record: Record | None = None) -> None:
        self.node = node
        self.record = record or Record()

    def asked(self, asked: Asked, hears: str) -> list[Keep | Say]:
        """Answer a question; `hears` is the coordinator that this node serves and hears, "" for none."""
        before = self.record
        granted = {Stage.WOULD: self._would, Stage.PROMISE: self._promise, Stage.ACCEPT: self._accept}[asked.stage](
            asked, hears
        )
        answer = Say(asked.ballot.node, Answered(asked.stage, asked.ballot, self.node, granted, self.record))
        return [answer] if self.record == before else [Keep(self.record), answer]

    def _would(self, asked: Asked, hears: str) -> bool:
        return asked.ballot > self.record.promised and hears in ("", asked.ballot.node)

    def _promise(self, asked: Asked, hears: str) -> bool:
        granted = asked.ballot >= self.record.promised
        if granted:
            self.record = replace(self.record, promised=asked.ballot)
        return granted

    def _accept(self, asked: Asked, hears: str) -> bool:
        granted = asked.ballot >= self.record.promised
        record = Record(asked.ballot, asked.ballot, asked.configuration)
        if granted and record.rank > self.record.rank:
            self.record = record
        return granted
