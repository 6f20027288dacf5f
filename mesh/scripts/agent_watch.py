"""The watch of a rank over its agent: a rank whose agent was killed ends, with all that it has started.

An agent ends its ranks itself, however it goes, unless it is killed with SIGKILL.  It holds the lock of the folder in
which its ranks meet, and the kernel frees that lock with the agent, so the rank looks at the lock.  It does not know
what the ranks do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import cache
from pathlib import Path

from wire.system.shared_memory import SharedDir

AGAIN_S = 1.0  # from a look that failed to the next


@cache  # once in a process, however often it joins
def watch(meeting: Path) -> None:
    """End this process when the agent that made the folder `meeting` has ended; a folder that people made ends none."""
    if SharedDir.is_one(meeting):
        threading.Thread(target=_end_with_it, args=(meeting,), name="mesh-agent-watch", daemon=True).start()


def _end_with_it(meeting: Path) -> None:
    while True:
        try:
            SharedDir.wait_for_end(meeting)
            break
        except OSError:  # a moment without a free file, say
            time.sleep(AGAIN_S)
    try:
        os.killpg(os.getpid(), signal.SIGKILL)  # a rank leads its session, and what it started is there too
    except (AttributeError, ProcessLookupError):  # Windows, or a rank that somebody else started
        os._exit(1)
