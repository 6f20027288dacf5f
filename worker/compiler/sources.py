"""The version of what is compiled: a digest of the sources that make it, which nobody can forget to raise."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def sources_version(printer: Path) -> str:
    """A digest of the sources of a printer, a folder, and of the passes here."""
    sources = sorted(path for folder in (printer, Path(__file__).parent) for path in folder.rglob("*.py"))
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sources), digest_size=32).hexdigest()
