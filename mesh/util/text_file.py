"""Text files that people name: read whole, but no more than such a file has, since a device may never end."""

from __future__ import annotations

from pathlib import Path

from wire.limits import TEXT_FILE_CHARS_MAX


def read_text(path: Path) -> str:
    """The text of a file; OSError if it cannot be read or is too long, UnicodeDecodeError if it is no text."""
    with path.open(encoding="utf-8") as file:
        text = file.read(TEXT_FILE_CHARS_MAX + 1)
    if len(text) > TEXT_FILE_CHARS_MAX:
        raise OSError(f"it has more than {TEXT_FILE_CHARS_MAX:,} characters")
    return text
