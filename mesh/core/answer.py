"""Answer: what one thread waits for and another one tells, once: a value or an error.

Ctrl-C and other signals raise exceptions in the midst of whatever their thread does.  Futures, events and conditions of
Python take their locks in Python code: such an exception leaves one locked, and the thread that tells waits for it for
ever.  Whoever tells an answer waits for nothing.  First it keeps what there is to tell, and then it opens a lock for
each of those who wait, which no other has and which is left behind by one that waits no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Answer(Generic[T]):
    """A value or an error, or nothing if what was asked is `cancelled`; any threads may wait for it."""

    __slots__ = ("_calls", "_error", "_over", "_value", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._over = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._calls: list[Callable[[], object]] = []  # of those who wait

    def done(self) -> bool:
        """Whether it is known, or cancelled."""
        return self._over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is known, or cancelled, and no longer than `timeout_s`; whether it is."""
        if not self._over:
            opened = threading.Lock()
            opened.acquire()
            self.then(opened.release)
            if not opened.acquire(timeout=-1 if timeout_s is None else timeout_s):
                self._takes_back(opened.release)
        return self._over

    def result(self) -> T:
        """The value, or the error raised, of one that is known."""
        assert self._over and not self.cancelled, "there is no result"
        if self._error is None:
            return cast(T, self._value)
        try:
            raise self._error
        finally:
            del self  # or the error would hold itself, by its traceback

    def error(self) -> BaseException | None:
        """The error; None where there is a value."""
        return self._error

    def then(self, call: Callable[[], object]) -> None:
        """Call this once it is known, or cancelled: in the thread that tells, or now.  It must not raise."""
        self._calls.append(call)
        if self._over and self._takes_back(call):
            call()

    def future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
        """A future of `loop`, for one who waits there, in which this ends."""
        future: asyncio.Future[T] = loop.create_future()

        def end() -> None:
            if future.done():
                return
            if self.cancelled:
                future.cancel()
            elif self._error is not None:
                future.set_exception(self._error)
            else:
                future.set_result(cast(T, self._value))

        def end_soon() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there
                loop.call_soon_threadsafe(end)

        self.then(end_soon)
        return future

    def tell(self, value: T) -> None:
        self._value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def cancel(self) -> None:
        self.cancelled = True
        self._end()

    def copy(self, future: asyncio.Future[T]) -> None:
        """Tell what a future of the loop has ended in."""
        if future.cancelled():
            self.cancel()
        elif (error := future.exception()) is not None:
            self.fail(error)
        else:
            self.tell(future.result())

    def _end(self) -> None:
        assert not self._over, "it is known already"
        self._over = True
        with contextlib.suppress(IndexError):  # one may take its own back meanwhile
            while True:
                self._calls.pop(0)()

    def _takes_back(self, call: Callable[[], object]) -> bool:
        """Whether nobody has called this, and nobody will."""
        try:
            self._calls.remove(call)
        except ValueError:
            return False
        return True
