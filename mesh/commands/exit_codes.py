"""Exit codes of both commands, a row for each (docs/commands.md has the same table)."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from wire import errors
from wire.system.malloc import share_heap
from wire.system.steady_log import steady_logger
from wire.text import printable

from ..util.refusals import refusal
from ..util.units import counted
from .output import drop_output, end_output, open_streams, say, say_lines

log = steady_logger("graph_mesh.command")

OK = 0
FAILED = 1
USAGE = 2
ENGINE_LOST = 3
UNREACHABLE = 4
NOTHING_FITS = 5
CANCELLED = 6
TIMEOUT = 7
REPLACED = 8
INTERRUPTED = 130
TERMINATED = 143

MEANINGS: dict[int, str] = {
    OK: "done; a daemon that was told to stop has handed its work back",
    FAILED: "the work failed: an error of a worker, an engine, a graph or a disk; doctor: there is a problem",
    USAGE: "a flag, an address, a file or an input is wrong; nothing was done",
    ENGINE_LOST: "mesh-worker: its last device was lost again and again",
    UNREACHABLE: "a node did not answer, was lost, is busy, or belongs to another mesh or version",
    NOTHING_FITS: "no plan fits the workers' memory or ops",
    CANCELLED: "the job was cancelled",
    TIMEOUT: "a time limit was reached",
    REPLACED: "mesh-coord serve: another coordinator took over from it; started again, it follows that one",
    INTERRUPTED: "stopped by Ctrl-C or SIGTERM before it was done; an attached job is cancelled; or as for 143",
    TERMINATED: "a daemon that was told to stop twice ended at once; 130 where Ctrl-C was the second",
}

# The first row whose class fits decides; the tree's special cases stand before its general ones.
BY_ERROR: tuple[tuple[type[errors.MeshError], int], ...] = (
    (errors.PlacementError, NOTHING_FITS),
    (errors.LocalError, USAGE),
    (errors.GraphDecodeError, USAGE),
    (errors.RemoteError, UNREACHABLE),
    (errors.Cancelled, CANCELLED),
    (errors.DeadlineExceeded, TIMEOUT),
    (errors.MeshError, FAILED),
)


def code_of(error: errors.MeshError) -> int:
    """The exit code for an error."""
    return next(code for kind, code in BY_ERROR if isinstance(error, kind))


def epilog() -> str:
    """The table, as --help ends with it."""
    return "\n".join(["exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in MEANINGS.items())])


def run_command(name: str, work: Callable[[], int], interrupted: int = OK) -> int:
    """Run a command's work; an error becomes one line on stderr, with the log lines it brings, and its exit code.

    Ctrl-C and SIGTERM give `interrupted`, also before an event loop handles them.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    share_heap()  # before there are threads
    open_streams()
    try:
        try:
            code = work()
        except SystemExit as end:  # of the parser, which has printed its help or what is wrong
            if end.code:
                return int(end.code)
            code = OK
        end_output()
        return code
    except errors.MeshError as error:
        return _failed(name, error)
    except KeyboardInterrupt:
        return interrupted
    except BrokenPipeError:  # whoever read our output has enough
        drop_output(sys.stdout)
        return OK
    except OSError as error:  # of a folder that is another user's, say
        log.debug("the system refuses something", exc_info=error)
        return _failed(name, refusal("what this command needs", error))


def _failed(name: str, error: errors.MeshError) -> int:
    """Say why a command failed; its exit code."""
    with contextlib.suppress(errors.StorageError, BrokenPipeError):  # the code says it, too
        say_lines(f"{name}: {_line(error)}", file=sys.stderr)
        print_log(error)
    return code_of(error)


def print_log(error: errors.MeshError) -> None:
    """The last log lines of the worker that an error is about, where they came with it, on stderr."""
    if error.log_lines:
        say(f"  the last {counted(len(error.log_lines), 'log line')} of {error.node or 'the worker'}:", file=sys.stderr)
    for line in error.log_lines:
        say(f"    {line}", file=sys.stderr)


def _line(error: errors.MeshError) -> str:
    """The error in one line, or in one for each thing that it lists."""
    return "\n  ".join(printable(" ".join(line.split())) for line in str(error).split("\n  "))
