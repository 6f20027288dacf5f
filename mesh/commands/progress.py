"""Progress of long work on stderr: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wire.text import printable
from wire.units import size_text

from .output import say

Report = Callable[[str, int, int, int], None]  # a file, its bytes that are there and in all, those of all files
Advance = Callable[[float, str], None]  # how much is done in all, and a line about it ("": none)


@contextmanager
def progress(what: str, total: float, shown: bool) -> Iterator[Advance]:
    """Show how far `what` is, out of `total`; lines are printed above the bar or, without one, by themselves."""
    if not shown:
        yield lambda done, line: None
    elif not sys.stderr.isatty():
        yield _plain
    else:
        with _bar(what, total) as advance:
            yield advance


def _plain(done: float, line: str) -> None:
    if line:
        say(line, file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str, total: float) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as drawn:
        task = drawn.add_task(what, total=total)

        def advance(done: float, line: str) -> None:
            drawn.update(task, completed=min(done, total))
            if line:
                drawn.console.print(printable(line), markup=False)

        yield advance


@contextmanager
def download_progress(shown: bool) -> Iterator[Report | None]:
    """Bytes, their rate and the time left of each file: a bar on a terminal, a line at its end elsewhere."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as drawn:

        def report(file: str, count: int, size_bytes: int, model_bytes: int) -> None:
            if file not in tasks:
                tasks[file] = drawn.add_task(file, total=size_bytes)
            drawn.update(tasks[file], completed=count)
            if count == size_bytes and not console.is_terminal:
                say(f"{file}: {size_text(size_bytes)}", file=sys.stderr, flush=True)

        yield report
