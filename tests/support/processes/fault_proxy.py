"""A TCP proxy that spoils what passes through it: one per link, in a thread of its own, changed while it runs.

    with FaultProxy(("127.0.0.1", worker.port), seed=1) as proxy:
        dial(proxy.address)
        proxy.change(UP, delay_s=0.08, bytes_per_s=2.5e6)  # from the dialling side to the target
        proxy.change(DOWN, connection=1, stalled=True)     # the second connection only
        proxy.end("rst")

Every change is kept in `proxy.schedule` with its time, and `FaultProxy(target, seed, script=schedule)` makes the same
changes again: faults at a byte exactly, faults at a time as exactly as the machine allows.  It knows no protocol, but
for the proof of the user, which nobody may pass on: with that user's `secret` it gives one at either side, before it
counts bytes.  To add a fault: a field of Conditions, and the line of _Pipe that obeys it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from wire.errors import MeshError
from wire.link.user_handshake import prove_as_acceptor, prove_as_dialer

UP, DOWN = "up", "down"  # from who dialled to the target, and back
HANGS_S = 120.0  # a change takes microseconds
READ_BYTES = 64 << 10
IN_FLIGHT_BYTES_MAX = 4 << 20  # on a delayed line, as a TCP window would allow
BACKLOG_S = 0.02  # how much may wait for a slow line before nothing more is read
SOCKET_BYTES = 128 << 10  # of each kernel buffer, or a slow line would swallow megabytes at once


@dataclass(frozen=True, slots=True)
class Conditions:
    """One direction of a connection.  Bytes are counted from the connection's start."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # added to the delay, evenly between 0 and this; order is kept
    bytes_per_s: float = math.inf  # of the line, which all connections of this direction share
    stalled: bool = False  # bytes are held and nobody is told
    slice_bytes: int = READ_BYTES  # the most that one write carries
    cut_after: int | None = None  # the connection ends once this many bytes have passed
    cut_with: str = "rst"  # or "fin"
    flip_at: int | None = None  # the byte at this place has its bits of `flip_mask` changed
    flip_mask: int = 0x01
    refused: bool = False  # connections are reset as soon as they come (direction up)


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes different at a time since the proxy's start; `end` is "rst" or "fin" for connections that stand."""

    at_s: float
    direction: str = UP
    connection: int | None = None  # by order of arrival; None: all of now and later
    fields: tuple[tuple[str, Any], ...] = ()
    end: str = ""


