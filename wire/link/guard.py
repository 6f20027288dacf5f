"""Guard: the Handler before the handler of an endpoint.  It lets through what the table of permissions allows.

`wire/protocol/permissions.py` says which relations the sender of a message needs; the `tests` of the receiver say
whether it has one.  What is refused is counted against the sender, and logged at a limited rate.  A sender
that goes on has its link ended.  A request is answered with the error, a note is dropped, and a stream is refused
before there is any memory for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..bounds import REFUSED_MESSAGES
from ..errors import MeshError, NotTrusted, ProtocolError, StaleGeneration
from ..protocol.client_requests import CLIENT_REQUESTS, refusal
from ..protocol.flow_control import PacedBuffer
from ..protocol.messages import Message
from ..protocol.permissions import TABLE, Receiver, Relation, Way
from ..roles import ADMIN, CLIENT, OPERATOR, may
from ..system.log_limit import LogLimit, unlogged_text
from ..system.outcome import Outcome
from ..system.steady_log import steady_logger
from .link import Handler, Link

log = steady_logger("graph_mesh.link")

REFUSED_S = 60.0  # the time that REFUSED_MESSAGES counts
Test = Callable[[Link, Any], bool]
WANTED: Mapping[Relation, str] = {  # which sender may send it, in the error
    Relation.OWNER: "the coordinator of a worker",
    Relation.COORDINATOR: "a coordinator",
    Relation.SOURCE: "the worker that the plan names",
    Relation.PEER: "a worker with a rank of the same gang",
    Relation.WORKER: "a worker",
    Relation.JOINED: "a worker that has joined",
    Relation.CLIENT: "a client",
    Relation.OPERATOR: "an operator",
    Relation.ADMIN: "an admin",
    Relation.ASKED: "a node that was asked for it",
    Relation.MEMBER: "a member",
}


def has_role(role: str) -> Test:
    """The test of a relation that a node has by its role alone."""
    return lambda link, body: link.peer.role == role


BY_ROLE: Mapping[Relation, Test] = {
    Relation.MEMBER: lambda link, body: True,
    Relation.COORDINATOR: has_role("coordinator"),
    Relation.WORKER: has_role("worker"),
    Relation.CLIENT: lambda link, body: may(link.peer.role, CLIENT),
    Relation.OPERATOR: lambda link, body: may(link.peer.role, OPERATOR),
    Relation.ADMIN: lambda link, body: may(link.peer.role, ADMIN),
}


@dataclass(slots=True)
class _Ledger:
    """What was refused over a link."""

    refused: int = 0  # since the minute began
    since_s: float = 0.0
    lines: LogLimit = field(default_factory=LogLimit)


class Guard:
    """The guard of `handler`, whose kind is `receiver`.  `tests` say whether a sender has a relation; those by role
    need not be given.  `without_row` is the error for what has no row here, where ending the link is too much."""

    def __init__(
        self,
        handler: Handler,
        receiver: Receiver,
        tests: Mapping[Relation, Test],
        without_row: MeshError | None = None,
    ) -> None:
        self.refused_of: dict[str, int] = {}  # how many messages, by node id, of the nodes that are linked
        self._handler = handler
        self._receiver = receiver
        self._without_row = without_row
        known = {**BY_ROLE, **tests}
        self._requests, self._notifications, self._streams = (
            {
                message: _one_of([known[relation] for relation in row[receiver]])
                for message, row in TABLE[way].items()
                if receiver in row
            }
            for way in Way
        )
        self._ledgers: dict[Link, _Ledger] = {}

    # -- the Handler

    def on_request(self, link: Link, body: Message) -> Coroutine[Any, Any, Message] | Outcome[Message]:
        """Answer a request of a sender that may ask; NotTrusted for others."""
        may = self._requests.get(type(body))
        if may is None or not may(link, body):
            raise self._refused(link, body, Way.REQUEST)
        return self._handler.on_request(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        """Pass on a notification of a sender that may send it, and drop others."""
        may = self._notifications.get(type(body))
        if may is not None and may(link, body):
            self._handler.on_notify(link, body)
            return
        error = self._refused(link, body, Way.NOTIFICATION)
        if isinstance(error, ProtocolError):
            raise error

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        """Room for a stream of a sender that may send it; NotTrusted for others."""
        may = self._streams.get(type(header))
        if may is None or not may(link, header):
            raise self._refused(link, header, Way.STREAM)
        return self._handler.on_stream_open(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self._handler.on_stream_done(link, header, buffer, error)

    def on_linked(self, link: Link) -> None:
        self._handler.on_linked(link)

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self._ledgers.pop(link, None)
        self.refused_of.pop(link.peer.node_id, None)
        self._handler.on_unlinked(link, error)

    # -- refusals

    def _refused(self, link: Link, body: Message, way: Way) -> MeshError:
        """The error for what a sender may not send, which is counted."""
        what, row = type(body).__name__, TABLE[way].get(type(body), {}).get(self._receiver)
        if row is None:
            if self._without_row is not None:
                return self._without_row.copy()
            self.count(link, f"a {self._receiver} does not take {what}")
            return ProtocolError(f"a {self._receiver} does not take {what} as a {way}")
        if Relation.OWNER in row and link.peer.role == "coordinator":  # its time is over, or has not begun
            return StaleGeneration("this worker does not belong to you", next_step="Join it first")
        if type(body) in CLIENT_REQUESTS:
            error = refusal(link.peer.name, link.peer.role, type(body))
        else:
            wanted = " or ".join(WANTED[relation] for relation in row)
            error = NotTrusted(f"{link.peer.name} is a {link.peer.role}: only {wanted} sends {what}")
        self.count(link, error.message)
        return error

    def count(self, link: Link, why: str) -> None:
        """Count something against the node at the other end of a link.  One that goes on has its link ended."""
        now = asyncio.get_running_loop().time()
        ledger = self._ledgers.get(link)
        if ledger is None:
            ledger = self._ledgers[link] = _Ledger(since_s=now)
        if now - ledger.since_s > REFUSED_S:
            ledger.refused, ledger.since_s = 0, now
        ledger.refused += 1
        node = link.peer.node_id
        self.refused_of[node] = self.refused_of.get(node, 0) + 1
        unlogged_count = ledger.lines.admit(now)
        if unlogged_count is not None:
            log.warning("refused: %s%s", why, unlogged_text(unlogged_count))
        if ledger.refused >= REFUSED_MESSAGES.most and not link.closed:
            link.fail(NotTrusted(f"{link.peer.name} sent {ledger.refused} messages in a minute that it may not send"))


def _one_of(tests: Sequence[Test]) -> Test:
    """The test that one of these passes; there is one for nearly every message."""
    if len(tests) == 1:
        return tests[0]
    return lambda link, body: any(test(link, body) for test in tests)
