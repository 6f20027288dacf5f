"""Tasks of a shell: an error of one of them is always handled.

A task that ends in silence leaves those waiting that need its result.  So every task of a shell begins here,
and says with `failed` which event its failure is; a foreign exception comes as the MeshError it means.  What
serves for as long as the process does begins again.  No other file of `wire`, `worker` and `coordinator` makes tasks,
but for those of a TaskGroup, which raises what they raise (`tests/project/test_static.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from ..errors import MeshError, OutOfMemory
from .steady_log import steady_logger

log = steady_logger("graph_mesh.tasks")
T = TypeVar("T")
AGAIN_S = 1.0  # until what serves begins again, after a fault
Failed = Callable[[MeshError], object]
_ENDING: set[asyncio.Task[Any]] = set()  # a loop holds its tasks weakly


class Tasks:
    """The tasks of one object, which cancels them at its end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._running))

    def __len__(self) -> int:
        return len(self._running)

    def run(self, what: str, work: Coroutine[Any, Any, T], failed: Failed) -> asyncio.Task[T]:
        """Begin with `work`, soon.  If it raises, `failed` is called with the error, and whoever awaits the task gets
        it too; `what` names the work in log lines.  A task that is cancelled reports nothing."""
        return self._begin(_reported(what, work, failed), work)

    def keep(self, what: str, serve: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin with `serve()`, and again whenever it fails, until it returns or the task is cancelled."""
        return self._begin(_restarted(what, serve))

    def cancel(self) -> None:
        """Stop them all."""
        for task in self:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, T], inner: Coroutine[Any, Any, Any] | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)

        def over(_: asyncio.Task[T]) -> None:
            self._running.discard(task)
            if inner is not None:
                inner.close()  # it may have been cancelled before it began
            fault = None if task.cancelled() else task.exception()
            if fault is not None and not isinstance(fault, MeshError):
                log.error("telling of a failure failed", exc_info=fault)

        task.add_done_callback(over)
        return task


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of these end in, in order.  Where one fails, the others are cancelled, and over before its error is
    raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """What `work` ends in.  A caller that is cancelled waits no longer, and `work` goes on."""
    task = asyncio.get_running_loop().create_task(work)
    _ENDING.add(task)
    task.add_done_callback(_ENDING.discard)
    return await asyncio.shield(task)


async def _reported(what: str, work: Coroutine[Any, Any, T], failed: Failed) -> T:
    try:
        return await work
    except MeshError as known:
        failed(known)
        raise
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as fault:  # also what a program's function raises to exit its thread
        error = as_error(f"{what} failed", fault)
        failed(error)
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise error from fault


async def _restarted(what: str, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    before = ""
    while True:
        try:
            return await serve()
        except (asyncio.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as fault:  # a panic of a library is no Exception
            if str(fault) != before:
                before = str(fault)
                log.error("%s failed, and begins again every %g s", what, AGAIN_S, exc_info=fault)
        await asyncio.sleep(AGAIN_S)


class isolated:  # it is used as a function is
    """Log what is raised in here, be it a MeshError or not, and go on: it keeps nobody else from their turn."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: object) -> bool:
        if not isinstance(fault, Exception):
            return False
        log.error("%s failed", self._what, exc_info=fault)
        return True


def as_error(what: str, fault: BaseException) -> MeshError:
    """The error that others get: an error itself, or the cause of a fault of this process, which is logged."""
    if isinstance(fault, MeshError):
        return fault
    log.error(what, exc_info=fault)
    cause = f"{type(fault).__name__}: {fault}"
    if isinstance(fault, MemoryError):
        return OutOfMemory(what, cause=cause, next_step="Free memory on this machine, or use one with more")
    return MeshError(what, cause=cause)


def unheard(error: MeshError) -> None:
    """Ignore the failure of a task; it changes nothing, since its waiters have an end of their own."""
    log.debug("%s", error)