class FaultProxy:
    """Passes connections at `address` on to `target`; a context manager."""

    def __init__(
        self,
        target: tuple[str, int],
        seed: int = 0,
        script: Iterable[Change] = (),
        host: str = "127.0.0.1",
        secret: bytes = b"",
    ) -> None:
        self.target = target
        self.secret = secret
        self.seed = seed
        self.schedule: list[Change] = []
        self.connections: list[_Connection] = []
        self.lines = {UP: _Line(), DOWN: _Line()}
        self._script = tuple(script)
        self._listening = socket.create_server((host, 0))
        for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._listening.setsockopt(socket.SOL_SOCKET, side, SOCKET_BYTES)
        self._listening.setblocking(False)
        self.host, self.port = self._listening.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._began_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"fault proxy {self.port}")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def change(self, direction: str | None = None, connection: int | None = None, **fields: Any) -> None:
        """Set fields of Conditions, in both directions unless one is named; they hold when this returns."""
        for each in (UP, DOWN) if direction is None else (direction,):
            self._do(Change(self._now_s(), each, connection, tuple(fields.items())))

    def end(self, how: str = "rst", connection: int | None = None) -> None:
        """End the connections that stand, with a reset or in good order."""
        self._do(Change(self._now_s(), UP, connection, end=how))

    def passed(self, direction: str, connection: int) -> int:
        """How many bytes of a connection have been passed on."""
        return self.connections[connection].pipes[direction].passed

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listening.close()

    # -- on the proxy's thread

    def _now_s(self) -> float:
        return round(time.monotonic() - self._began_s, 4)

    def _do(self, change: Change) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._apply, change)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(HANGS_S), "the proxy's thread is gone"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for change in self._script:
            self._loop.call_later(change.at_s, self._apply, change)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        tasks = [accepting, *self._tasks]
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _apply(self, change: Change) -> None:
        self.schedule.append(change)
        for connection in self.connections:
            if change.connection in (None, connection.number):
                connection.obey(change)

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listening)
            connection = _Connection(self, len(self.connections), client)
            self.connections.append(connection)
            for change in self.schedule:
                if change.fields and change.connection in (None, connection.number):
                    connection.obey(change)
            task = self._loop.create_task(connection.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class _Connection:
    """A connection that came, and the one made for it to the target."""

    def __init__(self, proxy: FaultProxy, number: int, client: socket.socket) -> None:
        self.number = number
        self._target, self._secret = proxy.target, proxy.secret
        self._client, self._server = client, socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self.ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ways = ((UP, self._client, self._server), (DOWN, self._server, self._client))
        self.pipes = {
            way: _Pipe(source, sink, proxy.lines[way], random.Random(f"{proxy.seed} {number} {way}"), self.finish)
            for way, source, sink in ways
        }

    def obey(self, change: Change) -> None:
        if change.end:
            self.finish(change.end)
        else:
            self.pipes[change.direction].change(dict(change.fields))

    def finish(self, how: str) -> None:
        if not self.ending.done():
            self.ending.set_result(how)

    async def run(self) -> None:
        moving = asyncio.ensure_future(self._move())
        try:
            await asyncio.wait((moving, self.ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            moving.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await moving
            broken = self.ending.done() and self.ending.result() == "rst"
            for each in (self._client, self._server):
                _close(each, with_reset=broken)

    async def _move(self) -> None:
        if self.pipes[UP].conditions.refused:
            self.finish("rst")
            return
        try:
            for each in (self._client, self._server):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(self._server, self._target)
            if self._secret:
                await asyncio.gather(
                    prove_as_acceptor(self._client, self._secret), prove_as_dialer(self._server, self._secret)
                )
            async with asyncio.TaskGroup() as both:
                for pipe in self.pipes.values():
                    both.create_task(pipe.read())
                    both.create_task(pipe.write())
        except* (OSError, MeshError):
            self.finish("rst")  # one side was reset or never there: so is the other


@dataclass(slots=True)
class _Line:
    """What the connections of one direction share, as they would share a cable."""

    free_s: float = 0.0  # when all that was given to it has left

    def take(self, size: int, bytes_per_s: float, now_s: float) -> float:
        """When `size` bytes, given to it now, have left."""
        if bytes_per_s == math.inf:
            return now_s
        self.free_s = max(now_s, self.free_s) + size / bytes_per_s
        return self.free_s


@dataclass(slots=True)
class _Pipe:
    """One direction of one connection: what was read waits here until it is due."""

    source: socket.socket
    sink: socket.socket
    line: _Line
    rng: random.Random
    finish: Callable[[str], None]
    conditions: Conditions = Conditions()
    passed: int = 0
    _waiting: deque[tuple[float, bytes]] = field(default_factory=deque)  # when it is due, and b"" for the end
    _waiting_bytes: int = 0
    _due_s: float = 0.0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, fields: dict[str, Any]) -> None:
        self.conditions = replace(self.conditions, **fields)
        self._news.set()

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        data = b" "
        while data:
            at_once = self.conditions.bytes_per_s * BACKLOG_S / 4
            data = await loop.sock_recv(self.source, int(min(READ_BYTES, max(1400, at_once))))
            left_s = self.line.take(len(data), self.conditions.bytes_per_s, loop.time())
            late_s = self.conditions.delay_s + self.rng.uniform(0, self.conditions.jitter_s)
            self._due_s = max(self._due_s, left_s + late_s)
            self._waiting.append((self._due_s, data))
            self._waiting_bytes += len(data)
            self._news.set()
            await _until(loop, left_s - BACKLOG_S)
            await self._wait_for(lambda: self._waiting_bytes < IN_FLIGHT_BYTES_MAX)

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for(lambda: bool(self._waiting))
            due_s, data = self._waiting.popleft()
            await _until(loop, due_s)
            if not data:
                await self._wait_for(lambda: not self.conditions.stalled)
                self.sink.shutdown(socket.SHUT_WR)
                return
            rest = memoryview(bytearray(data))
            while rest:
                await self._wait_for(lambda: not self.conditions.stalled)
                await self._cut_if_due()
                piece, rest = self._next(rest)
                await loop.sock_sendall(self.sink, piece)
                self.passed += len(piece)
                self._waiting_bytes -= len(piece)
                await asyncio.sleep(0)
            await self._cut_if_due()
            self._news.set()

    def _next(self, data: memoryview) -> tuple[memoryview, memoryview]:
        """What to write now, spoiled as asked, and the rest."""
        size = min(len(data), self.conditions.slice_bytes)
        if self.conditions.cut_after is not None:
            size = min(size, self.conditions.cut_after - self.passed)
        flip = -1 if self.conditions.flip_at is None else self.conditions.flip_at - self.passed
        if 0 <= flip < size:
            data[flip] ^= self.conditions.flip_mask
        return data[:size], data[size:]

    async def _cut_if_due(self) -> None:
        if self.conditions.cut_after is not None and self.passed >= self.conditions.cut_after:
            self.finish(self.conditions.cut_with)
            await asyncio.Event().wait()  # until that is done

    async def _wait_for(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


async def _until(loop: asyncio.AbstractEventLoop, when_s: float) -> None:
    if when_s > loop.time():
        await asyncio.sleep(when_s - loop.time())


def _close(each: socket.socket, with_reset: bool) -> None:
    if with_reset:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    each.close()


def resets(seed: int, count: int, within_s: float, how: Sequence[str] = ("rst", "fin")) -> list[Change]:
    """A script: all connections end at `count` random moments."""
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0, within_s) for _ in range(count))
    return [Change(round(at_s, 4), end=rng.choice(how)) for at_s in moments]
