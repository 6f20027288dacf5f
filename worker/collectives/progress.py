"""Operations under way: performed one after the other, by a thread of its own or by who waits for one.

A part starts a collective as soon as its operand is there and computes on; the thread moves the bytes meanwhile.  Who
needs a result at once performs it in its own thread instead: a switch between threads costs more than a small tensor.
It does not know what the operations do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

IDLE_S = 1.0  # after which the thread ends: parts come and go

Work = Callable[[bool], NDArray[Any]]
"""Performs an operation; the argument says whether somebody waits for it."""


class Pending:
    """An operation that was started; made by Progress."""

    def __init__(self, progress: Progress, work: Work) -> None:
        self._progress = progress
        self._work: Work | None = work
        self._value: NDArray[Any] | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._work is None

    def result(self) -> NDArray[Any]:
        """What it gave, once it is done; raises what it raised, which is the caller's then: his frame has this, and the
        error leads to his frame."""
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
    """Operations in the order in which they were started."""

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None
        self.waited_s = 0.0  # by whoever starts operations; set back by whoever reads it

    def start(self, work: Work, meanwhile: bool) -> Pending:
        """Begin an operation; `meanwhile` has the thread perform it while the caller goes on."""
        pending = Pending(self, work)
        with self._changed:
            self._waiting.append(pending)
            if meanwhile:
                self._changed.notify_all()
            if meanwhile and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="collectives", daemon=True)
                self._thread.start()
        return pending

    def until(self, wanted: Pending) -> None:
        """Return once an operation is done; `waited_s` counts that."""
        began_s = time.perf_counter()
        while not wanted.done:
            self.advance(wanted)
        self.waited_s += time.perf_counter() - began_s

    def advance(self, wanted: Pending) -> None:
        """Perform the next operation, or wait for who performs one, unless `wanted` is done."""
        with self._changed:
            if wanted.done:
                return
            if self._busy:
                self._changed.wait()
                return
            pending = self._take()
        self._perform(pending, waited_for=True)

    def finish(self) -> None:
        """Perform what was started and is not done."""
        while True:
            with self._changed:
                last = self._waiting[-1] if self._waiting else None
            if last is None:
                break
            self.until(last)
        self._idle()

    def drop(self) -> None:
        """Forget what was started, and wait for what is being performed."""
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
            del pending  # it has a value, which nobody may hold for this thread
