"""Signals: a daemon stops in good order at the first signal, and at once at the second.

It logs nothing at its end: the reader of its log may be what it waits for.

It does not know what there is to put in order.  Child processes end with their pipes, and what is on disk is whole at
any moment, so that nothing is left to do for the second signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNALLED = 128  # plus its number: the exit code of a process ended by a signal, as shells have it


def watch_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[str], object]) -> None:
    """Call `stop` with why, for people, at the first SIGTERM or Ctrl-C; at the second one end the process."""
    asked: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if asked:
            os._exit(SIGNALLED + number)
        asked.append(number)
        stop(f"asked to stop by {number.name}")

    for number in SIGNALS:
        try:
            loop.add_signal_handler(number, on_signal, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_, number=number: loop.call_soon_threadsafe(on_signal, number))
