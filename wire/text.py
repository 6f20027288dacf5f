"""Text of others: what a peer said, made safe to show.  Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """Give whatever does not print as an escape sequence of Python: no control character reaches a terminal, and no
    line is forged.  The space prints; a line break does not."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def printable_lines(text: str) -> str:
    """Make a text of several lines printable: those after the first are indented, if they are not already."""
    if text.isprintable():
        return text
    first, *others = map(printable, text.split("\n"))
    return "\n".join((first, *(line if line.startswith("  ") else f"    {line}" for line in others)))


def well_formed(text: str) -> str:
    """Text that UTF-8 can hold: half of a surrogate pair, as the names of files may have, becomes its escape
    sequence."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
