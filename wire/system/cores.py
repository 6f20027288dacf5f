"""How many cores this process may use."""

from __future__ import annotations

import os


def core_count() -> int:
    """The cores that the system lets this process run on: containers and `taskset` give fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
