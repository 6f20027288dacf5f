"""Callers: the futures of those that wait for a session: for its steps, its state, or to take it over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from wire.errors import MeshError
from wire.system.outcome import PromptFuture
from wire.system.tasks import Tasks

from ..lifecycle.answers import Made, give

Outputs = list[NDArray[Any]]
State = dict[str, NDArray[Any]]


class Callers:
    """The callers of one session.  Made on the event loop.  A caller may cancel its future; nothing else happens
    then, except that `unread` is called for a read."""

    def __init__(self, unread: Callable[[int], None], tasks: Tasks) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks  # which put together what is large
        self._unread = unread
        self._steps: dict[int, asyncio.Future[Outputs]] = {}
        self._reads: dict[int, asyncio.Future[State]] = {}
        self._next_read = 1
        self._claims: list[asyncio.Future[int]] = []

    def refused(self, error: MeshError) -> asyncio.Future[Any]:
        """A future for what is asked of a session that is over."""
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_exception(error)
        return future

    # -- steps

    def step(self, number: int) -> asyncio.Future[Outputs]:
        """A future of the outputs of a step."""
        future = self._steps[number] = PromptFuture(loop=self._loop)
        return future

    def resolve(self, number: int, prepare: Callable[[], Made[Outputs]]) -> None:
        """Give the outputs of a step, as they are put together by what `prepare` returns."""
        give(self._tasks, self._steps.pop(number), "putting the outputs together", prepare)

    def reject(self, number: int, error: MeshError) -> None:
        """Give the error of a step."""
        _fail(self._steps.pop(number, None), error)

    # -- the state

    def read(self) -> tuple[int, asyncio.Future[State]]:
        """A number for a read of the state, and a future of that."""
        request, self._next_read = self._next_read, self._next_read + 1
        future = self._reads[request] = self._loop.create_future()
        future.add_done_callback(lambda _: self._withdrawn(request))
        return request, future

    def _withdrawn(self, request: int) -> None:
        if self._reads.pop(request, None) is not None:
            self._unread(request)

    def give_state(self, request: int, prepare: Callable[[], Made[State]]) -> None:
        """Give the state that was asked for, as it is put together by what `prepare` returns."""
        give(self._tasks, self._reads.pop(request, None), "putting the state together", prepare)

    def refuse_state(self, request: int, error: MeshError) -> None:
        """Give the error of a read of the state."""
        _fail(self._reads.pop(request, None), error)

    # -- who takes over, and the end

    def claim(self) -> asyncio.Future[int]:
        """A future of how many steps are done, for another client that takes over."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._claims.append(future)
        return future

    def hand_over(self, steps: int) -> None:
        """Return the number of steps that are done to the program that claimed the session."""
        claims, self._claims = self._claims, []
        for future in claims:
            if not future.done():
                future.set_result(steps)

    def end(self, error: MeshError) -> None:
        """Give an error to all that are left: nobody else answers them."""
        left: list[asyncio.Future[Any]] = [*self._steps.values(), *self._reads.values(), *self._claims]
        for future in left:
            _fail(future, error.copy())


def _fail(future: asyncio.Future[Any] | None, error: MeshError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
