"""Progress of collectives: operations in flight, performed one after the other, in a thread of their own or in the
thread that waits.

A part starts a collective as soon as its operand is there, and computes on while the thread moves the bytes.  A caller
that needs a result at once performs the operation in its own thread, since a switch between threads costs more than a
small tensor.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

IDLE_S = 1.0  # of idleness, after which the thread ends

Work = Callable[[bool], NDArray[Any]]
"""Performs an operation.  The argument says whether a thread waits for it."""


class Pending:
    """An operation that Progress has started."""

    def __init__(self, progress: Progress, work: Work) -> None:
        self._progress = progress
        self._work: Work | None = work
        self._value: NDArray[Any] | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._work is None

    def result(self) -> NDArray[Any]:
        """Wait until the operation is done.  Returns its result, or raises its error.

        The error is forgotten here, since it refers to the caller's frame by its traceback, and that frame to this.
        """
        self._progress.until(self)
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        assert self._value is not None
        return self._value

    def perform(self, waited_for: bool) -> None:
        assert self._work is not None
        try:
            self._value = self._work(waited_for)
        except BaseException as error:
            self._error = error
        self._work = None


class Progress:
    """The operations in flight, in the order in which they were started."""

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None
        self.waited_s = 0.0  # by callers, for operations; every read resets it

    def start(self, work: Work, meanwhile: bool) -> Pending:
        """Start an operation.  With `meanwhile` the thread performs it while the caller goes on."""
        pending = Pending(self, work)
        with self._changed:
            self._waiting.append(pending)
            if meanwhile:
                self._changed.notify_all()
            if meanwhile and self._thread is None:
                thread = threading.Thread(target=self._work, name="collectives", daemon=True)
                with contextlib.suppress(RuntimeError):  # there is no further thread: whoever waits performs it
                    thread.start()
                    self._thread = thread
        return pending

    def until(self, wanted: Pending) -> None:
        """Return once an operation is done.  The time counts as `waited_s`."""
        began_s = time.perf_counter()
        while not wanted.done:
            self.advance(wanted)
        self.waited_s += time.perf_counter() - began_s

    def advance(self, wanted: Pending) -> None:
        """Perform the next operation, or wait while another thread performs one, unless `wanted` is done."""
        with self._changed:
            if wanted.done:
                return
            if self._busy:
                self._changed.wait()
                return
            pending = self._take()
        self._perform(pending, waited_for=True)

    def finish(self) -> None:
        """Perform all operations that are not done."""
        while True:
            with self._changed:
                last = self._waiting[-1] if self._waiting else None
            if last is None:
                break
            self.until(last)
        self._idle()

    def drop(self) -> None:
        """Drop all operations that have not begun, and wait for the one in progress."""
        with self._changed:
            self._waiting.clear()
        self._idle()

    def _idle(self) -> None:
        with self._changed:
            while self._busy:
                self._changed.wait()

    def _take(self) -> Pending:
        self._busy = True
        return self._waiting.popleft()

    def _perform(self, pending: Pending, waited_for: bool) -> None:
        try:
            pending.perform(waited_for)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._waiting:
                    if not self._changed.wait(IDLE_S) and not self._waiting:
                        self._thread = None
                        return
                pending = self._take()
            self._perform(pending, waited_for=False)
            del pending  # this thread must not keep its result alive
