"""Sessions: a function called again and again whose state stays on the workers (docs/sessions.md).

    async with await mesh.session(step, state, x, y) as session:
        losses = [session.step(x, y) for x, y in batches]
        print(await losses[-1], await session.state())

`Session` (mesh.py) is the same for programs without a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from wire.errors import Cancelled
from wire.policy.redundancy import OF_SESSIONS, copies_of

from ..core.backend import Feeds, Running, Started
from ..functions.step_trace import Stepping
from ..util.argument_checks import integer
from ..util.units import counted, size_text

STEPS_MAX = 1 << 53
AHEAD_MAX = 1024  # of a session with a daemon; each has a value of the state of its own


class AsyncSession:
    """Made by `AsyncMesh.session`; used on its loop.  Close it, or use it as an async context manager."""

    def __init__(self, stepping: Stepping, running: Running) -> None:
        self.stepping = stepping
        self.running = running
        self._loop = asyncio.get_running_loop()
        self._remembered: dict[int, NDArray[Any]] = {}
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.told('AsyncSession')}>"

    def told(self, what: str) -> str:
        """This session in a few words, as a `what`."""
        carried = f"{counted(len(self.stepping.carries), 'tensor')} carried, {size_text(self.stepping.state_bytes)}"
        return f"{what}: {carried}{', closed' if self._closing else ''}"

    def step(self, *args: Any, **named: Any) -> asyncio.Future[Any]:
        """Do one step; what it tells, in time.  Several may be under way: they are done in the order of these calls.

        The arguments are copied.  A step that fails for good leaves the state as it was, and those that were asked for
        after it are Cancelled; NodeLost if the state is lost.
        """
        return self.begin(self.stepping.bind(self.stepping.taken(args, named))).outputs

    async def state(self) -> Any:
        """The state after all steps asked for until now, with numpy arrays as its leaves."""
        return await self.begin_state().outputs

    async def close(self) -> None:
        """End the session and free what it has on the workers; steps under way are Cancelled."""
        await self.begin_close().outputs

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what Session shares

    def begin(self, inputs: Mapping[str, NDArray[Any]] | Feeds) -> Started:
        """A step of arguments that are bound, or can be for any number of workers."""
        return self._started(self.running.step(inputs), self._told)

    def begin_state(self) -> Started:
        def whole(carried: Mapping[str, NDArray[Any]]) -> Any:
            return self.stepping.state(carried, self._remembered)

        return self._started(self.running.state(), whole)

    def begin_close(self) -> Started:
        if self._closing is None:
            self._closing = self._loop.create_task(self.running.close())
        return Started(asyncio.shield(self._closing), dict, lambda: None)

    def _told(self, arrays: Any) -> Any:
        self._remembered |= self.stepping.remembered(arrays)
        return self.stepping.outputs(arrays)

    def _started(self, inner: asyncio.Future[Any], convert: Callable[[Any], Any]) -> Started:
        """What the caller waits for; whoever waits no more changes nothing for the steps."""
        outer: asyncio.Future[Any] = self._loop.create_future()

        def ended(_: object) -> None:
            if inner.cancelled():
                error: BaseException | None = Cancelled("the session was closed")
            else:
                error = inner.exception()
            value = None
            if error is None:
                try:
                    value = convert(inner.result())
                except Exception as wrong:  # it belongs to whoever waits
                    error = wrong
            if outer.done():
                return
            if error is None:
                outer.set_result(value)
            else:
                outer.set_exception(error)
                outer.exception()  # a step that nobody waits for may fail without a word

        inner.add_done_callback(ended)
        return Started(outer, dict, outer.cancel)


class Here:
    """A session in this process, on the cpu: `Running` without workers."""

    def __init__(self, stepping: Stepping) -> None:
        from ..core.inprocess import Evaluating

        self._evaluating = Evaluating(stepping.work)
        self._carries = stepping.carries
        self._told = stepping.told
        self._values = {name: self._evaluating.params[name] for name, _ in stepping.carries}
        self._own: frozenset[str] = frozenset()  # of the values, those that are not the caller's
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._failures = 0
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def step(self, inputs: Mapping[str, NDArray[Any]]) -> asyncio.Future[Any]:
        return self._task(self._step(inputs, self._failures))

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        return self._task(self._state())

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._values.clear()

    async def _step(self, inputs: Mapping[str, NDArray[Any]], failures: int) -> list[NDArray[Any]]:
        async with self._turn:
            if self._closed:
                raise Cancelled("the session was closed")
            if failures != self._failures:
                raise Cancelled("a step before it failed")
            try:
                outputs = await self._loop.run_in_executor(None, self._evaluating.run, inputs, self._values, self._own)
            except Exception:
                self._failures += 1
                raise
            self._values = {name: outputs[at] for name, at in self._carries}
            self._own = frozenset(self._values)
            return list(outputs[: self._told])

    async def _state(self) -> dict[str, NDArray[Any]]:
        async with self._turn:
            if self._closed:
                raise Cancelled("the session was closed")
            return {name: array.copy() for name, array in self._values.items()}

    def _task(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def check_choices(copies: str, every: int, ahead: int | None) -> None:
    """InputError for what a session cannot be asked."""
    check_copies(copies)
    integer(every, "every= counts steps, and", 1, STEPS_MAX)
    if ahead is not None:
        integer(ahead, "ahead= counts steps, and", 1, AHEAD_MAX + 1)


def check_copies(copies: str) -> None:
    """InputError for copies of a state that are none; "" are those that there is room for."""
    if not isinstance(copies, str) or copies:
        copies_of(copies, OF_SESSIONS)
