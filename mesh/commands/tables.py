"""Tables of text: drawn by rich on a terminal, plain aligned columns elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wire.text import printable

from ..util.units import time_text
from .output import say

if TYPE_CHECKING:
    from wire.protocol.messages import PairReport


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header."""
    rows = [tuple(map(printable, row)) for row in rows]
    if sys.stdout.isatty():
        _print_rich(header, rows)
        return
    lines = [tuple(header), *[tuple(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_records(header: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool) -> None:
    """Print rows under a header, or as a JSON list of objects whose keys are the header."""
    if as_json:
        say(json.dumps([dict(zip(header, row, strict=True)) for row in rows]))
    else:
        print_table(header, rows)


def print_pairs(pairs: Sequence[PairReport]) -> None:
    """Print which nodes reach each other, by which path, how fast, and why not."""
    rows = [
        (
            pair.source,
            pair.target,
            pair.path,
            time_text(pair.rtt_s) if pair.rtt_s else "",
            f"{pair.bytes_per_s * 8 / 1e6:.0f}" if pair.bytes_per_s else "",
            pair.address,
            pair.cause,
        )
        for pair in pairs
    ]
    print_table(("from", "to", "path", "RTT", "Mbit/s", "dialled", "why not"), rows)


def pair_fields(pair: PairReport) -> dict[str, Any]:
    """The fields of a pair, for JSON."""
    return {name: getattr(pair, name) for name in pair.__struct_fields__}


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if console.width < sum(len(title) + 2 for title in header):  # too narrow for columns: rich would show nothing
        for row in rows:
            cells = [Text(f"{title}: {cell}") for title, cell in zip(header, row, strict=True) if cell]
            console.print(*cells, "", sep="\n")
        return
    table = Table(box=None, header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold")  # an id or an address that is cut off is of no use
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    console.print(table)
