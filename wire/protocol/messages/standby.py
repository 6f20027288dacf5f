"""Standby: a coordinator's journal on its way to another one, and the votes on which of them serves.

Coordinators send these messages to each other, Vote also to workers that vote, and Coordinators to all members.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...limits import MIB
from .fields import Addresses, Count, Epochs, Message, Name, Record, Text

JOURNAL_BYTES_MAX = 8 * MIB  # of one entry, and of those of one message
Voters = Annotated[tuple[Name, ...], Meta(max_length=64)]


class BallotOf(Record, frozen=True):
    """A round of votes, and the node that asks for the votes."""

    round: Count = 0
    node: Name = ""


class ConfigurationOf(Record, frozen=True):
    """The coordinators that have every acknowledged entry, and the voters: one set, or two while the set changes."""

    version: Count
    in_sync: Voters
    voters: Annotated[tuple[Voters, ...], Meta(max_length=2)]


class RecordOf(Record, frozen=True):
    """What a voter promised, and what it accepted under which ballot."""

    promised: BallotOf = BallotOf()
    accepted: BallotOf = BallotOf()
    configuration: ConfigurationOf | None = None


class Vote(Message, frozen=True):
    """Coordinator to voter.  With `stage` 0 it asks whether the voter would vote for this ballot.  With 1 it asks for
    that promise, and with 2 it asks the voter to accept a configuration.  Answered by Voted."""

    stage: Annotated[int, Meta(ge=0, le=2)]
    ballot: BallotOf
    configuration: ConfigurationOf | None = None


class Voted(Message, frozen=True):
    """Whether the voter grants it, and what it has on its disk."""

    granted: bool
    record: RecordOf


class AttachStandby(Message, frozen=True):
    """Standby to coordinator, one-way: send the journal, as a stream with this number.  `addresses` is where the
    standby can be dialled once it serves."""

    stream: Count
    addresses: Addresses


class JournalEntry(Record, frozen=True):
    """A row of the journal: an event of a job."""

    job: Text
    kind: Name
    body: Annotated[bytes, Meta(max_length=JOURNAL_BYTES_MAX)]


class JournalEntries(Message, frozen=True):
    """Coordinator to standby, one-way: entries `first` to `last` of a stream, or a heartbeat if `last` is less.

    With `whole`, they replace the entries that the standby has.  With `more`, the next message continues them.
    `epochs` are that of the coordinator and all that it continues, the newest last.
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
    """Standby to coordinator, one-way: every entry of the stream up to `last` is on the standby's disk."""

    stream: Count
    last: Count


class JournalDenied(Message, frozen=True):
    """Standby to coordinator, one-way: the standby promised this ballot, which is higher than that of the entries."""

    promised: BallotOf


class AuthorityFile(Record, frozen=True):
    """A file of the folder of the mesh's authority."""

    name: Name
    data: Annotated[bytes, Meta(max_length=JOURNAL_BYTES_MAX)]


class AuthorityFiles(Message, frozen=True):
    """Coordinator to standby, one-way: the list of members and the keys of the mesh's authority, as files."""

    files: Annotated[tuple[AuthorityFile, ...], Meta(max_length=64)]


class Coordinators(Message, frozen=True):
    """Coordinator to all, one-way: the addresses of the coordinators that may take over from it, best first."""

    addresses: Addresses
