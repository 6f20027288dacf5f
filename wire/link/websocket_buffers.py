"""Moves the binary messages of a WebSocket in place of aiohttp, which copies large ones three times on either side.

Put before aiohttp's protocol once the WebSocket stands, it takes the bytes from the transport itself: into one buffer
that all connections of a thread share, or, for a message that is larger than what has come, straight into that
message's memory.
It knows one kind of frame, which is all that a node sends while its link is well: binary, whole, masked if and only if
it comes from the side that dialled (RFC 6455, 5.2).  At anything else, such as a close, it hands the connection back to
aiohttp, with the bytes from there on.

It masks with zeros, which changes nothing.  Masks keep scripts in browsers from writing bytes of their choice through
proxies that misread them; between nodes there is TLS, or no network at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..bounds import SOCKET_MESSAGES
from ..limits import KIB

SHARED_BYTES = 512 * KIB  # a whole chunk, and most of the next
QUEUE_BYTES_MAX = SOCKET_MESSAGES.most
_QUEUED_MESSAGE_BYTES = 64  # what Python needs for a message beside its bytes: millions of empty ones may wait
_HEADER_BYTES_MAX = 14
_WHOLE_BINARY = 0x82
_MASKED = 0x80
_NO_MASK = bytes(4)
JOINED_BYTES_MAX = 16 * KIB  # a copy of so much is cheaper than another call of the kernel

Take = Callable[[memoryview], None]


class _ThreadBuffer(threading.local):
    """A buffer in which bytes arrive.  A loop fills and empties it without anything between, so one is enough for all
    of its connections.  Every thread has its own, because another thread's loop may run while the kernel fills it."""

    def __init__(self) -> None:
        self.data = memoryview(bytearray(SHARED_BYTES))


_arriving = _ThreadBuffer()


