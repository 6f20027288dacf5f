"""LoopThread: an event loop in a thread of its own, for callers that have no loop, or another one.

It knows nothing of meshes.  Nobody waits for ever: what is still asked when the loop stops, or ends by itself, ends in
ConfigError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from wire.errors import ConfigError
from wire.system.loop_lag import measure
from wire.system.steady_log import steady_logger

from .answer import Answer

log = steady_logger("graph_mesh.client")
T = TypeVar("T")
END_S = 5.0  # for what was cancelled to clean up after itself
LOOK_S = 5.0  # from one look whether the loop goes on to the next, while somebody waits


class LoopThread:
    """An event loop in a thread of its own, until `stop`.  Any thread may use it; only its own may not wait for it.

    asyncio's logger becomes a steady one: it writes within the loop, which would end with what the handlers and filters
    of a program raise, and all that wait for it would wait for ever.
    """

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop], look_s: float = LOOK_S) -> None:
        steady_logger("asyncio")
        self._loop, self._look_s = make_loop(), look_s
        self._process = os.getpid()
        self._asked: set[asyncio.Task[Any]] = set()  # a loop itself keeps no task alive
        measure(self._loop)
        self._stopped = self._ending = False
        self._lock = threading.Lock()  # nothing is asked of the loop once it was told to stop
        self._ended: Answer[None] = Answer()  # Python believes a thread ended whose join a signal ended
        self._thread = threading.Thread(target=self._serve, name="mesh", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Whether it ends, or is the thread of another process, from which this one was forked."""
        return self._stopped or not self._runs() or self._is_elsewhere()

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call on the loop; ConfigError if it was stopped."""
        self._check_process()
        with self._lock:
            self.check_running()
            self._loop.call_soon_threadsafe(call, *args)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine; ConfigError if the loop is stopped before there is one."""
        try:
            self.check_may_wait()
            with self._lock:
                self.check_running()
                arrived: Answer[T] = Answer()
                self._loop.call_soon_threadsafe(self._begin, work, arrived)
        except ConfigError:
            work.close()
            raise
        self.wait_for(arrived)
        if arrived.cancelled:
            raise _closed()
        return arrived.result()

    def wait_for(self, arrived: Answer[Any]) -> None:
        """Wait for what the loop will tell; ConfigError if the loop ends before that."""
        while not arrived.wait(self._look_s):
            if not self._runs() and not arrived.done():
                self.check_goes_on()

    def check_goes_on(self) -> None:
        """Check that the loop has not ended by itself; ConfigError if it has."""
        if not self._runs():
            raise ConfigError(
                "the event loop of this mesh has ended",
                next_step="See the log for why: a program that closes files which are not its own does that",
            )

    def check_running(self) -> None:
        self._check_process()
        if self._stopped:
            raise _closed()
        self.check_goes_on()

    def check_may_wait(self) -> None:
        """ConfigError on the loop's own thread, which would wait for itself, and in a process that was forked, to which
        no thread came along."""
        self._check_process()
        if threading.get_ident() == self._thread.ident:
            raise ConfigError("a watcher cannot wait for its own mesh", next_step="Ask in another thread")

    def stop(self) -> None:
        """Cancel what runs, and return once the thread has ended."""
        if self._is_elsewhere():
            return  # it serves the process that made it
        with self._lock:
            if not self._stopped and self._runs():
                self._loop.call_soon_threadsafe(self._end)
            self._stopped = True
        self._ended.wait()
        self._thread.join()

    def _begin(self, work: Coroutine[Any, Any, T], arrived: Answer[T]) -> None:
        try:
            task = self._loop.create_task(work)
        except Exception as error:  # it belongs to the thread that asked
            arrived.fail(error)
            return
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        task.add_done_callback(arrived.copy)

    def _end(self) -> None:
        self._ending = True
        self._loop.stop()

    def _runs(self) -> bool:
        return not self._ended.done()

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self._is_elsewhere():
            raise ConfigError(
                "this mesh is of the process that this one was forked from, and its thread is there",
                next_step="Build a mesh in each process, or start processes by spawn instead of fork",
            )

    def _serve(self) -> None:
        try:
            self._run()
        finally:
            self._ended.tell(None)

    def _run(self) -> None:
        while not self._ending:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt, MemoryError) as left:  # of a watcher, say, or of the loop itself
                log.error("%r was raised in the thread of a mesh, which goes on", left)
            except OSError as fault:  # of its selector, whose file a program has closed, as a daemon does
                log.error("the event loop of a mesh has ended", exc_info=fault)
                return  # the numbers of its files may be those of others by now: it closes none
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()


class LoopElsewhere(LoopThread):
    """A loop that runs already, for other threads than its own, which would wait for itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._look_s = loop, LOOK_S
        self._process = os.getpid()
        self._asked = set()
        self._lock = threading.Lock()

    @property
    def stopped(self) -> bool:
        return self._is_elsewhere() or not self._runs()

    def _runs(self) -> bool:
        return self._loop.is_running()

    def check_running(self) -> None:
        self._check_process()
        if self.stopped:
            raise _closed()

    def check_may_wait(self) -> None:
        self._check_process()
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            if asyncio.get_running_loop() is self._loop:
                raise ConfigError(
                    "what waits for an AsyncMesh cannot be called on its loop",
                    next_step="Call it in another thread: await asyncio.to_thread(trainer.fit, data)",
                )

    def stop(self) -> None:
        """Nothing: whoever runs the loop stops it."""


async def _cancel_all() -> None:
    """End every other task, and let those who wait for one that ended hear of it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_S)
    await asyncio.sleep(0)


def _closed() -> ConfigError:
    return ConfigError("this mesh is closed")
