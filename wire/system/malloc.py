"""What the C library does with memory that was freed: when it goes back to the system.

glibc returns only what lies at the end of its heap.  A daemon that keeps a little of every job among much that it frees
would hold the holes between for ever: some 0.5 KiB per job, measured over the first thousand.  A driver that compiles
leaves tens of MiB.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ..limits import GIB, MIB

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h


def give_back() -> None:
    """Give freed memory back to the system, in about a millisecond.  It does nothing without that call."""
    trim = _trim()
    if trim is not None:
        trim(0)


class SpareMemory:
    """The memory that was freed.  It goes back once in a while only, since what is used next has to be had again."""

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._next_s = -math.inf

    def give_back(self, now_s: float) -> None:
        """Do what `give_back` does, unless that was done a short while ago."""
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            give_back()


class MemoryAtRest:
    """The memory that was freed, of a process that computes in some threads and is watched by another one.  It goes
    back once, some seconds after the last work.  A process that computes goes on with the memory that it has.  This is
    a context manager, in which work is done."""

    def __init__(self, wait_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s, self._clock = wait_s, clock
        self._lock = threading.Lock()
        self._running = 0  # pieces of work: one may be suspended while others begin and end
        self._due_s = math.inf

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self._due_s = math.inf

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._due_s = self._clock() + self._wait_s

    def look(self) -> None:
        """Give the memory back if it is time; this is for the thread that watches."""
        with self._lock:
            due = self._clock() >= self._due_s
            if due:
                self._due_s = math.inf
        if due:
            give_back()


class DelayedReturn:
    """The memory that was freed, of a process that is at rest in between.  It goes back some seconds after the first of
    several things that may have freed some.  Made on an event loop."""

    def __init__(self, wait_s: float = 15.0) -> None:
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Something may have freed memory."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._give_back)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_back(self) -> None:
        self._timer = None
        self._loop.run_in_executor(None, give_back)


@cache
def share_heap() -> None:
    """Let all threads of this process have one heap, where glibc is.  It gives threads heaps of their own, eight for
    each core, and what one keeps free is of no use to the others: after half an hour a server of models held 193 MiB
    for 75 MiB in use.  Heaps that there are stay."""
    _set({_ARENA_MAX: 1})


@cache
def hold_buffers() -> None:
    """Let glibc, in a process through which streams run, keep some MiB of what was freed.  It gives buffers of a few
    hundred KiB back at once otherwise, and every frame that arrives is paid for in page faults: a third of a daemon's
    time in the kernel."""
    _hold(32 * MIB, 4 * MIB)


@cache
def hold_arrays() -> None:
    """Let glibc, in a process that does nothing but compute, keep what was freed.  It gives arrays back after every
    operation otherwise, and most of an elementwise operation's time goes to page faults.  All threads have one heap:
    those of others are of 64 MiB, so that larger arrays would be given back all the same."""
    share_heap()
    _hold(GIB, 64 * MIB)


def _hold(kept_bytes: int, pad_bytes: int) -> None:
    _set({_MMAP_THRESHOLD: kept_bytes, _TRIM_THRESHOLD: kept_bytes, _TOP_PAD: pad_bytes})


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


@cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
