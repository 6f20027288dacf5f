"""Slowing a process down for real: it is stopped for a part of its time, as on a machine that others want too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

from ..meanwhile import meanwhile

RUNS_S = 0.004  # at a time, if this machine lets us


@contextlib.contextmanager
def slowed(pid: int, stopped: float) -> Iterator[None]:
    """While the block runs, the process is stopped for this part of its time; it runs again at the end.

    It is stopped for as long as goes with how long it ran, so that the part is right however late this thread wakes.
    """

    def play(over: threading.Event) -> None:
        try:
            while not over.is_set():
                began_s = time.monotonic()
                os.kill(pid, signal.SIGCONT)
                time.sleep(RUNS_S)
                os.kill(pid, signal.SIGSTOP)
                time.sleep((time.monotonic() - began_s) * stopped / (1 - stopped))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    with meanwhile(play):
        yield
