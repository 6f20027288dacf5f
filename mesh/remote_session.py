"""A session that a coordinator elsewhere has for this client (`mesh-coord serve`).

It lives as long as the link it was opened over.  What is asked is numbered, so that it is done in order whatever
arrives first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray

from wire.errors import MeshError, NodeLost, ProtocolError
from wire.exchange import BlobExchange
from wire.link import Link
from wire.messages import (
    CloseSession,
    Done,
    Message,
    NamedValue,
    OpenSession,
    SessionCarry,
    SessionOpened,
    SessionState,
    SessionStep,
    SessionTold,
)

from .backend import Stateful, Work
from .handle import Handle

M = TypeVar("M", bound=Message)
Named = Callable[[Mapping[str, Any], dict[bytes, NDArray[Any]]], tuple[NamedValue, ...]]


class RemoteSession:
    """`Running` (backend.py) over a link.  `offered` takes what the coordinator may fetch, by what it belongs to;
    `named` makes values for messages."""

    def __init__(
        self,
        link: Coroutine[Any, Any, Link],
        exchange: BlobExchange,
        offered: dict[str, dict[bytes, NDArray[Any]]],
        named: Named,
        work: Work,
        state: Stateful,
    ) -> None:
        self._exchange = exchange
        self._offered = offered
        self._named = named
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opened = self._task(self._open(link, work, state))

    def step(self, inputs: Mapping[str, NDArray[Any]]) -> asyncio.Future[Any]:
        return self._task(self._step(next(self._numbers), inputs))

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._task(self._state(next(self._numbers)))

    async def close(self) -> None:
        try:
            link, name = await self._opened
            await _asked(link, CloseSession(name), Done)
        except MeshError:  # it never was, or is over already
            return
        finally:
            for task in self._tasks:
                task.cancel()

    async def _open(self, link: Coroutine[Any, Any, Link], work: Work, state: Stateful) -> tuple[Link, str]:
        there = await link
        values: Mapping[str, Handle] = work.bindings
        offered = dict(work.graph.blobs)
        params = self._named(values, offered)
        carries = tuple(SessionCarry(name, output) for name, output in state.carries)
        options = work.strategy, state.copies, state.every, state.ahead or 0, state.replay_bytes
        key = f"session {id(self)}"
        self._offered[key] = offered
        try:
            message = OpenSession(work.graph.encoded, params, carries, state.told, *options)
            return there, (await _asked(there, message, SessionOpened)).session
        finally:
            del self._offered[key]

    async def _step(self, number: int, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        link, name = await self._opened
        offered: dict[bytes, NDArray[Any]] = {}
        values = self._named(inputs, offered)
        key = f"step {id(self)} {number}"
        self._offered[key] = offered
        try:
            told = await _asked(link, SessionStep(name, number, values), SessionTold)
        finally:
            del self._offered[key]
        return await self._exchange.fetch_all(link, told.values)

    async def _state(self, number: int) -> dict[str, NDArray[Any]]:
        link, name = await self._opened
        told = await _asked(link, SessionState(name, number), SessionTold)
        arrays = await self._exchange.fetch_all(link, told.values)
        return {value.name: array for value, array in zip(told.values, arrays, strict=True)}

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it, and nobody has to


async def _asked(link: Link, message: Message, kind: type[M]) -> M:
    """An answer; NodeLost where the link ends before, and the session with it."""
    try:
        answer = await link.request(message)
    except MeshError as error:
        if not link.closed:
            error.node = "" if error.node == link.peer.name else error.node  # only workers are worth naming
            raise
        raise NodeLost(
            "the link to the coordinator ended, and the session with it",
            cause=str(error),
            next_step="Open a session with the state that you saved last",
        ) from None
    if not isinstance(answer, kind):
        raise ProtocolError(f"expected {kind.__name__}, got {type(answer).__name__}")
    return answer
