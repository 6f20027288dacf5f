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
from threading import Thread

Cores = set[int]

if sys.platform == "linux":
    _core_of_this_thread = getattr(ctypes.CDLL(None), "sched_getcpu", None)

    def spread(sleepers: Sequence[Thread]) -> Cores:
        """Let each of some sleeping threads wake on a core of its own, as far as there are enough, and not on this
        thread's core.  Returns the cores that each has to `roam` once it is awake; none where nothing was done."""
        cores = os.sched_getaffinity(0)
        here = _core_of_this_thread() if _core_of_this_thread else -1
        if here not in cores or len(cores) == 1:
            return set()
        others = itertools.cycle(sorted(cores - {here}, key=lambda core: (core < here, core)))
        for thread, core in zip(sleepers, others, strict=False):
            assert thread.native_id is not None
            with contextlib.suppress(OSError):  # the cores that this process may use have just changed
                os.sched_setaffinity(thread.native_id, (core,))
        return cores

    def roam(cores: Cores) -> None:
        """Let this thread run on any of some cores."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)

else:

    def spread(sleepers: Sequence[Thread]) -> Cores:
        """Do nothing: other systems wake threads on idle cores."""
        return set()

    def roam(cores: Cores) -> None:
        """Do nothing: other systems wake threads on idle cores."""
