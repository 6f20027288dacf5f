"""Meter: how long a link takes and how much it carries, measured by sending bytes that mean nothing.

It begins with few bytes and goes on while more are cheap, so that a slow line is not held up for longer than SECONDS
and a fast one is not judged by a handful.  Both ends have a Meter: one sends, the other says when all has come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..bounds import MEASUREMENTS
from ..errors import Busy, MeshError, ProtocolError
from ..limits import KIB, MIB
from ..link.link import Link
from ..protocol.messages import Ballast, Landed

PINGS = 3
BYTES_FIRST, BYTES_MAX, GROWTH = 16 * KIB, 4 * MIB, 4
SECONDS = 0.03  # what the last transfer may take: enough to tell 10 Gbit/s from 1, and no heartbeat is late by it
OPEN_MAX = MEASUREMENTS.most
NOTHING = memoryview(bytes(BYTES_MAX))  # what is sent
NOWHERE = memoryview(bytearray(BYTES_MAX))  # where all of it is put, one over the other


@dataclass(frozen=True, slots=True)
class Measured:
    """Round trip of a control frame, and bytes per second one way; 0 where the two share memory."""

    rtt_s: float
    bytes_per_s: float


class Meter:
    """One node's; its owner hands it the streams headed Ballast and the notes Landed."""

    def __init__(self) -> None:
        self._last = 0  # the number of the last measurement
        self._sent: dict[tuple[Link, int], asyncio.Future[None]] = {}
        self._open = 0

    async def measure(self, link: Link, answer_s: float) -> Measured:
        """What a link does now; DeadlineExceeded, NodeLost or TimeoutError after `answer_s`."""
        async with asyncio.timeout(answer_s):
            rtt_s = min([await link.ping(answer_s) for _ in range(PINGS)])
            return Measured(rtt_s, 0.0 if link.same_host else await self._bytes_per_s(link, rtt_s))

    async def _bytes_per_s(self, link: Link, rtt_s: float) -> float:
        size_bytes = BYTES_FIRST
        while True:
            took_s = await self._seconds(link, size_bytes, rtt_s)
            if took_s * GROWTH > SECONDS:  # a slow line, or a moment in which a node was busy
                took_s = min(took_s, await self._seconds(link, size_bytes, rtt_s))
            if size_bytes * GROWTH > BYTES_MAX or took_s * GROWTH > SECONDS:
                return size_bytes / took_s
            size_bytes *= GROWTH

    async def _seconds(self, link: Link, size_bytes: int, rtt_s: float) -> float:
        """The seconds that `size_bytes` bytes take beyond a round trip."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._send(link, size_bytes)
        return max(loop.time() - began_s - rtt_s, 1e-9)

    async def _send(self, link: Link, size_bytes: int) -> None:
        """Return when the other side has all of it."""
        self._last += 1
        number = self._last
        landed = self._sent[link, number] = asyncio.get_running_loop().create_future()
        try:
            await link.send_stream(Ballast(number), NOTHING[:size_bytes])
            await landed
        finally:
            del self._sent[link, number]

    # -- what the other side sends

    def open_stream(self, link: Link, header: Ballast, size_bytes: int) -> memoryview:
        """Room for a transfer; ProtocolError or Busy."""
        if size_bytes > BYTES_MAX:
            raise ProtocolError(f"a measurement of {size_bytes} bytes, the most are {BYTES_MAX}")
        if self._open >= OPEN_MAX:
            raise Busy(f"{OPEN_MAX} measurements are in flight")
        self._open += 1
        return NOWHERE[:size_bytes]

    def stream_done(self, link: Link, header: Ballast, buffer: memoryview, error: MeshError | None) -> None:
        """All has come, or the stream broke off."""
        self._open -= 1
        if error is None:
            link.notify(Landed(header.number))

    def asked(self, link: Link, body: Landed) -> bool:
        """Whether the other side was sent this measurement, or was until a moment ago."""
        return body.number <= self._last

    def landed(self, link: Link, body: Landed) -> None:
        """The other side has all of what we sent."""
        sent = self._sent.get((link, body.number))
        if sent is not None and not sent.done():
            sent.set_result(None)
