"""`mesh-coord serve` that kills itself with SIGKILL at the Nth step of writing its journal.

    python -m support.processes.dying_coordinator PORT STATE_DIR LOG        then one line on stdin per life: N, or 0 for
    none

A process that has everything imported forks one coordinator per line, so that a life costs a tenth of a second.  On
stdout: the coordinator's own line when it is ready, and {"event": "died", ...} when it is no more.  The hook lives here
and not in the product: it replaces what wire.system.atomic_files and coordinator.jobs.journal call.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mesh.commands import coord, serve
from mesh.commands.coord import main
from wire.system.atomic_files import Data, Disk

assert coord and serve  # imported here, so that no life has to


class Bomb:
    """Goes off at step `at`; 0: never."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(bomb: Bomb) -> None:
    """Count every step by which something gets onto the disk, before it and after it."""

    class Connection(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            if args[0].startswith("PRAGMA"):
                return super().execute(*args)
            bomb.step()
            cursor = super().execute(*args)
            bomb.step()
            return cursor

        def executemany(self, *args: Any) -> sqlite3.Cursor:
            bomb.step()
            cursor = super().executemany(*args)
            bomb.step()
            return cursor

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **named: connect(*args, factory=Connection, **named)  # type: ignore[assignment]

    def counted(step: Callable[..., None]) -> Callable[..., None]:
        def stepping(*args: Any) -> None:
            bomb.step()
            step(*args)
            bomb.step()

        return stepping

    def write(self: Disk, fd: int, data: Data) -> None:
        os.write(fd, memoryview(data)[: len(data) // 2])
        bomb.step()
        os.write(fd, memoryview(data)[len(data) // 2 :])

    Disk.write = write  # type: ignore[method-assign]
    for name in ("sync", "replace", "remove"):
        setattr(Disk, name, counted(getattr(Disk, name)))


def live(at: int, port: str, state_dir: str, log: Path) -> None:
    """One life of a coordinator, in a process of its own."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    arm(Bomb(at))
    main(["serve", "--port", port, "--no-mdns", "--json", "--state-dir", state_dir, "--host", "127.0.0.1"])


def run(port: str, state_dir: str, log: Path) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(int(line), port, state_dir, log)
            os._exit(1)  # main exits by itself
        _, status = os.waitpid(child, 0)
        print(json.dumps({"event": "died", "status": status}), flush=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
