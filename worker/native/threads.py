"""Threads that run programs: they wait and compute in the runner's native code, without the GIL."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from . import placement
from .placement import Cores
from .runner import JOB_WORDS, LINE_WORDS, READINGS, STOPPED, WORDS, Helper, Job, Row, Runner
from .semaphores import POST, WAIT, Semaphore

ALIGNED = 64  # bytes of scratch memory: a vector register's, and a cache line's
SLEEP_MICROSECONDS = 50
IDLE_S = 0.001  # since the last run: threads that slept for less wake where they were
LOOK_S = 1.0  # after which the system is asked again which cores this process may use


class Stop:
    """A word that asks a run to end: other threads set it, and the runner looks at it between tasks."""

    def __init__(self) -> None:
        self._word = np.zeros(1, np.int64)

    @property
    def address(self) -> int:
        return int(self._word.ctypes.data)

    def set(self) -> None:
        self._word[0] = 1

    def clear(self) -> None:
        self._word[0] = 0

    def is_set(self) -> bool:
        return bool(self._word[0])


@dataclass(frozen=True, slots=True)
class Program:
    """Rows of kernels (runner.py), and what must live as long as they may run: arguments, code."""

    rows: NDArray[np.int64]
    scratch_bytes: int  # of each thread
    keeps: object = None

    def __post_init__(self) -> None:
        assert self.rows.ndim == 2 and self.rows.shape[1] == WORDS and self.rows.dtype == np.int64
        assert self.rows.flags.c_contiguous

    @property
    def in_line(self) -> bool:
        """Whether each task waits for the one before it, so that one thread is as fast as several."""
        tasks, after = self.rows[:, Row.TASKS], self.rows[:, Row.AFTER]
        return bool((tasks <= 1).all() and (after == np.arange(len(self.rows))).all())


class Threads:
    """A pool of `count` threads, of which the caller of `run` is one.  The caller of `run` has `turn`.

    A caller that is about to call it first calls `announce`: the others wake, and wait for the program in a loop, while
    the caller gives it its tensors.  In a process made by fork() the caller is the only one.

    `with_clock` gives the runner for `timed`.
    """

    def __init__(self, runner: Runner, count: int, with_clock: Callable[[], Runner] | None = None) -> None:
        self.count = count
        self.turn = threading.Lock()
        self.runner = runner
        self._walker = runner  # which of the two the threads walk with now
        self._with_clock = with_clock
        self._job = _aligned(8 * JOB_WORDS).view(np.int64)
        self._scratch = [_aligned(ALIGNED) for _ in range(count)]
        self._addresses = np.array([memory.ctypes.data for memory in self._scratch], np.int64)
        self._counters = _aligned(8 * LINE_WORDS).view(np.int64)
        self._semaphores = [Semaphore() for _ in range(count - 1)]
        self._lines = _aligned(8 * LINE_WORDS * count).view(np.int64).reshape(count, LINE_WORDS)[: count - 1]
        self._lines[:, Helper.SEMAPHORE] = [semaphore.address for semaphore in self._semaphores]
        yield_to_others, sleep, sleep_for = _waiting()
        clock, clock_of, self._tick_s = _clock()
        for word, value in (
            (Job.SCRATCH, self._addresses.ctypes.data), (Job.YIELD, yield_to_others), (Job.SLEEP, sleep),
            (Job.SLEEP_FOR, sleep_for), (Job.TIMES, 0), (Job.CLOCK, clock), (Job.CLOCK_OF, clock_of),
            (Job.WALK, runner.walk_address), (Job.WAIT, WAIT), (Job.POST, POST), (Job.ROAM, placement.ROAM),
            (Job.ROAM_BYTES, placement.BYTES), (Job.HERE, placement.HERE), (Job.HELPERS, self._lines.ctypes.data),
        ):  # fmt: skip
            self._job[word] = value
        self._address = int(self._job.ctypes.data)
        self._closed = False
        self._ended_s = 0.0  # when the last run was over
        self._cores, self._looked_s = Cores(), 0.0  # where helpers may go
        self._spread = False  # whether there are several
        self._helpers = [
            threading.Thread(target=self._help, args=(at,), name=f"kernels-{at}", daemon=True) for at in range(1, count)
        ]
        for helper, line in zip(self._helpers, self._lines, strict=True):
            helper.start()
            line[Helper.THREAD] = helper.native_id or 0
        _POOLS.add(self)

    def run(self, program: Program, stop: Stop, threads: int | None = None) -> bool:
        """Run a program on some of the threads; False if `stop` ended it early."""
        if self._closed:
            raise RuntimeError("this pool of threads is closed")
        threads = min(threads or self.count, self.count)
        self._grow(program.scratch_bytes, threads)
        count, rows = len(program.rows), int(program.rows.ctypes.data)
        if threads == 1 and self._walker is self.runner:
            return self.runner.alone(rows, count, stop.address, int(self._addresses[0])) != STOPPED
        if self._counters.size < count * LINE_WORDS:
            self._counters = _aligned(8 * count * LINE_WORDS).view(np.int64)
        try:
            if not self._job[Job.COMING]:
                self.announce(threads)
            self.runner.open(self._address, rows, count, int(self._counters.ctypes.data), stop.address, threads)
            return self._walker.walk(self._address, 0) != STOPPED
        finally:
            self.runner.close(self._address)  # waits for those inside, so nobody looks at this program afterwards
            self._ended_s = time.monotonic()

    def announce(self, threads: int | None = None) -> None:
        """Wake some of the threads for a run that is about to come; `dismiss` them if it does not."""
        helpers = min(threads or self.count, self.count) - 1
        if not helpers:
            return
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_S:
            self._look(now_s)
        self.runner.wake(self._address, helpers, self._spread and now_s - self._ended_s > IDLE_S)

    def dismiss(self) -> None:
        """Let the threads sleep again that wait for a run that did not follow."""
        self._job[Job.COMING] = 0

    def timed(self, program: Program, stop: Stop) -> tuple[bool, NDArray[np.float64]]:
        """Run a program on all threads.  Also returns when each thread began and ended with each row, in seconds of
        `time.perf_counter`, (threads, rows, 2); 0 for a row that it had no task of."""
        assert self._with_clock is not None, "this pool was made without a clock"
        times = np.zeros((self.count, len(program.rows), READINGS), np.int64)
        self._walk_with(self._with_clock())
        self._job[Job.TIMES] = int(times.ctypes.data)
        try:
            ended = self.run(program, stop)
        finally:
            self._job[Job.TIMES] = 0  # a thread that comes late finds the gate closed
            self._walk_with(self.runner)
        return ended, np.asarray(times * self._tick_s, np.float64)

    def close(self) -> None:
        """End the threads.  It waits for none that a kernel does not let go."""
        if not self._closed:
            self._closed = True
            self._job[Job.CLOSED] = 1
            if self.count > 1:
                self.runner.wake(self._address, self.count - 1, False)

    def forked(self) -> None:
        """This is a child now, which has none of the pool's other threads, and in which nobody has the turn."""
        self.count, self.turn = 1, threading.Lock()

    def _walk_with(self, runner: Runner) -> None:
        self._walker, self._job[Job.WALK] = runner, runner.walk_address

    def _look(self, now_s: float) -> None:
        count, self._looked_s = self._cores.look(), now_s
        self._spread = count > 1
        for word, value in (
            (Job.CORES, count),
            (Job.PLACES, self._cores.places.ctypes.data),
            (Job.ALONE, self._cores.alone.ctypes.data),
            (Job.EVERY, self._cores.every.ctypes.data),
        ):
            self._job[word] = value

    def _help(self, thread: int) -> None:
        self.runner.attend(self._address, thread)

    def _grow(self, size: int, threads: int) -> None:
        """Scratch memory for some threads.  Between runs nobody is inside."""
        for at in range(threads):
            if self._scratch[at].size < size:
                self._scratch[at] = _aligned(size)
                self._addresses[at] = self._scratch[at].ctypes.data


