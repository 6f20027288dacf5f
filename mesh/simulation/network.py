"""SimulatedNetwork: hosts, the wires between them, and what goes wrong on the way.

A host's `carrier` is a Carrier (`wire/link/endpoint.py`), so that a real Endpoint works over it.  A wire behaves as TCP
does: frames arrive whole and in order, later when it is slow, lossy or cut; nobody notices a silent wire but by
waiting.  What happens follows from the seed and from the order of calls.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import ClassVar

from wire.errors import ConfigError, ConnectFailed
from wire.link.endpoint import Socket
from wire.security.certificates import Member

from .loop import context_of
from .virtual_network import Conditions

Accept = Callable[[Socket], Awaitable[None]]

LAN = Conditions(delay_s=0.0003, jitter_s=0.0002, bytes_per_s=1e8)
SAME_HOST = Conditions(delay_s=0.00005, bytes_per_s=2e9)


class SimulatedNetwork:
    """All hosts and wires.  Make and use it on the loop whose clock it goes by."""

    def __init__(self, seed: int = 0, conditions: Conditions = LAN) -> None:
        self.random = random.Random(seed)
        self.conditions = conditions
        self.frames = 0  # delivered so far
        self.loop = asyncio.get_running_loop()
        self._ways: dict[tuple[str, str], Conditions] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._listening: dict[tuple[str, int], tuple[Accept, Context]] = {}  # and whose process accepts
        self._wires = context_of("network")  # they carry on whichever process stands still
        self._sockets: dict[str, dict[_Socket, None]] = defaultdict(dict)  # of each host
        self._holding: dict[_Socket, None] = {}  # what was sent into a silence, perhaps by a process that is gone
        self._tasks: set[asyncio.Task[None]] = set()

    def carrier(self, host: str) -> SimulatedCarrier:
        """The means of one host to listen and to dial.  Its name is its address."""
        return SimulatedCarrier(self, host)

    def way(self, source: str, target: str) -> Conditions:
        """How frames get from one host to another."""
        conditions = self._ways.get((source, target)) if self._ways else None
        return conditions or (SAME_HOST if source == target else self.conditions)

    def set_way(self, source: str, target: str, conditions: Conditions) -> None:
        """Set the conditions for frames from `source` to `target` from now on."""
        self._ways[source, target] = conditions

    def block(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Silence, one way: nothing gets from `sources` to `targets` any more, and nobody is notified."""
        targets = list(targets)
        self._blocked |= {(source, target) for source in sources for target in targets}

    def heal(self, host: str = "") -> None:
        """Every silence ends, or every silence of one host; what was sent meanwhile arrives, as TCP sends again."""
        self._blocked = {way for way in self._blocked if host and host not in way}
        holding, self._holding = list(self._holding), {}
        for socket in holding:
            socket.resume()

    def is_blocked(self, source: str, target: str) -> bool:
        return bool(self._blocked) and (source, target) in self._blocked

    def kill(self, host: str) -> None:
        """The host's process is gone: its connections end, and nobody listens there."""
        for address in [address for address in self._listening if address[0] == host]:
            del self._listening[address]
        for socket in list(self._sockets[host]):
            socket.vanish()

    # -- for carriers and sockets

    def listen(self, host: str, port: int, accept: Accept) -> int:
        chosen = port or next(free for free in range(7100, 1 << 16) if (host, free) not in self._listening)
        if (host, chosen) in self._listening:
            raise ConfigError(f"port {chosen} on {host} is in use")
        self._listening[host, chosen] = accept, copy_context()
        return chosen

    def stop_listening(self, host: str, port: int) -> None:
        self._listening.pop((host, port), None)

    async def connect(self, source: str, target: str, port: int) -> _Socket:
        """A socket to what listens there, one round trip later; ConnectFailed where nothing does."""
        there, back = self.way(source, target), self.way(target, source)
        while self.is_blocked(source, target) or self.is_blocked(target, source):
            await asyncio.sleep(max(there.resend_s, 0.01))  # the dialler's own time limit ends this
        await asyncio.sleep(there.delay_s + back.delay_s)
        listening = self._listening.get((target, port))
        if listening is None:
            raise ConnectFailed(
                f"no node answers at {target}:{port}", next_step="Is mesh-coord serve, or mesh-worker, running there?"
            )
        near, far = _Socket(self, source, target), _Socket(self, target, source)
        near.other, far.other = far, near
        self._sockets[source][near] = self._sockets[target][far] = None
        accept, context = listening
        self._spawn(self._serve(accept, far), context)
        return near

    def holds(self, socket: _Socket) -> None:
        self._holding[socket] = None

    def forget(self, socket: _Socket) -> None:
        self._sockets[socket.host].pop(socket, None)

    async def _serve(self, accept: Accept, socket: _Socket) -> None:
        try:
            await accept(socket)
        finally:
            await socket.close()

    def arrives(self, at_s: float, arrive: Callable[[], None]) -> None:
        """Something is on its way until then."""
        self.loop.call_at(at_s, arrive, context=self._wires)

    def _spawn(self, work: Coroutine[None, None, None], context: Context) -> None:
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class SimulatedCarrier:
    """One host's Carrier."""

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self._network = network
        self._host = host
        self._ports: list[int] = []

    async def listen(self, host: str, port: int, last_port: int, accept: Accept) -> tuple[str, int]:
        bound = self._network.listen(self._host, port, accept)
        self._ports.append(bound)
        return self._host, bound

    async def resolve(self, host: str) -> Sequence[str]:
        return (host,)

    async def connect(self, address: str, port: int) -> Socket:
        """Open a connection (`Carrier.connect`)."""
        return await self._network.connect(self._host, address, port)

    async def close(self) -> None:
        for port in self._ports:
            self._network.stop_listening(self._host, port)


