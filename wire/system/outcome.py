"""Outcome: what comes of a question, a value or an error, for one who waits without a task.

A future calls back in the next turn of the loop, and a task needs another turn to begin; each costs as much as a small
step does.  An outcome calls back at once, in the turn in which it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import MeshError

T = TypeVar("T")


class Outcome(Generic[T]):
    """A value or an error, which is known once: by `set_result` or `set_exception`.

    What `then` was given is called with either.  Whoever does not want it any more may `cancel` it: `cancelled` hears
    of that, and what `then` was given does not.
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
