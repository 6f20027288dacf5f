"""Environment: what a worker's daemon needs of the machine it runs on.

REAL is a machine: WebSockets, engine hosts as child processes, signals.  A simulation gives others; the daemon and the
machine of its decisions are the same in both.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from wire.errors import MeshError
from wire.joining.credentials import Credentials
from wire.link.address_updates import AddressUpdates
from wire.link.endpoint import Endpoint
from wire.link.keepalive import LinkWatch
from wire.link.link import Handler
from wire.link.websocket_carrier import Endpoint as WebSocketEndpoint
from wire.protocol.peer import Identity
from wire.system.memory import machine_memory
from wire.system.shared_memory import SharedDir

from ..config import WorkerConfig
from ..devices.adapter_cache import AdapterCache, machine
from ..engine.host_messages import FromHost, Open, Opened, OpenFailed, ToHost
from ..engine_host.host_client import HostProcess
from ..state.bounds import Bounds
from ..state.events import MemoryLeft
from ..state.worker_state import WorkerState


class EngineHost(Protocol):
    """The engine host of one device.  `opened` becomes its first message: the device, or why there is none."""

    selection: str
    device: int  # its number among the worker's devices, once it is one
    opened: asyncio.Future[Opened | OpenFailed]
    exited: asyncio.Event

    async def start(self) -> None:
        """Begin to open the device."""

    def send(self, message: ToHost) -> None:
        """Give it a message; nothing is said of a host that is gone, since `on_lost` says it."""

    def hand(self, sock: socket.socket) -> bool:
        """Give it an open socket, which is closed here, for the next message; False if it takes none."""

    def stop_run(self, run: int) -> None:
        """Have it give up a run it may be computing; it answers it all the same."""

    def suspend_run(self, run: int) -> None:
        """Have it suspend a run it may be computing; it answers Suspended, or as if it had not been asked."""

    def resume_run(self, run: int, stop: bool) -> None:
        """Have it go on with a suspended run, or give it up; it answers it."""

    def kill(self) -> None:
        """End it, whatever it does; `on_lost` is not called."""

    def close(self) -> None:
        """End it, and let go of what leads to it, before the loop closes."""


OnMessage = Callable[[Any, FromHost], None]
OnLost = Callable[[Any, MeshError], None]


def _watch_here(endpoint: Endpoint, config: WorkerConfig, port: int) -> LinkWatch:
    whereabouts = AddressUpdates(endpoint, config.host, port, config.interfaces, config.advertise)
    return LinkWatch(endpoint, whereabouts.moved)


def _no_member(folder: Path, name: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Environment:
    """`signals` says whether the process is the daemon's own, so that it may answer SIGTERM; `machine` makes what
    decides, from its node id, its devices and its incarnation; `memory` says what is left of the machine's; `watch`
    makes what notices that links died, for an endpoint that listens on a port; `credentials` gives the identity in a
    state folder of the worker of that name, None where it is no member of its mesh; `adapter_cache` remembers that
    the machine has no graphics adapter; `shared` makes the process's part of the machine's shared memory; `secret` is
    the one that nodes without credentials prove to know, b"" this user's."""

    endpoint: Callable[[Identity, Handler, Credentials | None, WorkerConfig, bytes], Endpoint]
    host: Callable[[Open, memoryview, WorkerConfig, OnMessage, OnLost], EngineHost]
    machine: Callable[[str, int, int, Bounds], WorkerState] = WorkerState
    memory: Callable[[], MemoryLeft] | None = None
    signals: bool = False
    watch: Callable[[Endpoint, WorkerConfig, int], LinkWatch] = _watch_here
    credentials: Callable[[Path, str], Credentials | None] = _no_member
    adapter_cache: AdapterCache = field(default_factory=AdapterCache)
    shared: Callable[[], SharedDir] = SharedDir.create
    secret: bytes = field(default=b"", repr=False)


def _endpoint_here(
    identity: Identity, handler: Handler, credentials: Credentials | None, config: WorkerConfig, secret: bytes
) -> Endpoint:
    return WebSocketEndpoint(identity, handler, credentials=credentials, timeouts=config.timeouts, secret=secret)


def _memory_here() -> MemoryLeft:
    return MemoryLeft(*machine_memory())


REAL = Environment(_endpoint_here, HostProcess, memory=_memory_here, signals=True, adapter_cache=AdapterCache(machine))
