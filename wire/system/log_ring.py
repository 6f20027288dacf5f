"""A daemon's log: lines on stderr, and the last of them in memory for TailLog.

Lines are written by a thread of their own: a terminal that is stopped, or a pipe nobody reads, must not delay
heartbeats.  When the reader falls too far behind, lines are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from collections import deque

from ..bounds import LOG_LINES, LOG_QUEUE
from ..text import printable_lines
from .steady_log import steady_logger

LOGGER = steady_logger("graph_mesh")  # every package has a child of it
RING_LINES = LOG_LINES.most
QUEUED_LINES_MAX = LOG_QUEUE.most
LINE_CHARS_MAX = 2000
_LEVELS = {-1: logging.ERROR, 0: logging.INFO, 1: logging.DEBUG}


class _Formatter(logging.Formatter):
    """Nothing that a peer said is taken for a line of its own, or reaches a terminal as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable_lines(super().formatMessage(record))


class LogRing(logging.Handler):
    """Formats every record once, keeps the last `RING_LINES`, and hands lines to the writing thread."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=RING_LINES)
        self._as_json = as_json
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUED_LINES_MAX)
        self._dropped = 0
        self._formatter = _Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._thread = threading.Thread(target=self._write, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        text = self._formatter.format(record)
        self.lines.append(text[:LINE_CHARS_MAX])
        if self._as_json:
            level = record.levelname.lower()
            text = json.dumps({"time": round(record.created, 6), "level": level, "message": record.getMessage()})
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is left, but do not wait long for a reader that is stuck."""
        try:
            self._queue.put_nowait(None)
            self._thread.join(timeout=0.2)
        except queue.Full:
            pass  # nobody reads
        super().close()

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            dropped = self._dropped
            if dropped:
                line = f"{line}\n({dropped} lines before this one were dropped)"
            try:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()
                self._dropped -= dropped
            except (OSError, MemoryError):
                self._dropped += 1  # the disk that it goes to is full, say, and may have room again
            except ValueError:
                return  # stderr is closed


def start_logging(verbosity: int, as_json: bool) -> LogRing:
    """Send this process's log to stderr, from errors only (-1) to everything (1); close the result at the end."""
    ring = LogRing(as_json)
    LOGGER.handlers[:] = [ring]
    LOGGER.propagate = False
    LOGGER.setLevel(_LEVELS[max(-1, min(1, verbosity))])
    return ring
