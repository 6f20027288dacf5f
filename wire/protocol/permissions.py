"""Permissions: who may send what to whom, as one table.

A row is a message and the way in which it arrives: as a request, as a notification (which has no answer), or as the
header of a stream.  For each kind of receiver it lists relations that the sender may have to that receiver.  One of
them suffices.  A receiver refuses a message that has no row for it.  `wire/link/guard.py` looks messages up in this
table before every handler.  A receiver implements its relations as tests of a link and a message.  docs/protocol.md
prints the table.

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
    OpenDirect,
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
    """Ways in which a message arrives."""

    REQUEST = "request"
    NOTIFICATION = "notification"
    STREAM = "stream"


class Relation(StrEnum):
    """What the sender is to the receiver.  `MEANING` describes each."""

    OWNER = "owner"
    COORDINATOR = "coordinator"
    SOURCE = "planned source"
    PEER = "peer of the plan"
    WORKER = "worker"
    JOINED = "joined worker"
    CLIENT = "client"
    OPERATOR = "operator"
    ADMIN = "admin"
    ASKED = "asked node"
    MEMBER = "member"


MEANING: Mapping[Relation, str] = {
    Relation.OWNER: "The coordinator that this worker serves: the one whose Join the worker accepted last.",
    Relation.COORDINATOR: "A coordinator of the mesh, whether it serves or is a standby.",
    Relation.SOURCE: "The node that makes this tensor by the plan: the worker of the part whose output it is, or the "
    "owner for an input of a call. A tensor for a plan that the receiver does not have is stale and dropped.",
    Relation.PEER: "The worker of the other rank of this mailbox. A message for an unknown mailbox is stale.",
    Relation.WORKER: "A worker of the mesh. The receiver applies the message to that worker only.",
    Relation.JOINED: "A worker that has joined this coordinator over this link.",
    Relation.CLIENT: "A client, an operator or an admin.",
    Relation.OPERATOR: "An operator or an admin.",
    Relation.ADMIN: "An admin.",
    Relation.ASKED: "A node from which this node requested the content over this link, or to which it sent Ballast.",
    Relation.MEMBER: "Any node with a certificate of the mesh's authority.",
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
    OpenDirect: OWNER_ONLY,
    Snapshot: OWNER_ONLY,
    Combine: OWNER_ONLY,
    Relay: {COORDINATOR: (Relation.JOINED,), WORKER: (Relation.OWNER,)},
    # content, by an address that cannot be guessed
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

NOTIFICATIONS: Mapping[type[Message], Row] = {
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

# Messages that are only answers: the link delivers them to the code that sent the request.
ANSWERS: frozenset[type[Message]] = frozenset({
    AuthorityReport, Blob, Combined, Deployed, Done, Explained, JobAccepted, JobResult, Jobs, Joined, LogLines,
    MissingGraphs, Nodes, Planned, Probed, Ran, Revoked, SessionAttached, SessionOpened, SessionResumed, SessionTold,
    Sessions, Snapshotted, TokenCreated, Tokens, Voted,
})  # fmt: skip

# The role of a node that listens -> the roles from which it accepts links.  No plan connects clients with workers.
LINKS: Mapping[str, frozenset[str]] = {"worker": frozenset({"worker", "coordinator"})}

TABLE: Mapping[Way, Mapping[type[Message], Row]] = {
    Way.REQUEST: REQUESTS,
    Way.NOTIFICATION: NOTIFICATIONS,
    Way.STREAM: STREAMS,
}


def senders(receiver: Receiver, way: Way, message: type[Message]) -> tuple[Relation, ...]:
    """The relations of which the sender of a message needs one; empty if the receiver refuses it from every node."""
    return TABLE[way].get(message, {}).get(receiver, ())
