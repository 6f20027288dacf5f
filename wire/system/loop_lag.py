"""Loop lag: how long an event loop stands still, because something that runs on it takes long.

While it does, no heartbeat leaves, no link is read and no deadline is kept.  Each turn of the loop is timed, from where
its selector says what is ready until the loop asks it again: nothing is missed, and a loop that rests is not woken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from .steady_log import steady_logger

log = steady_logger("graph_mesh.loop")
LAG_S_MAX = 0.05  # a turn that takes longer is logged; a heartbeat may be this late and nobody is suspected
WARNED_S = 1.0  # of computing in one turn: that is a fault of ours, and not of a machine that is busy with others
LOOK_S = 0.5  # how often another thread looks what the loop does, so that the log can say it
WINDOW_S = 30.0  # reports have the longest turn of one or two of these
LINE_EVERY_S = 10.0  # from one line of the log to the next, unless that is about a turn that is twice as long
FRAMES_MAX = 4  # of the innermost ones of our own

_measured: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLag] = WeakKeyDictionary()


class LoopLag:
    """The turns of one loop.  `now` is its clock, and `computed` the processor time of the thread that it runs in."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, computed: Callable[[], float] = time.thread_time
    ) -> None:
        self._now, self._computed = now, computed
        self._computed_s = 0.0  # at the beginning of the turn
        self._worst_s = [0.0, 0.0]  # of this window, and of the one before
        self._window_ends_s = now() + WINDOW_S
        self._began_s: float | None = None  # of the turn that is being done
        self._tells = False
        self._logged_s, self._logged_turn_s = -LINE_EVERY_S, 0.0
        self._unlogged_count = 0
        self._turn = 0
        self._doing = 0, ""  # what the loop was seen to do, in which turn

    @property
    def recent_s(self) -> float:
        """The longest turn of the last half minute to minute, in seconds."""
        self._pass_windows()
        return max(self._worst_s)

    def wrap(self, select: Callable[..., Any]) -> Callable[..., Any]:
        """The `select` of a selector, which ends a turn of the loop and begins the next."""

        def measured(*args: Any) -> Any:
            if self._began_s is not None:
                took_s = self._now() - self._began_s
                if took_s > self._worst_s[0] or took_s > LAG_S_MAX:
                    self._took(took_s)
                self._began_s = None
            found = select(*args)
            self._began_s, self._computed_s = self._now(), self._computed()
            self._turn += 1
            return found

        return measured

    def look(self, thread: int) -> None:
        """See what the loop in `thread` does, if it has been at it for long.  Another thread calls this."""
        began_s, turn = self._began_s, self._turn
        if began_s is None or turn == self._doing[0] or self._now() - began_s < LAG_S_MAX:
            return
        frame = sys._current_frames().get(thread)
        if frame is not None and turn == self._turn:
            self._doing = turn, _frames_text(traceback.extract_stack(frame))

    def tell(self) -> None:
        """Say in the log what stops the loop, from now on, with what ran: as a warning if it computed for WARNED_S."""
        self._tells = True
        threading.Thread(target=self._watch, args=(threading.get_ident(),), name="loop lag", daemon=True).start()

    def _took(self, took_s: float) -> None:
        self._pass_windows()
        self._worst_s[0] = max(self._worst_s[0], took_s)
        if self._tells and took_s > LAG_S_MAX:
            self._unlogged_count += 1
            if self._now() - self._logged_s >= LINE_EVERY_S or took_s > 2 * self._logged_turn_s:
                seen, what = self._doing
                did = what if seen == self._turn and what else "something that let nothing else run, or was over soon"
                more = f"; so did {self._unlogged_count - 1} turns before it" if self._unlogged_count > 1 else ""
                self_s = self._computed() - self._computed_s  # little of it: the machine or another thread was busy
                figures = took_s * 1e3, self_s * 1e3
                log.log(
                    logging.WARNING if self_s >= WARNED_S else logging.DEBUG,
                    "the event loop stood still for %.0f ms, and computed for %.0f of them: %s%s",
                    *figures,
                    did,
                    more,
                )
                self._logged_s, self._logged_turn_s, self._unlogged_count = self._now(), took_s, 0

    def _pass_windows(self) -> None:
        now = self._now()
        if now >= self._window_ends_s:
            passed = 1 + int((now - self._window_ends_s) / WINDOW_S)
            self._worst_s = [0.0, self._worst_s[0] if passed == 1 else 0.0]
            self._window_ends_s += passed * WINDOW_S

    def _watch(self, thread: int) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look(thread)


def measure(loop: asyncio.AbstractEventLoop) -> LoopLag:
    """Measure a loop from its next turn on; once is enough.  One of another library is not measured: it has no turns
    that could be timed."""
    lag = _measured.get(loop)
    if lag is None:
        lag = _measured[loop] = LoopLag()
        selector = getattr(loop, "_selector", None)
        if selector is not None:
            selector.select = lag.wrap(selector.select)
    return lag


def recent_lag_s(loop: asyncio.AbstractEventLoop) -> float:
    """The longest turn of late of a loop that is measured, in seconds; 0 for any other."""
    lag = _measured.get(loop)
    return lag.recent_s if lag is not None else 0.0


def _frames_text(stack: traceback.StackSummary) -> str:
    """Tell where a thread is: the innermost lines of ours, and of whatever they call."""
    ours = [frame for frame in stack if "asyncio" not in frame.filename.split(os.sep)][-FRAMES_MAX:]
    return " > ".join(f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in ours)
