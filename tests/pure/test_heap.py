"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

from wire.heap import give_back


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc"
)
def test_holes_between_what_is_used_are_given_back() -> None:
    blocks = [bytes(1000) for _ in range(20_000)]
    last = blocks.pop()  # lies at the end of the heap, and so nothing is returned by itself
    blocks.clear()
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > 10_000_000
    assert len(last) == 1000
