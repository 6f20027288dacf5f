"""Links of a throttled node: a Carrier whose connections send no faster than a rate, and later by a delay.

All connections share one line to the outside, as those of a machine do.  Control frames go before bulk ones: they wait
for each other only, and what they take is taken from bulk.  What is received is not slowed down; throttle both ends.

It does not know what frames mean, nor which connection is for what: a frame of up to `SHORT_BYTES` counts as control.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from wire.limits import KIB
from wire.link.endpoint import Carrier, Socket
from wire.security.certificates import Member

SHORT_BYTES = 2 * KIB  # beats, pings and answers: they wait for no tensor
BURST_S = 0.002  # what the line holds back and sends at once: timers are not more exact than that


class Line:
    """Bytes leave one after the other.  `send_s` says when a frame of a given size has left."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._short_free_s = 0.0

    def send_s(self, size_bytes: int, now_s: float) -> float:
        if not self._bytes_per_s:
            return now_s
        takes_s = size_bytes / self._bytes_per_s
        self._free_s = max(self._free_s, now_s) + takes_s
        if size_bytes > SHORT_BYTES:
            return self._free_s
        self._short_free_s = max(self._short_free_s, now_s) + takes_s
        return self._short_free_s


class ThrottledCarrier:
    """A Carrier (wire/link/endpoint.py) over another one; `bytes_per_s` 0 sends as fast as that one does."""

    def __init__(self, carrier: Carrier, bytes_per_s: float, delay_s: float, close_s: float) -> None:
        self._carrier = carrier
        self._close_s = close_s
        self._delay_s = delay_s
        self._line = Line(bytes_per_s)

    async def listen(
        self, host: str, port: int, last_port: int, accept: Callable[[Socket], Awaitable[None]]
    ) -> tuple[str, int]:

        async def throttled(socket: Socket) -> None:
            await accept(ThrottledSocket(socket, self._line, self._delay_s, self._close_s))

        return await self._carrier.listen(host, port, last_port, throttled)

    async def resolve(self, host: str) -> Sequence[str]:
        return await self._carrier.resolve(host)

    async def connect(self, address: str, port: int) -> Socket:
        socket = await self._carrier.connect(address, port)
        return ThrottledSocket(socket, self._line, self._delay_s, self._close_s)

    async def close(self) -> None:
        await self._carrier.close()


class ThrottledSocket:
    """A Socket (wire/link/endpoint.py) over another one: frames wait here until they have left the line."""

    def __init__(self, socket: Socket, line: Line, delay_s: float, close_s: float) -> None:
        self._socket = socket
        self._line = line
        self._close_s = close_s
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes]] = deque()  # when each is through
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def member(self) -> Member | None:
        return self._socket.member

    def write(self, frame: bytes) -> bool:
        """Write a frame; the socket is congested while the line is busy with it."""
        return self._queue(frame) <= self._loop.time() + BURST_S

    async def send(self, frame: bytes) -> None:
        left_s = self._queue(frame)
        await asyncio.sleep(max(left_s - self._loop.time(), 0.0))

    async def receive(self) -> bytes | None:
        return await self._socket.receive()

    async def pour(self, take: Callable[[bytes | memoryview], None]) -> None:
        await self._socket.pour(take)

    def settled(self) -> None:
        self._socket.settled()

    async def close(self) -> None:
        """Close the connection; its end arrives later, too."""
        await asyncio.sleep(self._delay_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), self._close_s)
        if self._timer is not None:
            self._timer.cancel()
        await self._socket.close()

    def _queue(self, frame: bytes) -> float:
        """Send a frame when it is through; when it has left."""
        left_s = self._line.send_s(len(frame), self._loop.time())
        before_s = self._waiting[-1][0] if self._waiting else 0.0
        self._waiting.append((max(left_s + self._delay_s, before_s), frame))
        self._flush()
        return left_s

    def _flush(self) -> None:
        now_s = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now_s:
            self._socket.write(self._waiting.popleft()[1])
        if not self._waiting:
            self._drained.set()
        elif self._timer is None:
            self._drained.clear()
            self._timer = self._loop.call_at(self._waiting[0][0], self._through)

    def _through(self) -> None:
        self._timer = None
        self._flush()
