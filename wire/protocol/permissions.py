"""Permissions: who may send what to whom, as one table.

A row is a message and the way it comes: a request, a note without an answer, or the header of a stream.  It says for
each kind of receiver which relations its sender may have to that receiver; one of them is enough.  What has no row for
a receiver is refused there.  `wire/link/guard.py` asks this table before every handler; a receiver says what its
relations mean by tests of a link and a message.  docs/protocol.md prints it.

The role of a sender is the one of its certificate: a link whose hello says another one is refused
(`wire/link/endpoint.py`).  To add a message, add a row here; to narrow one, name another relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from .. import roles
from .client_requests import CLIENT_REQUESTS
from .messages import (
    AttachStandby,
    AuthorityFiles,
    AuthorityReport,
    Ballast,
    Beat,
    Began,
    Blob,
    BlobStream,
    CancelStep,
    Combine,
    Combined,
    Coordinators,
    Deploy,
    Deployed,
    Devices,
    Done,
    Drop,
    Explain,
    Explained,
    FetchBlob,
    GaveUp,
    JobAccepted,
    JobResult,
    Jobs,
    Join,
    Joined,
    JournalDenied,
    JournalEntries,
    JournalHave,
    Landed,
    Leaving,
    Letter,
    LettersRead,
    LogLines,
    Meet,
    Message,
    MissingGraphs,
    Nodes,
    Pause,
    Paused,
    Planned,
    Probe,
    Probed,
    Push,
    Ran,
    Relay,
    Revocations,
    Revoked,
    Run,
    SessionAttached,
    SessionHeard,
    SessionOpened,
    SessionResumed,
    Sessions,
    SessionTold,
    Snapshot,
    Snapshotted,
    Suspected,
    TailLog,
    TokenCreated,
    Tokens,
    Vote,
    Voted,
)


class Receiver(StrEnum):
    """Kinds of receivers."""

    COORDINATOR = "coordinator"  # one that serves
    STANDBY = "standby"  # a coordinator that follows another one
    WORKER = "worker"
    CLIENT = "client"  # a program or a command, which dials and does not listen


class Way(StrEnum):
    """Ways in which a message comes."""

    REQUEST = "request"
    NOTE = "note"
    STREAM = "stream"


class Relation(StrEnum):
    """What the sender is to the receiver.  `MEANING` says it in words."""

    OWNER = "owner"
    COORDINATOR = "coordinator"
    SOURCE = "planned source"
    PEER = "peer of the plan"
    WORKER = "worker"
    JOINED = "joined worker"
    CLIENT = "client"
    OPERATOR = "operator"
    ADMIN = "admin"
    ASKED = "who was asked"
    MEMBER = "member"


MEANING: Mapping[Relation, str] = {
    Relation.OWNER: "The coordinator that this worker serves: its Join was the last that was taken.",
    Relation.COORDINATOR: "A coordinator of the mesh, be it the one that serves or a standby.",
    Relation.SOURCE: "Whoever the plan has make this tensor: the worker of the part that it comes from, and for an "
    "input of a call the owner. What is of no plan that is here is stale: a worker's is dropped.",
    Relation.PEER: "A worker that has another rank of this mailbox. What is for no mailbox that is here is stale, too.",
    Relation.WORKER: "A worker of the mesh. What it says is taken to be about itself.",
    Relation.JOINED: "A worker that has joined this coordinator over this link.",
    Relation.CLIENT: "A client, an operator or an admin.",
    Relation.OPERATOR: "An operator or an admin.",
    Relation.ADMIN: "An admin.",
    Relation.ASKED: "Whoever this node asked for it over this link, or sent it to.",
    Relation.MEMBER: "Any node of the mesh, that is, with a certificate of its authority.",
}

Row = Mapping[Receiver, tuple[Relation, ...]]

COORDINATOR, STANDBY, WORKER, CLIENT = Receiver
OWNER_ONLY: Row = {WORKER: (Relation.OWNER,)}
FROM_WORKERS: Row = {COORDINATOR: (Relation.WORKER,)}
ASKED_BY: Mapping[str, Row] = {  # by the role that is needed
    roles.CLIENT: {COORDINATOR: (Relation.CLIENT,)},
    roles.OPERATOR: {COORDINATOR: (Relation.OPERATOR,)},
    roles.ADMIN: {COORDINATOR: (Relation.ADMIN,)},
}
FROM_STANDBYS: Row = {COORDINATOR: (Relation.COORDINATOR,)}
TO_STANDBYS: Row = {STANDBY: (Relation.COORDINATOR,)}
BETWEEN_RANKS: Row = {WORKER: (Relation.PEER,)}
EVERYBODY = tuple(Receiver)

REQUESTS: Mapping[type[Message], Row] = {
    # links and membership
    Join: {WORKER: (Relation.COORDINATOR,)},
    Probe: OWNER_ONLY,
    Pause: OWNER_ONLY,
    TailLog: OWNER_ONLY,
    # plans and their steps
    Deploy: OWNER_ONLY,
    Run: OWNER_ONLY,
    Drop: OWNER_ONLY,
    Explain: OWNER_ONLY,
    Snapshot: OWNER_ONLY,
    Combine: OWNER_ONLY,
    Relay: {COORDINATOR: (Relation.JOINED,), WORKER: (Relation.OWNER,)},
    # content, known by an address that nobody can guess
    FetchBlob: {
        COORDINATOR: (Relation.MEMBER,),
        WORKER: (Relation.WORKER, Relation.OWNER),
        CLIENT: (Relation.COORDINATOR,),
    },
    # jobs, sessions, administration
    **{request: ASKED_BY[role] for request, (role, _) in CLIENT_REQUESTS.items() if request is not SessionHeard},
    # standbys
    Vote: dict.fromkeys((COORDINATOR, STANDBY, WORKER), (Relation.COORDINATOR,)),
}

NOTES: Mapping[type[Message], Row] = {
    **dict.fromkeys((Beat, Began, Leaving, Paused, Devices), FROM_WORKERS),
    Suspected: OWNER_ONLY,
    CancelStep: OWNER_ONLY,
    Push: {COORDINATOR: (Relation.SOURCE,), WORKER: (Relation.SOURCE,)},
    **dict.fromkeys((Letter, LettersRead, GaveUp, Meet), BETWEEN_RANKS),
    Landed: dict.fromkeys((COORDINATOR, WORKER), (Relation.ASKED,)),
    Revocations: dict.fromkeys((WORKER, CLIENT), (Relation.COORDINATOR,)),
    Coordinators: dict.fromkeys((WORKER, CLIENT), (Relation.COORDINATOR,)),
    SessionHeard: ASKED_BY[roles.CLIENT],
    **dict.fromkeys((AttachStandby, JournalHave, JournalDenied), FROM_STANDBYS),
    **dict.fromkeys((JournalEntries, AuthorityFiles), TO_STANDBYS),
}

STREAMS: Mapping[type[Message], Row] = {
    Push: {COORDINATOR: (Relation.SOURCE,), WORKER: (Relation.SOURCE,)},
    Letter: BETWEEN_RANKS,
    Ballast: {COORDINATOR: (Relation.WORKER,), WORKER: (Relation.WORKER, Relation.OWNER)},
    BlobStream: dict.fromkeys(EVERYBODY, (Relation.ASKED,)),
}

# What comes as the answer to a request only: the link gives it to whoever asked, and to nobody else.
ANSWERS: frozenset[type[Message]] = frozenset({
    AuthorityReport, Blob, Combined, Deployed, Done, Explained, JobAccepted, JobResult, Jobs, Joined, LogLines,
    MissingGraphs, Nodes, Planned, Probed, Ran, Revoked, SessionAttached, SessionOpened, SessionResumed, SessionTold,
    Sessions, Snapshotted, TokenCreated, Tokens, Voted,
})  # fmt: skip

# By the role of a node that listens, whom it takes links from.  No plan has clients deal with workers.
LINKS: Mapping[str, frozenset[str]] = {"worker": frozenset({"worker", "coordinator"})}

TABLE: Mapping[Way, Mapping[type[Message], Row]] = {Way.REQUEST: REQUESTS, Way.NOTE: NOTES, Way.STREAM: STREAMS}


def senders(receiver: Receiver, way: Way, message: type[Message]) -> tuple[Relation, ...]:
    """The relations of which the sender of a message needs one; none where nobody may send it."""
    return TABLE[way].get(message, {}).get(receiver, ())
