"""The events of an audit log, whose chain `coordinator.authority.audit_log.verify` checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_events(folder: Path, last: int) -> list[dict[str, Any]]:
    """The newest events, the oldest of them first."""
    files = [*sorted(folder.glob("audit.*.jsonl")), folder / "audit.jsonl"]
    lines = [line for path in files if path.exists() for line in path.read_bytes().splitlines()]
    return [json.loads(line) for line in lines[-last:]]
