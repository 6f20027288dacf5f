"""The machine's memory: how much it has, and how much is free.

A container, or a service with a limit, has no more of it than that: whoever takes more is killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A version of Linux's control groups: the folder of its groups, the names of their files, and what memory.stat
    calls content of files, which makes way for others."""

    folder: str
    limit: str
    used: str
    files: str


_FIRST = _Hierarchy("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Hierarchy("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def machine_memory(root: Path = Path("/")) -> tuple[int, int]:
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
    for hierarchy, group in _groups(root):
        for each in (group, *group.parents):  # of a container the first may be outside of what it sees
            with contextlib.suppress(OSError, ValueError):  # it has no limit, or there is no such group here
                folder = root / hierarchy.folder / each.relative_to("/")
                limit_bytes = int((folder / hierarchy.limit).read_text())
                used_bytes = int((folder / hierarchy.used).read_text())
                yield limit_bytes, used_bytes - _file_bytes(folder, hierarchy)


def _groups(root: Path) -> Iterator[tuple[_Hierarchy, PurePosixPath]]:
    with contextlib.suppress(OSError, ValueError):  # no Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield _FIRST, PurePosixPath(group)
            elif number == "0":
                yield _SECOND, PurePosixPath(group)


def _file_bytes(folder: Path, hierarchy: _Hierarchy) -> int:
    fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(fields.get(hierarchy.files, 0))
