"""The commands as people run them: `mesh-worker` and `mesh-coord` as processes, with folders of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mesh import Mesh
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from wire.security.user_secret import SECRET_FILE, SECRET_FOLDER, user_secret
from wire.system.private_folder import APP, private_folder
from wire.timeouts import PRESETS

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
READY_S = 120.0  # on a machine with much else to do
RUN_S = 240.0
STATE_HOME = "xdg_state_home"  # in the folder of an environment, which makes it unless it is there
PATIENT_S = PRESETS["test"].node_timeout_s  # what is silent is this machine, which has much else to do
COMES_TRUE_S = 120.0  # a hang, and not a busy machine
CALLS_MAX = 50  # after which plans should have settled


@dataclass(slots=True)
class Daemon:
    """A daemon that said it is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path
    env: Mapping[str, str]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ready['port']}"

    def stop(self, number: int, within_s: float = COMES_TRUE_S) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which nothing of this user is read or written, but for the secret by which its nodes know each
    other: it is this user's all the same."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MESH_", "XDG_"))}
    folders = {name: str(folder / name.lower()) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")}
    same_user(Path(folders["XDG_STATE_HOME"]))
    return {**own, **folders, "PYTHONPATH": str(ROOT), **more}


def same_user(state_home: Path) -> None:
    """Have processes with another XDG_STATE_HOME know this user's nodes, as they would with the same."""
    secret = private_folder(state_home / APP / SECRET_FOLDER) / SECRET_FILE
    secret.touch(0o600)
    secret.write_bytes(user_secret())


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"mesh.commands.{name}", *arguments]


def run(
    name: str, *arguments: str, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(name, *arguments), env=env, cwd=cwd, capture_output=True, text=True, timeout=RUN_S, check=False
    )


async def client_of(coordinator: Daemon) -> Remote:
    """A client of a coordinator, as the user who runs it."""
    mesh = coordinator.ready["mesh"]
    membership = client_membership(mesh, str(Path(coordinator.env["XDG_STATE_HOME"]) / "graph-mesh"))
    return await Remote.connect(mesh, "127.0.0.1", coordinator.ready["port"], membership)


def asked(coordinator: Daemon, ask: Callable[[Remote], Awaitable[T]]) -> T:
    """What a coordinator answers, asked from this process: a command takes half a second to start."""

    async def connected() -> T:
        remote = await client_of(coordinator)
        try:
            return await ask(remote)
        finally:
            await remote.close()

    return asyncio.run(connected())


def jobs(coordinator: Daemon) -> dict[str, str]:
    """The state of every job."""
    return {job.job: job.state for job in asked(coordinator, lambda remote: remote.jobs())}


def job_log(coordinator: Daemon, job: str) -> str:
    """A job's log."""
    (report,) = asked(coordinator, lambda remote: remote.jobs(job))
    return "\n".join(report.log)


def node_states(coordinator: Daemon) -> dict[str, str]:
    """The state of every worker, by name."""
    return {node.name: node.state for node in asked(coordinator, lambda remote: remote.nodes())}


def wait_for(holds: Callable[[], bool], within_s: float = COMES_TRUE_S) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def until_by_the_same_plan(mesh: Mesh, call: Callable[[], T]) -> T:
    """Call until one ran by the plan of the one before: links are measured during the first calls, and devices judged
    by them, so another plan may come between any two."""
    for _ in range(CALLS_MAX):
        before = mesh.report().generations
        found = call()
        if mesh.report().generations == before:
            return found
    raise AssertionError(f"another plan at each of {CALLS_MAX} calls")


def until_they_work(mesh: Mesh, workers: int, call: Callable[[], T]) -> T:
    """Call until so many workers have a part in it: one that is kept waiting by this machine may be thought stuck."""
    for _ in range(CALLS_MAX):
        found = call()
        if len(mesh.report().workers) == workers:
            return found
    raise AssertionError(f"never so many in {CALLS_MAX} calls; at last {list(mesh.report().workers)}")


@contextmanager
def daemon(name: str, *arguments: str, env: Mapping[str, str], log: Path) -> Iterator[Daemon]:
    """`mesh-worker` or `mesh-coord serve` on loopback, killed at the end if it still runs."""
    host = () if "--host" in arguments else ("--host", "127.0.0.1")
    with log.open("w") as errors:
        process = subprocess.Popen(
            command(name, *arguments, *host, "--json"), env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        patience = threading.Timer(READY_S, process.kill)  # then the line below is empty, and the log is shown
        patience.start()
        line = process.stdout.readline()
        patience.cancel()
        assert line, f"{name} did not start:\n{log.read_text()}"
        yield Daemon(process, json.loads(line), log, env)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
