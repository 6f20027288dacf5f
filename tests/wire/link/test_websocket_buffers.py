"""BinaryWebSocket: whole binary messages however the bytes come, and everything else is aiohttp's."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from wire.link.websocket_buffers import QUEUE_BYTES_MAX, SHARED_BYTES, BinaryWebSocket

BINARY, TEXT, CLOSE, FRAGMENT = 0x82, 0x81, 0x88, 0x02


class Inner:
    """aiohttp's protocol."""

    def __init__(self) -> None:
        self.got = b""
        self.events: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, _error: Exception | None) -> None:
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Transport:
    """A transport that, as asyncio's does, fills what `get_buffer` gives."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.protocol: Any = self.inner
        self.paused = False
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def arrive(self, data: bytes) -> None:
        while data:
            if isinstance(self.protocol, Inner):
                self.protocol.data_received(data)
                return
            buffer = self.protocol.get_buffer(-1)
            assert len(buffer)
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            self.protocol.buffer_updated(taken)
            data = data[taken:]


def frame(payload: bytes, mask: bytes = b"", first: int = BINARY) -> bytes:
    size = len(payload)
    if size < 126:
        header = bytes([first, size | 0x80 * bool(mask)])
    elif size < 1 << 16:
        header = bytes([first, 126 | 0x80 * bool(mask)]) + size.to_bytes(2, "big")
    else:
        header = bytes([first, 127 | 0x80 * bool(mask)]) + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if mask else payload
    return header + mask + masked


async def poured(reader: BinaryWebSocket) -> tuple[list[bytes], asyncio.Task[None]]:
    got: list[bytes] = []
    task = asyncio.get_running_loop().create_task(reader.pour(lambda view: got.append(bytes(view))))
    await asyncio.sleep(0)
    return got, task


@pytest.mark.parametrize("masked", [False, True])
async def test_messages_are_whole_however_their_bytes_come(masked: bool) -> None:
    chance = random.Random(5)
    sizes = [0, 1, 3, 125, 126, 127, 65_535, 65_536, 300_000, *(chance.randrange(2000) for _ in range(60))]
    payloads = [chance.randbytes(size) for size in sizes]
    for most in (7, 1000, 1 << 20):
        transport = Transport()
        reader = BinaryWebSocket(transport, masked, 1 << 20)
        got, task = await poured(reader)
        data = b"".join(frame(payload, chance.randbytes(4) if masked else b"") for payload in payloads)
        at = 0
        while at < len(data):
            step = chance.randrange(1, most + 1) if most > 7 or chance.random() < 0.01 else chance.randrange(1, 400)
            transport.arrive(data[at : at + step])
            at += step
        assert got == payloads
        reader.connection_lost(None)
        await task
        assert transport.inner.events == ["lost"]


async def test_connections_share_one_buffer_and_never_each_others_bytes() -> None:
    transports = [Transport() for _ in range(3)]
    readers = [BinaryWebSocket(transport, False, 1 << 20) for transport in transports]
    pours = [await poured(reader) for reader in readers]
    chance = random.Random(1)
    payloads = [[bytes([number]) * chance.randrange(SHARED_BYTES * 2 // 3) for _ in range(4)] for number in range(3)]
    streams = [b"".join(map(frame, messages)) for messages in payloads]
    while any(streams):
        number = chance.randrange(3)
        step = chance.randrange(1, 200_000)
        transports[number].arrive(streams[number][:step])
        streams[number] = streams[number][step:]
    for (got, task), expected, reader in zip(pours, payloads, readers, strict=True):
        assert got == expected
        reader.connection_lost(None)
        await task


async def test_a_loop_in_another_thread_never_overwrites_what_is_arriving() -> None:
    mine, other = (BinaryWebSocket(Transport(), False, 1 << 20) for _ in range(2))

    def arrived(reader: BinaryWebSocket, data: bytes) -> None:
        reader.get_buffer(-1)[: len(data)] = data

    arrived(mine, frame(b"mine"))
    await asyncio.to_thread(arrived, other, frame(b"hers"))  # as two meshes of one process have it
    mine.buffer_updated(len(frame(b"mine")))
    assert await mine.receive() == b"mine"


@pytest.mark.parametrize(
    "strange",
    [frame(b"bye", first=CLOSE), frame(b"text", first=TEXT), frame(b"half", first=FRAGMENT), frame(b"x", b"mask"),
     frame(bytes(2000))],
)  # fmt: skip
async def test_anything_else_is_left_to_aiohttp_with_all_that_follows(strange: bytes) -> None:
    transport = Transport()
    reader = BinaryWebSocket(transport, False, 1000)
    transport.arrive(frame(b"one") + frame(b"two") + strange + frame(b"three"))
    assert [await reader.receive(), await reader.receive(), await reader.receive()] == [b"one", b"two", None]
    assert reader.handed_over
    transport.arrive(frame(b"four"))
    assert transport.inner.got == strange + frame(b"three") + frame(b"four")


@pytest.mark.parametrize("size", [0, 500_000])
async def test_who_is_not_listened_to_is_held_up(size: int) -> None:
    transport = Transport()
    reader = BinaryWebSocket(transport, False, 1 << 20)
    for _ in range(2 * QUEUE_BYTES_MAX // max(size, 64)):
        transport.arrive(frame(bytes(size)))
    assert transport.paused
    while transport.paused:
        assert await reader.receive() == bytes(size)
    waiting = asyncio.get_running_loop().create_task(reader.receive())
    await asyncio.sleep(0)
    transport.arrive(frame(b"next"))
    assert await waiting == b"next"


async def test_the_end_is_told_to_aiohttp_and_to_who_waits() -> None:
    transport = Transport()
    reader = BinaryWebSocket(transport, False, 1 << 20)
    waiting = asyncio.get_running_loop().create_task(reader.receive())
    await asyncio.sleep(0)
    reader.pause_writing()
    reader.resume_writing()
    reader.eof_received()
    reader.connection_lost(None)
    assert await waiting is None
    assert transport.inner.events == ["pause", "resume", "eof", "lost"]
    assert not reader.handed_over


@pytest.mark.parametrize("masked", [False, True])
async def test_what_one_side_writes_the_other_reads(masked: bool) -> None:
    here, there = Transport(), Transport()
    writer, reader = BinaryWebSocket(here, not masked, 1 << 20), BinaryWebSocket(there, masked, 1 << 20)
    payloads = [bytes(range(256)) * count for count in (0, 1, 100, 300, 2000)]
    for payload in payloads:
        assert writer.write(payload)
    there.arrive(b"".join(here.written))
    assert [await reader.receive() for _ in payloads] == payloads


async def test_a_congested_socket_is_waited_for() -> None:
    transport = Transport()
    socket = BinaryWebSocket(transport, False, 1 << 20)
    socket.pause_writing()
    assert not socket.write(b"taken all the same")
    assert len(transport.written) == 1
    waiting = asyncio.get_running_loop().create_task(socket.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    socket.resume_writing()
    await waiting
    socket.pause_writing()
    waiting = asyncio.get_running_loop().create_task(socket.drain())
    await asyncio.sleep(0)
    socket.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await waiting
