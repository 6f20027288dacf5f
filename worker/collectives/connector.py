"""The connector: makes connections to engine hosts on other machines, as the daemons of both arrange it
(`worker/daemon/collective_rendezvous.py`).

One host listens on a port until the other has connected, for a while at most.  The two share a key, which is used once
and went over the daemons' link: the one that connects sends it, and the one that listens answers with a hash of it.  In
a mesh with a token this is within TLS, whose certificate follows from the key too: only the host that got the key
can show it (`wire/security/tls.py`).  So no host needs its node's own key.  Without a token the port is on loopback, as
the daemon's is.

Where a host opens no sockets itself, its daemon hands them over (`worker/engine/descriptors.py`).

An attempt that fails changes nothing: messages go on through ring buffers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from wire.system.steady_log import steady_logger

from ..engine.descriptors import Handed
from ..engine.host_messages import Connect, Disconnected, FromHost, Listen, Listening
from .connection import Connection
from .remote_channel import RemoteChannel

log = steady_logger("graph_mesh.worker")
KEY_BYTES = 32


class Connector:
    """The remote channels of one engine host, by the name of the ring buffer that it writes to.  `send` sends a message
    to the daemon, which has put its sockets into `handed` if the host opens none; `folder` is for files of a moment."""

    def __init__(
        self,
        send: Callable[[FromHost], None] = lambda _message: None,
        folder: Path | None = None,
        handed: Handed | None = None,
    ) -> None:
        self._send = send
        self._folder = folder
        self._handed = handed
        self._remotes: dict[str, RemoteChannel] = {}

    def remote(self, buffer: str) -> RemoteChannel:
        """The remote channel beside a ring buffer: the same one each time."""
        remote = self._remotes.get(buffer)
        if remote is None:
            remote = self._remotes[buffer] = RemoteChannel(partial(self._send, Disconnected(buffer)))
        return remote

    def keep_only(self, buffers: Collection[str]) -> None:
        """Close all other remote channels: their plans are over."""
        for buffer in [buffer for buffer in self._remotes if buffer not in buffers]:
            self._remotes.pop(buffer).close()

    def begin(self, message: Listen | Connect) -> None:
        """Make a connection, in a thread, unless there is one."""
        remote = self.remote(message.buffer)
        try:
            sock = self._handed.take() if self._handed else None
        except ConnectionError as error:
            log.info("no connection to another rank's host, so the daemons carry its messages: %s", error)
            self._send(Disconnected(message.buffer))
            return
        if remote.start_connecting():
            attempt = remote, message, sock
            try:
                threading.Thread(target=self._attempt, args=attempt, name="connecting", daemon=True).start()
            except RuntimeError as error:  # there is no further thread
                log.info("no connection to another rank's host, so the daemons carry its messages: %s", error)
                if sock is not None:
                    sock.close()
                remote.finish_connecting(None)
                self._send(Disconnected(message.buffer))
        elif sock is not None:
            sock.close()

    def _attempt(self, remote: RemoteChannel, message: Listen | Connect, sock: socket.socket | None) -> None:
        connection = None
        try:
            if isinstance(message, Listen):
                connection = self._listen(message, sock or listening_on(message.host))
            else:
                where = message.host, message.port
                connection = self._connect(message, sock or socket.create_connection(where, message.proof_s))
        except OSError as error:
            log.info("no connection to another rank's host, so the daemons carry its messages: %s", error)
        finally:
            remote.finish_connecting(connection)
            if connection is None:  # after a fault of ours, too, or nobody would try again
                self._send(Disconnected(message.buffer))

    def _listen(self, message: Listen, listener: socket.socket) -> Connection | None:
        with listener:
            self._send(Listening(message.buffer, message.key, listener.getsockname()[1]))
            until_s = time.monotonic() + message.wait_s
            while (left_s := until_s - time.monotonic()) > 0:
                listener.settimeout(left_s)
                caller, where = listener.accept()
                try:
                    return self._accept(caller, message)
                except OSError as error:
                    log.info("turned away a caller from %s: %s", where[0], error)
                    caller.close()
        return None

    def _accept(self, caller: socket.socket, message: Listen) -> Connection:
        """The connection with a caller that knows the key.  OSError for any other caller."""
        caller.settimeout(message.proof_s)
        secured = self._secured(caller, message, accepting=True)
        if not hmac.compare_digest(received(secured, KEY_BYTES), message.key):
            raise PermissionError("it does not know the key")
        secured.sendall(_answer(message.key))
        return _connection(secured, message.key, message.slot_bytes)

    def _connect(self, message: Connect, there: socket.socket) -> Connection:
        try:
            there.settimeout(message.wait_s)  # the other end may turn away others before
            secured = self._secured(there, message, accepting=False)
            secured.sendall(message.key)
            if not hmac.compare_digest(received(secured, KEY_BYTES), _answer(message.key)):
                raise PermissionError("the process that answered does not know the key")
        except OSError:
            there.close()
            raise
        return _connection(secured, message.key, message.slot_bytes)

    def _secured(self, sock: socket.socket, message: Listen | Connect, accepting: bool) -> socket.socket:
        """The socket, within TLS if the mesh has it.  OSError if the other end does not have the key."""
        if not message.tls:
            return sock
        from wire.security.tls import secured_by_key  # loads cryptography, which other hosts are open without

        assert self._folder is not None
        return secured_by_key(sock, message.key, accepting, self._folder)


def _answer(key: bytes) -> bytes:
    """The hash of the key by which the listening end shows that it knows it."""
    return hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"expected").digest()


def _connection(sock: socket.socket, key: bytes, slot_bytes: int) -> Connection:
    number = int.from_bytes(hashlib.blake2b(key, digest_size=4, person=b"number").digest(), "little") or 1
    not_yet: tuple[type[BaseException], ...] | None = getattr(type(sock), "NOT_YET", None)
    if not_yet is not None:  # TLS
        return Connection(sock, number, slot_bytes, not_yet, gathers=False)
    return Connection(sock, number, slot_bytes)


def received(sock: socket.socket, count: int) -> bytes:
    """Receive `count` bytes.  ConnectionResetError if the connection ends before."""
    received_bytes = b""
    while len(received_bytes) < count:
        data = sock.recv(count - len(received_bytes))
        if not data:
            raise ConnectionResetError("it hung up")
        received_bytes += data
    return received_bytes


def listening_on(host: str) -> socket.socket:
    """Listen on a port that the system chooses.  For "::" it listens on IPv4 as well."""
    if host != "::":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), 0), family=family)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0))
