"""The loop's thread: whoever asks gets an answer or ConfigError, also while it stops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pytest

from mesh import Mesh
from mesh.client.mesh import Job
from mesh.core.loop_thread import LoopThread
from wire.errors import ConfigError

T = TypeVar("T")
BUSY_S = 0.3  # of a loop that tells nobody anything before they wait


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_it_runs_coroutines_until_it_is_stopped() -> None:
    loop = LoopThread(asyncio.new_event_loop)
    assert loop.wait(answer()) == 42
    loop.stop()
    loop.stop()
    assert loop.stopped
    with pytest.raises(ConfigError, match="closed"):
        loop.wait(answer())
    with pytest.raises(ConfigError, match="closed"):
        loop.call_soon(print)


def test_what_still_waits_when_it_stops_cleans_up_and_ends() -> None:
    loop = LoopThread(asyncio.new_event_loop)
    began, cleaned = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    def ask() -> None:
        try:
            loop.wait(forever())
        except ConfigError as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(120)
    loop.stop()
    asking.join(120)
    assert cleaned.is_set() and len(ended) == 1


@pytest.mark.parametrize("left", [SystemExit(1), KeyboardInterrupt()])
def test_a_call_that_exits_its_thread_ends_nothing(left: BaseException) -> None:
    loop = LoopThread(asyncio.new_event_loop)

    def leave() -> None:
        raise left

    loop.call_soon(leave)
    assert loop.wait(answer()) == 42
    assert not loop.stopped

    async def leave_a_task() -> None:
        raise left

    with pytest.raises(type(left)):
        loop.wait(leave_a_task())
    assert loop.wait(answer()) == 42
    loop.call_soon(leave)
    loop.stop()
    assert loop.stopped


@pytest.mark.parametrize("left", [SystemExit(1), KeyboardInterrupt()])
def test_calls_go_on_where_a_watcher_exits(left: BaseException) -> None:
    def watcher(event: Mapping[str, Any]) -> None:
        raise left

    with Mesh.builder().mesh("sim").simulate(2).build() as mesh:
        mesh.watch(watcher)
        for name in ("sim-0", ""):
            assert mesh.submit(lambda x: x + 1, np.float32(1)).result(60) == 2
            if name:
                mesh.simulation.kill(name)


def test_many_threads_that_ask_while_it_stops_all_come_back() -> None:
    for _ in range(20):
        loop = LoopThread(asyncio.new_event_loop)
        ends: list[object] = []

        def ask(loop: LoopThread = loop, ends: list[object] = ends) -> None:
            try:
                while True:
                    assert loop.wait(answer()) == 42
            except ConfigError as error:
                ends.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        loop.stop()
        for thread in threads:
            thread.join(120)
        assert len(ends) == 4


def test_its_own_thread_cannot_wait_for_it() -> None:
    loop = LoopThread(asyncio.new_event_loop)
    said: list[str] = []

    def ask() -> None:
        try:
            loop.wait(answer())
        except ConfigError as error:
            said.append(str(error))

    loop.call_soon(ask)
    assert loop.wait(answer()) == 42
    assert said == ["a watcher cannot wait for its own mesh. Ask in another thread"]
    loop.stop()


class Interrupted:
    """The lock by which Python asks whether a thread lives, with Ctrl-C right behind a look at it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.locked, self.release = lock.locked, lock.release

    def acquire(self, *how: Any) -> None:
        self._lock.acquire(*how)
        raise KeyboardInterrupt


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a thread has no such lock from Python 3.13 on")
def test_ctrl_c_at_the_beginning_of_a_call_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = LoopThread(asyncio.new_event_loop)
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(loop._thread, "_tstate_lock", Interrupted(loop._thread._tstate_lock))  # type: ignore[attr-defined]
        loop.wait(answer())
    assert loop.wait(answer()) == 42
    assert not loop.stopped
    loop.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of Windows does not end a wait for a lock")
def test_a_stop_that_ctrl_c_ended_can_be_waited_for_by_the_next_one() -> None:
    made, begun, goes_on = asyncio.new_event_loop(), threading.Event(), threading.Event()
    loop, ends = LoopThread(lambda: made), list[bool]()

    def busy() -> None:
        begun.set()
        goes_on.wait(120)

    def stop() -> None:
        loop.stop()
        ends.append(made.is_closed())

    loop.call_soon(busy)
    assert begun.wait(120)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            loop.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    stopping = threading.Thread(target=stop)
    stopping.start()
    stopping.join(0.5)
    goes_on.set()
    stopping.join(120)
    assert ends == [True]


