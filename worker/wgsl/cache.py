"""Programs on disk, one JSON file per key, written atomically; a damaged file is as good as none.

The folder is bounded: what was not read for the longest time goes first.  The key covers all that text depends on:
graph hash, lowering version, engine, adapter, driver and limits.  It does not know what a Program means.  Files are
never executed: WGSL is the only code in them, and wgpu validates it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wire.errors import ConfigError
from wire.system.file_lock import FileLock
from wire.system.private_folder import make_private

from .program import Program, from_json, to_json

_MAGIC = "graph-mesh wgsl program"
_LOCK = "lock-"  # one for each first character of a key
BYTES_MAX = 256 << 20


class ProgramCache:
    """A folder of programs of at most `bytes_max`; `directory` None stores nothing."""

    def __init__(self, directory: Path | None, bytes_max: int = BYTES_MAX) -> None:
        self._directory = directory / "wgsl" if directory is not None else None
        self._bytes_max = bytes_max

    def read(self, key: str) -> Program | None:
        """The program under `key`, or None if there is none or it is damaged."""
        if self._directory is None:
            return None
        try:
            path = self._path(key)
            head, checksum, body = path.read_text("utf-8").split("\n", 2)
            if head != _MAGIC or checksum != _checksum(body):
                return None
            program = from_json(body)
            os.utime(path)
            return program
        except (OSError, ValueError):
            return None

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`: no other process makes its program meanwhile.  Look for it again, then make it.

        Workers of one machine that share a folder are asked for the same program at the same moment, one per rank.
        """
        lock = self._lock(key)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def write(self, key: str, program: Program) -> None:
        """Store a program; a full or read-only disk costs only the speed of the next start."""
        if self._directory is None:
            return
        body = to_json(program)
        try:
            make_private(self._directory)
            handle, name = tempfile.mkstemp(dir=self._directory, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(f"{_MAGIC}\n{_checksum(body)}\n{body}")
                os.replace(name, self._path(key))
            except OSError:
                os.unlink(name)
                raise
            self._trim(self._path(key))
        except OSError:
            return

    def _lock(self, key: str) -> FileLock | None:
        """Held; None where nothing is stored, or can be."""
        if self._directory is None:
            return None
        try:
            make_private(self._directory)
            return FileLock(self._directory / f"{_LOCK}{key[:1]}").__enter__()
        except (OSError, ConfigError):
            return None

    def _trim(self, written: Path) -> None:
        """Remove the files unused longest until the rest fits; never the one just written."""
        assert self._directory is not None
        others = (path for path in self._directory.iterdir() if path != written and not path.name.startswith(_LOCK))
        files = [(path.stat(), path) for path in others]
        excess = sum(status.st_size for status, _ in files) + written.stat().st_size - self._bytes_max
        for status, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= status.st_size

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{key}.json"


def cache_key(*parts: str | bytes | int | Sequence[object]) -> str:
    """A file name from everything the content depends on."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=24).hexdigest()


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
