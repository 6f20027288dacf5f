"""A ring buffer in a shared file: a number of slots with one message each, written by one process and read by another.

    | counters, and the writer's error | envelope, payload | envelope, payload | ...

Both ends map the file.  The writer fills a slot and raises `written`.  The reader uses the message where it lies,
without a copy, and raises `read`.  Each counter has one writer and a cache line of its own.

A message's *envelope* says which operation it belongs to: equal envelopes mean that both ends perform the same one.  A
message of an earlier step, which failed half-way, is skipped by the reader, so a ring buffer needs no cleaning.

A ring buffer between two machines is a file on each.  The daemons copy messages in one direction, and `read` in the
other (`worker/daemon/collective_bridge.py`).
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import BlobCorrupt, BlobMissing
from wire.ir.dtypes import BOOL, DTYPES, DType
from wire.limits import KIB, MIB

SLOTS = 8  # messages that a rank may be ahead of another
BUFFERS_BYTES_MAX = 16 * MIB
SLOT_BITS_MIN = 12
PAGE_BYTES = 4096  # of counters and the writer's error
ENVELOPE_BYTES = 128
SLOT_BYTES = 256 * KIB - ENVELOPE_BYTES  # payload; less costs more steps, more leaves the cache (bench/collectives.py)
ERROR_BYTES_MAX = 3072

_WRITTEN, _READ, _SHAPE, _FAILED, _ERROR, _LENGTHS = 0, 16, 32, 48, 64, 80  # in words of 8 bytes: cache lines apart
SLOTS_MAX = 32  # messages, for whose lengths the page has room
_ERROR_AT = 1024
_ENVELOPE = struct.Struct("<QIBBBB8Q")  # tag, group, operation, reduction, dtype, dimensions, and these

_SWITCH = 255  # the code of a switch marker, which no operation has

SPINS_MAX, SPINS_MIN = 1000, 16  # looks at a counter, of about 0.1 us
SLEEP_S_MIN, SLEEP_S_MAX = 10e-6, 1e-3
BRIDGED_SLEEP_S_MIN = 100e-6  # daemons carry nothing faster than that, and they need the cores
SLEEP_SHARE = 0.1  # of the time waited so far: what a sleep adds stays small beside it


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header of a message.  `tag` is the step's number, which grows; the other fields must be the same on both
    ends."""

    tag: int
    group: int
    operation: int
    reduction: int
    dtype: DType
    shape: tuple[int, ...]

    def pack(self) -> bytes:
        dims = (*self.shape, *(0,) * (8 - len(self.shape)))
        code = DTYPES.index(self.dtype)
        fields = (self.tag, self.group, self.operation, self.reduction, code, len(self.shape), *dims)
        return _ENVELOPE.pack(*fields).ljust(ENVELOPE_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> Envelope:
        """The envelope in these bytes.  BlobCorrupt if they are none."""
        tag, group, operation, reduction, code, rank, *dims = _ENVELOPE.unpack_from(packed)
        if code >= len(DTYPES) or rank > 8:
            raise BlobCorrupt("a ring buffer holds something that is no envelope")
        return cls(tag, group, operation, reduction, DTYPES[code], tuple(dims[:rank]))


def with_tag(packed: bytes, tag: int) -> bytes:
    """A packed envelope with another tag."""
    return tag.to_bytes(8, "little") + packed[8:]


def tag_of(packed: bytes | memoryview) -> int:
    """The tag of a packed envelope."""
    return int.from_bytes(packed[:8], "little")


def switch_marker(tag: int, number: int) -> bytes:
    """The envelope of the message after which all others come over the connection of that number."""
    return Envelope(tag, number, _SWITCH, 0, BOOL, ()).pack()


def switch_number(packed: bytes) -> int:
    """The number in a switch marker; 0 for any other message's envelope."""
    return int.from_bytes(packed[8:12], "little") if packed[12] == _SWITCH else 0


def size_of(slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> int:
    """The bytes of a ring buffer's file."""
    return PAGE_BYTES + slots * (ENVELOPE_BYTES + slot_bytes)


def slot_bytes_for(ranks: int) -> int:
    """The bytes of a slot's payload for `ranks` ranks.  A rank writes to one ring buffer per other rank, and all of
    these together take at most BUFFERS_BYTES_MAX."""
    share = BUFFERS_BYTES_MAX // (SLOTS * max(ranks - 1, 1))
    return min(SLOT_BYTES, (1 << max(share.bit_length() - 1, SLOT_BITS_MIN)) - ENVELOPE_BYTES)


def initialise(buffer: memoryview, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
    """Make an empty ring buffer of `buffer`, which has `size_of` zeros."""
    words = buffer[:PAGE_BYTES].cast("Q")
    words[_SHAPE], words[_SHAPE + 1] = slots, slot_bytes


class _Ring:
    """What the two ends have in common."""

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer[:PAGE_BYTES].cast("Q")
        self.slots, self.slot_bytes = self._words[_SHAPE], self._words[_SHAPE + 1]
        if not 0 < self.slots <= SLOTS_MAX or len(buffer) != size_of(self.slots, self.slot_bytes):
            raise BlobCorrupt(f"a file of {len(buffer)} bytes is no ring buffer of {self.slots} x {self.slot_bytes}")
        self._page = buffer[:PAGE_BYTES]
        stride = ENVELOPE_BYTES + self.slot_bytes
        starts = [PAGE_BYTES + slot * stride for slot in range(self.slots)]
        self._envelopes = [buffer[start : start + ENVELOPE_BYTES] for start in starts]
        self._payloads = [buffer[start + ENVELOPE_BYTES : start + stride] for start in starts]
        self._slots = [buffer[start : start + stride] for start in starts]
        self._views: dict[np.dtype[Any], list[NDArray[Any]]] = {}
        self._lock = threading.Lock()
        self._lock.acquire()

    def _typed(self, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        """The payloads as arrays."""
        views = self._views.get(dtype)
        if views is None:
            count = self.slot_bytes // dtype.itemsize
            views = self._views[dtype] = [np.frombuffer(payload, dtype, count) for payload in self._payloads]
        return views

    def _fence(self) -> None:
        """Order the memory accesses before it and after it, by releasing and acquiring a lock that nobody else has.

        On x86 plain stores are ordered anyway; on ARM they are not, and Python has no other fence.
        """
        self._lock.release()
        self._lock.acquire()


class RingWriter(_Ring):
    """The writing end."""

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer)
        self.written: int = self._words[_WRITTEN]
        self._lending = 0  # the number of messages up to the last one that lends memory

    def resume(self) -> None:
        """Go on where the ring buffer stands: another end of the same process may have used it."""
        self.written = self._words[_WRITTEN]

    @property
    def full(self) -> bool:
        return bool(self.written - self._words[_READ] >= self.slots)

    def slot(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The payload of the next slot, to be filled while the ring buffer is not full."""
        return self._typed(dtype)[self.written % self.slots]

    def publish(self, envelope: bytes, size_bytes: int) -> None:
        """Give the next slot, whose payload has `size_bytes` bytes, to the reader."""
        slot = self.written % self.slots
        self._envelopes[slot][:] = envelope
        self._words[_LENGTHS + slot] = size_bytes
        self._fence()
        self.written += 1
        self._words[_WRITTEN] = self.written

    def write(self, envelope: bytes, data: bytes, lends: bool = False) -> None:
        """Give a short message to the reader.  With `lends` it lends the reader memory elsewhere, until the reader
        releases the message."""
        self._payloads[self.written % self.slots][: len(data)] = data
        self.publish(envelope, len(data))
        if lends:
            self._lending = self.written

    @property
    def lent(self) -> bool:
        """Whether a message that lends memory is not released yet."""
        return bool(self._lending > self._words[_READ])

    def fail(self, tag: int, error: bytes) -> None:
        """Tell the reader that step `tag` failed at this end, and why."""
        error = error[:ERROR_BYTES_MAX]
        self._page[_ERROR_AT : _ERROR_AT + len(error)] = error
        self._words[_ERROR] = len(error)
        self._fence()
        self._words[_FAILED] = tag

    @property
    def read(self) -> int:
        """The number of messages that the reader has released."""
        return self._words[_READ]

    def slot_for(self, number: int, size_bytes: int) -> memoryview | None:
        """The slot for a copy of message `number` of another ring buffer, envelope included; None if it is not free."""
        free = self.read <= number < self.read + self.slots
        fits = ENVELOPE_BYTES <= size_bytes <= ENVELOPE_BYTES + self.slot_bytes
        return self._slots[number % self.slots][:size_bytes] if free and fits else None

    def publish_copies(self, written: int) -> None:
        """Give all slots before message number `written`, which were copied, to the reader."""
        self._fence()
        self.written = self._words[_WRITTEN] = written


class RingReader(_Ring):
    """The reading end.  `open_file` maps another file of the writer's, which a message names."""

    def __init__(self, buffer: memoryview, open_file: Callable[[str], memoryview] | None = None) -> None:
        super().__init__(buffer)
        self.read: int = self._words[_READ]
        self._open_file = open_file
        self._file = "", memoryview(b"")  # the last one

    def resume(self) -> None:
        """Go on where the ring buffer stands: another end of the same process may have used it."""
        self.read = self._words[_READ]

    @property
    def empty(self) -> bool:
        if self._words[_WRITTEN] == self.read:
            return True
        self._fence()
        return False

    @property
    def envelope(self) -> bytes:
        """The next message's envelope, while the ring buffer is not empty."""
        return bytes(self._envelopes[self.read % self.slots])

    @property
    def size_bytes(self) -> int:
        """The size of the next message's payload, in a ring buffer that its writer filled itself."""
        return self._words[_LENGTHS + self.read % self.slots]

    def payload(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next message's payload, to be read until it is released."""
        return self._typed(dtype)[self.read % self.slots]

    def data(self, size_bytes: int) -> bytes:
        """A copy of the first bytes of the next message's payload."""
        return bytes(self._payloads[self.read % self.slots][:size_bytes])

    def file(self, name: str) -> memoryview:
        """The writer's file of this name.  BlobMissing if it is gone."""
        if self._file[0] != name:
            if self._open_file is None:
                raise BlobMissing(f"a message names the file {name}, and there are none")
            self._file = name, self._open_file(name)
        return self._file[1]

    @property
    def file_name(self) -> str:
        """The name of the writer's file that is mapped; "" if none is."""
        return self._file[0]

    def release(self) -> None:
        """Give the next message's slot back to the writer."""
        self._fence()
        self.read += 1
        self._words[_READ] = self.read

    @property
    def written(self) -> int:
        """The number of messages that were written so far."""
        written = self._words[_WRITTEN]
        self._fence()
        return written

    def message(self, number: int) -> memoryview:
        """Message `number`, envelope included."""
        slot = number % self.slots
        return self._slots[slot][: ENVELOPE_BYTES + min(self._words[_LENGTHS + slot], self.slot_bytes)]

    def release_until(self, count: int) -> None:
        """Give the slots of the first `count` messages back to the writer: the reader of their copies did so."""
        if self.read < count <= self._words[_WRITTEN]:
            self._fence()
            self.read = self._words[_READ] = count

    @property
    def failed(self) -> int:
        """The last step that failed at the writer's end; 0 for none."""
        return self._words[_FAILED]

    def failure(self, tag: int) -> bytes | None:
        """Why step `tag` failed at the writer's end; None if it did not."""
        if self._words[_FAILED] != tag:
            return None
        self._fence()
        return bytes(self._page[_ERROR_AT : _ERROR_AT + min(self._words[_ERROR], ERROR_BYTES_MAX)])


class SpinWait:
    """How a thread waits: it spins, for as long as spinning was of use lately, and then sleeps, longer each time.

    On a machine with a core for every rank, a message comes within microseconds, sooner than a sleeping thread is
    woken.  If cores are few, a thread that spins takes the core of the one that it waits for.
    """

    def __init__(self, spins_max: int = SPINS_MAX, sleep_s_min: float = SLEEP_S_MIN) -> None:
        self._spins_max = self._spins = spins_max
        self._sleep_s_min = sleep_s_min

    def wait(self, ready: Callable[[], bool], check: Callable[[float], None]) -> None:
        """Return once `ready()`.  `check` gets the seconds waited so far, and may raise."""
        for _ in range(self._spins):
            if ready():
                self._spins = min(2 * self._spins, self._spins_max)
                return
        self._spins = max(self._spins // 2, min(SPINS_MIN, self._spins_max))
        began_s = time.monotonic()
        while not ready():
            waited_s = time.monotonic() - began_s
            check(waited_s)
            time.sleep(min(self._sleep_s_min + waited_s * SLEEP_SHARE, SLEEP_S_MAX))


@cache
def short_sleeps() -> None:
    """Have the kernel (Linux) end sleeps of this thread and its children within a microsecond, not 50."""
    if sys.platform.startswith("linux"):
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1000, 0, 0, 0)
