"""What launched ranks leave, or do not."""

from __future__ import annotations

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process runs (Linux); one that ended and waits to be collected does not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return False
