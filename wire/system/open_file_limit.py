"""How many files a process may have open: systems begin with 256 or 1,024, and every link takes two."""

from __future__ import annotations

import contextlib
import sys

WANTED = (65_536, 10_240)  # the most that is asked for, as some systems allow a billion; and what macOS gives at most


def allow_open_files() -> None:
    """Raise this process's own limit of open files as far as the system lets it, up to 65,536.

    Nothing changes for a process that stays below the limit it had.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    for wanted in WANTED:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= most:
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_files_max() -> int:
    """How many files this process may have open now."""
    try:
        import resource
    except ImportError:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
