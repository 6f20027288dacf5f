"""Admission: requests of one model wait for their turn, and are refused at once where too many wait.

It performs what `request_queue.py` decides.
"""

from __future__ import annotations

import asyncio
import itertools

from .api_error import ApiError
from .metrics import Reading
from .request_queue import RequestQueue


class Turn:
    """A place among the requests that are answered; `end` gives it to the next one, once."""

    def __init__(self, admission: Admission, number: int, since_s: float) -> None:
        self._admission = admission
        self._number = number
        self._since_s = since_s
        self._over = False

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._admission._leave(self._number, self._since_s)


class Admission:
    """The queue of one model, on a loop."""

    def __init__(self, running_max: int, waiting_max: int) -> None:
        self._queue = RequestQueue(running_max, waiting_max)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def running(self) -> int:
        """Requests that are answered now."""
        return len(self._queue.running)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._queue.waiting

    def readings(self, model: str) -> list[Reading]:
        """What it does now, for metrics."""
        return [
            ("requests_waiting", {"model": model}, self.waiting), ("requests_running", {"model": model}, self.running),
        ]  # fmt: skip

    def check_room(self) -> None:
        """ApiError 429 if too many wait."""
        if self._queue.full:
            wait_s = self._queue.retry_after_s
            raise ApiError(
                429,
                f"{self.waiting} requests wait already: try again in {wait_s} s",
                code="rate_limit_exceeded",
                retry_after_s=wait_s,
            )

    async def turn(self, client: str) -> Turn:
        """Wait for a turn; ApiError 429 at once if too many wait.  Cancel it to want none."""
        self.check_room()
        number = next(self._numbers)
        began = self._waiting[number] = self._loop.create_future()
        self._begin(self._queue.add(number, client))
        try:
            await began
        except BaseException:
            self._begin(self._queue.leave(number))
            raise
        finally:
            del self._waiting[number]
        return Turn(self, number, self._loop.time())

    def _leave(self, number: int, since_s: float) -> None:
        self._begin(self._queue.leave(number, self._loop.time() - since_s))

    def _begin(self, numbers: list[int]) -> None:
        for number in numbers:
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(None)
