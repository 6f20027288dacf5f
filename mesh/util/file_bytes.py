"""File bytes: the bytes of a file of weights, mapped or read, or an error that says what is wrong with it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.system import mapped_files

_NEXT_STEPS = {
    errno.EMFILE: "Close files of this process, or let it have more open (ulimit -n)",
    errno.ENFILE: "Close files of other processes: the system has no room for more",
    errno.EACCES: "Let this user read the file",
    errno.ENOMEM: "Free memory on this machine, or use one with more",
}


def file_bytes(path: Path, kind: str, mmap: bool = True) -> NDArray[np.uint8]:
    """The bytes of a file, read-only where they are mapped; a mapped file is not open any more.

    InputError if it is missing, cannot be read as a file of this `kind`, or is a pipe or a device, which may never end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is no regular file")
        return _mapped(path) if mmap else np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a name that has a zero in it
        raise unreadable(path, kind, error) from error


def unreadable(path: Path, kind: str, error: Exception) -> InputError:
    """The error for a file that the system does not let us read."""
    next_step = _NEXT_STEPS.get(error.errno or 0, "") if isinstance(error, OSError) else ""
    return InputError(f"{path} cannot be read as {kind}: {error}", next_step=next_step)


def _mapped(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if not size_bytes:
            raise OSError("it is empty")
        return np.asarray(mapped_files.viewed(file.fileno(), size_bytes))
