"""The cores that threads begin on.

Linux wakes a thread on the core of whoever wakes it more often than not, once both have slept for some milliseconds.
There it waits for its turn, although other cores are idle, until the kernel balances them: longer than many programs
take.  So a thread that is about to be woken is sent to another core.  Once awake it may go where the kernel likes.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from threading import Thread

Cores = set[int]
BYTES = 1024  # of a set of cores in memory, a bit for each


def in_memory(cores: Cores) -> bytes:
    """A set of cores as `ROAM` takes it."""
    return sum(1 << core for core in cores).to_bytes(BYTES, "little")


if sys.platform == "linux":
    _library = ctypes.CDLL(None)
    _core_of_this_thread = getattr(_library, "sched_getcpu", None)
    ROAM = ctypes.cast(_library.sched_setaffinity, ctypes.c_void_p).value or 0
    """int (int, int64, int64): 0, BYTES and the address of a set let this thread run on any of its cores."""

    def spread(sleepers: Sequence[Thread]) -> Cores:
        """Let each of some sleeping threads wake on a core of its own, as far as there are enough, and not on this
        thread's core.  Returns the cores that each has to roam once it is awake; none where nothing was done."""
        cores = os.sched_getaffinity(0)
        here = _core_of_this_thread() if _core_of_this_thread else -1
        if here not in cores or len(cores) == 1:
            return set()
        others = _others(frozenset(cores), here)
        for thread, core in zip(sleepers, itertools.cycle(others), strict=False):
            assert thread.native_id is not None
            with contextlib.suppress(OSError):  # the cores that this process may use have just changed
                os.sched_setaffinity(thread.native_id, (core,))
        return cores

    @lru_cache(maxsize=256)
    def _others(cores: frozenset[int], here: int) -> list[int]:
        """The cores but one, those after it first."""
        return sorted(cores - {here}, key=lambda core: (core < here, core))

else:
    ROAM = 0

    def spread(sleepers: Sequence[Thread]) -> Cores:
        """Do nothing: other systems wake threads on idle cores."""
        return set()
