"""A change of a mesh's authority whose process is killed at a step of the disk.

    python -m support.processes.dying_rotation FOLDER MESH STEP

Ends by SIGKILL before that step; where the change takes fewer steps it is made whole and "done" printed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from coordinator.authority.authority import Authority
from wire.system.atomic_files import Data, Disk


class Dying(Disk):
    """Counts the steps that a disk takes, and kills this process before one."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, fd: int, data: Data) -> None:
        self._step()
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def replace(self, old: str | Path, new: str | Path) -> None:
        self._step()
        super().replace(old, new)

    def remove(self, path: str | Path) -> None:
        self._step()
        super().remove(path)


if __name__ == "__main__":
    folder, mesh, step = sys.argv[1:]
    Authority(Path(folder), mesh, disk=Dying(int(step))).rotate()
    print("done")
