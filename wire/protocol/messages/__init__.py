"""Messages: everything that two nodes send each other, by subject, and how it becomes bytes.

A message is a msgspec Struct sent as a msgpack array: its tag, then its fields in this order.  To add a message, add a
class to the file of its subject and name it in `AnyMessage`; to extend one, append a field with a default.  Either
raises the minor version (`../versions.py`), and goes only to nodes that speak it: an older node refuses what it does
not know.  Never reorder, retype or reuse.  Decoding checks every field's type and the limits written beside it;
anything else is a FrameError and ends the link.

Names: a *plan* is known by its key (epoch, generation).  The epoch is the coordinator's start, the generation counts
the plans that it made.  Both only grow.  A worker drops messages with an older epoch, or for a plan that it has
dropped.  A *step* is one evaluation of a plan.  A *part* is a subgraph on one device of one worker, a *slot* the
position of an input or an output of a part.
"""

from __future__ import annotations

import msgspec

from ...errors import FrameError, InputError
from ...limits import DEFAULT
from ..compatibility import as_of_0
from ..versions import PROTOCOL
from .admin import (
    AskAuthority,
    AskNodes,
    AskTokens,
    AuthorityReport,
    CreateToken,
    LogLines,
    MemberReport,
    NodeReport,
    Nodes,
    PairReport,
    PauseNode,
    Revoked,
    RevokeNode,
    RevokeToken,
    RotateAuthority,
    TailLog,
    TokenCreated,
    TokenReport,
    Tokens,
)
from .blobs import Blob, BlobSpec, BlobStream, FetchBlob
from .deploy import (
    Carry,
    Deploy,
    Deployed,
    Drop,
    Gang,
    InputType,
    Member,
    MissingGraphs,
    PartSpec,
    Source,
    SourceKind,
    Target,
)
from .explain import Explain, Explained, ExplainGraph, KernelReport
from .fields import (
    COORDINATOR_NODE,
    INLINE_BYTES_MAX,
    RELAY_BYTES_MAX,
    REVOCATIONS_BYTES_MAX,
    Done,
    Message,
    PlanKey,
    Record,
    Value,
    with_fields,
)
from .jobs import (
    AskJobs,
    AwaitJob,
    CancelJob,
    JobAccepted,
    JobReport,
    JobResult,
    Jobs,
    NamedValue,
    PlanGraph,
    Planned,
    SubmitJob,
)
from .link import (
    WORKING_MAX,
    Ballast,
    Beat,
    DeviceReport,
    Devices,
    Join,
    Joined,
    Landed,
    Leaving,
    Pause,
    Paused,
    Probe,
    Probed,
    Revocations,
    Suspected,
    Working,
)
from .run import (
    Began,
    CancelStep,
    CarriedValue,
    Combine,
    Combined,
    Feed,
    GaveUp,
    Letter,
    LettersRead,
    Meet,
    OpenDirect,
    Output,
    PartRun,
    Push,
    Ran,
    Relay,
    Run,
    Snapshot,
    Snapshotted,
    Term,
)
from .session import (
    AskSessions,
    AttachSession,
    CloseSession,
    EndSession,
    OpenSession,
    ResumeSession,
    SessionAttached,
    SessionCarry,
    SessionFeed,
    SessionHeard,
    SessionOpened,
    SessionReport,
    SessionResumed,
    Sessions,
    SessionState,
    SessionStep,
    SessionTold,
)
from .standby import (
    AttachStandby,
    AuthorityFile,
    AuthorityFiles,
    BallotOf,
    ConfigurationOf,
    Coordinators,
    JournalDenied,
    JournalEntries,
    JournalEntry,
    JournalHave,
    RecordOf,
    Vote,
    Voted,
)

__all__ = [
    "COORDINATOR_NODE",
    "INLINE_BYTES_MAX",
    "RELAY_BYTES_MAX",
    "REVOCATIONS_BYTES_MAX",
    "WORKING_MAX",
    "AnyMessage",
    "AskAuthority",
    "AskJobs",
    "AskNodes",
    "AskSessions",
    "AskTokens",
    "AttachSession",
    "AttachStandby",
    "AuthorityFile",
    "AuthorityFiles",
    "AuthorityReport",
    "AwaitJob",
    "Ballast",
    "BallotOf",
    "Beat",
    "Began",
    "Blob",
    "BlobSpec",
    "BlobStream",
    "CancelJob",
    "CancelStep",
    "CarriedValue",
    "Carry",
    "CloseSession",
    "Combine",
    "Combined",
    "ConfigurationOf",
    "Coordinators",
    "CreateToken",
    "Deploy",
    "Deployed",
    "DeviceReport",
    "Devices",
    "Done",
    "Drop",
    "EndSession",
    "Explain",
    "ExplainGraph",
    "Explained",
    "Feed",
    "FetchBlob",
    "Gang",
    "GaveUp",
    "InputType",
    "JobAccepted",
    "JobReport",
    "JobResult",
    "Jobs",
    "Join",
    "Joined",
    "JournalDenied",
    "JournalEntries",
    "JournalEntry",
    "JournalHave",
    "KernelReport",
    "Landed",
    "Leaving",
    "Letter",
    "LettersRead",
    "LogLines",
    "Meet",
    "Member",
    "MemberReport",
    "Message",
    "MissingGraphs",
    "NamedValue",
    "NodeReport",
    "Nodes",
    "OpenDirect",
    "OpenSession",
    "Output",
    "PairReport",
    "PartRun",
    "PartSpec",
    "Pause",
    "PauseNode",
    "Paused",
    "PlanGraph",
    "PlanKey",
    "Planned",
    "Probe",
    "Probed",
    "Push",
    "Ran",
    "RecordOf",
    "Relay",
    "ResumeSession",
    "Revocations",
    "RevokeNode",
    "RevokeToken",
    "Revoked",
    "RotateAuthority",
    "Run",
    "SessionAttached",
    "SessionCarry",
    "SessionFeed",
    "SessionHeard",
    "SessionOpened",
    "SessionReport",
    "SessionResumed",
    "SessionState",
    "SessionStep",
    "SessionTold",
    "Sessions",
    "Snapshot",
    "Snapshotted",
    "Source",
    "SourceKind",
    "SubmitJob",
    "Suspected",
    "TailLog",
    "Target",
    "Term",
    "TokenCreated",
    "TokenReport",
    "Tokens",
    "Value",
    "Vote",
    "Voted",
    "Working",
    "decode_message",
    "encode_message",
    "with_fields",
]

