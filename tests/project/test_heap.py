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
import tempfile
from pathlib import Path
from wire.system.malloc import MemoryAtRest, SpareMemory, give_back

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def given_back(work):
    blocks = [bytes(1000) for _ in range(20_000)]
    last = blocks.pop()  # lies at the end of the heap, and so nothing is returned by itself
    blocks.clear()
    before = resident_bytes()
    work()
    print(before - resident_bytes())

"""
WORKS = {
    "given_back(give_back)": [True],
    "spare = SpareMemory(60.0)\nfor now_s in (5.0, 64.0, 66.0): given_back(lambda: spare.give_back(now_s))": [
        True, False, True,
    ],
    """
at_rest = MemoryAtRest(30.0, lambda: now_s)
for now_s in (5.0, 40.0): given_back(at_rest.look)
with at_rest: now_s = 10.0
for now_s in (39.0, 41.0, 80.0): given_back(at_rest.look)
with at_rest:  # it is suspended
    with at_rest: now_s = 90.0
    now_s = 200.0
    given_back(at_rest.look)
now_s = 250.0
given_back(at_rest.look)
""": [False, False, False, True, False, False, True],
    """
from wire.system.shared_memory import SharedDir
from worker.cpu.engine import CpuEngine
from worker.engine_host.host import Host
from worker.engine.host_messages import Unprepare
with tempfile.TemporaryDirectory() as folder:
    host = Host(CpuEngine(), SharedDir.create(Path(folder)), memoryview(bytearray(8)), 1 << 30)
    given_back(lambda: host.handle(Unprepare(1)))
""": [True],
}  # fmt: skip  # and whether memory goes back in each of them


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc"
)
@pytest.mark.parametrize("work", WORKS, ids=["at once", "once in a while", "at rest", "after a part"])
def test_holes_between_what_is_used_are_given_back(work: str) -> None:
    words = [sys.executable, "-c", HOLES + work]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [int(line) > 10_000_000 for line in done.stdout.split()] == WORKS[work]
