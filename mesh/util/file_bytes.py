"""File bytes: the bytes of a file of weights, mapped or read, or an error that says what is wrong with it."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError


def file_bytes(path: Path, kind: str, mmap: bool = True) -> NDArray[np.uint8]:
    """The bytes of a file, read-only where they are mapped.

    InputError if it is missing, cannot be read as a file of this `kind`, or is a pipe or a device, which may never end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is no regular file")
        return np.memmap(path, np.uint8, "r") if mmap else np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error
