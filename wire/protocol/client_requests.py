"""Client requests: what programs and people ask a coordinator, and the role that each needs.

A request without a row is always refused.  docs/protocol.md prints the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import NotTrusted
from ..roles import ADMIN, CLIENT, OPERATOR
from .messages import (
    AskAuthority,
    AskJobs,
    AskNodes,
    AskSessions,
    AskTokens,
    AttachSession,
    AwaitJob,
    CancelJob,
    CloseSession,
    CreateToken,
    EndSession,
    ExplainGraph,
    Message,
    OpenSession,
    PauseNode,
    PlanGraph,
    ResumeSession,
    RevokeNode,
    RevokeToken,
    RotateAuthority,
    SessionFeed,
    SessionHeard,
    SessionState,
    SessionStep,
    SubmitJob,
)

# Request -> the role that it needs, and what it reaches.
CLIENT_REQUESTS: Mapping[type[Message], tuple[str, str]] = {
    SubmitJob: (CLIENT, "a job of its own"),
    PlanGraph: (CLIENT, "the graph in the request"),
    ExplainGraph: (CLIENT, "the graph in the request"),
    AskJobs: (CLIENT, "its own jobs; an operator reaches all jobs"),
    AwaitJob: (CLIENT, "its own jobs; an admin reaches all jobs"),
    CancelJob: (CLIENT, "its own jobs; an operator reaches all jobs"),
    AskNodes: (CLIENT, "the workers of the mesh"),
    OpenSession: (CLIENT, "a session of its own"),
    SessionStep: (CLIENT, "its own sessions"),
    SessionState: (CLIENT, "its own sessions"),
    SessionHeard: (CLIENT, "its own sessions"),
    ResumeSession: (CLIENT, "its own sessions"),
    SessionFeed: (CLIENT, "its own sessions"),
    CloseSession: (CLIENT, "its own sessions"),
    AttachSession: (CLIENT, "its own sessions"),
    AskSessions: (CLIENT, "its own sessions"),
    EndSession: (CLIENT, "its own sessions"),
    PauseNode: (OPERATOR, "every worker"),
    RevokeNode: (OPERATOR, "every node except admins; an admin reaches admins, too"),
    AskTokens: (ADMIN, "every token"),
    CreateToken: (ADMIN, "a new token"),
    RevokeToken: (ADMIN, "every token"),
    AskAuthority: (ADMIN, "the mesh's authority"),
    RotateAuthority: (ADMIN, "the mesh's authority"),
}
# In the words of whoever asks: what takes more than the role of a client.
TRIED: Mapping[type[Message], str] = {
    PauseNode: "to pause or resume a worker",
    RevokeNode: "to revoke a node",
    AskTokens: "to list tokens",
    CreateToken: "to create a token",
    RevokeToken: "to revoke a token",
    AskAuthority: "to see the mesh's authority",
    RotateAuthority: "to rotate the mesh's authority",
}


def refusal(name: str, role: str, request: type[Message]) -> NotTrusted:
    """The error for a node of this name and role that may not ask for this."""
    needed, _ = CLIENT_REQUESTS[request]
    if needed == CLIENT:
        return NotTrusted(f"{name} is a {role}: only clients submit jobs and ask for them")
    return NotTrusted(
        f"{name} has the role {role}: {TRIED[request]} needs the role {needed}",
        next_step=f"Join with a token made by: mesh-coord token create --role {needed}",
    )
