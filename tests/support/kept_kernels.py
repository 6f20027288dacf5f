"""Native engines whose machine code is kept in a folder of this run of the tests, which all of its processes share.

To compile takes most of the time of a test that computes a small graph, and many tests compile the same kernels.  An
object's name is a digest of what it was made from (worker/native/objects.py), so what another test made is what this
one would have made.  A test of memory, of figures or of the folder itself makes its engine without this.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.native.engine import NativeEngine

VARIABLE = "PYTEST_KEPT_KERNELS"  # the folder, for the processes of pytest-xdist


def make_folder() -> None:
    """Make the folder of a run of the tests: in the process that starts the others, before it does."""
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="pytest-kernels-")


def remove_folder() -> None:
    shutil.rmtree(os.environ.pop(VARIABLE), ignore_errors=True)


def folder() -> Path:
    return Path(os.environ[VARIABLE])


def native_engine(**options: Any) -> NativeEngine:
    """An engine with these options of NativeEngine.  Whoever asks closes it."""
    from worker.native.engine import NativeEngine  # which conftest.py needs not have

    return NativeEngine(folder=folder(), **options)
