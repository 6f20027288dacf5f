"""Makes the connections between engine hosts of different machines, as the daemons of both say
(`worker/daemon/collective_rendezvous.py`).

One host expects a call: it opens a port until the caller has come, for a while.  The other one calls there.  Both show
what only these two know, since it went over the daemons' link: the caller a key, used once, and who expects it that it
knows the key.  In a mesh with a token both prove before that they are the nodes they should be, by mutual TLS with the
nodes' own certificates, as links do; without one the port is on loopback, as the daemon's is.

Whatever goes wrong ends the attempt, and letters go through mailboxes as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from ..engine.host_messages import Call, Expect, Expecting, FromHost, NodeTLS, Parted
from .connection import Connection
from .remote_channel import Line

log = logging.getLogger("graph_mesh.worker")
KEY_BYTES = 32


class Lines:
    """The lines of one engine host, by the name of the mailbox that it writes to; `send` tells the daemon."""

    def __init__(self, send: Callable[[FromHost], None] = lambda _message: None) -> None:
        self._send = send
        self._lines: dict[str, Line] = {}

    def line(self, mailbox: str) -> Line:
        """The line beside a mailbox: the same for all who ask."""
        found = self._lines.get(mailbox)
        if found is None:
            found = self._lines[mailbox] = Line(partial(self._send, Parted(mailbox)))
        return found

    def keep(self, mailboxes: Collection[str]) -> None:
        """End all other lines: their plans are over."""
        for mailbox in [each for each in self._lines if each not in mailboxes]:
            self._lines.pop(mailbox).close()

    def begin(self, message: Expect | Call) -> None:
        """Make a connection, in a thread, unless there is one."""
        line = self.line(message.mailbox)
        if line.calling():
            threading.Thread(target=self._attempt, args=(line, message), name="calling", daemon=True).start()

    def _attempt(self, line: Line, message: Expect | Call) -> None:
        connection = None
        try:
            connection = self._expect(message) if isinstance(message, Expect) else _call(message)
        except OSError as error:
            log.info("no connection to another rank's host, so the daemons carry its letters: %s", error)
        finally:
            line.called(connection)
        if connection is None:
            self._send(Parted(message.mailbox))

    def _expect(self, message: Expect) -> Connection | None:
        with listening_on(message.host) as listener:
            self._send(Expecting(message.mailbox, message.key, listener.getsockname()[1]))
            until_s = time.monotonic() + message.wait_s
            while (left_s := until_s - time.monotonic()) > 0:
                listener.settimeout(left_s)
                caller, where = listener.accept()
                try:
                    return _answered(caller, message)
                except OSError as error:
                    log.info("turned away a caller from %s: %s", where[0], error)
                    caller.close()
        return None


def _answered(caller: socket.socket, message: Expect) -> Connection:
    """The connection with a caller that knows the key; OSError for any other."""
    caller.settimeout(message.proof_s)
    proved = _proved(caller, message.tls, accepting=True)
    if not hmac.compare_digest(received(proved, KEY_BYTES), message.key):
        raise PermissionError("it does not know the key")
    proved.sendall(_answer(message.key))
    return _connection(proved, message.key, message.letter_bytes)


def _call(message: Call) -> Connection:
    there = socket.create_connection((message.host, message.port), message.proof_s)
    try:
        there.settimeout(message.wait_s)  # the other end may have strangers before us
        proved = _proved(there, message.tls, accepting=False)
        proved.sendall(message.key)
        if not hmac.compare_digest(received(proved, KEY_BYTES), _answer(message.key)):
            raise PermissionError("who answered does not know the key")
    except OSError:
        there.close()
        raise
    return _connection(proved, message.key, message.letter_bytes)


def _answer(key: bytes) -> bytes:
    """What shows that the key is known."""
    return hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"expected").digest()


def _connection(sock: socket.socket, key: bytes, letter_bytes: int) -> Connection:
    number = int.from_bytes(hashlib.blake2b(key, digest_size=4, person=b"number").digest(), "little") or 1
    not_yet: tuple[type[BaseException], ...] | None = getattr(type(sock), "NOT_YET", None)
    if not_yet is not None:  # TLS
        return Connection(sock, number, letter_bytes, not_yet, gathers=False)
    return Connection(sock, number, letter_bytes)


def _proved(sock: socket.socket, tls: NodeTLS | None, accepting: bool) -> socket.socket:
    """The socket, within TLS where the mesh has it, with just the node at the other end that `tls` names."""
    if tls is None:
        return sock
    from wire.security.tls import TLSFiles, secured  # loads cryptography, which other hosts are open without

    return secured(sock, TLSFiles(Path(tls.key), Path(tls.certificate), Path(tls.trust)), tls.name, accepting)


def received(sock: socket.socket, count: int) -> bytes:
    """So many bytes; ConnectionResetError if the other end hangs up before."""
    found = b""
    while len(found) < count:
        data = sock.recv(count - len(found))
        if not data:
            raise ConnectionResetError("it hung up")
        found += data
    return found


def listening_on(host: str) -> socket.socket:
    """A port of the system's choice, for "::" on IPv4 as well."""
    if host != "::":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), 0), family=family)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0))
