"""What comes over a worker's links, by tables: a row says which part of the daemon takes a type of message.

A message without a row is refused (a request, a stream) or is a sign of life (a notification).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from wire.errors import MeshError, ProtocolError
from wire.link.link import Link
from wire.protocol.messages import Message
from wire.timeouts import SILENT

from ..state import events as ev
from .machine_shell import MachineShell

log = logging.getLogger("graph_mesh.worker")

Answer = Callable[[Link, Any], Awaitable[Message]]
Take = Callable[[Link, Any], object]


class StreamTaker(Protocol):
    """What takes the streams of a type of header."""

    def open_stream(self, link: Link, header: Any, size_bytes: int) -> memoryview:
        """The buffer for the bytes, as in `Handler.on_stream_open`."""

    def stream_done(self, link: Link, header: Any, buffer: memoryview, error: MeshError | None) -> None:
        """All bytes are there, or the stream broke off, as in `Handler.on_stream_done`."""


class LinkHandler:
    """The Handler of a worker's endpoint.  `ready` is set once requests can be answered."""

    def __init__(self, shell: MachineShell) -> None:
        self.ready = asyncio.Event()
        self.linked: list[Callable[[str], object]] = []  # called with a node's id
        self.unlinked: list[Callable[[str], object]] = []
        self._shell = shell
        self.requests: dict[type[Message], Answer] = {}
        self.notifications: dict[type[Message], Take] = {}
        self.streams: dict[type[Message], StreamTaker] = {}

    async def on_request(self, link: Link, body: Message) -> Message:
        await self.ready.wait()
        self._shell.feed(ev.Heard(link.peer.node_id))
        answer = self.requests.get(type(body))
        if answer is None:
            raise ProtocolError(f"a worker does not answer {type(body).__name__}")
        return await answer(link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        take = self.notifications.get(type(body))
        if take is None:
            self._shell.feed(ev.Heard(link.peer.node_id))
        else:
            take(link, body)

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview:
        taker = self.streams.get(type(header))
        if taker is None:
            raise ProtocolError(f"a worker takes no stream of {type(header).__name__}")
        return taker.open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self.streams[type(header)].stream_done(link, header, buffer, error)

    def on_linked(self, link: Link) -> None:
        log.info("linked to %s %s", link.peer.role, link.peer.name)
        for tell in self.linked:
            tell(link.peer.node_id)
        self._shell.feed(ev.NodeLinked(link.peer.node_id))

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        log.info("link to %s %s ended%s", link.peer.role, link.peer.name, f": {error}" if error else "")
        silent, goodbye = error is not None and error.cause == SILENT, error is None
        self._shell.feed(ev.NodeUnlinked(link.peer.node_id, silent, goodbye))
        if self._shell.machine is not None:  # else it ends
            for tell in self.unlinked:
                tell(link.peer.node_id)
