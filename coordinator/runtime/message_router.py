"""Message router: the handler of a coordinator's links, which passes each message to the part that handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from wire.errors import MeshError, ProtocolError
from wire.link.link import Link
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import Message, Revocations
from wire.roles import member_id
from wire.system.steady_log import steady_logger
from wire.system.tasks import isolated

from ..delivery.output_receiver import OutputReceiver
from ..workers.records import Member

log = steady_logger("graph_mesh.coordinator")


class MessageRouter:
    """A `wire.link.link.Handler`.  To handle a message, add a row: to `requests`, to answer it, or to `notices`.
    `unlinked` are called with every link that ends, and why."""

    receiver: OutputReceiver  # takes streams
    join: Callable[[Link], object]  # takes a link to a worker that may work
    lost: Callable[[str, str], None]  # takes the node id of a member whose link ended, and why

    def __init__(self, members: Mapping[str, Member]) -> None:
        self.requests: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {}
        self.notices: dict[type, Callable[[Link, Any], None]] = {}
        self.unlinked: list[Callable[[Link, MeshError | None], None]] = []
        self.closing = False
        self._members = members
        self._revocations: Revocations | None = None  # the newest list, where the mesh has one

    def revoke(self, revocations: Revocations, node_ids: Collection[str], links: Collection[Link]) -> None:
        """End the links of revoked nodes, and send the list to all others, now and when they connect."""
        self._revocations = revocations
        for link in list(links):
            if link.closed:  # by the end of one before
                continue
            if member_id(link.peer.node_id) in node_ids:
                log.warning("%s was revoked", link.peer.name)
                link.close("this node was revoked")
            else:
                link.notify(revocations)

    def on_linked(self, link: Link) -> None:
        """A link is up, whichever side dialled; a worker then joins."""
        if self._revocations is not None and link.peer.role != "coordinator":  # one of those dialled by mistake
            link.notify(self._revocations)
        if link.peer.role == "worker" and not self.closing:
            self.join(link)

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        """A link has ended."""
        if self.closing:
            return
        for callback in self.unlinked:
            with isolated("hearing of the end of a link"):
                callback(link, error)
        member = self._members.get(link.peer.node_id)
        if member is not None and member.link is link:
            self.lost(link.peer.node_id, str(error or "connection closed"))

    async def on_request(self, link: Link, body: Message) -> Message:
        """The answer to a message; ProtocolError if nobody has one, as a program's coordinator has no jobs."""
        answer = self.requests.get(type(body))
        if answer is None:
            raise ProtocolError(f"this coordinator does not answer {type(body).__name__}")
        return await answer(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        """A message that has no answer; ProtocolError if nobody takes it."""
        handler = self.notices.get(type(body))
        if handler is None:
            raise ProtocolError(f"this coordinator does not take {type(body).__name__}")
        handler(link, body)

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        """Make room for a stream of this size."""
        return self.receiver.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        """A stream has come, or broke off."""
        self.receiver.stream_done(link, header, buffer, error)
