"""Descriptors that a daemon hands to an engine host: open sockets, over a pair of Unix sockets.

A host opens no sockets itself (`worker/engine_host/sandbox.py`).  What it needs one for, the daemon opens, sends here,
and then at once names in a message.  So sockets and the messages that are about one come in the same order, and whoever
reads such a message finds its socket waiting.  Windows has no such pairs; there hosts open their own.
"""

from __future__ import annotations

import socket

POSSIBLE = hasattr(socket, "send_fds")
_MARK = b"."  # a descriptor travels with a byte


def pair() -> tuple[socket.socket, socket.socket]:
    """The daemon's end and the host's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def hand(end: socket.socket, sock: socket.socket) -> bool:
    """Send a socket, which is closed here; False if the host takes none, or is gone."""
    with sock:
        try:
            return socket.send_fds(end, [_MARK], [sock.fileno()]) == len(_MARK)
        except OSError:
            return False


class Handed:
    """The host's end, by the number of its descriptor."""

    def __init__(self, number: int) -> None:
        self._end = socket.socket(fileno=number)

    def take(self) -> socket.socket:
        """The next socket; ConnectionError if there is none."""
        try:
            _, numbers, _, _ = socket.recv_fds(self._end, len(_MARK), 1)
        except OSError as error:
            raise ConnectionError(f"the daemon handed over no socket: {error}") from None
        if not numbers:
            raise ConnectionError("the daemon handed over no socket")
        return socket.socket(fileno=numbers[0])
