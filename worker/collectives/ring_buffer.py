"""A mailbox: a ring of letters in a shared file, written by one process and read by one other.

    | counters, and why the writer gave up | envelope, payload | envelope, payload | ...

Both ends map the file.  The writer fills a place in the ring and raises `written`; the reader uses the letter where it
lies, without copying it, and raises `read`.  Each counter has one writer and a cache line of its own.  An *envelope*
says what a letter is part of; equal envelopes mean that both ends do the same.  A letter of an earlier step, one that
was given up half-way, is skipped by its reader, so a ring needs no cleaning.

It does not know ranks, groups or algorithms, nor who made the file.  A ring between two machines is two files, one on
each, and the daemons copy letters one way and `read` the other (`worker/daemon/collective_bridge.py`).
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

LETTERS = 8  # what a rank may be ahead of another
MAILBOXES_BYTES_MAX = 16 * MIB
LETTER_BITS_MIN = 12
PAGE_BYTES = 4096  # of counters and failure
ENVELOPE_BYTES = 128
LETTER_BYTES = 256 * KIB - ENVELOPE_BYTES  # less costs more steps, and more leaves the cache (bench/collectives.py)
ERROR_BYTES_MAX = 3072

_WRITTEN, _READ, _SHAPE, _FAILED, _ERROR, _LENGTHS = 0, 16, 32, 48, 64, 80  # in words of 8 bytes: cache lines apart
LETTERS_MAX = 32  # for whose lengths there is room
_ERROR_AT = 1024
_ENVELOPE = struct.Struct("<QIBBBB8Q")  # tag, group, operation, reduction, dtype, dimensions, and these

_CROSSING = 255  # no operation

SPINS_MAX, SPINS_MIN = 1000, 16  # looks at a counter, of about 0.1 us
SLEEP_S_MIN, SLEEP_S_MAX = 10e-6, 1e-3
CARRIED_SLEEP_S_MIN = 100e-6  # nothing is carried by daemons sooner, and they need the cores
SLEEP_SHARE = 0.1  # of the time waited so far: what a sleep adds stays small beside it


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a letter is part of: `tag` is the step's number, and grows; the rest must be the same on both ends."""

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
        """BlobCorrupt for what no envelope is."""
        tag, group, operation, reduction, code, rank, *dims = _ENVELOPE.unpack_from(packed)
        if code >= len(DTYPES) or rank > 8:
            raise BlobCorrupt("a mailbox holds something that is no envelope")
        return cls(tag, group, operation, reduction, DTYPES[code], tuple(dims[:rank]))


def tagged(packed: bytes, tag: int) -> bytes:
    """A packed envelope with another tag."""
    return tag.to_bytes(8, "little") + packed[8:]


def tag_of(packed: bytes | memoryview) -> int:
    """The tag of a packed envelope."""
    return int.from_bytes(packed[:8], "little")


def marker(tag: int, number: int) -> bytes:
    """The envelope of a letter that says: the next ones come over the connection of that number."""
    return Envelope(tag, number, _CROSSING, 0, BOOL, ()).pack()


def crossing(packed: bytes) -> int:
    """The number that a marker names; 0 for any other letter's envelope."""
    return int.from_bytes(packed[8:12], "little") if packed[12] == _CROSSING else 0


def size_of(letters: int = LETTERS, letter_bytes: int = LETTER_BYTES) -> int:
    """The bytes of a mailbox's file."""
    return PAGE_BYTES + letters * (ENVELOPE_BYTES + letter_bytes)


def letter_bytes_for(ranks: int) -> int:
    """A rank writes to a mailbox per other rank: 16 MiB of them at most, whatever their number."""
    share = MAILBOXES_BYTES_MAX // (LETTERS * max(ranks - 1, 1))
    return min(LETTER_BYTES, (1 << max(share.bit_length() - 1, LETTER_BITS_MIN)) - ENVELOPE_BYTES)


