"""Measurements of a device, taken once per adapter and driver and kept.

They are kept per user and not per worker, and taken one at a time: several workers that start together on one machine
would otherwise measure each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path

from wire.errors import ConfigError
from wire.system.file_lock import UNLIMITED, FileLock
from wire.system.private_folder import make_private

from ..engine.protocol import Engine, Measured

FORMAT = 3  # of the kept figures; another number is measured anew


def measured(engine: Engine, folder: Path) -> Measured:
    """The engine's figures, from `folder` if they are there."""
    info = engine.info
    identity = json.dumps(
        [FORMAT, info.engine, info.adapter, info.backend, info.driver, os.cpu_count(), dict(info.limits)]
    )
    path = folder / f"{hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()}.json"
    with contextlib.ExitStack() as stack:
        try:
            make_private(folder)
            stack.enter_context(FileLock(folder / "measuring.lock", UNLIMITED))
        except (OSError, ConfigError):
            return engine.measure()  # nowhere to keep them
        kept = _read(path)
        if kept is None:
            kept = engine.measure()
            _write(path, kept)
    return kept


def _read(path: Path) -> Measured | None:
    try:
        fields = json.loads(path.read_text())
        figures = Measured(**{name: float(value) for name, value in fields.items()})
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not all(0 <= value < math.inf for value in asdict(figures).values()):
        return None
    return figures if min(figures.gflops, figures.gbytes_per_s) > 0 else None


def _write(path: Path, figures: Measured) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(figures)))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk costs the next start 0.3 s
