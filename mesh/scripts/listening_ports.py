"""Connections between ranks on different machines: each rank has a door, at which those with higher numbers call.

All is within mutual TLS with the certificates of the launch (`rank_certificates.py`); whoever shows no such
certificate, or another machine's than the rank that it says it is, is sent away.  A caller says its rank and the name
of the group, and gets an answer that it was let in.  Part of the composition root: it makes the runtime's connections.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wire.errors import ConnectFailed, DeadlineExceeded
from wire.link.interfaces import interfaces_here, judge, usable
from wire.security.tls import NodeSocket, secured
from worker.collectives.connection import Connection
from worker.collectives.connector import listening_on, received

from .rank_certificates import Passport
from .rendezvous import Note

PROOF_S = 5.0  # for the other end to prove who it is
SAID_BYTES_MAX = 4096
LET_IN = b"\1"


@dataclass(slots=True)
class Door:
    """Rank `rank`'s; `hosts` has the host of every rank."""

    passport: Passport
    hosts: Sequence[str]
    rank: int
    _listener: socket.socket = field(init=False)
    _came: dict[tuple[str, int], NodeSocket] = field(default_factory=dict)  # and nobody has asked for them
    _accepting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._listener = listening_on("::")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of this machine; which of them others reach cannot be known here."""
        return (*usable(judge(interfaces_here())), "127.0.0.1")

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def connect(
        self, group: str, others: Mapping[int, Note], slot_bytes: int, timeout_s: float
    ) -> dict[int, Connection]:
        """A connection with each of these ranks, who do the same: those with lower numbers are called.

        ConnectFailed naming a rank that cannot be reached, DeadlineExceeded those that did not call.
        """
        until_s = time.monotonic() + timeout_s
        sockets = {rank: self._call(group, rank, others[rank], until_s) for rank in sorted(others) if rank < self.rank}
        sockets |= self._accept(group, {rank for rank in others if rank > self.rank}, until_s, timeout_s)
        return {
            rank: Connection(sock, 1, slot_bytes, NodeSocket.NOT_YET, gathers=False) for rank, sock in sockets.items()
        }

    def close(self) -> None:
        self._listener.close()
        for sock in self._came.values():
            sock.close()

    # -- helpers

    def _call(self, group: str, rank: int, where: Note, until_s: float) -> NodeSocket:
        causes = []
        for address in where.addresses:
            try:
                return self._called(group, (address, where.port), self.passport.names[where.host], until_s)
            except OSError as error:
                causes.append(f"{address}: {error}")
        raise ConnectFailed(
            f"rank {rank} on {where.host} cannot be reached from {self.hosts[self.rank]}",
            node=where.host,
            cause="; ".join(causes),
            next_step="Ranks connect to each other directly: let these machines reach each other's ports",
        )

    def _called(self, group: str, address: tuple[str, int], name: str, until_s: float) -> NodeSocket:
        sock = socket.create_connection(address, PROOF_S)
        try:
            sock.settimeout(max(until_s - time.monotonic(), 0.01))  # it may have others before us
            proved = secured(sock, self.passport.files, name, accepting=False)
            said = json.dumps([group, self.rank]).encode()
            proved.sendall(len(said).to_bytes(4, "little") + said)
            if received(proved, 1) != LET_IN:
                raise ConnectionRefusedError("it did not let us in")
        except OSError:
            sock.close()
            raise
        return proved

    def _accept(self, group: str, ranks: set[int], until_s: float, timeout_s: float) -> dict[int, NodeSocket]:
        sockets: dict[int, NodeSocket] = {}
        while True:
            with self._accepting:
                sockets |= {rank: self._came.pop((group, rank)) for rank in ranks if (group, rank) in self._came}
                if sockets.keys() == ranks:
                    return sockets
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    named = ", ".join(f"{rank} on {self.hosts[rank]}" for rank in sorted(ranks - sockets.keys()))
                    raise DeadlineExceeded(f"waited {timeout_s:g} s for a call from rank {named}")
                self._answer(min(left_s, 0.1))  # others want their turn

    def _answer(self, wait_s: float) -> None:
        """Take the next caller, if one comes."""
        self._listener.settimeout(wait_s)
        try:
            caller, _ = self._listener.accept()
        except TimeoutError:
            return
        try:
            caller.settimeout(PROOF_S)
            proved, said = self._proved(caller)
            proved.sendall(LET_IN)
            self._came[said] = proved
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            caller.close()  # it is none of ours

    def _proved(self, caller: socket.socket) -> tuple[NodeSocket, tuple[str, int]]:
        """The caller within TLS, and the group and the rank that it comes for, which its certificate must be of."""
        proved = secured(caller, self.passport.files, "", accepting=True)
        size = int.from_bytes(received(proved, 4), "little")
        if size > SAID_BYTES_MAX:
            raise ValueError("a caller says too much")
        group, rank = json.loads(received(proved, size))
        if self.passport.names[self.hosts[rank]] not in proved.names:
            raise PermissionError("that rank is on another machine")
        return proved, (str(group), int(rank))
