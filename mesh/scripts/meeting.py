"""Where the ranks of one machine find each other: a folder with a note of each, that says where its mailboxes are.

A note is written whole or not at all.  One that a dead process left is not believed, so the folder may be used again;
whoever made the folder removes it.  It does not know what is in a mailbox.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError, DeadlineExceeded
from wire.sharedmem import SharedDir

POLL_S = 0.005
ALIVE_S = 0.1  # for how long a process that was seen alive is taken to be


@dataclass(frozen=True, slots=True)
class Meeting:
    """The folder at `path` of one rank that has come: `leave` takes its note away."""

    path: Path
    rank: int

    def come(self, own: SharedDir) -> None:
        """Leave a note; ConfigError if a living process is this rank already."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = _read(self._note(self.rank))
            if found is not None and SharedDir.lives(Path(found)):
                raise ConfigError(
                    f"another process is rank {self.rank} already, in {self.path}",
                    next_step="Give every rank a number of its own, and every program a folder of its own",
                )
            new = self._note(self.rank).with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(str(own.path)))
            os.replace(new, self._note(self.rank))
        except OSError as error:
            raise ConfigError(f"ranks cannot meet in {self.path}", cause=str(error)) from None

    def others(self, ranks: Iterable[int], timeout_s: float) -> dict[int, Path]:
        """The directories of these ranks, once all have come; DeadlineExceeded naming those that have not."""
        found: dict[int, Path] = {}
        missing = set(ranks)
        end_s = time.monotonic() + timeout_s
        while missing:
            for rank in sorted(missing):
                said = _read(self._note(rank))
                if said is not None and SharedDir.lives(Path(said)):
                    found[rank] = Path(said)
            missing -= found.keys()
            if missing and time.monotonic() > end_s:
                named = ", ".join(map(str, sorted(missing)))
                raise DeadlineExceeded(
                    f"waited {timeout_s:g} s for rank {named} to come to {self.path}",
                    next_step="See whether all ranks were started, and call mesh.init()",
                )
            if missing:
                time.sleep(POLL_S)
        return found

    def leave(self) -> None:
        self._note(self.rank).unlink(missing_ok=True)

    def _note(self, rank: int) -> Path:
        return self.path / f"rank-{rank}"


def life_of(directory: Path) -> Callable[[], bool]:
    """Whether the process that made a directory lives, looked up now and then only."""
    seen_s = 0.0

    def alive() -> bool:
        nonlocal seen_s
        now_s = time.monotonic()
        if now_s < seen_s + ALIVE_S:
            return True
        seen_s = now_s
        return SharedDir.lives(directory)

    return alive


def _read(note: Path) -> str | None:
    try:
        return str(json.loads(note.read_text()))
    except (FileNotFoundError, ValueError):
        return None