_POOLS: WeakSet[Threads] = WeakSet()


def _forked() -> None:
    for pool in _POOLS:
        pool.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _aligned(size: int) -> NDArray[np.uint8]:
    """Zeroed memory that begins at a cache line."""
    memory = np.zeros(size + ALIGNED, np.uint8)
    begin = -memory.ctypes.data % ALIGNED
    return memory[begin : begin + size]


def _waiting() -> tuple[int, int, int]:
    """Addresses of what gives the processor to others, of what sleeps, and how long that is in its unit."""
    if sys.platform == "win32":
        kernel: Any = ctypes.WinDLL("kernel32")
        return _address(kernel.SwitchToThread), _address(kernel.Sleep), 0
    library = ctypes.CDLL(None)
    return _address(library.sched_yield), _address(library.usleep), SLEEP_MICROSECONDS


def _clock() -> tuple[int, int, float]:
    """The address of what reads the clock of `time.perf_counter`, which clock that is for it, and its unit in
    seconds."""
    if sys.platform == "win32":
        kernel: Any = ctypes.WinDLL("kernel32")
        per_s = ctypes.c_int64()
        kernel.QueryPerformanceFrequency(ctypes.byref(per_s))
        return _address(kernel.QueryPerformanceCounter), 0, 1 / per_s.value
    which = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # the first on macOS
    return _address(ctypes.CDLL(None).clock_gettime), which, 1e-9


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
