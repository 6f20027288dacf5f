"""Remote session: a session that a coordinator elsewhere runs for this client (`mesh-coord serve`).

It ends with this process, and outlasts a link that breaks for a while.  What is asked is numbered, so that it is done
in order whatever arrives first, and once, though it is asked again over the next link.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from wire.errors import BlobMissing, Cancelled, MeshError, NodeLost, RemoteError
from wire.link.link import Link
from wire.protocol.messages import (
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
from wire.transfer.content_exchange import BlobExchange

from ..core.backend import Stateful, Work
from ..core.handle import Handle

ASKED_MAX = 5  # times for values that are not there any more, over a link that stands
M = TypeVar("M", bound=Message)
Named = Callable[[Mapping[str, Any], dict[bytes, NDArray[Any]]], tuple[NamedValue, ...]]
Open = Callable[[], Coroutine[Any, Any, Link]]


class AskFunction(Protocol):
    """The signature of `Remote._ask`."""

    def __call__(self, message: Message, kind: type[M], open_link: Open) -> Coroutine[Any, Any, M]: ...


class RemoteSession:
    """A `Running` (mesh/core/backend.py) over a link, which `link` dials again if it broke.

    `ask` asks over it until there is an answer, `offered` holds what the coordinator may fetch, `named` makes values
    for messages, and `ended` is called at the end."""

    def __init__(
        self,
        link: Open,
        ask: AskFunction,
        exchange: BlobExchange,
        offered: dict[str, dict[bytes, NDArray[Any]]],
        named: Named,
        work: Work,
        state: Stateful,
        ended: Callable[[RemoteSession], None],
    ) -> None:
        self._dial = link
        self._ask_over = ask
        self._exchange = exchange
        self._offered = offered
        self._named = named
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._heard = 0  # below it every number was answered, and so were those of `_heard_above`
        self._heard_above: set[int] = set()
        self._over: MeshError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opened: asyncio.Task[str] = self._task(self._open(work, state))

    def step(self, inputs: Mapping[str, NDArray[Any]]) -> asyncio.Future[Any]:
        return self._task(self._step(next(self._numbers), inputs))

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._task(self._state(next(self._numbers)))

    async def close(self) -> None:
        lost, self._over = self._over, Cancelled("the session is closed")
        try:
            if lost is None:
                await self._ask(CloseSession(await self._opened), Done)
        except MeshError:  # it never was, or is over already
            return
        finally:
            self._ended(self)
            for task in self._tasks:
                task.cancel()

    async def _open(self, work: Work, state: Stateful) -> str:
        values: Mapping[str, Handle] = work.bindings
        offered = dict(work.graph.blobs)
        params = self._named(values, offered)
        carries = tuple(SessionCarry(name, output) for name, output in state.carries)
        options = work.strategy, state.copies, state.every, state.ahead or 0, state.replay_bytes
        name = secrets.token_hex(6)  # chosen here, so that asking again after a lost answer is safe
        self._offered[name] = offered
        try:
            message = OpenSession(work.graph.encoded, params, carries, state.told, *options, name)
            return (await self._ask(message, SessionOpened)).session
        finally:
            del self._offered[name]

    async def _step(self, number: int, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        name = await self._alive()
        offered: dict[bytes, NDArray[Any]] = {}
        values = self._named(inputs, offered)
        key = f"{name} {number}"
        self._offered[key] = offered
        try:
            values_by_name = await self._told(number, SessionStep(name, number, values, self._heard))
            return [array for _, array in values_by_name]
        finally:
            del self._offered[key]

    async def _state(self, number: int) -> dict[str, NDArray[Any]]:
        return dict(await self._told(number, SessionState(await self._alive(), number, self._heard)))

    async def _alive(self) -> str:
        """The name of this session; its error if it is over."""
        if self._over is not None:
            raise self._over.copy()
        return await self._opened

    async def _told(self, number: int, question: SessionStep | SessionState) -> list[tuple[str, NDArray[Any]]]:
        """The values of an answer, by name.  The coordinator keeps them until this client says that they have come."""
        try:
            for attempt in itertools.count(1):
                answer = await self._ask(question, SessionTold)
                link = await self._link()
                try:
                    arrays = await self._exchange.fetch_all(link, answer.values)
                    return [(value.name, array) for value, array in zip(answer.values, arrays, strict=True)]
                except (RemoteError, BlobMissing) as error:
                    if not link.closed and (attempt == ASKED_MAX or not isinstance(error, BlobMissing)):
                        raise
            raise AssertionError("it is asked until there is an answer")
        finally:
            self._heard_above.add(number)
            while self._heard in self._heard_above:
                self._heard_above.remove(self._heard)
                self._heard += 1

    async def _ask(self, message: Message, kind: type[M]) -> M:
        return await self._ask_over(message, kind, self._link)

    async def _link(self) -> Link:
        try:
            return await self._dial()
        except MeshError as error:
            self._over = self._over or NodeLost(
                "the link to the coordinator ended, and the session with it",
                cause=str(error),
                next_step="Open a session with the state that you saved last",
            )
            raise self._over.copy() from None

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it, and nobody has to
