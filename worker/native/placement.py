"""The cores that threads begin on.

Linux mostly wakes a thread on the core of the thread that wakes it, once both have slept for some milliseconds.
There it waits for its turn, although other cores are idle, until the kernel balances them: longer than many programs
take.  So a thread that is about to be woken is sent to another core (`runner.py`).  Once awake it may go where the
kernel likes.
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

BYTES = 1024  # of a set of cores in memory, a bit for each
NOWHERE = -1

if sys.platform == "linux":
    _library = ctypes.CDLL(None)
    _here = getattr(_library, "sched_getcpu", None)
    ROAM = ctypes.cast(_library.sched_setaffinity, ctypes.c_void_p).value or 0
    """int (int, int64, int64): a thread, this one if 0, may run on a set of BYTES at an address."""
    HERE = 0 if _here is None else ctypes.cast(_here, ctypes.c_void_p).value or 0
    """int (): the core that this thread runs on."""

    def cores() -> list[int]:
        """The cores that this thread may run on; none where threads are not placed."""
        return sorted(os.sched_getaffinity(0)) if HERE else []

else:
    ROAM = HERE = 0

    def cores() -> list[int]:
        """Return none: other systems wake threads on idle cores."""
        return []


class Cores:
    """The cores that threads may use, as the runner reads them.

    `every` is all of them as a set, `alone` each of them as one, in their order, and `places` says for a core which of
    these it is, NOWHERE for one that may not be used.
    """

    def __init__(self) -> None:
        self._known: list[int] = []
        self.every = np.zeros(BYTES, np.uint8)
        self.alone = np.zeros((0, BYTES), np.uint8)
        self.places = np.full(8 * BYTES, NOWHERE, np.int64)

    def look(self) -> int:
        """Ask the system which they are, and how many."""
        known = cores()
        if known != self._known:
            self._known = known
            self.alone = np.zeros((len(known), BYTES), np.uint8)
            self.places[:] = NOWHERE
            for place, core in enumerate(known):
                self.alone[place, core // 8] = 1 << core % 8
                self.places[core] = place
            self.every[:] = self.alone.sum(axis=0, dtype=np.uint8)
        return len(known)
