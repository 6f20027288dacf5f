"""VirtualLoop: an asyncio loop whose clock jumps to the next timer instead of waiting.

Coroutines, timers and futures run as on any loop, in an order that follows from the program alone: nothing reads the
real clock, and work for threads runs at once, on the spot.  An hour of heartbeats takes as long as its arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import selectors
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

PROCESS: ContextVar[str] = ContextVar("process", default="")  # whose a callback is; "" is the user's program
ROUNDS_MAX = 200_000  # a busy moment of a thousand nodes has some thousands
TIMERS_MIN = 256  # from this number on, cancelled ones are removed: some would stay for hours
FILES_EVERY = 1000  # rounds of one moment: so often real files are looked at while there is anything else to do


class Stuck(RuntimeError):
    """Nothing can happen any more: everything waits and no timer is left, or a moment never ends."""


def _tell(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # it was cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and moves only when everything waits.

    With `on_demand`, for a loop that other threads use, time stands still but while somebody is in `flow()`; an idle
    loop then waits for those threads.  What they ask for is begun only once everything else of the moment is done, so
    that it does not matter how fast they are.  Without, being idle for ever raises Stuck.

    Callbacks belong to the process whose name PROCESS has in their context.  A process that is stopped, as by SIGSTOP,
    runs none of its own until it goes on; time passes meanwhile.
    """

    _ready: deque[asyncio.Handle]
    _selector: selectors.BaseSelector
    _process_events: Callable[[list[tuple[selectors.SelectorKey, int]]], None]

    def __init__(self, on_demand: bool = False) -> None:
        self._now_s = 0.0
        self._on_demand = on_demand
        self._flows = 0
        self._rounds = 0  # of the loop since time moved
        self._asked: deque[Callable[[], object]] = deque()  # by other threads
        self._timers: list[
            tuple[float, int, asyncio.TimerHandle]
        ] = []  # a heap; of one moment, the first set goes first
        self._timers_max = TIMERS_MIN
        self._set = itertools.count()
        self._stopped: dict[str, list[asyncio.Handle]] = {}  # what processes that stand still would run, by name
        self.thread_s: Callable[[], float] = lambda: 0.0  # what work in a thread takes; a slow disk is in there too
        super().__init__()

    def stop_process(self, name: str, seconds: float) -> None:
        """Stop a process for so long: nothing of it runs, not even what is ready now."""
        self._stopped.setdefault(name, [])
        self.call_later(seconds, self._go_on_with, name, context=context_of("time"))

    def _go_on_with(self, name: str) -> None:
        self._ready.extend(self._stopped.pop(name, ()))

    @contextlib.contextmanager
    def flow(self) -> Iterator[None]:
        """Time moves while anybody is in here."""
        self._flows += 1
        try:
            yield
        finally:
            self._flows -= 1

    def flow_until(self, done: asyncio.Future[Any]) -> None:
        """Time moves until a future is done."""
        self._flows += 1
        done.add_done_callback(self._flown)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future is done; the caller waits for it, so time moves."""
        with self.flow():
            return super().run_until_complete(future)

    def call_soon_threadsafe(  # type: ignore[override]  # as for run_in_executor
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule a callback of another thread, to run once the loop is idle."""
        if not self._on_demand:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon_threadsafe(self._asked.append, partial(callback, *args))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's has type variables that only it can spell
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` now, in this thread, so that the order of events does not depend on another thread's.  What comes
        of it is known after `thread_s()`."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            tell = partial(_tell, done, func(*args), None)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            tell = partial(_tell, done, None, error)
        if (took_s := self.thread_s()) > 0.0:
            self.call_later(took_s, tell)
        else:
            tell()
        return done

    # -- BaseEventLoop's rounds, without looking at files and at a clock in each

    def call_at(  # type: ignore[override]  # as for run_in_executor
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer; timers of one moment run in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if len(self._timers) > self._timers_max:
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_max = max(TIMERS_MIN, 2 * len(self._timers))
        heapq.heappush(self._timers, (when, next(self._set), timer))
        return timer

    def _run_once(self) -> None:
        """A round: what is ready is run; where nothing is, time moves on to the next timer."""
        ready = self._ready
        self._rounds += 1
        if self._rounds % FILES_EVERY == 0:
            self._look_at_files(0)
            if self._rounds > ROUNDS_MAX:
                self._rounds = 0
                raise Stuck(f"after {ROUNDS_MAX} rounds of the loop it is still {self._now_s:.6f} s")
        if not ready and not self._go_on():
            self._look_at_files(None)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            held = self._stopped.get(_process(handle)) if self._stopped else None
            if held is None:
                handle._run()
            else:
                held.append(handle)

    def _look_at_files(self, wait_s: float | None) -> None:
        """See what real files have; and other threads, which wake us by one."""
        self._process_events(self._selector.select(wait_s))

    def _go_on(self) -> bool:
        """Nothing is to be done now: do what was asked, or move the clock; False if others have to act first."""
        if self._asked:
            self.call_soon(self._asked.popleft())
            return True
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if self._on_demand and not (timers and self._flows):
            return False
        if not timers:
            raise Stuck("everything waits, and no timer is left")
        self._rounds = 0
        # A hair too far: rounded down, a timer would find that its time has not come, and be set again for ever.
        self._now_s = max(self._now_s, timers[0][0]) * (1 + 2 * sys.float_info.epsilon)
        while timers and timers[0][0] <= self._now_s:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def _flown(self, _: object) -> None:
        self._flows -= 1


def context_of(process: str) -> Context:
    """A context like this one whose callbacks belong to a process."""
    context = copy_context()
    context.run(PROCESS.set, process)
    return context


def _process(handle: asyncio.Handle) -> str:
    context: Context = handle._context  # type: ignore[attr-defined]  # typeshed does not have it
    return context.get(PROCESS, "")
