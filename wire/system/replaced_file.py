"""A file that is replaced as a whole: readers see the old one or the new one, also after a power cut.

It is written beside the old one, as large as it is.  What a process leaves there that is killed meanwhile is removed by
the next one that writes a file into that folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError
from .shared_memory import SharedDir


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` at the end; an error leaves that as it was.  OSError if
    the folder takes no file."""
    try:
        beside = SharedDir.create(path.parent)
    except ConfigError as error:
        raise OSError(error.cause) from None
    try:
        writing = beside.path / "written"
        yield writing
        with open(writing, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(writing, path)
    finally:
        beside.close()