AnyMessage = (
    Deploy | Deployed | MissingGraphs | Drop | Done | Run | Ran | Push | Relay | Letter | LettersRead | GaveUp
    | Meet | Began | CancelStep | OpenDirect | Snapshot | Snapshotted | Combine | Combined
    | FetchBlob | Blob | BlobStream | Join | Joined | Devices | Beat | Revocations | Suspected | Probe | Probed
    | Ballast | Landed | Leaving | Pause | Paused
    | TailLog | LogLines
    | SubmitJob | JobAccepted | PlanGraph | Planned | AskJobs | Jobs | AwaitJob | JobResult | CancelJob
    | OpenSession | SessionOpened | SessionStep | SessionState | SessionTold | SessionHeard | ResumeSession
    | SessionResumed | SessionFeed | CloseSession | AttachSession | SessionAttached | AskSessions | Sessions
    | EndSession
    | AskNodes | Nodes | PauseNode
    | RevokeNode | Revoked | CreateToken | TokenCreated | AskTokens | Tokens | RevokeToken
    | AskAuthority | RotateAuthority | AuthorityReport
    | ExplainGraph | Explain | Explained
    | Vote | Voted | AttachStandby | JournalEntries | JournalHave | JournalDenied | AuthorityFiles | Coordinators
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)

# How many fields minor 1 appended.
APPENDED: dict[type[Message | Record], int] = {
    Deploy: 2, Run: 1, Push: 1, Relay: 0, PartSpec: 2, SubmitJob: 2, PlanGraph: 2, Deployed: 1, Ran: 0, PartRun: 6,
    Join: 3, Joined: 4, Drop: 1, AskNodes: 1, Nodes: 2, NodeReport: 3, Jobs: 0, JobReport: 1,
}  # fmt: skip
# Those whose new fields an older node does without, or one such field.
DISPENSABLE = (Deployed, Ran, PartRun, Join, Joined, Drop, Nodes, NodeReport, Jobs, JobReport, "Deploy.types")
# The field in which there is a record, or a tuple of them, that minor 1 appended fields to.
WITH_PARTS: dict[type[Message], int] = {Deploy: 1, Ran: 1, Relay: 1, Nodes: 0, Jobs: 0}
SINCE_1 = (
    Letter, LettersRead, GaveUp, Meet, OpenDirect, Snapshot, Snapshotted, Combine, Combined,
    OpenSession, SessionOpened, SessionStep, SessionState, SessionTold, SessionHeard, ResumeSession, SessionResumed,
    SessionFeed, CloseSession, AttachSession, SessionAttached, AskSessions, Sessions, EndSession,
    ExplainGraph, Explain, Explained,
    Vote, Voted, AttachStandby, JournalEntries, JournalHave, JournalDenied, AuthorityFiles, Coordinators,
    RevokeNode, Revoked, CreateToken, TokenCreated, AskTokens, Tokens, RevokeToken,
    AskAuthority, RotateAuthority, AuthorityReport,
)  # fmt: skip


def encode_message(message: Message, minor: int = PROTOCOL[1]) -> bytes:
    """The message as bytes, for a node of this minor version; LocalError if that version cannot express it,
    InputError if UTF-8 cannot hold a text of it."""
    try:
        return _encoder.encode(message if minor else as_of_0(message, SINCE_1, APPENDED, DISPENSABLE, WITH_PARTS))
    except UnicodeEncodeError as error:
        what = str(error.object)[max(error.start - 40, 0) : error.start + 40]
        raise InputError(f"{what!r} is not text: it holds half a surrogate pair") from None


def decode_message(data: bytes | bytearray | memoryview) -> AnyMessage:
    """The message in `data`; FrameError for anything else.  A graph inside is still only bytes."""
    if len(data) > DEFAULT.message_bytes_max:
        raise FrameError(f"a message of {len(data)} bytes is too long")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise FrameError("not a message", cause=f"{type(error).__name__}: {error}"[:200]) from None
