"""How many cores this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from .control_groups import HERE, groups


def core_count(root: Path = HERE) -> int:
    """The cores that the system lets this process run on: containers and `taskset` give fewer than there are.  A part
    of one counts as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([cores, *_quotas(root)]), 1)


def _quotas(root: Path) -> Iterator[int]:
    """The cores whose time the control groups of this process have."""
    for version, folder in groups("cpu", root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # it has no quota, or is not there
            if version == 1:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            else:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            if quota > 0:
                yield math.ceil(quota / period)
