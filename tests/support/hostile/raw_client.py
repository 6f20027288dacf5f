"""A client that speaks WebSocket and the link's protocol by hand, so that it can break every rule of either."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from support.machines.links import node

from wire.limits import DEFAULT
from wire.link.user_handshake import prove_as_dialer
from wire.link.websocket_carrier import PATH
from wire.protocol.frames import Frame, Refuse, decode
from wire.protocol.peer import BULK, CONTROL, Channel, Identity, Peer, State
from wire.security.user_secret import user_secret

BINARY, TEXT, CLOSE, PING = 2, 1, 8, 9
CONNECTED_S = 60.0  # the system does it; a backlog that is full takes longer
ENDED = (ConnectionError, asyncio.IncompleteReadError)


def upgrade(path: str = PATH, **headers: str) -> bytes:
    """The request that opens a WebSocket; "Sec-WebSocket-Key" is written Sec_WebSocket_Key."""
    key = base64.b64encode(os.urandom(16)).decode()
    fields = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
    return "\r\n".join(lines).encode()


def ws_frame(payload: bytes, opcode: int = BINARY, size: int | None = None, first_bits: int = 0x80) -> bytes:
    """A masked frame; `size` is what it claims, whatever `payload` has."""
    size = len(payload) if size is None else size
    mask = b"\x01\x02\x03\x04"
    masks = np.frombuffer((mask * (len(payload) // 4 + 1))[: len(payload)], np.uint8)
    masked = (np.frombuffer(payload, np.uint8) ^ masks).tobytes()
    return struct.pack("!BBQ", first_bits | opcode, 0x80 | 127, size) + mask + masked


class RawClient:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write, and let others of this loop have their turn; a connection that is closed already is fine."""
        with contextlib.suppress(*ENDED):
            await asyncio.sleep(0)
            self.writer.write(data)
            await self.writer.drain()

    async def open_socket(self) -> None:
        """Become a WebSocket."""
        await self.send(upgrade())
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    async def receive(self) -> bytes | None:
        """The payload of the next binary frame; None at the end."""
        try:
            while True:
                first, second = await self.reader.readexactly(2)
                size = second & 0x7F
                if size >= 126:
                    size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
                payload = await self.reader.readexactly(size)
                if first & 0x0F == BINARY:
                    return payload
                if first & 0x0F == CLOSE:
                    return None
        except ENDED:
            return None

    async def refusal(self) -> Refuse:
        """The refusal that comes next, after which the other side closes."""
        data = await self.receive()
        assert data is not None, "closed without a word"
        frame = decode(data)
        assert isinstance(frame, Refuse), frame
        assert await self.receive() is None
        return frame

    async def until_end(self) -> bytes:
        """What still comes before the other side closes."""
        with contextlib.suppress(*ENDED):
            return await self.reader.read(-1)
        return b""


@asynccontextmanager
async def raw_client(port: int, proves: bool = True) -> AsyncIterator[RawClient]:
    """A connection, which has proved that this user makes it, to a node without a token; or which has not."""
    client = await connected(port, proves)
    try:
        yield client
    finally:
        client.writer.transport.abort()


async def connected(port: int, proves: bool = True) -> RawClient:
    """The same, which stays."""
    connection = socket.create_connection(("127.0.0.1", port), CONNECTED_S)
    connection.setblocking(False)
    if proves:
        await prove_as_dialer(connection, user_secret())
    return RawClient(*await asyncio.open_connection(sock=connection))


class RawLink:
    """A link made properly, over which anything may then be sent."""

    def __init__(self, control: RawClient, bulk: RawClient, peer: Peer) -> None:
        self.clients = {CONTROL: control, BULK: bulk}
        self.peer = peer

    async def send(self, channel: Channel, data: bytes) -> None:
        await self.clients[channel].send(ws_frame(data))

    async def received(self, kind: type[Any]) -> Any:
        """The next control frame of a kind; others are dropped."""
        while (data := await self.clients[CONTROL].receive()) is not None:
            frame: Frame = decode(data)
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"closed before a {kind.__name__} came")


@asynccontextmanager
async def raw_link(port: int, identity: Identity | None = None) -> AsyncIterator[RawLink]:
    """A link of a worker named raw, or of `identity`."""
    peer = Peer.dialer(identity or node("raw", role="worker"), DEFAULT, os.urandom(16))
    async with raw_client(port) as control, raw_client(port) as bulk:
        for channel, client in ((CONTROL, control), (BULK, bulk)):
            await client.open_socket()
            await client.send(ws_frame(peer.next_frame(channel) or b""))
            peer.receive(channel, await client.receive() or b"")
            if channel is CONTROL:
                peer.start_bulk()
        assert peer.state is State.OPEN
        yield RawLink(control, bulk, peer)
