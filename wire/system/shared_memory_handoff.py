"""Shared memory handoff: the files of shared memory that other processes were told to take, until they have taken them.

Whoever is told owns the file and removes it.  A process that dies before it does so cannot, and so the one that wrote
the file does.  That a link has ended says nothing: the process at its other end may be about to read what came before.
Whether a process lives is what the lock of its directory says (`shared_memory.py`); its number may be another's by now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from .shared_memory import SharedDir, remove

LOOK_EVERY = 64  # so many files told, and we look which have been taken


class HandoffFiles:
    """Files by the directory of the process that takes them.  `lives` says of such a directory whether it does."""

    def __init__(self, lives: Callable[[Path], bool] = SharedDir.lives) -> None:
        self._lives = lives
        self._files: dict[str, dict[str, str]] = {}  # by who takes them: the directory of each, by its name
        self._since_look = 0  # files that were added since we looked which were taken

    def add(self, taker: str, directory: str, name: str) -> None:
        """The process whose shared-memory directory is `taker` is told to take a file of `directory`."""
        files = self._files.setdefault(taker, {})
        files[name] = directory
        self._since_look += 1
        if self._since_look > max(LOOK_EVERY, sum(map(len, self._files.values())) // 2):  # a few looks per file
            self._since_look = 0
            for file in list(self._files):
                self._forget_taken(file)

    def clear(self, linked: Collection[str] = ()) -> bool:
        """Remove what dead processes were told to take; whether files are left of others that live and are not among
        those that are `linked`, and so have to be looked at again."""
        for taker, files in list(self._files.items()):
            if self._lives(Path(taker)):
                self._forget_taken(taker)
                continue
            for name, directory in files.items():
                remove(directory, name)
            del self._files[taker]
        return bool(self._files.keys() - set(linked))

    def _forget_taken(self, taker: str) -> None:
        files = self._files[taker]
        left = {name: directory for name, directory in files.items() if os.path.exists(os.path.join(directory, name))}
        if left:
            self._files[taker] = left
        else:
            del self._files[taker]
