"""Programs on disk, one JSON file per key, written atomically; a damaged file is as good as none.

The key covers all that text depends on: graph hash, lowering version, engine, adapter, driver and limits.  It does not
know what a Program means.  Files are never executed: WGSL is the only code in them, and wgpu validates it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .program import Program, from_json, to_json

_MAGIC = "graph-mesh wgsl program"


class ProgramCache:
    """A folder of programs; `directory` None stores nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory / "wgsl" if directory is not None else None

    def read(self, key: str) -> Program | None:
        """The program under `key`, or None if there is none or it is damaged."""
        if self._directory is None:
            return None
        try:
            head, checksum, body = self._path(key).read_text("utf-8").split("\n", 2)
            if head != _MAGIC or checksum != _checksum(body):
                return None
            return from_json(body)
        except (OSError, ValueError):
            return None

    def write(self, key: str, program: Program) -> None:
        """Store a program; a full or read-only disk costs only the speed of the next start."""
        if self._directory is None:
            return
        body = to_json(program)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._directory, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(f"{_MAGIC}\n{_checksum(body)}\n{body}")
                os.replace(name, self._path(key))
            except OSError:
                os.unlink(name)
                raise
        except OSError:
            return

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{key}.json"


def cache_key(*parts: str | bytes | int | Sequence[object]) -> str:
    """A file name from everything the content depends on."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=24).hexdigest()


def _checksum(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
