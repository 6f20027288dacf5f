"""The audit log: who was let in, refused, renewed and thrown out, in lines that cannot be changed unnoticed.

One JSON object per line; each has the SHA-256 of the line before it, so a changed, removed or inserted line breaks the
chain from there on.  A file that is full gets a number, and the next one continues its chain.  `verify` checks all.
It does not know what the events mean; a process that writes holds the folder's lock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError
from wire.limits import MIB
from wire.system.atomic_files import Disk

NAME = "audit.jsonl"
BYTES_MAX = 64 * MIB  # of one file, then the next begins
TEXT_MAX = 200  # characters of one value: much of it is what strangers said
FIRST = "0" * 64  # what the first line of all has for the line before it
_NUMBERED = re.compile(r"audit\.(\d{6})\.jsonl")
_TAIL_BYTES = 64 << 10  # more than a line has


class AuditLog:
    """Appends to the log in `folder`; a line is on the disk when `append` returns."""

    def __init__(self, folder: Path, disk: Disk | None = None, bytes_max: int = BYTES_MAX) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._bytes_max = bytes_max

    @property
    def path(self) -> Path:
        return self._folder / NAME

    def append(self, event: str, time_s: float, **fields: str) -> None:
        """Add a line; OSError if the disk refuses, and then no line was added."""
        last = self._last_line()
        if last and self.path.stat().st_size >= self._bytes_max:
            self._disk.replace(self.path, self._folder / f"audit.{_next_number(self._folder):06}.jsonl")
        harmless = {name: _safe(value) for name, value in fields.items() if value}
        line = json.dumps({"prev": _hash(last), "time": round(time_s, 3), "event": event, **harmless}).encode() + b"\n"
        self._disk.append(self.path, line)

    def _last_line(self) -> bytes:
        """The newest line, b"" if there is none; half a line that a crash left is cut off."""
        for path in (self.path, *reversed(_numbered(self._folder))):
            if path.exists() and path.stat().st_size:
                with path.open("rb+") as file:
                    end = file.seek(0, 2)
                    start = file.seek(max(0, end - _TAIL_BYTES))
                    tail = file.read()
                    end_of_lines = tail.rfind(b"\n") + 1
                    if end_of_lines < len(tail):
                        file.truncate(start + end_of_lines)
                if end_of_lines:
                    return tail[:end_of_lines].rstrip(b"\n").rpartition(b"\n")[2]
        return b""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify`: the number of lines in the chain, and where it breaks, "" if nowhere."""

    lines: int
    broken: str = ""


def verify(folder: Path) -> Verdict:
    """Walk the whole chain.  Lines cut off at its end leave no trace in it: compare their number with an older one."""
    count, before = 0, b""
    for path in (*_numbered(folder), folder / NAME):
        for number, line in enumerate(_lines(path), 1):
            if _prev(line) != _hash(before):
                return Verdict(count, f"{path.name}:{number}")
            count, before = count + 1, line
    return Verdict(count)


# -- helpers -----------------------------------------------------------------------------------------------


def _numbered(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("audit.*.jsonl") if _NUMBERED.fullmatch(path.name))


def _next_number(folder: Path) -> int:
    """The number after that of the newest full file: the first of them may be archived elsewhere."""
    newest = [int(path.name.split(".")[1]) for path in _numbered(folder)[-1:]]
    return max(newest, default=0) + 1


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        try:
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):  # else a crash left half a line, which was never acknowledged
                        yield line[:-1]
        except OSError as error:
            raise ConfigError(f"cannot read {path}", cause=str(error)) from None


def _prev(line: bytes) -> str:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(event.get("prev", "")) if isinstance(event, dict) else ""


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else FIRST


def _safe(text: str) -> str:
    """Text of a stranger, made harmless for a terminal and cut to TEXT_MAX."""
    shown = "".join(char if char.isprintable() else "?" for char in text[: TEXT_MAX + 1])
    return shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…"
