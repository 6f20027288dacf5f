"""A lock that is a file: held by one process, freed by the system when the process ends, however it ends.

The library filelock's, with errors of ours.  Any thread may release what another one acquired; a process that was
forked from the holder holds nothing.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import filelock

from ..errors import ConfigError

POLL_S = 0.01  # between two attempts while another process holds it


class FileLock:
    """The lock on `path`, in a folder that exists.  As a context manager it waits; `try_acquire` does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = filelock.FileLock(path, mode=0o600, thread_local=False)

    def try_acquire(self) -> bool:
        """True if this process now holds the lock, False if another one does; ConfigError where none can be held."""
        try:
            self._acquire(blocking=False)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        """Free the lock, if it is held."""
        self._lock.release(force=True)

    def __enter__(self) -> FileLock:
        self._acquire(blocking=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _acquire(self, blocking: bool) -> None:
        try:
            if not self._path.parent.is_dir():  # which filelock would make
                raise FileNotFoundError(f"there is no folder {self._path.parent}")
            self._lock.acquire(blocking=blocking, poll_interval=POLL_S)
        except filelock.Timeout:
            raise
        except OSError as error:
            raise ConfigError(f"cannot open the lock file {self._path}", cause=str(error)) from None
