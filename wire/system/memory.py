"""The machine's memory: how much it has, and how much is free.

A container, or a service with a limit, has no more of it than that: whoever takes more is killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .control_groups import HERE, groups


@dataclass(frozen=True, slots=True)
class _Files:
    """The names of a control group's files, and what the rows of memory.stat begin with that count the group whole."""

    limit: str
    used: str
    whole: str


_FILES = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: _Files("memory.max", "memory.current", ""),
}
_CACHED = ("active_file", "inactive_file")  # rows of memory.stat: pages of files, which the kernel takes back


def machine_memory(root: Path = HERE) -> tuple[int, int]:
    """The bytes that programs can still have, as the system estimates, and the bytes that the machine has, or those of
    this process's control group where they are fewer."""
    import psutil  # many programs of ours never ask

    memory = psutil.virtual_memory()
    free_bytes, total_bytes = int(memory.available), int(memory.total)
    for limit_bytes, used_bytes in _limits(root):
        free_bytes = min(free_bytes, max(limit_bytes - used_bytes, 0))
        total_bytes = min(total_bytes, limit_bytes)
    return free_bytes, total_bytes


def default_budget() -> int:
    """Half of the machine's memory, in bytes: what a worker uses by default.  The other half is the owner's."""
    _, total_bytes = machine_memory()
    return total_bytes // 2


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """The limits of this process's control group and of those around it, each with the bytes that are used of it."""
    for version, folder in groups("memory", root):
        files = _FILES[version]
        with contextlib.suppress(OSError, ValueError):  # it has no limit, or is not there
            limit_bytes = int((folder / files.limit).read_text())
            used_bytes = int((folder / files.used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached_bytes = sum(int(stat.get(files.whole + row, 0)) for row in _CACHED)
            yield limit_bytes, used_bytes - cached_bytes
