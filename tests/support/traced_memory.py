"""The memory that Python and numpy take for some work."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak_bytes_of(work: Callable[[], object]) -> int:
    """The most bytes that are taken at once while the work is done, beyond what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
