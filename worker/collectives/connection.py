"""A connection of their own between two ranks on different machines: letters without mailboxes and without copies.

    | envelope | bytes of payload (8, little-endian) | payload | envelope | ...

What is sent goes from the tensor to the socket, and what comes from the socket to where it is needed; the kernel's
buffers are the ring.  Nothing here waits: `post` queues what the socket does not take, `push` tries again, `arrived`
and `fill` take what is there.  Bytes that were posted must not change before `idle`.

It does not know ranks, or how the connection was made (`remote_channel.py`).  Once it has `ended` nothing brings it
back.
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

from wire.limits import KIB

from .ring_buffer import ENVELOPE_BYTES, tag_of

JOINED_BYTES_MAX = 16 * KIB  # a copy of so much is cheaper than another call of the kernel
PARTS_MAX = 16  # of one call
HEAD_BYTES = ENVELOPE_BYTES + 8

NOT_YET: tuple[type[BaseException], ...] = (BlockingIOError, InterruptedError)


class Connection:
    """One end.  `number` is the same at both and at no other connection of the pair; `not_yet` what the socket raises
    when it has nothing or takes nothing; `gathers` whether it can send several buffers at once; `payload_bytes_max` is
    what a letter may bring, and more ends the connection."""

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
        self.number = number
        self.ended = False
        self._socket = sock
        self._not_yet = not_yet
        self._gathers = gathers
        self._queue: deque[memoryview] = deque()
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._read = 0  # of a letter's head and payload
        self._size = 0  # of both; 0: not known yet
        self._payload_bytes_max = payload_bytes_max
        self._scratch: NDArray[np.uint8] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """The other end sees the end of what it has not read; nothing more goes or comes."""
        self.ended = True
        self._queue.clear()
        self._socket.close()

    # -- sending

    @property
    def idle(self) -> bool:
        """Whether all that was posted has left, or never will."""
        return not self._queue

    def post(self, envelope: bytes, payload: memoryview) -> None:
        """Send a letter, at once as far as the socket takes it."""
        head = envelope + payload.nbytes.to_bytes(8, "little")
        if payload.nbytes > JOINED_BYTES_MAX:
            self._queue += (memoryview(head), payload)
        else:
            self._queue.append(memoryview(head + payload))
        self.push()

    def push(self) -> bool:
        """Send what waits, as far as the socket takes it; whether nothing is left."""
        queue = self._queue
        try:
            while queue and not self.ended:
                if self._gathers and len(queue) > 1:
                    self._left(self._socket.sendmsg(list(itertools.islice(queue, PARTS_MAX))))
                else:
                    self._left(self._socket.send(queue[0]))
        except self._not_yet:
            pass
        except OSError:
            self.close()
        return not queue

    def _left(self, count: int) -> None:
        queue = self._queue
        while count and count >= len(queue[0]):
            count -= len(queue.popleft())
        if count:
            queue[0] = queue[0][count:]

    # -- receiving

    def arrived(self) -> memoryview | None:
        """The envelope of the next letter, once its head is there."""
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
        """Of the letter that arrived."""
        return self._size - HEAD_BYTES

    def fill(self, target: memoryview) -> bool:
        """Take the payload of the letter that arrived, which has just the size of `target`; whether all is there."""
        return self._take(target, self._size, HEAD_BYTES)

    def scratch(self) -> NDArray[np.uint8]:
        """Memory for one payload."""
        if self._scratch is None:
            self._scratch = np.empty(self._payload_bytes_max, np.uint8)
        return self._scratch

    def drop_before(self, tag: int) -> None:
        """Take what is there of letters of earlier steps, which were given up, and notice the end behind them."""
        while (envelope := self.arrived()) is not None and tag_of(envelope) < tag:
            if not self.fill(self.scratch()[: self.payload_bytes].data):
                return
            self.release()

    def release(self) -> None:
        """Done with the letter, whose payload was taken."""
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
    """Until one of them can be read or written to, or has ended, or the time is over."""
    wanted: dict[int, int] = {}
    for each in writing:
        wanted[each.fileno()] = _OUT
    if reading is not None and not reading.ended:
        wanted[reading.fileno()] = wanted.get(reading.fileno(), 0) | _IN
    _wait({handle: events for handle, events in wanted.items() if handle >= 0}, timeout_s)


_IN, _OUT = 1, 4  # as poll has them on every system that has it


def _poll(wanted: dict[int, int], timeout_s: float) -> None:
    waiting = select.poll()
    for handle, events in wanted.items():
        waiting.register(handle, events)
    waiting.poll(timeout_s * 1e3)


def _select(wanted: dict[int, int], timeout_s: float) -> None:
    """On Windows, which has no poll."""
    if not wanted:
        time.sleep(timeout_s)
        return
    reading = [handle for handle, events in wanted.items() if events & _IN]
    writing = [handle for handle, events in wanted.items() if events & _OUT]
    select.select(reading, writing, reading + writing, timeout_s)


_wait: Callable[[dict[int, int], float], Any] = _poll if hasattr(select, "poll") else _select
