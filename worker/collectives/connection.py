"""A connection between two ranks on different machines: messages over a socket, without ring buffers and copies.

    | envelope | bytes of payload (8, little-endian) | payload | envelope | ...

A message is sent from the tensor itself, and received where it is needed.  Nothing here waits: `post` queues what the
socket does not accept, `push` tries again, and `arrived` and `fill` take what has come.  Bytes that were posted must
not change until the connection is `idle`.  Once it has `ended`, it stays so.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.deadlines import UNACKNOWLEDGED_BY_RANK
from wire.limits import KIB
from wire.system.lost_connections import end_when_idle_and_lost

from .ring_buffer import ENVELOPE_BYTES, tag_of

JOINED_BYTES_MAX = 16 * KIB  # a copy of so much is cheaper than another call of the kernel
BUFFERS_MAX = 16  # of one call
HEAD_BYTES = ENVELOPE_BYTES + 8
DROPPED_MAX = 1024  # messages before a step: one that sends more of them without end holds up its beginning no longer

NOT_YET: tuple[type[BaseException], ...] = (BlockingIOError, InterruptedError)


class Connection:
    """One end.  `number` is the same at both ends, and differs between the connections of a pair of ranks.

    `not_yet` are the exceptions that the socket raises when it would block, and `gathers` says whether it can send
    several buffers at once.  A message with more than `payload_bytes_max` ends the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        number: int,
        payload_bytes_max: int,
        not_yet: tuple[type[BaseException], ...] = NOT_YET,
        gathers: bool = hasattr(socket.socket, "sendmsg"),
    ) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # a pair of Unix sockets has no such thing
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # While the other rank computes it reads nothing for as long as that takes: only silence of its system ends it.
        end_when_idle_and_lost(sock, UNACKNOWLEDGED_BY_RANK.seconds)
        self.number = number
        self.ended = False
        self._socket = sock
        self._not_yet = not_yet
        self._gathers = gathers
        self._queue: deque[memoryview] = deque()
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._read = 0  # bytes of a message's head and payload
        self._size = 0  # bytes of both; 0: not known yet
        self._payload_bytes_max = payload_bytes_max
        self._scratch: NDArray[np.uint8] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection.  What was posted and has not left is lost."""
        self.ended = True
        self._queue.clear()
        self._socket.close()

    # -- sending

    @property
    def idle(self) -> bool:
        """Whether all that was posted has left, or never will."""
        return not self._queue

    def post(self, envelope: bytes, payload: memoryview) -> None:
        """Send a message: as much as the socket accepts now, and the rest with `push`."""
        head = envelope + payload.nbytes.to_bytes(8, "little")
        if payload.nbytes > JOINED_BYTES_MAX:
            self._queue += (memoryview(head), payload)
        else:
            self._queue.append(memoryview(head + payload))
        self.push()

    def push(self) -> bool:
        """Send what is queued, as much as the socket accepts.  Returns whether nothing is left."""
        queue = self._queue
        try:
            while queue and not self.ended:
                if self._gathers and len(queue) > 1:
                    self._advance(self._socket.sendmsg(list(itertools.islice(queue, BUFFERS_MAX))))
                else:
                    self._advance(self._socket.send(queue[0]))
        except self._not_yet:
            pass
        except OSError:
            self.close()
        return not queue

    def _advance(self, count: int) -> None:
        queue = self._queue
        while count and count >= len(queue[0]):
            count -= len(queue.popleft())
        if count:
            queue[0] = queue[0][count:]

    # -- receiving

    def arrived(self) -> memoryview | None:
        """The envelope of the next message, once its head is there; None before."""
        if not self._size:
            if not self._take(self._head, HEAD_BYTES):
                return None
            size = int.from_bytes(self._head[ENVELOPE_BYTES:], "little")
            if size > self._payload_bytes_max:
                self.close()
                return None
            self._size = HEAD_BYTES + size
        return self._head[:ENVELOPE_BYTES]

    @property
    def payload_bytes(self) -> int:
        """The size of the payload of the message that arrived."""
        return self._size - HEAD_BYTES

    def fill(self, target: memoryview) -> bool:
        """Receive the payload of the message that arrived into `target`, which has its size.  Returns whether it is
        complete."""
        return self._take(target, self._size, HEAD_BYTES)

    def scratch(self) -> NDArray[np.uint8]:
        """Memory for one payload."""
        if self._scratch is None:
            self._scratch = np.empty(self._payload_bytes_max, np.uint8)
        return self._scratch

    def drop_before(self, tag: int) -> None:
        """Drop messages of earlier steps, which failed, and notice if the connection ended behind them.  Of many, the
        step itself skips the rest."""
        for _ in range(DROPPED_MAX):
            envelope = self.arrived()
            if envelope is None or tag_of(envelope) >= tag:
                return
            if not self.fill(self.scratch()[: self.payload_bytes].data):
                return
            self.release()

    def release(self) -> None:
        """Go on to the next message, once the payload of this one was received."""
        self._read = self._size = 0

    def _take(self, target: memoryview, until: int, skipped: int = 0) -> bool:
        try:
            while self._read < until and not self.ended:
                count = self._socket.recv_into(target[self._read - skipped : until - skipped])
                if not count:
                    self.close()
                self._read += count
        except self._not_yet:
            pass
        except OSError:
            self.close()
        return self._read == until


def wait_for(reading: Connection | None, writing: Sequence[Connection], timeout_s: float) -> None:
    """Wait until one of the connections can be read or written to or has ended, or until the time is over."""
    wanted: dict[int, int] = {}
    for connection in writing:
        wanted[connection.fileno()] = _OUT
    if reading is not None and not reading.ended:
        wanted[reading.fileno()] = wanted.get(reading.fileno(), 0) | _IN
    _wait({handle: events for handle, events in wanted.items() if handle >= 0}, timeout_s)


_IN, _OUT = 1, 4  # poll's values, on every system that has it


def _poll(wanted: dict[int, int], timeout_s: float) -> None:
    waiting = select.poll()
    for handle, events in wanted.items():
        waiting.register(handle, events)
    waiting.poll(timeout_s * 1e3)


def _select(wanted: dict[int, int], timeout_s: float) -> None:
    """Wait on Windows, which has no poll."""
    if not wanted:
        time.sleep(timeout_s)
        return
    reading = [handle for handle, events in wanted.items() if events & _IN]
    writing = [handle for handle, events in wanted.items() if events & _OUT]
    select.select(reading, writing, reading + writing, timeout_s)


_wait: Callable[[dict[int, int], float], Any] = _poll if hasattr(select, "poll") else _select
