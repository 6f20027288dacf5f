"""Disks that refuse or take long: the Nth step of a Disk or of an SQLite connection fails, once or from then on."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire.system.atomic_files import Data, Disk

HANGS_S = 120.0


@dataclass(slots=True)
class Fuse:
    """Counts steps; those from number `fails_at` up to `heals_at` fail."""

    fails_at: int = 0  # 0: none
    heals_at: int = 0  # 0: never
    steps: int = 0

    @property
    def blown(self) -> bool:
        return bool(self.fails_at) and self.steps >= self.fails_at

    def step(self) -> bool:
        """Whether this step fails."""
        self.steps += 1
        return self.blown and (not self.heals_at or self.steps < self.heals_at)

    def burn(self) -> None:
        if self.step():
            raise OSError(errno.ENOSPC, "no space left on the test's device")


class QuickDisk(Disk):
    """Does not wait for the platters: for tests that never lose power."""

    def sync(self, fd: int) -> None:
        return


class SlowDisk(QuickDisk):
    """Waits whenever it syncs, until it `goes_on`."""

    def __init__(self) -> None:
        self.goes_on, self._began = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        self._began.set()
        assert self.goes_on.wait(HANGS_S)

    def hold(self) -> None:
        """Wait again from now on."""
        self.goes_on.clear()
        self._began.clear()

    async def begins(self) -> None:
        """Return once it waits."""
        async with asyncio.timeout(HANGS_S):
            while not self._began.is_set():
                await asyncio.sleep(0.01)


class FaultyDisk(QuickDisk):
    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def write(self, fd: int, data: Data) -> None:
        if self.fuse.step():
            super().write(fd, memoryview(data)[: len(data) // 2])  # a disk that fills up takes what still fits
            raise OSError(errno.ENOSPC, "no space left on the test's device")
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.fuse.burn()

    def replace(self, old: str | Path, new: str | Path) -> None:
        self.fuse.burn()
        super().replace(old, new)

    def remove(self, path: str | Path) -> None:
        self.fuse.burn()
        super().remove(path)


class FaultyConnection(sqlite3.Connection):
    """Statements fail; a COMMIT that fails may have worked all the same (`lies`)."""

    fuse = Fuse()
    lies = False

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if self.fuse.step():
            if self.lies and args[0] == "COMMIT":
                super().execute(*args)
            raise _refusal()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        if self.fuse.step():
            raise _refusal()
        return super().executemany(*args)


def _refusal() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def quick_connect(path: Path, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection that does not sync, with the smallest pages: little to flip, much to hit."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, factory=kind)
    for pragma in ("page_size = 512", "locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = OFF"):
        sqlite3.Connection.execute(connection, f"PRAGMA {pragma}").fetchall()
    return connection


def faulty_connect(fuse: Fuse, lies: bool) -> Any:
    """A `connect` for Journal.open whose statements burn the fuse."""
    kind = type("Faulty", (FaultyConnection,), {"fuse": fuse, "lies": lies})
    return lambda path: quick_connect(path, kind)