@dataclass(eq=False)
class _Socket:
    """One end of a connection.  `None` in its inbox is the end of it."""

    network: SimulatedNetwork
    host: str
    target: str
    member: ClassVar[Member | None] = None
    other: _Socket = field(init=False, repr=False)
    flying_bytes: int = 0  # sent by this end and not arrived
    closed: bool = False
    _inbox: deque[bytes | None] = field(default_factory=deque)
    _held: deque[bytes | None] = field(default_factory=deque)  # sent into a silence
    _flying: deque[bytes | None] = field(default_factory=deque)  # on the way
    _free_s: float = 0.0  # when the last byte sent has left
    _arrived_s: float = 0.0  # when the last frame sent arrives
    _readers: deque[asyncio.Future[None]] = field(default_factory=deque)
    _writers: deque[asyncio.Future[None]] = field(default_factory=deque)

    def write(self, frame: bytes) -> bool:
        if not self.closed:
            self._send(frame)
        return not self.congested

    @property
    def congested(self) -> bool:
        return self.flying_bytes >= self.network.way(self.host, self.target).buffer_bytes

    async def send(self, frame: bytes) -> None:
        self.write(frame)
        while self.congested and not self.closed:
            waiting: asyncio.Future[None] = self.network.loop.create_future()
            self._writers.append(waiting)
            await waiting
        if self.closed:
            raise ConnectionResetError("the connection ended")

    async def receive(self) -> bytes | None:
        while not self._inbox:
            waiting: asyncio.Future[None] = self.network.loop.create_future()
            self._readers.append(waiting)
            await waiting
        if self._inbox[0] is None:
            return None
        return self._inbox.popleft()

    async def pour(self, take: Callable[[bytes | memoryview], None]) -> None:
        """Hand every frame to `take` until the connection ends."""
        while (frame := await self.receive()) is not None:
            take(frame)

    def settled(self) -> None:
        return  # time limits before a link are the real transport's

    async def close(self) -> None:
        if not self.closed:
            self._send(None)
            self._end()

    def vanish(self) -> None:
        """The process of this end died: the kernel notifies the other end, if the way is open."""
        if not self.closed:
            self._held.clear()
            self._send(None)
            self._end()

    def resume(self) -> None:
        """A silence is over, perhaps ours."""
        while self._held and not self.network.is_blocked(self.host, self.target):
            self._fly(self._held.popleft())
        if self._held:
            self.network.holds(self)

    def _hold(self, frame: bytes | None) -> None:
        self._held.append(frame)
        self.network.holds(self)

    def _send(self, frame: bytes | None) -> None:
        self.flying_bytes += len(frame or b"")
        if self._held or self.network.is_blocked(self.host, self.target):
            self._hold(frame)
        else:
            self._fly(frame)

    def _fly(self, frame: bytes | None) -> None:
        network = self.network
        how, chance, now = network.way(self.host, self.target), network.random, network.loop.time()
        if self._free_s < now:
            self._free_s = now
        self._free_s += len(frame or b"") / how.bytes_per_s
        arrives_s = self._free_s + how.delay_s + how.jitter_s * chance.random()
        if how.loss and chance.random() < how.loss:
            arrives_s += how.resend_s
        if self._arrived_s < arrives_s:
            self._arrived_s = arrives_s
        self._flying.append(frame)
        network.arrives(self._arrived_s, self._arrive)

    def _arrive(self) -> None:
        frame = self._flying.popleft()  # in order also where two arrive at the same moment, which timers do not promise
        network = self.network
        if network.is_blocked(self.host, self.target):
            self._hold(frame)  # it was on its way when the silence began
            return
        self.flying_bytes -= len(frame or b"")
        if self._writers:
            _wake(self._writers)
        network.frames += 1
        self.other._take(frame)

    def _take(self, frame: bytes | None) -> None:
        if frame is None:
            self._end()
        elif not self.closed:
            self._inbox.append(frame)
            _wake(self._readers)

    def _end(self) -> None:
        """Nothing more is read or written here."""
        self.closed = True
        self._inbox.append(None)
        _wake(self._readers)
        _wake(self._writers)
        self.network.forget(self)


def _wake(waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
