"""Identities, joined peers and a recording handler for tests of links."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from mesh.simulation.virtual_network import PERFECT, Conditions, Network, Wire
from wire.errors import MeshError
from wire.limits import DEFAULT, Limits
from wire.link.link import Link
from wire.protocol.flow_control import PacedBuffer
from wire.protocol.messages import Message
from wire.protocol.peer import Event, Identity, Peer, State
from wire.protocol.versions import PROTOCOL

LINK_ID = b"l" * 16


def node(name: str, **fields: Any) -> Identity:
    """An identity whose ids are made from its name."""
    chosen: dict[str, Any] = {
        "node_id": f"id-{name}",
        "name": name,
        "role": "worker",
        "mesh": "test",
        "boot_id": f"boot-{name}",
        "incarnation": 1,
        "version": "0.1.0",
        "protocol": PROTOCOL,
        "op_rows": {"add": b"12345678"},
        "addresses": (),
        "host_id": "host",
        "shared_memory": "",
        "pid": 1,
    }
    return Identity(**chosen | fields)


@dataclass
class Pair:
    """Two joined peers; `events` holds what each saw, by name.  Streams are placed and requests answered on demand."""

    dialer: Peer
    acceptor: Peer
    network: Network = field(default_factory=Network)
    there: Conditions = PERFECT
    back: Conditions = PERFECT

    def __post_init__(self) -> None:
        self.events: dict[str, list[Event]] = {"dialer": [], "acceptor": []}
        self.react: Any = None
        self.wire: Wire = self.network.join(self.dialer, self.acceptor, self._react, self.there, self.back)

    def _react(self, peer: Peer, event: Event) -> None:
        self.events["dialer" if peer is self.dialer else "acceptor"].append(event)
        if self.react is not None:
            self.react(peer, event)

    def settle(self) -> Pair:
        """Send what is queued and run until nothing moves."""
        self.wire.pump()
        self.network.run()
        return self

    def seen(self, side: str, kind: type[Any]) -> list[Any]:
        return [event for event in self.events[side] if isinstance(event, kind)]


def joined(limits: Limits = DEFAULT, acceptor_limits: Limits | None = None, seed: int = 0, **conditions: Any) -> Pair:
    """A dialer and an acceptor with an open link between them."""
    network = Network(seed)
    dialer = Peer.dialer(node("dialer"), limits, LINK_ID)
    acceptor = Peer.acceptor(node("acceptor"), acceptor_limits or limits)
    pair = Pair(dialer, acceptor, network, **conditions).settle()
    assert dialer.state is acceptor.state is State.OPEN
    return pair


class Recorder:
    """A Handler that answers a request with itself and keeps everything else."""

    def __init__(self) -> None:
        self.notes: asyncio.Queue[Message] = asyncio.Queue()
        self.streams: asyncio.Queue[tuple[Message, memoryview, MeshError | None]] = asyncio.Queue()
        self.linked: asyncio.Queue[Link] = asyncio.Queue()
        self.unlinked: asyncio.Queue[tuple[Link, MeshError | None]] = asyncio.Queue()

    async def on_request(self, link: Link, body: Message) -> Message:
        return body

    def on_notify(self, link: Link, body: Message) -> None:
        self.notes.put_nowait(body)

    def on_stream_open(self, link: Link, header: Message, size_bytes: int) -> memoryview | PacedBuffer:
        return memoryview(bytearray(size_bytes))

    def on_stream_done(self, link: Link, header: Message, buffer: memoryview, error: MeshError | None) -> None:
        self.streams.put_nowait((header, buffer, error))

    def on_linked(self, link: Link) -> None:
        self.linked.put_nowait(link)

    def on_unlinked(self, link: Link, error: MeshError | None) -> None:
        self.unlinked.put_nowait((link, error))
