"""`mesh-worker pause` and `resume`: the user of a machine takes it back at once, and lends it again later.

They work on this user's workers of one mesh on this machine, by files in their state folders
(`worker/daemon/pause_file.py`).
"""

from __future__ import annotations

import argparse
import json
import time

from wire.errors import ConfigError, DeadlineExceeded
from wire.system.private_folder import state_root
from worker.daemon.pause_file import FINISHING, PAUSED, SERVING, PauseFiles, workers_in
from worker.daemon.state_folder import name_here
from worker.state.availability import MACHINE

from .exit_codes import OK
from .flags import node_name
from .output import say

ANSWER_S = 10.0  # a worker looks four times a second; a part in flight stops after its dispatch
POLL_S = 0.05
STOPPED = "stopped"
SAYINGS = {
    PAUSED: "{name} is paused: its work goes elsewhere; lend it again with: mesh-worker resume",
    FINISHING: "{name} takes no work any more; a part that it has begun is not over yet",
    SERVING: "{name} works again",
    STOPPED: "{name} does not run; it will be {then} when it starts",
}


def set_pause(options: argparse.Namespace, mesh: str, on: bool) -> int:
    """Pause workers or end their pause, and wait until they say so."""
    chosen = _chosen(mesh, node_name(options), options.state_dir)
    for files in chosen:
        files.set_wish(MACHINE if on else "")
    states = {files.folder.name: _await(files, on) for files in chosen}
    if options.json:
        say(json.dumps([{"name": name, "state": state} for name, state in states.items()]))
        return OK
    for name, state in states.items():
        say(SAYINGS[state].format(name=name, then="paused" if on else "at work"))
    return OK


def _chosen(mesh: str, name: str, state_dir: str) -> list[PauseFiles]:
    """The worker of that name, or all that run."""
    here = workers_in(state_root(state_dir) / mesh)
    chosen = [files for files in here if (files.folder.name == name_here(name) if name else files.running)]
    if chosen:
        return chosen
    known = ", ".join(files.folder.name for files in here)
    raise ConfigError(
        f"this user has no worker called {name!r} in mesh {mesh!r} here"
        if name
        else f"no worker of mesh {mesh!r} runs",
        next_step=f"There are: {known}; name one with --name" if known else "Name the mesh with --mesh",
    )


def _await(files: PauseFiles, on: bool) -> str:
    """The state that the worker reports."""
    deadline_s = time.monotonic() + ANSWER_S
    wanted = PAUSED if on else SERVING
    while files.running:
        duty = files.duty()
        if duty == wanted:
            return duty
        if time.monotonic() >= deadline_s:
            break
        time.sleep(POLL_S)
    else:
        return STOPPED
    if on and duty == FINISHING:
        return duty
    raise DeadlineExceeded(
        f"the worker {files.folder.name} did not answer within {ANSWER_S:g} s", next_step="Does it hang? See its log"
    )
