"""Output: all that a command prints goes through here, since much of it is what other machines said."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from wire.errors import StorageError
from wire.text import printable


def say(text: object = "", file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print one line, in which everything that is no plain character stands as its code, a new line as well."""
    _write(printable(str(text)), file, end, flush)


def say_lines(text: object, file: TextIO | None = None, end: str = "\n") -> None:
    """Print text that may have lines and tabs, as ours or a model's has; all else in it is as harmless."""
    lines = ("\t".join(map(printable, line.split("\t"))) for line in str(text).split("\n"))
    _write("\n".join(lines), file, end, True)


def end_output() -> None:
    """Write what is left of stdout; StorageError if that cannot be."""
    _write("", None, "", True)


def drop_output(file: TextIO) -> None:
    """Let what is left of a stream go nowhere: the end of the process would try to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def open_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr empty ones, and print as its code what the
    encoding of stdout does not have.

    Its files and sockets would get their numbers, and what it prints for one would come out of another.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # as of the streams that a process has, for those that it starts
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # names are of any language, and pipes of Windows of one
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def written_to(stream: TextIO) -> Iterator[None]:
    """Write to a stream in this block; StorageError if that cannot be."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output(stream)
        raise StorageError("the output cannot be written", cause=error.strerror or "") from None


def _write(text: str, file: TextIO | None, end: str, flush: bool) -> None:
    stream = sys.stdout if file is None else file
    with written_to(stream):
        print(text, file=stream, end=end, flush=flush)
