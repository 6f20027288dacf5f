"""A worker's state folder: its name, its identity, and the lock that makes both its own.

`<state dir>/graph-mesh/<mesh>/<name>`; a second worker of that name on the machine takes the next free one, name-2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError
from wire.link.identity import kept_node_id
from wire.system.file_lock import FileLock
from wire.system.private_folder import private_folder

NAMES_MAX = 256  # workers of one name on one machine
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class StateFolder:
    """A claimed folder; keep it for as long as the worker lives."""

    path: Path
    name: str
    node_id: str
    lock: FileLock


def name_here(name: str) -> str:
    """What a worker that is to be called `name` is called: its folder has the same name, on every system."""
    return _UNSAFE.sub("-", name).strip(".") or "worker"


def claim(base: Path, name: str) -> StateFolder:
    """The first free folder for a worker called `name` under `base`; ConfigError if none can be made."""
    safe = name_here(name)
    for number in range(1, NAMES_MAX + 1):
        numbered = safe if number == 1 else f"{safe}-{number}"
        path = private_folder(base / numbered)
        lock = FileLock(path / "lock")
        if lock.try_acquire():
            try:
                return StateFolder(path, numbered, kept_node_id(path), lock)
            except ConfigError:
                lock.release()
                raise
    raise ConfigError(f"{NAMES_MAX} workers called {name} already run here", next_step="Choose another --name")
