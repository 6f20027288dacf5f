"""A lock that is a file: held by one process, freed by the system when the process ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from ..errors import ConfigError

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int, wait: bool) -> None:
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int, wait: bool) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """The lock on `path`.  As a context manager it waits; `try_acquire` does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """True if this process now holds the lock."""
        return self._acquire(wait=False)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileLock:
        self._acquire(wait=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _acquire(self, wait: bool) -> bool:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise ConfigError(f"cannot open the lock file {self._path}", cause=str(error)) from None
        try:
            _lock(fd, wait)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True
