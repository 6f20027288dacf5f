"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# In a process of its own: what is free in this one, and where, is for others to say.
HOLES = """
import os
from pathlib import Path
from wire.system.malloc import give_back

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

blocks = [bytes(1000) for _ in range(20_000)]
last = blocks.pop()  # lies at the end of the heap, and so nothing is returned by itself
blocks.clear()
before = resident_bytes()
give_back()
print(before - resident_bytes())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc"
)
def test_holes_between_what_is_used_are_given_back() -> None:
    words = [sys.executable, "-c", HOLES]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 10_000_000
