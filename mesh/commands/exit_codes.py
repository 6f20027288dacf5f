"""Exit codes of both commands, one row each (docs/commands.md has the same table)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from wire import errors

OK = 0
FAILED = 1  # the work failed: an error of a worker, an engine or a graph
USAGE = 2  # a flag, an address, a file or an input is wrong; nothing was done
ENGINE_LOST = 3  # mesh-worker: an engine host died or hung
UNREACHABLE = 4  # a node did not answer, was lost, or belongs to another mesh or version
NOTHING_FITS = 5  # no plan fits the workers' memory or ops
CANCELLED = 6
TIMEOUT = 7

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


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command's work; an error becomes one line on stderr and its exit code, Ctrl-C becomes 0."""
    try:
        return work()
    except errors.MeshError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return code_of(error)
    except KeyboardInterrupt:
        return OK
    except BrokenPipeError:  # whoever read our output has enough
        sys.stderr.close()
        return OK
