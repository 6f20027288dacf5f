"""Shared memory handoff: the files of shared memory whose names other processes got, until they have taken them.

The process that gets its name owns the file and removes it.  A process that dies before it does so cannot, and so the
one that wrote the file does.  That a link has ended says nothing: the process at its other end may be about to read
what came before.  Whether a process lives is what the lock of its directory says (`shared_memory.py`); its number may
be another's by now.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ..bounds import UNTAKEN_FILES
from .shared_memory import SharedDir, remove

LOOK_EVERY = 64  # after so many new files we look which have been taken


class _File(NamedTuple):
    """A file that another process is to take: where it is, and the member whose process that is."""

    directory: str
    member: str
    size_bytes: int


class HandoffFiles:
    """Files by the directory of the process that takes them.  `lives` says of such a directory whether it does."""

    def __init__(
        self, lives: Callable[[Path], bool] = SharedDir.lives, untaken_bytes_max: int = UNTAKEN_FILES.most
    ) -> None:
        self._lives = lives
        self._untaken_bytes_max = untaken_bytes_max  # of one member
        self._files: dict[str, dict[str, _File]] = {}  # by the process that takes them, and by name
        self._untaken: Counter[str] = Counter()  # bytes by member, as far as we looked
        self._writing: Counter[str] = Counter()
        self._since_look = 0  # files that were added since we looked which were taken

    @contextlib.contextmanager
    def room(self, member: str, size_bytes: int) -> Iterator[bool]:
        """Whether there is room for one more file for a member, which is held while the block writes it.  There is if
        it has taken enough of those before; the first always fits."""
        if self._held(member) + size_bytes > self._untaken_bytes_max:
            for taker in list(self._files):
                self._forget_taken(taker)
        held = self._held(member)
        size_bytes = size_bytes if not held or held + size_bytes <= self._untaken_bytes_max else 0
        self._writing[member] += size_bytes
        try:
            yield size_bytes > 0
        finally:
            self._writing[member] -= size_bytes
            if not self._writing[member]:
                del self._writing[member]

    def _held(self, member: str) -> int:
        return self._untaken[member] + self._writing[member]

    def add(self, taker: str, directory: str, name: str, member: str = "", size_bytes: int = 0) -> None:
        """Note that the process whose shared-memory directory is `taker` is to take a file of `directory`."""
        self._files.setdefault(taker, {})[name] = _File(directory, member, size_bytes)
        self._untaken[member] += size_bytes
        self._since_look += 1
        if self._since_look > max(LOOK_EVERY, sum(map(len, self._files.values())) // 2):  # a few looks per file
            self._since_look = 0
            for file in list(self._files):
                self._forget_taken(file)

    def clear(self, linked: Collection[str] = ()) -> bool:
        """Remove the files that dead processes were to take; whether files are left of others that live and are not
        among those that are `linked`, and so have to be looked at again."""
        for taker, files in list(self._files.items()):
            if self._lives(Path(taker)):
                self._forget_taken(taker)
                continue
            for name, file in files.items():
                remove(file.directory, name)
            self._forget_taken(taker)
        return bool(self._files.keys() - set(linked))

    def _forget_taken(self, taker: str) -> None:
        files = self._files[taker]
        for name, file in list(files.items()):
            if not os.path.exists(os.path.join(file.directory, name)):
                del files[name]
                self._untaken[file.member] -= file.size_bytes
                if not self._untaken[file.member]:
                    del self._untaken[file.member]
        if not files:
            del self._files[taker]
