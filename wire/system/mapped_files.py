"""Files as memory, without an open file each: a process may hold more of them than it may have files open.

Python's `mmap` keeps a descriptor of every mapping for as long as it lives (from 3.13 on it need not), and its mappings
are either read-only or written to the file.  So memory is mapped with the system's own call, and a copy can be writable
and yet cost nothing before a process writes.  A mapping ends with the last view of it.

To map the pages of a gigabyte takes 0.4 s, and to give them back 0.2 s, as it does where the last name of a file goes.
An event loop may do either, so neither is done where a large mapping begins or ends, or a large file is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

READ_BYTES_MAX = 4 << 20  # a copy of so much is made as quickly as pages are mapped
AT_ONCE_BYTES_MAX = 16 << 20  # pages of more are mapped when they are read, and given back by a thread
SETTLE_S = 60.0  # to give back 100 GB takes 20 s
SETTLE_ON_LOOP_S = 0.2  # to give back 3 GB: a step fails without room, and an event loop stands still meanwhile
_FAILED = ctypes.c_void_p(-1).value


def copied(handle: int, size_bytes: int) -> memoryview:
    """An open file's first bytes as memory of our own, writable; the file does not change with it.  OSError."""
    if size_bytes > READ_BYTES_MAX:
        return _mapped(handle, size_bytes, private=True, writable=True, populate=size_bytes <= AT_ONCE_BYTES_MAX)
    data = np.empty(size_bytes, np.uint8).data
    with open(handle, "rb", buffering=0, closefd=False) as file:
        at = 0
        while at < size_bytes:
            read = file.readinto(data[at:])
            if not read:
                raise OSError(f"the file ends after {at} bytes of {size_bytes}")
            at += read
    return data


def viewed(handle: int, size_bytes: int) -> memoryview:
    """An open file's first bytes, read-only: later writes into the file are seen.  OSError."""
    return _mapped(handle, size_bytes, private=False, writable=False, populate=False)


def shared(handle: int, size_bytes: int) -> memoryview:
    """An open file's first bytes as memory of all processes that have them so.  OSError."""
    return _mapped(handle, size_bytes, private=False, writable=True, populate=False)


def passing(size_bytes: int) -> memoryview:
    """Memory for bytes that pass through it: its pages are taken as bytes come, and `forget` gives them back.
    OSError."""
    if sys.platform == "win32" or not size_bytes:
        return memoryview(bytearray(size_bytes))
    return _mapped(-1, size_bytes, private=True, writable=True, populate=False)


def forget(view: memoryview, begin: int, end: int) -> None:
    """Give back the pages of `passing` memory from the one of offset `begin` on, as far as they end by `end`; what was
    in them is lost."""
    begin, end = begin // mmap.PAGESIZE * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if sys.platform != "win32" and begin < end:
        address = np.frombuffer(view, np.uint8).ctypes.data
        _system().madvise(address + begin, end - begin, getattr(mmap, "MADV_DONTNEED", 4))


def unlink(path: str) -> None:
    """Remove a file.  Its name is gone at once; of a large one a thread gives back the memory, or the room on the disk.
    OSError."""
    handle = _opened_if_large(path)
    try:
        os.unlink(path)
    finally:
        if handle is not None and not _ending.take(partial(os.close, handle)):
            os.close(handle)


def _opened_if_large(path: str) -> int | None:
    """A large file, open, so that it outlives its name; None for others."""
    if sys.platform != "win32":  # which removes no file that is open
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size > AT_ONCE_BYTES_MAX:
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return None


def _mapped(handle: int, size_bytes: int, private: bool, writable: bool, populate: bool) -> memoryview:
    if not size_bytes:
        return memoryview(bytearray())
    if sys.platform == "win32":  # which counts no handles
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(handle, size_bytes, access=access))
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | (mmap.MAP_ANONYMOUS if handle < 0 else 0)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable and not private else 0)
    if populate:  # one call instead of a fault per page; of pages that may be written it would make copies
        flags |= getattr(mmap, "MAP_POPULATE", 0)
    system = _system()
    address = system.mmap(None, size_bytes, protection, flags, handle, 0)
    if address == _FAILED:
        raise _error()
    region = _Region(address, size_bytes, writable, system.munmap)
    if private and system.mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
        raise _error()
    return np.asarray(region).data


class _Region:
    """Mapped memory as numpy takes it; arrays of it keep it."""

    def __init__(self, address: int, size_bytes: int, writable: bool, unmap: Callable[[int, int], object]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size_bytes,),
            "data": (address, not writable),
        }
        self._end = address, size_bytes
        self._unmap = unmap

    def __del__(self) -> None:
        if self._end[1] <= AT_ONCE_BYTES_MAX or not _ending.take(partial(self._unmap, *self._end)):
            self._unmap(*self._end)


class _Ending:
    """A thread that ends large mappings; it begins with the first of them."""

    def __init__(self) -> None:
        self._left: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._count = 0  # of those that have not ended
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a view may end while this one begins a thread

    def take(self, unmap: Callable[[], object]) -> bool:
        """Have a mapping ended soon; False where no thread can begin any more, as the process ends."""
        if sys.is_finalizing():  # a thread that begins now never says that it has begun
            return False
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._work, name="unmapping", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            self._count += 1
        self._left.put(unmap)
        return True

    def settle(self, wait_s: float) -> bool:
        if not self._count:
            return False
        done = threading.Event()
        return self.take(done.set) and done.wait(wait_s)

    def _work(self) -> None:
        while True:
            self._left.get()()
            with self._lock:
                self._count -= 1


_ending = _Ending()


def settle() -> bool:
    """Wait until the memory of all large mappings that ended before is free, for a caller that finds no room; an event
    loop waits for a moment only.  False if there was nothing to wait for, or it takes longer."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _ending.settle(SETTLE_S)
    return _ending.settle(SETTLE_ON_LOOP_S)


@cache
def _system() -> Any:
    """The system's calls."""
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype, system.mmap.argtypes = address, (address, size, number, number, number, ctypes.c_long)
    system.madvise.argtypes = address, size, number
    system.munmap.argtypes, system.mprotect.argtypes = (address, size), (address, size, number)
    return system


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
