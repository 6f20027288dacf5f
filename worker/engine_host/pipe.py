"""Pipe: an engine host's stdin and stdout as messages."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

from ..engine import host_messages as messages
from ..engine.host_messages import Splitter, pack, unpack_to_host

READ_BYTES = 1 << 20


class Pipe:
    """The pipe to the daemon.  The computing thread reads it itself: a thread in between would cost a switch per
    part."""

    def __init__(self, receive_fd: int, send_fd: int) -> None:
        self.receive_fd = receive_fd
        self._send_fd = send_fd
        self._sending = threading.Lock()
        self.before_read: Callable[[], bool] = lambda: True  # what else is done until there is something to read

    def incoming(self) -> Iterator[messages.ToHost]:
        """The daemon's messages, until it closes its end, or `before_read` says that there are to be no more."""
        splitter = Splitter()
        while self.before_read() and (data := os.read(self.receive_fd, READ_BYTES)):
            for body in splitter.feed(data):
                yield unpack_to_host(body)

    def send(self, message: messages.FromHost) -> None:
        view = memoryview(pack(message))
        with self._sending:
            while view:
                view = view[os.write(self._send_fd, view) :]
