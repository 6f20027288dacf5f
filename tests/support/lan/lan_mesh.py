"""A mesh on the hosts of a Lan, as people run it: `mesh-coord serve` on one, `mesh-worker join` on others.

Every process has folders of its own, and tokens travel by MESH_TOKEN.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.audit_events import read_events
from support.lan.namespaces import Host
from support.processes.commands import COMES_TRUE_S, READY_S, command, environment

from coordinator.authority.audit_log import verify
from coordinator.authority.authority import Authority
from mesh.commands.exit_codes import UNREACHABLE

MESH = "home"
TOKEN = re.compile(r"gm1_[a-z2-7]{92}")
TRIES_MAX = 3
EVENTS_MAX = 10_000


class LoggedProcess:
    """A process and what it said."""

    def __init__(self, process: subprocess.Popen[Any], said: Path) -> None:
        self.process = process
        self._said = said

    def lines(self) -> list[str]:
        return self._said.read_text().splitlines()

    def ended(self, within_s: float = READY_S) -> int:
        return self.process.wait(within_s)


class LanMesh:
    """`mesh-coord serve` on `host`, and the line and token that it printed."""

    def __init__(self, host: Host, folder: Path, *arguments: str, mesh: str = MESH) -> None:
        self.host, self.mesh, self._folder = host, mesh, folder
        self._env = environment(folder / "coordinator")
        self.coordinator = self.daemon(host, "coordinator", "coord", "serve", "--mesh", mesh, *arguments)
        until(lambda: TOKEN.search(self._text()) is not None)
        (self.token,) = TOKEN.findall(self._text())
        self.line = next(line.split() for line in self.coordinator.lines() if line.startswith("    mesh-worker"))

    def worker(self, host: Host, name: str, *arguments: str, token: str | None = None) -> LoggedProcess:
        """Type the printed line on another host; with other `arguments` than it has, or another token ("": none)."""
        more = {} if token == "" else {"MESH_TOKEN": self.token if token is None else token}
        assert self.line == ["mesh-worker", "join"]
        return self.daemon(host, name, "worker", "join", "--name", name, "--device", "cpu", *arguments, **more)

    def start(self, host: Host, name: str, *arguments: str) -> LoggedProcess:
        """`mesh-worker` of a machine that may have joined before."""
        return self.daemon(host, name, "worker", "--name", name, "--mesh", self.mesh, "--device", "cpu", *arguments)

    def coord(self, *arguments: str) -> Any:
        """What a command of the coordinator's user says on its machine.  A busy one may answer it too late."""
        words = command("coord", "--mesh", self.mesh, "--json", *arguments)
        for _ in range(TRIES_MAX):
            done = self.host.run(*words, env=self._env)
            if done.returncode != UNREACHABLE:
                break
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def authority(self) -> Authority:
        """The mesh's authority, opened as a command of the coordinator's user opens it."""
        (folder,) = (self._folder / "coordinator").rglob("audit.jsonl")
        return Authority(folder.parent, self.mesh)

    def nodes(self) -> dict[str, str]:
        """The state of every worker, as `mesh-coord nodes` shows it."""
        return {node["name"]: node["state"] for node in self.coord("nodes")}

    def audit(self) -> list[dict[str, Any]]:
        """The audit log, which must be whole."""
        (folder,) = (self._folder / "coordinator").rglob("audit.jsonl")
        assert not verify(folder.parent).broken
        return list(read_events(folder.parent, EVENTS_MAX))

    def _text(self) -> str:
        return "\n".join(self.coordinator.lines())

    def daemon(self, host: Host, name: str, program: str, *arguments: str, **more: str) -> LoggedProcess:
        """A command that goes on, with a folder of this name."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        said = folder / "said"
        with said.open("w") as out:
            process = host.start(
                *command(program, *arguments),
                env=environment(folder, **more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        return LoggedProcess(process, said)


def until(holds: Callable[[], bool], within_s: float = COMES_TRUE_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(0.05)


def errors(lines: Sequence[str]) -> list[str]:
    """What a command says last before it gives up."""
    return [line for line in lines if line.startswith("mesh-worker:")]