@contextlib.contextmanager
def ctrl_c_behind_the_lock_of_a_condition() -> Iterator[None]:
    """Ctrl-C in this thread, once it has the lock of one of Python's conditions, as futures and events have."""
    here, enter = threading.get_ident(), threading.Condition.__enter__

    def interrupted(condition: threading.Condition) -> bool:
        had = enter(condition)
        if threading.get_ident() == here:
            threading.Condition.__enter__ = enter  # type: ignore[method-assign]
            raise KeyboardInterrupt
        return had

    threading.Condition.__enter__ = interrupted  # type: ignore[method-assign]
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        threading.Condition.__enter__ = enter  # type: ignore[method-assign]


def in_another_thread(work: Callable[[], T]) -> T:
    """What another thread is given, which waits for it no longer than a test may take."""
    given: queue.SimpleQueue[T] = queue.SimpleQueue()
    threading.Thread(target=lambda: given.put(work()), daemon=True).start()
    return given.get(timeout=60)


def test_ctrl_c_as_a_thread_begins_to_wait_holds_nobody_up() -> None:
    loop = LoopThread(asyncio.new_event_loop)
    loop.call_soon(time.sleep, BUSY_S)
    with ctrl_c_behind_the_lock_of_a_condition():
        loop.wait(answer())
    assert in_another_thread(lambda: loop.wait(answer())) == 42
    in_another_thread(loop.stop)


WAITS: dict[str, Callable[[Mesh, Job], object]] = {
    "a call": lambda mesh, job: mesh.run(lambda x: x + 1, np.float32(1)),
    "a result": lambda mesh, job: job.result(),
    "a result within a time": lambda mesh, job: job.result(60),
    "the next that ends": lambda mesh, job: list(mesh.as_completed([job])),
    "the nodes": lambda mesh, job: mesh.nodes,
}


@pytest.mark.parametrize("what", WAITS)
def test_a_mesh_answers_others_and_is_closed_whatever_ctrl_c_interrupts(what: str) -> None:
    mesh = Mesh.builder().build()
    mesh._loop.call_soon(time.sleep, BUSY_S)
    job = mesh.submit(lambda x: x + 1, np.float32(1))
    with ctrl_c_behind_the_lock_of_a_condition():
        WAITS[what](mesh, job)
    assert in_another_thread(lambda: mesh.run(lambda x: x + 1, np.float32(1))) == 2
    in_another_thread(mesh.close)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such timer")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_mesh_answers_and_is_closed_after_thousands_of_interrupts(workers: int) -> None:
    words = (sys.executable, "-m", "support.processes.interrupted_calls", str(workers), "1500", "30")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=540)
    assert done.stdout.split()[2:] == ["answers", "3.0", "True", "threads", "0"], done.stdout + done.stderr
    assert int(done.stdout.split()[1]) > 100


class ShortOnce(asyncio.SelectorEventLoop):
    """A loop that has no memory for one of its turns."""

    short = False

    def _run_once(self) -> None:
        if self.short:
            self.short = False
            raise MemoryError
        super()._run_once()  # type: ignore[misc]


def test_a_loop_that_has_no_memory_for_a_moment_goes_on() -> None:
    loop = ShortOnce()
    thread = LoopThread(lambda: loop)

    def want() -> None:
        loop.short = True

    thread.call_soon(want)
    waited = concurrent.futures.Future[bool]()
    thread.call_soon(lambda: waited.set_result(True))
    assert waited.result(120)
    thread.stop()


class Gone(asyncio.SelectorEventLoop):
    """A loop whose files a program has closed, as one does that becomes a daemon."""

    gone = False

    def _run_once(self) -> None:
        if self.gone:
            raise OSError(errno.EBADF, "Bad file descriptor")
        super()._run_once()  # type: ignore[misc]


def test_whoever_waits_hears_of_a_loop_that_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    made, ends = Gone(), list[str]()
    loop = LoopThread(lambda: made, look_s=0.02)

    def ask() -> None:
        try:
            loop.wait(forever())
        except ConfigError as error:
            ends.append(error.message)

    async def forever() -> None:
        await asyncio.Event().wait()

    asking = threading.Thread(target=ask)
    asking.start()
    assert loop.wait(answer()) == 42
    loop.call_soon(lambda: setattr(made, "gone", True))
    asking.join(120)
    assert ends == ["the event loop of this mesh has ended"]
    assert loop.stopped
    with pytest.raises(ConfigError, match="has ended"):
        loop.wait(answer())
    loop.stop()
    assert "Bad file descriptor" in caplog.text
    made.close()


def test_a_future_that_ends_in_a_timeout_of_its_own_is_not_waited_for_again() -> None:
    loop = LoopThread(asyncio.new_event_loop, look_s=0.02)

    async def late() -> None:
        await asyncio.sleep(0.1)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.wait(late())
    loop.stop()
