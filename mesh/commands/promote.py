"""`mesh-coord promote`: the operator's word that a standby takes over, where no majority of voters can say so.

It works on this user's standby on this machine, by a file in its state folder.
"""

from __future__ import annotations

import argparse
import json
import time

from wire.errors import ConfigError, DeadlineExceeded
from wire.link.membership import COORDINATOR_FILE
from wire.standby.standby_file import PROMOTE_FILE
from wire.system.file_lock import FileLock

from ..backends.config import coordinator_folder
from .exit_codes import OK
from .flags import mesh_name
from .output import say

ANSWER_S = 30.0
POLL_S = 0.05


def promote(options: argparse.Namespace) -> int:
    """Have a standby take over, and wait until it serves."""
    folder = coordinator_folder(mesh_name(options), options.name, options.state_dir)
    lock = FileLock(folder / "jobs" / "lock") if (folder / "jobs").exists() else None
    runs = lock is not None and not lock.try_acquire()
    if lock is not None:
        lock.release()
    if not runs or (folder / COORDINATOR_FILE).exists():
        raise ConfigError(
            f"no standby called {options.name!r} follows a coordinator here",
            next_step="Name it with --name, or start it: mesh-coord serve --standby HOST:PORT",
        )
    word = folder / PROMOTE_FILE
    word.touch(mode=0o600)
    deadline_s = time.monotonic() + ANSWER_S
    while not (folder / COORDINATOR_FILE).exists():
        if time.monotonic() > deadline_s:
            word.unlink(missing_ok=True)
            raise DeadlineExceeded(f"the standby does not serve after {ANSWER_S:g} s", next_step="See its log")
        time.sleep(POLL_S)
    if options.json:
        say(json.dumps({"name": options.name, "serves": True}))
    else:
        say(f"{options.name} serves now; workers and clients that reach it refuse the former coordinator")
    return OK
