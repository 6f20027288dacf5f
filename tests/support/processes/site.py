"""A coordinator daemon and workers that joined it, as processes of commands, and what a test asks of them.

`site` starts both; a test that ends its coordinator and starts another takes `serving` and `working` alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .commands import Daemon, daemon, environment, job_log, jobs, node_states, run, wait_for

SERVE = ("coord", "serve", "--no-mdns", "--preset", "test")
WORKER = ("worker", "--port", "0", "--no-mdns", "--device", "cpu")


@dataclass(slots=True)
class Site:
    """A coordinator with workers, and an environment that finds it."""

    folder: Path
    env: dict[str, str]
    coordinator: Daemon
    workers: dict[str, Daemon]

    def ask(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """What `mesh-coord` says, run in the folder."""
        return run("coord", *arguments, env={**self.env, **env}, cwd=self.folder)

    def json(self, *arguments: str) -> Any:
        """The same as JSON, of a command that ends well."""
        done = self.ask(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def state(self, job: str) -> str:
        return jobs(self.coordinator)[job]

    def log_of(self, job: str) -> str:
        return job_log(self.coordinator, job)


S = TypeVar("S", bound=Site)


def serving(folder: Path, env: Mapping[str, str], *more: str, port: int | str = 0) -> AbstractContextManager[Daemon]:
    """`mesh-coord serve` on a port, with what it kept in the folder; it takes no busy worker for a dead one."""
    return daemon(*SERVE, "--port", str(port), *more, env=env, log=folder / "coordinator.log")


@contextmanager
def working(folder: Path, env: Mapping[str, str], peer: str, names: Sequence[str]) -> Iterator[dict[str, Daemon]]:
    """Workers of these names, which dial a "host:port" until a coordinator is there, and again whenever it is gone."""
    words = (*WORKER, "--peer", peer)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(daemon(*words, "--name", name, env=env, log=folder / f"{name}.log"))
            for name in names
        }


@contextmanager
def site(folder: Path, mesh: str, names: Sequence[str] = ("one", "two"), kind: type[S] = Site) -> Iterator[S]:
    """A coordinator with these workers, which have joined it; of a `kind` that may ask for more."""
    folder.mkdir(exist_ok=True)
    env = environment(folder, MESH_NAME=mesh)
    with ExitStack() as stack:
        coordinator = stack.enter_context(serving(folder, env))
        env["MESH_ADDRESS"] = coordinator.address
        workers = stack.enter_context(working(folder, env, coordinator.address, names))
        wait_for(lambda: node_states(coordinator) == dict.fromkeys(names, "healthy"))
        yield kind(folder, env, coordinator, workers)
