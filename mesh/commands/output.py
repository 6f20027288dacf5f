"""Output: all that a command prints goes through here, since much of it is what other machines said."""

from __future__ import annotations

import sys
from typing import TextIO

from wire.text import printable


def say(text: object = "", file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print one line, in which everything that is no plain character stands as its code, a new line as well."""
    print(printable(str(text)), file=sys.stdout if file is None else file, end=end, flush=flush)


def say_lines(text: object, file: TextIO | None = None, end: str = "\n") -> None:
    """Print text that may have lines and tabs, as ours or a model's has; all else in it is as harmless."""
    lines = ("\t".join(map(printable, line.split("\t"))) for line in str(text).split("\n"))
    print("\n".join(lines), file=sys.stdout if file is None else file, end=end, flush=True)