def lay_out(buffer: memoryview, letters: int = LETTERS, letter_bytes: int = LETTER_BYTES) -> None:
    """Make an empty mailbox of `buffer`, which has `size_of` zeros."""
    words = buffer[:PAGE_BYTES].cast("Q")
    words[_SHAPE], words[_SHAPE + 1] = letters, letter_bytes


class _Ring:
    """What both ends have."""

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer[:PAGE_BYTES].cast("Q")
        self.letters, self.letter_bytes = self._words[_SHAPE], self._words[_SHAPE + 1]
        if not 0 < self.letters <= LETTERS_MAX or len(buffer) != size_of(self.letters, self.letter_bytes):
            raise BlobCorrupt(f"a file of {len(buffer)} bytes is no mailbox of {self.letters} x {self.letter_bytes}")
        self._page = buffer[:PAGE_BYTES]
        stride = ENVELOPE_BYTES + self.letter_bytes
        starts = [PAGE_BYTES + letter * stride for letter in range(self.letters)]
        self._envelopes = [buffer[start : start + ENVELOPE_BYTES] for start in starts]
        self._payloads = [buffer[start + ENVELOPE_BYTES : start + stride] for start in starts]
        self._places = [buffer[start : start + stride] for start in starts]
        self._views: dict[np.dtype[Any], list[NDArray[Any]]] = {}
        self._lock = threading.Lock()
        self._lock.acquire()

    def _typed(self, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        found = self._views.get(dtype)
        if found is None:
            count = self.letter_bytes // dtype.itemsize
            found = self._views[dtype] = [np.frombuffer(each, dtype, count) for each in self._payloads]
        return found

    def _fence(self) -> None:
        """Order what is before it and what is after it: a release, then an acquire, of a lock that nobody else has.

        On x86 plain stores are ordered anyway; on ARM they are not, and Python has no other fence.
        """
        self._lock.release()
        self._lock.acquire()


class Outbox(_Ring):
    """The writing end."""

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer)
        self.written: int = self._words[_WRITTEN]
        self._lending = 0  # letters up to the last one that lends something

    def resume(self) -> None:
        """Go on where the ring stands: another end of the same process may have used it."""
        self.written = self._words[_WRITTEN]

    @property
    def full(self) -> bool:
        return bool(self.written - self._words[_READ] >= self.letters)

    def letter(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The payload of the next letter, to be written to while the ring is not full."""
        return self._typed(dtype)[self.written % self.letters]

    def publish(self, envelope: bytes, size_bytes: int) -> None:
        """Give the letter, of which so many bytes were written, to the reader."""
        letter = self.written % self.letters
        self._envelopes[letter][:] = envelope
        self._words[_LENGTHS + letter] = size_bytes
        self._fence()
        self.written += 1
        self._words[_WRITTEN] = self.written

    def say(self, envelope: bytes, said: bytes, lends: bool = False) -> None:
        """Give a short letter to the reader; one that `lends` it something does so until it is released."""
        self._payloads[self.written % self.letters][: len(said)] = said
        self.publish(envelope, len(said))
        if lends:
            self._lending = self.written

    @property
    def lent(self) -> bool:
        """Whether a letter that lends something is not released yet."""
        return bool(self._lending > self._words[_READ])

    def fail(self, tag: int, error: bytes) -> None:
        """Tell the reader that this end gave up step `tag`, and why."""
        error = error[:ERROR_BYTES_MAX]
        self._page[_ERROR_AT : _ERROR_AT + len(error)] = error
        self._words[_ERROR] = len(error)
        self._fence()
        self._words[_FAILED] = tag

    @property
    def read(self) -> int:
        """How many letters the reader is done with."""
        return self._words[_READ]

    def place(self, number: int, size_bytes: int) -> memoryview | None:
        """Where a copy of letter `number` of another ring goes, envelope included; None if that is not free."""
        free = self.read <= number < self.read + self.letters
        fits = ENVELOPE_BYTES <= size_bytes <= ENVELOPE_BYTES + self.letter_bytes
        return self._places[number % self.letters][:size_bytes] if free and fits else None

    def placed(self, written: int) -> None:
        """All letters before number `written` are copied."""
        self._fence()
        self.written = self._words[_WRITTEN] = written


class Inbox(_Ring):
    """The reading end; `open_file` maps another file of the writer's, which letters speak of."""

    def __init__(self, buffer: memoryview, open_file: Callable[[str], memoryview] | None = None) -> None:
        super().__init__(buffer)
        self.read: int = self._words[_READ]
        self._open_file = open_file
        self._file = "", memoryview(b"")  # the last one

    def resume(self) -> None:
        """As Outbox has it."""
        self.read = self._words[_READ]

    @property
    def empty(self) -> bool:
        if self._words[_WRITTEN] == self.read:
            return True
        self._fence()
        return False

    @property
    def envelope(self) -> bytes:
        """The next letter's, while the ring is not empty."""
        return bytes(self._envelopes[self.read % self.letters])

    @property
    def size_bytes(self) -> int:
        """The next letter's, of a mailbox that its writer wrote itself."""
        return self._words[_LENGTHS + self.read % self.letters]

    def payload(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next letter's, to be read until it is released."""
        return self._typed(dtype)[self.read % self.letters]

    def said(self, size_bytes: int) -> bytes:
        """The first bytes of the next letter's."""
        return bytes(self._payloads[self.read % self.letters][:size_bytes])

    def file(self, name: str) -> memoryview:
        """The file of the writer's that a letter spoke of.  BlobMissing if it is gone."""
        if self._file[0] != name:
            if self._open_file is None:
                raise BlobMissing(f"a letter speaks of the file {name}, and there are none")
            self._file = name, self._open_file(name)
        return self._file[1]

    @property
    def file_name(self) -> str:
        """The file of the writer's that is mapped; "" if none is."""
        return self._file[0]

    def release(self) -> None:
        """Done with the next letter."""
        self._fence()
        self.read += 1
        self._words[_READ] = self.read

    @property
    def written(self) -> int:
        """How many letters were written so far."""
        written = self._words[_WRITTEN]
        self._fence()
        return written

    def copied(self, number: int) -> memoryview:
        """What there is of letter `number`, envelope included."""
        place = number % self.letters
        return self._places[place][: ENVELOPE_BYTES + min(self._words[_LENGTHS + place], self.letter_bytes)]

    def released(self, count: int) -> None:
        """The reader of the copies is done with so many."""
        if self.read < count <= self._words[_WRITTEN]:
            self._fence()
            self.read = self._words[_READ] = count

    @property
    def failed(self) -> int:
        """The last step that the writer gave up; 0: none."""
        return self._words[_FAILED]

    def failure(self, tag: int) -> bytes | None:
        """Why the writer gave up step `tag`, if it did."""
        if self._words[_FAILED] != tag:
            return None
        self._fence()
        return bytes(self._page[_ERROR_AT : _ERROR_AT + min(self._words[_ERROR], ERROR_BYTES_MAX)])


class Patience:
    """How one thread waits: it spins, as long as spinning was of use lately, and then sleeps, longer each time.

    On a machine with a core for every rank, what is waited for comes within microseconds, sooner than a sleeping thread
    is woken.  Where cores are few, whoever spins keeps a core from whom it waits for.
    """

    def __init__(self, spins_max: int = SPINS_MAX, sleep_s_min: float = SLEEP_S_MIN) -> None:
        self._spins_max = self._spins = spins_max
        self._sleep_s_min = sleep_s_min

    def wait(self, ready: Callable[[], bool], check: Callable[[float], None]) -> None:
        """Return once `ready()`; `check` is told the seconds waited, and may raise."""
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
    """Have the kernel (Linux) wake this thread's and its children's sleeps within a microsecond, not 50."""
    if sys.platform.startswith("linux"):
        pr_set_timerslack = 29
        ctypes.CDLL(None).prctl(pr_set_timerslack, 1000, 0, 0, 0)
