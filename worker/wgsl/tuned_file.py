"""The file of what was measured to be fastest: rows by device and shape class, for all workers of this user.

A row is of one device, which is an adapter with its driver, its limits and the version of the kernels.  A file that is
damaged, or of another format, counts as none and is made anew.  Before a form runs for the first time, that is written
down: one that took its process or the whole machine with it `TRIES_MAX` times is refused from then on.  The file holds
`ROWS_MAX` rows; those of other devices go first, then the oldest.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from wire.errors import ConfigError
from wire.limits import MIB
from wire.system.atomic_files import Disk
from wire.system.file_lock import UNLIMITED, FileLock
from wire.system.private_folder import make_private
from wire.system.steady_log import steady_logger
from wire.units import size_text

from .choices import Choices

logger = steady_logger(__name__)

FORMAT = 1
FILE, LOCK = "tuned.json", "tuned.lock"
ROWS_MAX = 1_024
BYTES_MAX = 4 * MIB
TRIES_MAX = 2  # once may have been an accident, or a user who pressed Ctrl-C


@dataclass(frozen=True, slots=True)
class Row:
    """`form` is the name of the fastest one: "" where the first guess is, None where nobody has finished measuring.

    `tries` counts the first runs that nobody saw the end of, by form, and `refused` says why a form is not to be run.
    """

    shape_class: str
    device: str  # a digest
    adapter: str  # these two are for people
    driver: str
    form: str | None = None
    guess_s: float = 0.0
    form_s: float = 0.0
    tries: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.device, self.shape_class


class TunedFile:
    """The rows of one device.  Without a folder, or with one that cannot be written, they last as long as this."""

    def __init__(
        self, folder: Path | None, device: str, adapter: str = "", driver: str = "", disk: Disk | None = None
    ) -> None:
        self._folder = folder
        self._device, self._adapter, self._driver = device, adapter, driver
        self._disk = disk or Disk()
        self._rows: dict[tuple[str, str], Row] = {}
        self._seen: tuple[int, int, int] | None = None  # the file when it was last read
        self._last_warning = ""
        self._choices = Choices()
        self._read()

    @property
    def choices(self) -> Choices:
        """What is chosen now, also by other processes: the same object for as long as nothing changes."""
        self._read()
        return self._choices

    def row(self, shape_class: str) -> Row:
        """What is known of a class."""
        self._read()
        none = Row(shape_class, self._device, self._adapter, self._driver)
        return self._rows.get((self._device, shape_class), none)

    def begin(self, shape_class: str, form: str) -> None:
        """A form is about to run for the first time."""
        self._change(shape_class, lambda row: replace(row, tries={**row.tries, form: row.tries.get(form, 0) + 1}))

    def end(self, shape_class: str, form: str, refused: str = "") -> None:
        """A form has run, or it is `refused` for this reason."""

        def ended(row: Row) -> Row:
            tries = {name: count for name, count in row.tries.items() if name != form}
            return replace(row, tries=tries, refused={**row.refused, form: refused} if refused else row.refused)

        self._change(shape_class, ended)

    def choose(self, shape_class: str, form: str, guess_s: float, form_s: float) -> None:
        """A class has been measured."""
        self._change(shape_class, lambda row: replace(row, form=form, guess_s=guess_s, form_s=form_s))

    # -- the file

    def _change(self, shape_class: str, change: Callable[[Row], Row]) -> None:
        with ExitStack() as stack:
            if self._folder is not None:
                try:
                    make_private(self._folder)
                    stack.enter_context(FileLock(self._folder / LOCK, UNLIMITED))
                except (OSError, ConfigError) as error:
                    self._keep_none(error)
            row = change(self.row(shape_class))
            self._rows.pop(row.key, None)
            self._rows[row.key] = row
            self._trim()
            self._write()
        self._choose()

    def _trim(self) -> None:
        excess = len(self._rows) - ROWS_MAX
        if excess > 0:
            by_age = sorted(self._rows.values(), key=lambda row: row.device == self._device)  # else as they are
            for row in by_age[:excess]:
                del self._rows[row.key]

    def _write(self) -> None:
        if self._folder is None:
            return
        rows = [asdict(row) for row in self._rows.values()]
        data = json.dumps({"format": FORMAT, "rows": rows}, indent=1).encode()
        try:
            self._disk.write_whole(self._folder / FILE, [data], writer=f".{secrets.token_hex(8)}")
            self._seen = _stamp(self._folder / FILE)
        except OSError as error:
            self._keep_none(error)

    def _keep_none(self, error: Exception) -> None:
        """Write no more: what is measured lasts as long as this process."""
        logger.warning("what was measured is not kept in %s: %s", self._folder, error)
        self._folder = None

    def _read(self) -> None:
        if self._folder is None:
            return
        path = self._folder / FILE
        try:
            seen = _stamp(path)
            if seen == self._seen:
                return
            self._seen = seen
            rows = _rows_in(path)
        except FileNotFoundError:
            rows = {}
        except ValueError as error:
            self._tell(f"{path} is made anew: {error}")
            rows = {}
        except OSError as error:
            self._tell(f"{path} cannot be read: {error}")
            rows = {}
        self._rows = rows
        self._choose()

    def _tell(self, what: str) -> None:
        """Log it, but not at every look at a file that stays as it is."""
        if what != self._last_warning:
            self._last_warning = what
            logger.warning("%s", what)

    def _choose(self) -> None:
        names = {row.shape_class: row.form for row in self._rows.values() if row.device == self._device and row.form}
        if names != self._choices.names:
            self._choices = Choices(names)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _rows_in(path: Path) -> dict[tuple[str, str], Row]:
    """The rows of a file; ValueError if it is not such a file."""
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"it has more than {size_text(BYTES_MAX)}")
    try:
        content: Any = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, and not {FORMAT}")
        rows = [_row_of(fields) for fields in content["rows"][-ROWS_MAX:]]
    except (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from None
    return {row.key: row for row in rows}


def _row_of(values: Mapping[str, Any]) -> Row:
    row = Row(**values)
    texts = (row.shape_class, row.device, row.adapter, row.driver, row.form or "", *row.tries, *row.refused.values())
    counts = all(isinstance(count, int) for count in row.tries.values())
    seconds = all(isinstance(value, float | int) and 0 <= value < math.inf for value in (row.guess_s, row.form_s))
    if len(values) != len(fields(Row)) or not (all(isinstance(text, str) for text in texts) and counts and seconds):
        raise ValueError("it is damaged (a row has other fields)")
    return row
