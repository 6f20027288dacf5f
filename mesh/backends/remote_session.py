"""Remote session: a session that a coordinator elsewhere runs for this client (`mesh-coord serve`).

It ends with this process, and outlasts a link that breaks for a while.  What is asked is numbered, so that it is done
in order whatever arrives first, and once, though it is asked again over the next link.

It outlasts the coordinator's process, too.  One that was started anew says that the session was interrupted.  Then this
client says how many answers it has, sends the inputs of earlier steps that may have to be done again, and asks for the
rest under new numbers.  It holds the inputs of a step until the coordinator says that they are not needed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from wire.bounds import SESSION_AHEAD
from wire.errors import BlobMissing, Cancelled, MeshError, NodeLost, RemoteError
from wire.link.link import Link
from wire.protocol.messages import (
    CloseSession,
    Done,
    Message,
    NamedValue,
    OpenSession,
    ResumeSession,
    SessionCarry,
    SessionFeed,
    SessionHeard,
    SessionOpened,
    SessionResumed,
    SessionState,
    SessionStep,
    SessionTold,
)
from wire.system.tasks import together
from wire.transfer.content_exchange import BlobExchange

from ..core.backend import Stateful, Work
from ..core.handle import Handle

FEEDS_AT_ONCE = 64  # after a takeover: with one at a time, each would wait for the way there and back
ASKED_AT_ONCE = 2 * SESSION_AHEAD.most  # a link has room for a bounded number of requests
ASKED_MAX = 5  # times for values that are not there any more, over a link that stands
M = TypeVar("M", bound=Message)
Named = Callable[[Mapping[str, Any], dict[bytes, NDArray[Any]]], Awaitable[tuple[NamedValue, ...]]]
Open = Callable[[], Coroutine[Any, Any, Link]]
Opening = tuple[Work, Stateful]


class AskFunction(Protocol):
    """The signature of `Remote._ask`."""

    def __call__(self, message: Message, kind: type[M], open_link: Open) -> Coroutine[Any, Any, M]: ...


@dataclass(slots=True, eq=False)
class _Request:
    """A step, or a read of the state, that the coordinator was asked for.  `step` is None until it was done."""

    number: int
    inputs: Mapping[str, NDArray[Any]] | None  # of a step
    step: int | None = None


class RemoteSession:
    """A `Running` (mesh/core/backend.py) over a link, which `link` dials again if it broke, and `link_to_end` once more
    where nobody did in vain.

    `ask` asks over it until there is an answer, `offered` holds what the coordinator may fetch, `named` makes values
    for messages, `tell` sends a message if the link stands, and `ended` is called at the end.  Without `opening` it was
    attached to by this `token`, after `steps` steps."""

    def __init__(
        self,
        link: Open,
        link_to_end: Open,
        ask: AskFunction,
        exchange: BlobExchange,
        offered: dict[str, dict[bytes, NDArray[Any]]],
        named: Named,
        tell: Callable[[Message], None],
        ended: Callable[[RemoteSession], None],
        opening: Opening | None = None,
        steps: int = 0,
        token: str = "",
    ) -> None:
        self._dial, self._dial_to_end = link, link_to_end
        self._ask_over = ask
        self._exchange = exchange
        self._offered = offered
        self._named = named
        self._tell = tell
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._requests: deque[_Request] = deque()  # in their order: without an answer, or that may be done again
        self._at_once = asyncio.Semaphore(ASKED_AT_ONCE)  # in the order of `_requests`
        self._heard = 0  # below it every number was answered or given up, and so were those of `_heard_above`
        self._heard_above: set[int] = set()
        self._since = steps
        self._answered_count = steps  # the first steps, all answered; those of `_answered_above` are, too
        self._answered_above: set[int] = set()
        self._last_link: Link | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._over: MeshError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._token = token or secrets.token_hex(6)  # chosen here, so that asking again after a lost answer is safe
        self._opened: asyncio.Task[str] = self._task(self._open(opening))

    def step(self, inputs: Mapping[str, NDArray[Any]]) -> asyncio.Future[Any]:
        return self._request(inputs)

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._request(None)

    def _request(self, inputs: Mapping[str, NDArray[Any]] | None) -> asyncio.Future[Any]:
        """A future of an answer.  What nobody waits for any more is asked all the same, since what follows it waits."""
        request = _Request(next(self._numbers), inputs)
        self._requests.append(request)
        answer = asyncio.shield(self._task(self._in_turn(request)))
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return answer

    async def _in_turn(self, request: _Request) -> Any:
        async with self._at_once:
            return await self._outcome(request)

    async def _outcome(self, request: _Request) -> Any:
        """What a request ends in.  One that fails is over, whether or not it came to be asked: what follows it waits
        for that."""
        try:
            return await (self._state(request) if request.inputs is None else self._step(request))
        except BaseException:
            if request in self._requests:  # no longer, if it was done before
                self._requests.remove(request)
            self._have_heard(request.number)
            raise

    async def close(self) -> None:
        lost, self._over = self._over, Cancelled("the session is closed")
        try:
            if lost is None or (self._last_link is not None and not self._last_link.closed):
                await self._ask_over(CloseSession(await self._opened), Done, self._dial_to_end)
        except MeshError:  # it never was, or is over already
            return
        finally:
            self._ended(self)
            for task in self._tasks:
                task.cancel()

    async def leave(self) -> None:
        """Let another process attach to it, once what was asked for is answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._over is None:
            await self._ask(CloseSession(await self._opened, keep=True), Done)
            self._over = Cancelled("the session was left for another program to attach to")
            self._ended(self)

    async def _open(self, opening: Opening | None) -> str:
        if opening is None:  # it was attached to
            return self._token
        work, state = opening
        values: Mapping[str, Handle] = work.bindings
        offered = dict(work.graph.blobs)
        params = await self._named(values, offered)
        carries = tuple(SessionCarry(name, output) for name, output in state.carries)
        options = work.strategy, state.copies, state.every, state.ahead or 0, state.replay_bytes
        name = self._token
        self._offered[name] = offered
        try:
            named = state.name, state.form
            message = OpenSession(work.graph.encoded, params, carries, state.returned_count, *options, name, *named)
            return (await self._ask(message, SessionOpened)).session
        finally:
            del self._offered[name]

    async def _step(self, request: _Request) -> list[NDArray[Any]]:
        assert request.inputs is not None
        async with self._offering(request.inputs) as values:
            name = await self._alive()
            answer = await self._answer(request, lambda: SessionStep(name, request.number, values, self._heard))
            return [array for _, array in answer]

    async def _state(self, request: _Request) -> dict[str, NDArray[Any]]:
        name = await self._alive()
        return dict(await self._answer(request, lambda: SessionState(name, request.number, self._heard)))

    @contextlib.asynccontextmanager
    async def _offering(self, inputs: Mapping[str, NDArray[Any]]) -> AsyncIterator[tuple[NamedValue, ...]]:
        """Values for a message; meanwhile the coordinator may fetch those that are too large for it."""
        offered: dict[bytes, NDArray[Any]] = {}
        values, key = await self._named(inputs, offered), f"{id(offered)} of a step"
        self._offered[key] = offered
        try:
            yield values
        finally:
            del self._offered[key]

    async def _alive(self) -> str:
        """The name of this session; its error if it is over."""
        if self._over is not None:
            raise self._over.copy()
        return await self._opened

    async def _answer(
        self, request: _Request, question: Callable[[], SessionStep | SessionState]
    ) -> list[tuple[str, NDArray[Any]]]:
        """The values of an answer, by name.  The coordinator keeps them until this client says that they have come."""
        answer, values = await self._answered(request, question)
        self._have_heard(request.number)
        if request.inputs is None:
            self._requests.remove(request)
        elif request.step is None:
            request.step = answer.step
            self._answered_above.add(answer.step)
            while self._answered_count in self._answered_above:
                self._answered_above.remove(self._answered_count)
                self._answered_count += 1
        first_feed = min(answer.first_feed, self._answered_count)
        while self._requests and (step := self._requests[0].step) is not None and step < first_feed:
            self._requests.popleft()
        return values

    async def _answered(
        self, request: _Request, question: Callable[[], SessionStep | SessionState]
    ) -> tuple[SessionTold, list[tuple[str, NDArray[Any]]]]:
        for attempt in itertools.count(1):
            while self._resuming is not None:
                await asyncio.shield(self._resuming)
            if self._over is not None:
                raise self._over.copy()
            number = request.number
            try:
                answer = await self._ask(question(), SessionTold)
            except MeshError:
                if request.number != number:  # it was asked of a coordinator that is gone
                    continue
                raise
            if answer.interrupted:
                if request.number == number and self._resuming is None:
                    self._resuming = self._task(self._resume())
                continue
            link = await self._link()
            try:
                arrays = await self._exchange.fetch_all(link, answer.values)
                if request.number != number:  # it has to be done again, as what follows it does
                    continue
                return answer, [(value.name, array) for value, array in zip(answer.values, arrays, strict=True)]
            except (RemoteError, BlobMissing) as error:
                if not link.closed and (attempt == ASKED_MAX or not isinstance(error, BlobMissing)):
                    raise
        raise AssertionError("it is asked until there is an answer")

    def _have_heard(self, number: int) -> None:
        self._heard_above.add(number)
        while self._heard in self._heard_above:
            self._heard_above.remove(self._heard)
            self._heard += 1
        self._tell_heard()

    def _tell_heard(self) -> None:
        """Say which answers have come, where later steps may wait for that.  Else the next question says it."""
        opened = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
        if self._heard and opened and any(request.step is None for request in self._requests):
            self._tell(SessionHeard(self._opened.result(), self._heard))

    async def _resume(self) -> None:
        """Go on with a coordinator that was started anew."""
        try:
            name, number, known = await self._opened, next(self._numbers), self._answered_count
            while True:
                answer = await self._ask(ResumeSession(name, known, number, self._since), SessionResumed)
                if answer.first >= answer.until:
                    break
                feeds = {each.step: each.inputs for each in self._requests if each.step is not None}
                for first in range(answer.first, answer.until, FEEDS_AT_ONCE):
                    steps = range(first, min(first + FEEDS_AT_ONCE, answer.until))
                    await together(self._feed(name, step, feeds.get(step)) for step in steps)
            self._numbers = itertools.count(number)
            self._heard, self._heard_above = number, set()
            for request in self._requests:
                if request.step is None or request.step >= known:
                    request.number = next(self._numbers)
                if request.step is not None and request.step >= known:  # its answer came before that of another
                    self._task(self._outcome(request))
        except MeshError as error:
            self._over = self._over or error
        finally:
            self._resuming = None

    async def _feed(self, name: str, step: int, inputs: Mapping[str, NDArray[Any]] | None) -> None:
        """Send the inputs of a step that may have to be done again."""
        if inputs is None:
            raise NodeLost(f"the inputs of step {step} are not held any more")
        async with self._offering(inputs) as values:
            await self._ask(SessionFeed(name, step, values), Done)

    async def _ask(self, message: Message, kind: type[M]) -> M:
        return await self._ask_over(message, kind, self._link)

    async def _link(self) -> Link:
        try:
            link = await self._dial()
        except MeshError as error:
            self._over = self._over or NodeLost(
                "the link to the coordinator ended, and the session with it",
                cause=str(error),
                next_step="Open a session with the state that you saved last",
            )
            raise self._over.copy() from None
        if link is not self._last_link:  # what was said over the last one may not have arrived
            self._last_link = link
            self._tell_heard()
        return link

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it, and nobody has to
