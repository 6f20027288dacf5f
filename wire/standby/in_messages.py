"""Fields of messages: ballots, configurations and records as they travel, and back.  Pure."""

from __future__ import annotations

from ..errors import ProtocolError
from ..protocol.messages import BallotOf, ConfigurationOf, RecordOf, Vote, Voted
from .configuration import Ballot, Configuration, Record
from .voter import Answered, Asked, Stage


def ballot_field(ballot: Ballot) -> BallotOf:
    return BallotOf(ballot.round, ballot.node)


def ballot_of(field: BallotOf) -> Ballot:
    return Ballot(field.round, field.node)


def vote_of(asked: Asked) -> Vote:
    """A question as a message."""
    return Vote(int(asked.stage), ballot_field(asked.ballot), _configuration_field(asked.configuration))


def asked_of(vote: Vote, node: str) -> Asked:
    """The question that `node` asks; ProtocolError if it asks for another one, or leaves out what it asks for."""
    asked = Asked(Stage(vote.stage), ballot_of(vote.ballot), _configuration_of(vote.configuration))
    if asked.ballot.node != node or (asked.stage is Stage.ACCEPT and asked.configuration is None):
        raise ProtocolError("a vote is asked for in one's own name, and for a configuration that is given", node=node)
    return asked


def voted_of(answered: Answered) -> Voted:
    """An answer as a message."""
    record = answered.record
    fields = ballot_field(record.promised), ballot_field(record.accepted), _configuration_field(record.configuration)
    return Voted(answered.granted, RecordOf(*fields))


def answered_of(asked: Asked, voted: Voted, node: str) -> Answered:
    """The answer of `node` to a question."""
    field = voted.record
    known = _configuration_of(field.configuration)
    record = Record(ballot_of(field.promised), ballot_of(field.accepted), known)
    return Answered(asked.stage, asked.ballot, node, voted.granted, record)


def _configuration_field(configuration: Configuration | None) -> ConfigurationOf | None:
    if configuration is None:
        return None
    voters = tuple(tuple(sorted(each)) for each in configuration.voters)
    return ConfigurationOf(configuration.version, tuple(sorted(configuration.in_sync)), voters)


def _configuration_of(field: ConfigurationOf | None) -> Configuration | None:
    if field is None:
        return None
    return Configuration(field.version, frozenset(field.in_sync), tuple(frozenset(each) for each in field.voters))
