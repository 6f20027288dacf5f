"""A lock that is a file: held by one process, freed by the system when the process ends, however it ends.

The library filelock's, with errors of ours.  Any thread may release what another one acquired; a process that was
forked from the holder holds nothing.

A process that holds one may be stopped, as a command is by Ctrl-Z.  So event loops have what takes a lock
done by `behind_lock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import filelock

from ..deadlines import LOCK
from ..errors import ConfigError

T = TypeVar("T")
POLL_S = 0.01  # between two attempts while another process holds it
UNLIMITED = -1.0  # filelock's word for it; for engine hosts, which their daemon ends if they take too long
_WAITING = ThreadPoolExecutor(4, "lock")


async def behind_lock(work: Callable[..., T], *args: Any) -> T:
    """What `work` returns, which may wait for another process, by a thread that does nothing else: the threads of
    `asyncio.to_thread` are few, and while they all wait nothing is planned, read or written."""
    return await asyncio.get_running_loop().run_in_executor(_WAITING, work, *args)


class FileLock:
    """The lock on `path`, in a folder that exists.  As a context manager it waits for `wait_s`, and then raises
    ConfigError; `try_acquire` does not wait."""

    def __init__(self, path: Path, wait_s: float = LOCK.seconds) -> None:
        self._path = path
        self._wait_s = wait_s
        self._lock = filelock.FileLock(path, mode=0o600, thread_local=False)

    def try_acquire(self) -> bool:
        """True if this process now holds the lock, False if another one does; ConfigError where none can be held."""
        try:
            self._acquire(0.0)
        except filelock.Timeout:
            return False
        return True

    def release(self) -> None:
        """Free the lock, if it is held."""
        self._lock.release(force=True)

    def __enter__(self) -> FileLock:
        try:
            self._acquire(self._wait_s)
        except filelock.Timeout:
            raise ConfigError(
                f"another process has held the lock {self._path} for {self._wait_s:g} s",
                next_step=f"See which one: fuser {self._path}; one that was stopped with Ctrl-Z goes on with fg",
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _acquire(self, wait_s: float) -> None:
        try:
            if not self._path.parent.is_dir():  # which filelock would make
                raise FileNotFoundError(f"there is no folder {self._path.parent}")
            self._lock.acquire(timeout=wait_s, poll_interval=POLL_S)
        except filelock.Timeout:
            raise
        except OSError as error:
            raise ConfigError(f"cannot open the lock file {self._path}", cause=str(error)) from None
