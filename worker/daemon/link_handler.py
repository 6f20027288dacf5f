"""What comes over a worker's links, by tables: a row says which part of the daemon takes a type of message.

Who may send what is asked before (`wire/link/guard.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from wire.errors import MeshError
from wire.link.link import Link
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import Message
from wire.system.outcome import Outcome
from wire.system.steady_log import steady_logger
from wire.system.tasks import isolated
from wire.timeouts import SILENT

from ..state import events as ev
from .machine_shell import MachineShell

log = steady_logger("graph_mesh.worker")

Answer = Callable[[Link, Any], Awaitable[Message]]
PromptAnswer = Callable[[Link, Any], Outcome[Message]]
Take = Callable[[Link, Any], object]


class StreamTaker(Protocol):
    """What takes the streams of a type of header."""

    def open_stream(self, link: Link, header: Any, size_bytes: int) -> memoryview | PacedBuffer:
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
        self.prompt: dict[type[Message], PromptAnswer] = {}  # of what an owner asks all the time
        self.notifications: dict[type[Message], Take] = {}
        self.streams: dict[type[Message], StreamTaker] = {}

    def on_request(self, link: Link, body: Message) -> Coroutine[Any, Any, Message] | Outcome[Message]:
        prompt = self.prompt.get(type(body))
        return self._answer(link, body) if prompt is None else prompt(link, body)

    async def _answer(self, link: Link, body: Message) -> Message:
        await self.ready.wait()
        self._shell.feed(ev.Heard(link.peer.node_id))
        return await self.requests[type(body)](link, body)

    def on_notify(self, link: Link, body: Message) -> None:
        self.notifications[type(body)](link, body)

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        return self.streams[type(header)].open_stream(link, header, size_bytes)

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self.streams[type(header)].stream_done(link, header, buffer, error)

    def on_linked(self, link: Link) -> None:
        log.info("linked to %s %s", link.peer.role, link.peer.name)
        for tell in self.linked:
            with isolated("hearing of a new link"):
                tell(link.peer.node_id)
        self._shell.feed(ev.NodeLinked(link.peer.node_id))

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        log.info("link to %s %s ended%s", link.peer.role, link.peer.name, f": {error}" if error else "")
        silent, goodbye = error is not None and error.cause == SILENT, error is None
        with isolated("what follows of the end of a link"):  # the owner is dialled again in any case
            self._shell.feed(ev.NodeUnlinked(link.peer.node_id, silent, goodbye))
        if self._shell.machine is not None:  # else it ends
            for tell in self.unlinked:
                with isolated("hearing of the end of a link"):
                    tell(link.peer.node_id)
