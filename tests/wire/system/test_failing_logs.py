"""The Nth write of a daemon's log fails, for every N: it costs that line, is counted, and delays nobody."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.hostile.failing_calls import Refusing, each_call
from support.hostile.faulty_disk import Fuse

from wire.system.log_ring import LogRing

LINES = [f"line {number}" for number in range(6)]


@contextmanager
def logging_to(stream: object) -> Iterator[LogRing]:
    """A log of its own, written to this stream to its end."""
    before, sys.stderr = sys.stderr, stream  # type: ignore[assignment]
    ring = LogRing(as_json=False)
    try:
        yield ring
        ring._queue.put(None)
        ring._thread.join()
    finally:
        sys.stderr = before


def told(fuse: Fuse, number: int) -> list[str]:
    """What gets into a log whose writes fail by the fuse, without its times."""
    written = io.StringIO()
    refusing = Refusing(written, ("write", "flush"), fuse, lambda: OSError(number, os.strerror(number)))
    with logging_to(refusing) as ring:
        for line in LINES:
            ring.emit(logging.LogRecord("test", logging.INFO, "", 0, line, (), None))
        assert [entry.partition(" INFO ")[2] for entry in ring.lines] == LINES, "whoever asks has them all the same"
    return [line.partition(" INFO ")[2] or line for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EPIPE])
def test_a_line_that_cannot_be_written_is_counted_and_the_next_ones_are_written(number: int) -> None:
    for fuse in each_call():
        lines = told(fuse, number)
        missing = [line for line in LINES if line not in lines]
        assert len(missing) <= 1
        if missing and missing != LINES[-1:]:
            assert "(1 lines before this one were dropped)" in lines
        assert [line for line in lines if line in LINES] == [line for line in LINES if line not in missing]


def test_a_disk_that_is_full_for_a_while_loses_those_lines_alone() -> None:
    lines = told(Fuse(fails_at=1, heals_at=5), errno.ENOSPC)
    assert lines[0] == LINES[4] and lines[1] == "(4 lines before this one were dropped)" and lines[2] == LINES[5]


def test_a_log_that_was_closed_ends_the_writing_and_nothing_else() -> None:
    closed = io.StringIO()
    closed.close()
    with logging_to(closed) as ring:
        for line in LINES:
            ring.emit(logging.LogRecord("test", logging.INFO, "", 0, line, (), None))
    assert len(ring.lines) == len(LINES)


def test_a_line_without_memory_costs_that_line() -> None:
    class ShortOnce(io.StringIO):
        short = True

        def write(self, text: str) -> int:
            if self.short:
                self.short = False
                raise MemoryError
            return super().write(text)

    written = ShortOnce()
    with logging_to(written) as ring:
        for line in LINES:
            ring.emit(logging.LogRecord("test", logging.INFO, "", 0, line, (), None))
    assert LINES[1] in written.getvalue() and "1 lines before" in written.getvalue()
