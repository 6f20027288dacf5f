"""Rendezvous: a folder where ranks find each other, with a note of each that says where it exchanges arrays.

A note is written whole or not at all.  One that a dead process of this machine left is not believed, so the folder may
be used again; whoever made the folder removes it.  Where ranks are on several machines, each has such a folder, and the
agents copy notes from one to the others (`agent.py`).  It does not know what is in a ring buffer, or behind a door.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from wire.errors import ConfigError, DeadlineExceeded, MeshError, from_fields
from wire.system.private_folder import make_private, weakness
from wire.system.shared_memory import SharedDir

POLL_S = 0.005
ALIVE_S = 0.1  # for how long a process that was seen alive is taken to be
NAME = re.compile(r"(?:rank|failed-[0-9a-f]{16})-(?P<rank>\d+)")
"""Of a note, which ends in the number of the rank that wrote it."""


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank wrote down: its directory of ring buffers, its machine, its listener's address if any, and once it
    has all notes what they are."""

    directory: str
    host: str = ""
    addresses: tuple[str, ...] = ()
    port: int = 0
    met: str = ""


_KINDS = {"directory": str, "host": str, "addresses": list, "port": int, "met": str}  # of a note's fields in JSON


@dataclass(frozen=True, slots=True)
class Meeting:
    """The folder at `path` of one rank, on the machine `host`."""

    path: Path
    rank: int
    host: str = ""

    def meet(self, note: Note, others: Set[int], timeout_s: float) -> dict[int, Note]:
        """Leave a note; the notes of the other ranks, once all have come and have the same notes before them.

        A rank that leaves and comes again may find another one's note of the meeting before.  ConfigError if a living
        process is this rank already, DeadlineExceeded naming those that did not come.
        """
        present = self._believed(self.rank)
        if present is not None:
            raise ConfigError(
                f"another process is rank {self.rank} already, in {self.path}",
                next_step="Give every rank a number of its own, and every program a folder of its own",
            )
        self._write(f"rank-{self.rank}", dataclasses.asdict(note))
        notes: dict[int, Note] = {}
        missing, end_s = {*others}, time.monotonic() + timeout_s
        while missing:
            notes |= {rank: found for rank in sorted(missing) if (found := self._believed(rank)) is not None}
            missing = others - notes.keys()
            if not missing:
                met = _met({**notes, self.rank: note})
                if note.met != met:
                    note = dataclasses.replace(note, met=met)
                    self._write(f"rank-{self.rank}", dataclasses.asdict(note))
                missing = {rank for rank in others if notes[rank].met != met}
            if missing and time.monotonic() > end_s:
                named = ", ".join(map(str, sorted(missing)))
                raise DeadlineExceeded(
                    f"waited {timeout_s:g} s for rank {named} to come to {self.path}",
                    next_step="See whether all ranks were started, and call mesh.init()",
                )
            if missing:
                time.sleep(POLL_S)
        return notes

    def leave(self, own: SharedDir) -> None:
        """Take the note away, if it is this process's."""
        path = self.path / f"rank-{self.rank}"
        note = _note(_read(path))
        if note is not None and note.directory == str(own.path):
            path.unlink(missing_ok=True)

    def give_up(self, group: str, error: MeshError) -> None:
        """Tell the ranks of a group that are on other machines why this one gave up."""
        self._write(f"failed-{_digest(group)}-{self.rank}", error.to_fields())

    def given_up(self, group: str, ranks: Collection[int]) -> MeshError | None:
        """Why one of these ranks gave up."""
        for rank in ranks:
            fields = _read(self.path / f"failed-{_digest(group)}-{rank}")
            if fields is not None:
                return from_fields(fields)
        return None

    def _believed(self, rank: int) -> Note | None:
        """The note of a rank, if there is one and its process lives: that of another machine's, only that knows."""
        note = _note(_read(self.path / f"rank-{rank}"))
        return note if note is not None and (note.host != self.host or SharedDir.lives(Path(note.directory))) else None

    def _write(self, name: str, what: Mapping[str, object]) -> None:
        try:
            make_private(self.path)
            why = weakness(self.path)
            if why:
                raise ConfigError(
                    f"ranks cannot meet in {self.path}",
                    cause=f"{why}, so another user of this machine could replace what is in it",
                    next_step="Take that right away (chmod go-w), or give another folder as rendezvous",
                )
            place(self.path, name, json.dumps(what))
        except (OSError, ValueError) as error:  # ValueError: a path with a null
            raise _no_place(self.path, error) from None


def place(folder: Path, name: str, text: str) -> None:
    """Put a note into a folder, whole."""
    new = folder / f".{name}.{os.getpid()}"
    new.write_text(text, encoding="utf-8")
    os.replace(new, folder / name)


_LIVES: WeakValueDictionary[Path, Callable[[], bool]] = WeakValueDictionary()  # all groups look at one open file


def life_of(directory: Path) -> Callable[[], bool]:
    """Whether the process that made a directory lives, looked up now and then only."""
    lives = _LIVES.setdefault(directory, _LIVES.get(directory) or SharedDir.life(directory))
    seen_s = 0.0

    def alive() -> bool:
        nonlocal seen_s
        now_s = time.monotonic()
        if now_s < seen_s + ALIVE_S:
            return True
        seen_s = now_s
        return lives()

    return alive


def _met(notes: Mapping[int, Note]) -> str:
    """The same text for the same notes."""
    return _digest("\n".join(notes[rank].directory for rank in sorted(notes)))


def _digest(group: str) -> str:
    return hashlib.blake2b(group.encode(), digest_size=8).hexdigest()


def _read(path: Path) -> dict[str, str] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise _no_place(path.parent, error) from None
    return data if isinstance(data, dict) else None


def _note(fields: Mapping[str, Any] | None) -> Note | None:
    """The note with these fields; None for what no rank wrote, as a program's own file may be called rank-1, too."""
    values = {name: fields[name] for name in _KINDS if name in fields} if fields is not None else {}
    if "directory" not in values or not all(isinstance(value, _KINDS[name]) for name, value in values.items()):
        return None
    return Note(**values | {"addresses": tuple(map(str, values.get("addresses", ())))})


def _no_place(folder: Path, error: Exception) -> ConfigError:
    return ConfigError(f"ranks cannot meet in {folder}", cause=str(error))
