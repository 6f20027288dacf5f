"""Watches a mesh on the coordinator's host: a line of JSON for every change of a worker's state, with its time.

`LanWatcher` is the test's end of it; the clock is the machine's monotonic one, which all hosts of a Lan share.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from support.lan.lan_mesh import LanMesh, until
from support.processes.commands import ROOT, environment

from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from wire.addresses import PORT

LOOK_S = 0.01


class LanWatcher:
    """The watcher, started; it ends with its host."""

    def __init__(self, mesh: LanMesh, folder: Path) -> None:
        env = environment(folder / "coordinator") | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
        self._said = folder / "watched"
        with self._said.open("w") as out:
            words = [sys.executable, "-m", "support.lan.lan_watcher", mesh.mesh]
            mesh.host.start(*words, env=env, stdin=subprocess.DEVNULL, stdout=out)
        until(lambda: bool(self._changes()))

    def first(self, name: str, state: str, after_s: float, within_s: float = 120.0) -> float:
        """When the worker got into this state first after a time, waited for."""
        until(lambda: self._first(name, state, after_s) is not None, within_s)
        found = self._first(name, state, after_s)
        assert found is not None
        return found

    def _first(self, name: str, state: str, after_s: float) -> float | None:
        matching = (at_s for at_s, who, what in self._changes() if (who, what) == (name, state) and at_s > after_s)
        return next(matching, None)

    def _changes(self) -> list[tuple[float, str, str]]:
        return [tuple(json.loads(line)) for line in self._said.read_text().splitlines() if line.endswith("]")]


async def watch(mesh: str) -> None:
    remote = await Remote.connect(mesh, "127.0.0.1", PORT, client_membership(mesh))
    states: dict[str, str] = {}
    while True:
        now = {node.name: node.state for node in await remote.nodes()}
        for name, state in now.items():
            if states.get(name) != state:
                print(json.dumps([time.monotonic(), name, state]), flush=True)
        states = now
        await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
