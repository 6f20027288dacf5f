"""Times that are promised to people, asserted on machines of any speed.

A promise such as "exits within 2 s" is about a machine with nothing else to do.  A test measures what it takes here
and how slow this machine is meanwhile: how many times longer than on an idle machine a process takes to start, which
needs what such a promise needs, a processor, memory and files.  The limit is the promise times that, and times a
margin for what comes and goes while the test runs.  A promise that is broken by a factor fails anywhere.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MARGIN = 3.0
IDLE_START_S = 0.12  # of the process below, on two idle cores of 2020 or later
_START = (sys.executable, "-I", "-c", "import asyncio, ssl")


def slowness() -> float:
    """How many times longer than on an idle machine a process takes to start; 1 at least."""
    began_s = time.monotonic()
    subprocess.run(_START, check=True, timeout=60.0)
    return max(1.0, (time.monotonic() - began_s) / IDLE_START_S)


@contextmanager
def within(promised_s: float, what: str) -> Iterator[None]:
    """The body takes no longer than was promised, on a machine that is as slow as this one is before and after."""
    slow = slowness()
    began_s = time.monotonic()
    yield
    took_s = time.monotonic() - began_s
    slow = max(slow, slowness())
    print(f"{what}: {took_s:.2f} s, promised {promised_s:g} s, on a machine {slow:.1f} times slower than an idle one")
    assert took_s <= promised_s * MARGIN * slow, f"{what} took {took_s:.2f} s; {promised_s:g} s are promised"


# -- work of the processor alone

LOOP_S = 0.005  # processor time of the loop below, where what is promised was measured
TRIES = 9
WORK_MARGIN = 1.5  # processors differ in what they are good at


def processor_s(work: Callable[[], object]) -> float:
    """The least processor time of some work, in seconds of the processor that promises were measured on: beside the
    time of a loop in Python, in turns, so that a slow or a shared processor is slow for both."""
    took_s, loop_s = zip(*((_spent_s(work), _spent_s(_loop)) for _ in range(TRIES)), strict=True)
    return min(took_s) / min(loop_s) * LOOP_S


def _loop() -> dict[int, tuple[int, int]]:
    found = {}
    for number in range(100_000):
        found[number & 1023] = (number, number)
    return found


def _spent_s(work: Callable[[], object]) -> float:
    gc.collect()
    began_s = time.process_time()
    made = work()  # kept, so that freeing it is not timed
    took_s = time.process_time() - began_s
    del made
    return took_s
