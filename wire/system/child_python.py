"""How this project starts a Python process of its own to speak with by its pipes, and that process's end of them.

`python -P` keeps the current directory off the path, so a stray `wire.py` there is never imported; the folder that
holds the running packages is put on the child's path instead, also where the project is not installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# A terminal sends Ctrl-C to its whole process group. Such a process is not asked: its parent ends it, by its pipes.
_START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import sys; root = sys.argv.pop(1); module = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(module).main()"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that calls `main()` of `module` in a new process, with `arguments` as sys.argv[1:]."""
    return [sys.executable, "-P", "-c", _START, str(_ROOT), module, *arguments]


def take_stdio() -> tuple[int, int]:
    """The pipes of such a process, to read and to write, moved away from stdin and stdout: what a library prints goes
    to stderr, not among messages."""
    receive_fd, send_fd = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return receive_fd, send_fd
