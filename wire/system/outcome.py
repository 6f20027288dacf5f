"""Outcome: what comes of a question, a value or an error, for a caller without a task.

A future calls back in the next turn of the loop, and a task needs another turn to begin; each costs as much as a small
step does.  An outcome calls back at once, in the turn in which it is known.  So does a prompt future, for one who waits
in another thread; others await it as any future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import MeshError

T = TypeVar("T")


class Outcome(Generic[T]):
    """A value or an error, which is known once: by `set_result` or `set_exception`.

    What `then` was given is called with either.  A caller that does not need it any more may `cancel` it: `cancelled`
    hears of that, and what `then` was given does not.
    """

    __slots__ = ("_cancelled", "_error", "_over", "_then", "_value")

    def __init__(self, cancelled: Callable[[], object] | None = None) -> None:
        self._cancelled = cancelled
        self._then: Callable[[T | None, MeshError | None], object] | None = None
        self._value: T | None = None
        self._error: MeshError | None = None
        self._over = False

    def done(self) -> bool:
        """Whether it is known, or cancelled."""
        return self._over

    def then(self, callback: Callable[[T | None, MeshError | None], object]) -> None:
        """Call `callback(value, error)` once it is known, which may be now; one of them is None."""
        if self._over:
            callback(self._value, self._error)
        else:
            self._then = callback

    def set_result(self, value: T) -> None:
        self._settle(value, None)

    def set_exception(self, error: MeshError) -> None:
        self._settle(None, error)

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self._over:
            self._over, self._then = True, None
            if self._cancelled is not None:
                self._cancelled()

    def _settle(self, value: T | None, error: MeshError | None) -> None:
        assert not self._over, "it is known already"
        self._over, self._value, self._error = True, value, error
        if self._then is not None:
            self._then(value, error)


class PromptFuture(asyncio.Future[T]):
    """A future that calls back in the turn of the event loop in which it is done."""

    _then: Callable[[asyncio.Future[T]], object] | None = None

    def then(self, callback: Callable[[asyncio.Future[T]], object]) -> None:
        """Call `callback(self)` once it is done, which may be now.  It must not raise."""
        if self.done():
            callback(self)
        else:
            self._then = callback

    def set_result(self, result: T) -> None:
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: object = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._tell()
        return cancelled

    def _tell(self) -> None:
        callback, self._then = self._then, None
        if callback is not None:
            callback(self)


def call_when_done(future: asyncio.Future[T], callback: Callable[[asyncio.Future[T]], object]) -> None:
    """Call `callback(future)` as soon as can be: at once where it is a prompt one, which nobody else asked for that."""
    if isinstance(future, PromptFuture):
        future.then(callback)
    else:
        future.add_done_callback(callback)
