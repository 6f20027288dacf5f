"""Pause file: the wish that a worker be paused, as a file in its state folder, and what the worker says about it there.

`paused` names who paused the worker, and does not exist otherwise; `duty` says what the worker makes of it.  Files,
since they work alike on every system, outlive both processes, and are nobody's but this user's.  It does not decide
anything:  `worker/state/availability.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from wire.errors import ConfigError
from wire.system.file_lock import FileLock
from wire.system.steady_log import steady_logger

from ..state.availability import COORDINATOR, MACHINE
from ..state.events import Event, PauseFileChanged

log = steady_logger("graph_mesh.worker")

LOOK_S = 0.25
SERVING, FINISHING, PAUSED = "serving", "finishing", "paused"  # finishing: a part in flight is not over yet


class PauseFiles:
    """The two files of the worker whose state folder this is; ConfigError where they cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wish = folder / "paused"
        self._duty = folder / "duty"

    def wish(self, before: str = "") -> str:
        """The text of the file: who wants the worker paused, "" for nobody.  Any text counts as a pause.  A file that
        is there and cannot be read, as by a process that may open no more files, counts as what it was `before`, or as
        MACHINE's where that was no pause."""
        try:
            text = self._wish.read_text(errors="replace").strip()
        except OSError:
            return (before or MACHINE) if os.path.exists(self._wish) else ""
        return text if text == COORDINATOR else MACHINE

    def set_wish(self, by: str) -> None:
        if by:
            _write(self._wish, by)
        else:
            _remove(self._wish)

    def duty(self) -> str:
        """SERVING, FINISHING or PAUSED, as the worker said last; "" if it never did."""
        try:
            return self._duty.read_text(errors="replace").strip()
        except OSError:
            return ""

    def set_duty(self, duty: str) -> None:
        _write(self._duty, duty)

    @property
    def running(self) -> bool:
        """Whether the worker's process runs."""
        lock = FileLock(self.folder / "lock")
        free = lock.try_acquire()
        lock.release()
        return not free


class PauseWatch:
    """The worker's end of the files; `feed` hears of wishes, `duty` says what becomes of them."""

    def __init__(self, files: PauseFiles, feed: Callable[[Event], None], duty: Callable[[], str]) -> None:
        self._files = files
        self._feed = feed
        self._duty = duty
        self._seen = ""
        self._written_duty = ""

    def look(self) -> None:
        """Hear of a wish that is new, and say what the worker does."""
        wish = self._files.wish(self._seen)
        if wish != self._seen:
            self._saw(wish)
            self._feed(PauseFileChanged(wish))
        duty = self._duty()
        if duty != self._written_duty:
            self._written_duty = duty
            self._try(lambda: self._files.set_duty(duty))

    def keep(self, by: str) -> None:
        """The coordinator's wish outlives this process."""
        if self._try(lambda: self._files.set_wish(by)):
            self._saw(by)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def _saw(self, by: str) -> None:
        self._seen = by
        how = {"": "not paused any more", MACHINE: "paused here; lend it again with: mesh-worker resume"}
        log.info("%s", how.get(by, "paused by its coordinator"))

    def _try(self, write: Callable[[], None]) -> bool:
        """A disk that is full costs what others know of a pause, not the worker."""
        try:
            write()
        except ConfigError as error:
            log.warning("%s", error)
            return False
        return True


def workers_in(folder: Path) -> list[PauseFiles]:
    """All workers that have their state under this folder, which is a mesh's, by name."""
    with contextlib.suppress(OSError):
        homes = sorted(path for path in folder.iterdir() if not path.name.startswith("@"))
        return [PauseFiles(path) for path in homes if (path / "lock").exists()]
    return []


def _write(path: Path, text: str) -> None:
    """Whole or not at all; that it survives a power cut is not worth the wait."""
    writing = path.with_name(path.name + ".writing")
    try:
        writing.write_text(text + "\n")
        os.replace(writing, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}", cause=str(error)) from None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot remove {path}", cause=str(error)) from None
