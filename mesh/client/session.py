"""Sessions: a function called again and again whose state stays on the workers (docs/sessions.md).

    async with await mesh.session(step, state, x, y) as session:
        losses = [session.step(x, y) for x, y in batches]
        print(await losses[-1], await session.state())

`Session` (mesh.py) is the same for programs without a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast

from numpy.typing import NDArray

from wire.bounds import SESSION_AHEAD
from wire.errors import Cancelled, InputError, MeshError
from wire.policy.redundancy import OF_SESSIONS, copies_of
from wire.system.outcome import PromptFuture, call_when_done

from ..core.argument_room import ArgumentRoom, bytes_of
from ..core.backend import Feeds, Lasting, Running, Started
from ..functions.step_trace import Stepping
from ..tree import PyTree
from ..util.argument_checks import integer
from ..util.units import counted, size_text

STEPS_MAX = 1 << 53
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
AHEAD_MAX = SESSION_AHEAD.most


class AsyncSession:
    """A session, used on its event loop; `AsyncMesh.session` returns it.

    Close it, or use it as an async context manager.

    Parameters
    ----------
    stepping : Stepping
        The traced step.
    running : Running
        The session on the mesh's backend.
    room : ArgumentRoom
        Room for the arguments of steps, of the whole mesh.
    name : str, optional
        The name under which it outlasts this program.
    steps : int, optional
        How many steps were done before this program had it.

    Examples
    --------
    >>> import asyncio
    >>> import numpy as np
    >>> import mesh
    >>> async def main():
    ...     m = await mesh.AsyncMesh.builder().build_async()
    ...     session = await m.session(lambda s, x: (s + x, s * x), np.ones(2), np.ones(2))
    ...     outputs = await session.step(np.full(2, 3.0))
    ...     state = await session.state()
    ...     await session.close()
    ...     await m.close()
    ...     return outputs, state
    >>> asyncio.run(main())
    (array([3., 3.]), array([4., 4.]))
    """

    def __init__(
        self, stepping: Stepping, running: Running, room: ArgumentRoom, name: str = "", steps: int = 0
    ) -> None:
        self.name = name
        self._room = room
        self._steps_done = steps
        self.stepping = stepping
        self.running = running
        self._loop = asyncio.get_running_loop()
        self._remembered: dict[int, NDArray[Any]] = {}
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.describe('AsyncSession')}>"

    def describe(self, what: str) -> str:
        """Describe this session in a few words.

        Parameters
        ----------
        what : str
            What to call it.

        Returns
        -------
        str
            Such as "AsyncSession: 2 tensors carried, 8.0 MiB".
        """
        carried = f"{counted(len(self.stepping.carries), 'tensor')} carried, {size_text(self.stepping.state_bytes)}"
        return f"{what}: {carried}{', closed' if self._closing else ''}"

    @property
    def steps_done(self) -> int:
        """How many steps this session has done, as far as their outputs have come to this program.

        Of a session that was attached to, those that another program had it do count, too: this is the number of the
        next batch.
        """
        return self._steps_done

    def step(self, *args: PyTree, **named: PyTree) -> asyncio.Future[Any]:
        """Begin one step.  Several may be in flight; they are done in the order of these calls.

        A step that fails for good leaves the state as it was.  Steps that were begun after it are Cancelled.

        Parameters
        ----------
        *args : pytree of arrays
            The arguments of the step function after the state.  They are copied.
        **named : pytree of arrays
            Arguments by name.

        Returns
        -------
        asyncio.Future
            It ends in the outputs of the step function, or in the error of the step: NodeLost if the state was lost.

        Raises
        ------
        InputError
            If shapes or dtypes differ from those of the examples.
        LimitExceeded
            If unfinished calls and steps on this mesh leave no room for these arguments: 512 MiB in all.
        """
        inputs = self.stepping.bind(self.stepping.merge_arguments(args, named))
        held_bytes = bytes_of(inputs)
        self._room.take_now(held_bytes, "Await the outputs of an earlier step first")
        return self.begin(inputs, held_bytes).outputs

    async def state(self) -> Any:
        """Wait for the state after all steps that were begun.

        Returns
        -------
        pytree of numpy.ndarray
            The state.

        Raises
        ------
        NodeLost
            If no copy of the state is left.
        """
        return await self.begin_state().outputs

    async def close(self) -> None:
        """End the session and free what it holds on the workers; steps in flight are Cancelled."""
        await self.begin_close().outputs

    async def detach(self) -> None:
        """Leave a session that has a name to whoever attaches to it next; steps in flight are done.

        Raises
        ------
        InputError
            If the session has no name.
        SessionTaken
            If another program drives it by now.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().build_async() as m:
        ...         async with await m.session(lambda s, x: (s + x, s), np.float32(0), np.float32(1)) as session:
        ...             try:
        ...                 await session.detach()
        ...             except mesh.errors.InputError as error:
        ...                 return error.next_step
        >>> asyncio.run(main())
        'Open it with a name: session(..., name="run7")'
        """
        await self.begin_detach().outputs

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.name and error is not None:
            with contextlib.suppress(MeshError):
                await self.detach()
        else:
            await self.close()

    # -- what Session shares

    def begin(self, inputs: Mapping[str, NDArray[Any]] | Feeds, held_bytes: int) -> Started:
        """Begin a step of arguments that are bound.

        Parameters
        ----------
        inputs : mapping of str to numpy.ndarray, or Feeds
            The graph's inputs by name, or for any number of workers.
        held_bytes : int
            Their bytes, for which there is room until the step is over.

        Returns
        -------
        Started
            The step in flight.
        """
        try:
            answer = self.running.step(inputs)
        except BaseException:
            self._room.give(held_bytes)
            raise
        self._room.give_after(answer, held_bytes)
        return self._started(answer, self._outputs_of)

    def begin_state(self) -> Started:
        """Begin to read the state.

        Returns
        -------
        Started
            It ends in the state.
        """

        def whole(carried: Mapping[str, NDArray[Any]]) -> Any:
            return self.stepping.state(carried, self._remembered)

        return self._started(self.running.state(), whole)

    def begin_close(self) -> Started:
        """Begin to close the session.

        Returns
        -------
        Started
            It ends when the workers have freed what they held.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self.running.close())
        return Started(asyncio.shield(self._closing), dict, lambda: None)

    def begin_detach(self) -> Started:
        """Begin to leave the session to others.

        Returns
        -------
        Started
            It ends when another program may attach.

        Raises
        ------
        InputError
            If the session has no name.

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> import mesh
        >>> async def main():
        ...     async with await mesh.AsyncMesh.builder().build_async() as m:
        ...         async with await m.session(lambda s, x: (s + x, s), np.float32(0), np.float32(1)) as session:
        ...             try:
        ...                 session.begin_detach()
        ...             except mesh.errors.InputError as error:
        ...                 return error.next_step
        >>> asyncio.run(main())
        'Open it with a name: session(..., name="run7")'
        """
        if not self.name:
            raise InputError(
                "a session without a name ends with this program, so it cannot be left",
                next_step='Open it with a name: session(..., name="run7")',
            )
        if self._closing is None:
            self._closing = self._loop.create_task(cast(Lasting, self.running).leave())
            self._closing.add_done_callback(self._left)
        return Started(asyncio.shield(self._closing), dict, lambda: None)

    def _left(self, leaving: asyncio.Future[None]) -> None:
        if leaving.cancelled() or leaving.exception() is not None:
            self._closing = None  # it may be closed still

    def _outputs_of(self, arrays: Any) -> Any:
        self._steps_done += 1
        self._remembered |= self.stepping.remembered(arrays)
        return self.stepping.outputs(arrays)

    def _started(self, inner: asyncio.Future[Any], convert: Callable[[Any], Any]) -> Started:
        """Convert what `inner` ends in, for the caller.  A caller that stops waiting changes nothing for the steps."""
        outer: asyncio.Future[Any] = PromptFuture(loop=self._loop)

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

        call_when_done(inner, ended)
        return Started(outer, dict, outer.cancel)


class Here:
    """A session in this process, on the cpu: `Running` without workers."""

    def __init__(self, stepping: Stepping) -> None:
        from ..core.inprocess import Evaluating

        self._evaluating = Evaluating(stepping.work)
        self._carries = stepping.carries
        self._returned_count = stepping.returned_count
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
            return list(outputs[: self._returned_count])

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
    """Raise InputError unless a session can have these `copies`, after `every` steps, and `ahead` steps in flight."""
    check_copies(copies)
    integer(every, "every= counts steps, and", 1, STEPS_MAX)
    if ahead is not None:
        integer(ahead, "ahead= counts steps, and", 1, AHEAD_MAX + 1)


def check_copies(copies: str) -> None:
    """Raise InputError unless copies of a state can be such; "" is whatever there is room for."""
    if not isinstance(copies, str) or copies:
        copies_of(copies, OF_SESSIONS)


def check_name(name: str) -> None:
    """Raise InputError unless a session can have this name."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise InputError(
            f"{name!r} is no name of a session",
            next_step="It has 1 to 100 letters, digits, '.', '_' and '-', and begins with a letter or a digit",
        )
