"""Room for arguments: calls and steps that are begun ahead wait, once the copies of their arguments take too much.

A program that begins steps in a loop is ahead of its workers; without this it would be ahead by all its memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wire.errors import LimitExceeded, MeshError
from wire.units import need_text, room_text, size_text

from .answer import Answer

EACH_BYTES = 4096  # counted for a call or step beside its arguments, since it takes memory too


class ArgumentRoom:
    """`most_bytes` of arguments, for any threads.  What needs more than that alone is begun when there is nothing else.

    Whoever waits gets room in the order of asking.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._waiting: deque[tuple[int, Answer[None]]] = deque()
        self._in_flight: dict[asyncio.Future[Any], int] = {}  # what is given back once each is over
        self._lock = threading.Lock()
        self._over: MeshError | None = None

    def take(self, size_bytes: int) -> Answer[None]:
        """Take room, now or later: it is told once it is taken, or ends in the error of `close`."""
        taken: Answer[None] = Answer()
        with self._lock:
            self._waiting.append((size_bytes + EACH_BYTES, taken))
            ready = self._next()
        _tell(ready, self._over)
        return taken

    async def wait_for(self, size_bytes: int) -> None:
        """Return once room is taken."""
        waiting = self.take(size_bytes)
        try:
            await waiting.future(asyncio.get_running_loop())
        except asyncio.CancelledError:
            self.leave(waiting, size_bytes)
            raise

    def leave(self, taken: Answer[None], size_bytes: int) -> None:
        """Wait no longer, and give back what was taken meanwhile; whoever waits behind it is next."""
        with self._lock:
            waits = (size_bytes + EACH_BYTES, taken) in self._waiting
            if waits:
                self._waiting.remove((size_bytes + EACH_BYTES, taken))
            ready = self._next()
        _tell(ready, self._over)
        if waits:
            taken.cancel()
        else:
            self.give(size_bytes)

    def take_now(self, size_bytes: int, next_step: str) -> None:
        """Take room; LimitExceeded, with the need and what there is, if that would have to wait.  On the loop."""
        for future in [future for future in self._in_flight if future.done()]:
            self._give_of(future)  # whoever awaited it may be here before its callbacks
        with self._lock:
            if self._waiting or not self._fits(size_bytes + EACH_BYTES):
                raise LimitExceeded(
                    f"arguments of {need_text(size_bytes)} do not fit beside {size_text(self._held_bytes)} of what is "
                    f"not over: there is room for {room_text(self._most_bytes)}",
                    next_step=next_step,
                )
            self._held_bytes += size_bytes + EACH_BYTES

    def give(self, size_bytes: int) -> None:
        """Give back what was taken; whoever waits is next."""
        with self._lock:
            self._held_bytes -= size_bytes + EACH_BYTES
            ready = self._next()
        _tell(ready, self._over)

    def give_after(self, future: asyncio.Future[Any], size_bytes: int) -> None:
        """Give back what was taken once this is over.  On its loop."""
        self._in_flight[future] = size_bytes
        future.add_done_callback(self._give_of)

    def _give_of(self, future: asyncio.Future[Any]) -> None:
        size_bytes = self._in_flight.pop(future, None)
        if size_bytes is not None:
            self.give(size_bytes)

    def close(self, error: MeshError) -> None:
        """End all waits, and those to come, with an error."""
        with self._lock:
            self._over = error
            ready = self._next()
        _tell(ready, error)

    def _fits(self, size_bytes: int) -> bool:
        return not self._held_bytes or self._held_bytes + size_bytes <= self._most_bytes

    def _next(self) -> list[Answer[None]]:
        """Take room for those whose turn it is; the caller tells them without the lock, since what follows may take or
        give room."""
        ready = []
        while self._waiting and (self._over is not None or self._fits(self._waiting[0][0])):
            size_bytes, taken = self._waiting.popleft()
            self._held_bytes += size_bytes
            ready.append(taken)
        return ready


def _tell(ready: list[Answer[None]], error: MeshError | None) -> None:
    for taken in ready:
        if error is None:
            taken.tell(None)
        else:
            taken.fail(error.copy())


def bytes_of(inputs: Mapping[str, NDArray[Any]]) -> int:
    """The bytes of arguments."""
    return sum(array.nbytes for array in inputs.values())


def copied(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copies of arguments, so that a caller that does not wait may overwrite its own."""
    return {name: array.copy() for name, array in inputs.items()}
