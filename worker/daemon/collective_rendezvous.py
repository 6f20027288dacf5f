"""The rendezvous of engine hosts: the messages of daemons to theirs, by which they connect
(`worker/collectives/connector.py`).

The host of the node that dialled the link connects, to the address at which the link was dialled.  The other host
listens where its daemon does, on a port of its own.  Key and port go over the link.  The daemon opens the sockets, and
hands them to its hosts, which open none.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from wire.addresses import parse_address
from wire.link.link import Link
from wire.protocol.messages import Meet
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..collectives.connector import KEY_BYTES, listening_on
from ..config import WorkerConfig
from ..engine.host_messages import Connect, Listen, ToHost

Hand = Callable[[int, socket.socket], bool]
log = steady_logger("graph_mesh.worker")


@dataclass(frozen=True, slots=True)
class HostConnections:
    """The connections between engine hosts.  `send` sends a message to the host of a device, and `host` is the address
    on which the daemon listens; in a mesh with a token connections are within TLS.  `hand` hands the host of a device a
    socket, for the message that is sent next; it says whether the host takes it.  None: hosts open their own."""

    send: Callable[[int, ToHost], None]
    host: str
    tls: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    hand: Hand | None = None
    _tasks: Tasks = field(default_factory=Tasks)
    _calling: set[tuple[int, str]] = field(default_factory=set)  # devices and buffers

    def listen(self, device: int, buffer: str, slot_bytes: int, failed: Callable[[], None]) -> None:
        """Have a host listen for another one.  It answers Listening; `failed` is called if there is no port, or if the
        host takes none now."""
        message = Listen(buffer, secrets.token_bytes(KEY_BYTES), self.host, slot_bytes, self.tls, *self._times)
        try:
            handed = self.hand is None or self.hand(device, listening_on(self.host))
        except OSError as error:
            _tell(error)
            failed()
        else:
            if handed:
                self.send(device, message)
            else:
                failed()

    def connect(
        self, device: int, buffer: str, slot_bytes: int, link: Link, meet: Meet, failed: Callable[[], None]
    ) -> None:
        """Have a host connect to the one that listens at the other end of a link; `failed` is called if nobody does.
        One call at a time for a buffer, however often the other end says where: a call has a thread, for as long as
        nobody answers."""
        host = parse_address(link.address)[0]
        message = Connect(buffer, meet.key, host, meet.port, slot_bytes, self.tls, *self._times)
        if self.hand is None:
            self.send(device, message)
        elif (calling := (device, buffer)) not in self._calling:
            self._calling.add(calling)
            work = self._tasks.run("connecting a host", self._connect(device, message, self.hand, failed), unheard)
            work.add_done_callback(lambda _: self._calling.discard(calling))

    async def _connect(
        self,
        device: int,
        message: Connect,
        hand: Hand,
        failed: Callable[[], None],
    ) -> None:
        where = message.host, message.port
        try:
            there = await asyncio.to_thread(socket.create_connection, where, message.proof_s)
        except OSError as error:
            _tell(error)
            failed()
            return
        if hand(device, there):
            self.send(device, message)
        else:
            failed()

    def close(self) -> None:
        """Give up the connections that are being made."""
        self._tasks.cancel()

    @property
    def _times(self) -> tuple[float, float]:
        return self.timeouts.rank_call_s, self.timeouts.rank_proof_s


def _tell(error: OSError) -> None:
    log.info("no connection to another rank's host, so the daemons carry its messages: %s", error)


def host_connections_of(
    config: WorkerConfig,
    member: bool,
    send: Callable[[int, ToHost], None],
    hand: Hand | None = None,
) -> HostConnections | None:
    """What has the worker's hosts connect, if it is a `member` of a mesh within TLS; None if they may not connect to
    hosts of other machines."""
    return HostConnections(send, config.host, member, config.timeouts, hand) if config.connect_hosts else None