class BinaryWebSocket(asyncio.BufferedProtocol):
    """A protocol between `transport` and aiohttp's protocol `inner`.  `masked` says what the other side must do."""

    def __init__(self, transport: Any, masked: bool, message_bytes_max: int) -> None:
        self.handed_over = False  # aiohttp reads on
        self._transport = transport
        self._inner = transport.get_protocol()
        self._masked = masked
        self._message_bytes_max = message_bytes_max
        self._rest = b""  # the beginning of a header
        self._message: bytearray | None = None  # one that is arriving
        self._got = 0  # of it
        self._mask = b""
        self._take: Take | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None
        self._congested = False
        self._draining: list[asyncio.Future[None]] = []
        transport.set_protocol(self)

    def write(self, message: bytes) -> bool:
        """Send a message; False if the socket is congested.  It is taken in either case."""
        if not self._transport.is_closing():
            header = _header_of(len(message), not self._masked)
            if len(message) > JOINED_BYTES_MAX:
                self._transport.write(header)
                self._transport.write(message)
            else:
                self._transport.write(header + message)
        return not self._congested

    async def drain(self) -> None:
        """Wait until the socket takes more; ConnectionResetError if it ended."""
        while self._congested and not self._ended:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append(waiting)
            await waiting
        if self._ended:
            raise ConnectionResetError("the connection ended")

    async def receive(self) -> bytes | None:
        """The next message; None when the connection has ended, or aiohttp reads on."""
        while not self._queue:
            if self._ended or self.handed_over:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._next()

    async def pour(self, take: Take) -> None:
        """Hand every message to `take`, which must not keep it, until the connection has ended or aiohttp reads on."""
        while self._queue:
            take(memoryview(self._next()))
        self._take = take
        try:
            while not self._ended and not self.handed_over:
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
        finally:
            self._take = None

    # -- called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._message is not None:
            return memoryview(self._message)[self._got :]
        held = len(self._rest)
        data = _arriving.data
        data[:held] = self._rest
        return data[held:]

    def buffer_updated(self, nbytes: int) -> None:
        if self._message is None:
            held, self._rest = len(self._rest), b""
            self._parse(_arriving.data[: held + nbytes])
            return
        self._got += nbytes
        if self._got == len(self._message):
            message, self._message = self._message, None
            self._deliver(memoryview(message))

    def pause_writing(self) -> None:
        self._congested = True
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._congested = False
        self._inner.resume_writing()
        self._drained()

    def eof_received(self) -> bool | None:
        keep_open: bool | None = self._inner.eof_received()
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._inner.connection_lost(exc)
        self._drained()
        self._wake()

    # -- helpers

    def _parse(self, data: memoryview) -> None:
        """Deliver what is whole, and keep what has begun."""
        at = 0
        while at < len(data):
            header = _header(data[at : at + _HEADER_BYTES_MAX])
            if header is None:
                self._rest = bytes(data[at:])
                return
            first, masked, start, size = header
            if first != _WHOLE_BINARY or masked != self._masked or size >= self._message_bytes_max:
                self._hand_over(bytes(data[at:]))
                return
            start += at
            self._mask = bytes(data[start - 4 : start]) if masked else b""
            if start + size > len(data):
                self._message, self._got = bytearray(size), len(data) - start
                self._message[: self._got] = data[start:]
                return
            at = start + size
            self._deliver(data[start:at])

    def _deliver(self, message: memoryview) -> None:
        if self._mask and self._mask != _NO_MASK:
            _unmask(message, self._mask)
        if self._take is not None:
            self._take(message)
            return
        self._queue.append(bytes(message))
        self._queued_bytes += len(message) + _QUEUED_MESSAGE_BYTES
        if self._queued_bytes > QUEUE_BYTES_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def _next(self) -> bytes:
        message = self._queue.popleft()
        self._queued_bytes -= len(message) + _QUEUED_MESSAGE_BYTES
        if self._paused and not self._queue:
            self._paused = False
            self._transport.resume_reading()
        return message

    def _hand_over(self, data: bytes) -> None:
        self.handed_over = True
        self._congested = False
        self._drained()
        self._transport.set_protocol(self._inner)
        self._inner.data_received(data)
        self._wake()

    def _drained(self) -> None:
        draining, self._draining = self._draining, []
        for waiting in draining:
            if not waiting.done():
                waiting.set_result(None)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _header_of(size: int, masked: bool) -> bytes:
    mask = _MASKED if masked else 0
    if size < 126:
        header = bytes((_WHOLE_BINARY, size | mask))
    elif size < 1 << 16:
        header = bytes((_WHOLE_BINARY, 126 | mask)) + size.to_bytes(2, "big")
    else:
        header = bytes((_WHOLE_BINARY, 127 | mask)) + size.to_bytes(8, "big")
    return header + _NO_MASK if masked else header


def _header(data: memoryview) -> tuple[int, bool, int, int] | None:
    """First byte, whether it is masked, where the payload begins, and its size; None if more bytes must come."""
    if len(data) < 2:
        return None
    masked, size, start = bool(data[1] & _MASKED), data[1] & 0x7F, 2
    if size >= 126:
        start = 4 if size == 126 else 10
        if len(data) < start:
            return None
        size = int.from_bytes(data[2:start], "big")
    start += 4 * masked
    return None if len(data) < start else (data[0], masked, start, size)


def _unmask(message: memoryview, mask: bytes) -> None:
    """XOR with the mask, repeated, in place: the most of it in words, where they lie as the processor wants them."""
    data = np.frombuffer(message, np.uint8)
    lead = min(-data.ctypes.data % 8, len(message))
    words = (len(message) - lead) // 8
    words_view = data[lead : lead + 8 * words].view(np.uint64)
    turned = (mask * 4)[lead % 4 : lead % 4 + 8]
    np.bitwise_xor(words_view, np.frombuffer(turned, np.uint64)[0], out=words_view)
    for place in (*range(lead), *range(lead + 8 * words, len(message))):
        message[place] ^= mask[place % 4]
