"""Standby: a coordinator's journal on its way to another one, and the votes on which of them serves.

Who may send what: coordinators to each other, and Vote to workers that vote.  Coordinators goes to everybody.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import MIB
from .fields import Addresses, Count, Epochs, Message, Name, Record, Text

JOURNAL_BYTES_MAX = 8 * MIB  # of one entry, and of those of one message
Voters = Annotated[tuple[Name, ...], Meta(max_length=64)]


class BallotOf(Record, frozen=True):
    """A round of votes, and the node that asks for them."""

    round: Count = 0
    node: Name = ""


class ConfigurationOf(Record, frozen=True):
    """The coordinators that have every acknowledged entry, and the voters: one set, or two while it changes."""

    version: Count
    in_sync: Voters
    voters: Annotated[tuple[Voters, ...], Meta(max_length=2)]


class RecordOf(Record, frozen=True):
    """What a voter promised, and what it accepted under which ballot."""

    promised: BallotOf = BallotOf()
    accepted: BallotOf = BallotOf()
    configuration: ConfigurationOf | None = None


class Vote(Message, frozen=True):
    """Coordinator to voter: `stage` 0: would it vote for this ballot, 1: promise it, 2: accept a configuration.
    Answered by Voted."""

    stage: Annotated[int, Meta(ge=0, le=2)]
    ballot: BallotOf
    configuration: ConfigurationOf | None = None


class Voted(Message, frozen=True):
    """Whether the voter grants it, and what it has on its disk."""

    granted: bool
    record: RecordOf


class AttachStandby(Message, frozen=True):
    """Standby to coordinator, one-way: send me your journal, as a stream with this number.  `addresses` are where it
    will be dialled once it serves."""

    stream: Count
    addresses: Addresses


class JournalEntry(Record, frozen=True):
    """A row of the journal: an event of a job."""

    job: Text
    kind: Name
    body: Annotated[bytes, Meta(max_length=JOURNAL_BYTES_MAX)]


class JournalEntries(Message, frozen=True):
    """Coordinator to standby, one-way: entries `first` to `last` of a stream, or a sign of life if `last` is less.

    `whole`: they replace what the standby has.  `more`: those of the next message belong to them.  `epochs` are those
    of the coordinator and of all that it goes on from, the newest last.
    """

    ballot: BallotOf
    stream: Count
    first: Count
    last: Count
    whole: bool = False
    more: bool = False
    epochs: Epochs = ()
    entries: Annotated[tuple[JournalEntry, ...], Meta(max_length=65_536)] = ()


class JournalHave(Message, frozen=True):
    """Standby to coordinator, one-way: every entry of the stream up to `last` is on its disk."""

    stream: Count
    last: Count


class JournalDenied(Message, frozen=True):
    """Standby to coordinator, one-way: it promised this ballot, which is higher than that of the entries."""

    promised: BallotOf


class AuthorityFile(Record, frozen=True):
    """A file of the folder of the mesh's authority."""

    name: Name
    data: Annotated[bytes, Meta(max_length=JOURNAL_BYTES_MAX)]


class AuthorityFiles(Message, frozen=True):
    """Coordinator to standby, one-way: who is a member of the mesh, and what certifies them, as files."""

    files: Annotated[tuple[AuthorityFile, ...], Meta(max_length=64)]


class Coordinators(Message, frozen=True):
    """Coordinator to all, one-way: the addresses of the coordinators that may take over from it, best first."""

    addresses: Addresses
