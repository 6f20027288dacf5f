"""Files that are whole or not there, and stay once they are there.

It does not know what the files are for.  Every step that a disk can refuse is a method of `Disk`, so a test can refuse
it: override `write`, `sync`, `replace`, `sync_folder` or `remove`.

Files that come and go with every job are named by strings: a Path interns every name in it, and the table of interned
strings grows by the names that came and went.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

Data = bytes | memoryview
WRITING = ".writing"  # the end of a name that is not valid yet; whatever bears it after a crash is rubbish

if sys.platform == "darwin":
    import fcntl

    def _sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the bytes in the drive's cache there

else:

    def _sync(fd: int) -> None:
        os.fsync(fd)


class Disk:
    """The disk of this machine."""

    def write_whole(self, path: str | Path, parts: Sequence[Data], writer: str = "", lasting: bool = True) -> None:
        """Make `path` hold exactly `parts`, for this user's eyes only, or leave it as it was; OSError if it cannot.

        Where several write the same path at once, each gives its own `writer`: two would write into one file.  A file
        that is not `lasting` is not waited for: a process that reads it after a loss of power has to check whether it
        is whole.
        """
        writing = f"{path}{writer}{WRITING}"
        try:
            with open(writing, "wb", buffering=0, opener=_private) as file:
                for part in parts:
                    self.write(file.fileno(), part)
                if lasting:
                    self.sync(file.fileno())
            self.replace(writing, path)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(writing)
            raise
        if lasting:
            self.sync_folder(os.path.dirname(path) or os.curdir)

    def append(self, path: Path, data: Data) -> None:
        """Add `data` to a file, or leave it as it was; OSError if the disk refuses."""
        with open(path, "ab", buffering=0, opener=_private) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                self.write(file.fileno(), data)
                self.sync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        if not before:
            self.sync_folder(path.parent)

    def sync_file(self, path: Path) -> None:
        """What was written to an existing file stays."""
        with path.open("rb+") as file:
            self.sync(file.fileno())

    # -- what a disk can refuse

    def write(self, fd: int, data: Data) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def sync(self, fd: int) -> None:
        _sync(fd)

    def replace(self, old: str | Path, new: str | Path) -> None:
        os.replace(old, new)

    def sync_folder(self, folder: str | Path) -> None:
        """Names made or removed in the folder stay so; Windows does that by itself."""
        if sys.platform != "win32":
            fd = os.open(folder, os.O_RDONLY)
            try:
                self.sync(fd)
            finally:
                os.close(fd)

    def remove(self, path: str | Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
