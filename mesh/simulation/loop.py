"""VirtualLoop: an asyncio loop whose clock jumps to the next timer instead of waiting.

Coroutines, timers and futures run as on any loop, in an order that follows from the program alone: nothing reads the
real clock, and work for threads runs at once, on the spot.  An hour of heartbeats takes as long as its arithmetic.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable
from typing import Any


class Stuck(RuntimeError):
    """Everything waits and no timer is left: in a simulation nothing can ever happen again."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and moves only when everything waits.

    With `attended` an idle loop waits for other threads (`call_soon_threadsafe`); without, being idle raises Stuck.
    """

    def __init__(self, attended: bool = False) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self._jump, attended))

    def time(self) -> float:
        return self._now_s

    def run_in_executor(  # type: ignore[override]  # typeshed's has type variables that only it can spell
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` now, in this thread, so that the order of events does not depend on another thread's."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            done.set_exception(error)
        return done

    def _jump(self, seconds: float) -> None:
        # A hair too far: rounded down, a timer would find that its time has not come, and be set again for ever.
        self._now_s = (self._now_s + seconds) * (1 + 2 * sys.float_info.epsilon)


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at real files without waiting; instead of waiting for a timer it moves the clock to it."""

    def __init__(self, jump: Callable[[float], None], attended: bool) -> None:
        super().__init__()
        self._jump = jump
        self._attended = attended

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self._jump(timeout)
            return []
        if not self._attended:
            raise Stuck("everything waits, and no timer is left")
        return super().select(None)
