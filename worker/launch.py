"""How this project starts a Python process of its own: the daemon its engine hosts, a mesh its local workers.

`python -P` keeps the current directory off the path, so a stray `wire.py` there is never imported; the folder that
holds the running packages is put on the child's path instead, also where the project is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_START = (
    "import sys; root = sys.argv.pop(1); module = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "import importlib; importlib.import_module(module).main()"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that calls `main()` of `module` in a new process, with `arguments` as sys.argv[1:]."""
    return [sys.executable, "-P", "-c", _START, str(_ROOT), module, *arguments]
