"""Tables for people: drawn by rich on a terminal, plain aligned columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header."""
    if sys.stdout.isatty():
        _print_rich(header, rows)
        return
    lines = [tuple(header), *[tuple(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for title in header:
        table.add_column(title)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    Console().print(table)
