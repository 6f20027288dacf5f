"""The commands as people run them: `mesh-worker` and `mesh-coord` as processes, with folders of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from mesh import Mesh
from mesh.backends.enrolment import client_membership
from mesh.backends.remote import Remote
from wire.security.user_secret import SECRET_FILE, SECRET_FOLDER, user_secret
from wire.system.private_folder import APP, make_private, private_folder
from wire.timeouts import PRESETS

T = TypeVar("T")
_FOLDERS: list[Path] = []  # where workers keep their figures
_MEASURED: dict[str, bytes] = {}  # by the names of files, which are those of a device and its driver
ROOT = Path(__file__).resolve().parents[3]
READY_S = 120.0  # on a machine with much else to do
RUN_S = 240.0
STATE_HOME = "xdg_state_home"  # in the folder of an environment, which makes it unless it is there
PATIENT_S = PRESETS["test"].node_timeout_s  # what is silent is this machine, which has much else to do
COMES_TRUE_S = 120.0  # a hang, and not a busy machine
# No import of COMMANDS depends on these variables.
READ_LATE = ("MESH_", "XDG_", "PYTEST_", "LOGNAME", "DBUS_", "SSL_CERT_FILE", "HF_")
COMMANDS = (
    "mesh.commands.coord", "mesh.commands.worker", "mesh.commands.remote_verbs", "mesh.backends.remote",
    "mesh.backends.enrolment", "mesh.backends.worker_process", "worker.daemon.daemon", "mesh.commands.serve",
    "coordinator.coordinator", "support.processes.forked_hosts",
)  # fmt: skip  # imported by the process that forks commands
CALLS_MAX = 50  # after which plans should have settled


@dataclass(slots=True)
class Daemon:
    """A daemon that said it is ready."""

    process: subprocess.Popen[str] | Forked
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
    share_figures(folder / "xdg_cache_home" / APP / "devices")
    return {**own, **folders, "PYTHONPATH": str(ROOT), **more}


def share_figures(folder: Path) -> None:
    """Put the figures of this machine's devices there that workers of this process's tests have measured before, as
    the workers of one user share them: to measure the native engine takes half a second of a processor."""
    for file in [file for before in _FOLDERS for file in before.glob("*.json")]:
        _MEASURED.setdefault(file.name, file.read_bytes())
    _FOLDERS.append(folder)
    make_private(folder)
    for name, figures in _MEASURED.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(figures)


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
    if not may_fork(env):
        return subprocess.run(
            command(name, *arguments), env=env, cwd=cwd, capture_output=True, text=True, timeout=RUN_S, check=False
        )
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        forked = Forked(f"mesh.commands.{name}", arguments, env, cwd or Path.cwd(), output, errors)
        try:
            code = forked.wait(RUN_S)
        finally:
            forked.kill()
        texts = [(file.seek(0), file.read())[1] for file in (output, errors)]
        return subprocess.CompletedProcess(command(name, *arguments), code, *texts)


def may_fork(env: Mapping[str, str]) -> bool:
    """Whether a command in this environment may be forked: what forks has the same, but for what is read after the
    imports, and has what a child of this process would inherit.  The rest of an environment may be for the interpreter
    or for a library, or name another source."""
    if sys.platform != "linux":
        return False
    _, its_env, its_own = _forking()
    asked, own = (
        {name: value for name, value in each.items() if not name.startswith(READ_LATE)} for each in (env, its_env)
    )
    return asked == own and inherited() == its_own


class Forked:
    """A command that was forked, as subprocess.Popen has a process."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        output: IO[Any],
        errors: IO[Any],
        input: IO[Any] | None = None,
        session: bool = False,
        forking: Path | None = None,
        daemon: Mapping[str, Any] | None = None,
    ) -> None:
        """`forking` is the folder of the process that forks, and `daemon` what forking.py says of an engine host's."""
        self.args = [sys.executable, "-P", "-m", module, *arguments]
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        asked = {
            "module": module, "arguments": arguments, "environment": dict(env), "folder": str(cwd), "session": session,
            "daemon": daemon,
        }  # fmt: skip
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(RUN_S)
        self._connection.connect(str((forking or _forking()[0]) / "socket"))
        line = json.dumps(asked).encode() + b"\n"
        with input or open(os.devnull) as reading:
            files = [*(file.fileno() for file in (reading, output, errors)), *(daemon["files"] if daemon else ())]
            sent = socket.send_fds(self._connection, [line], files)
        self._connection.sendall(line[sent:])
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._line())
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """May be called from another thread than the one that waits."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def fileno(self) -> int:
        """Of what can be read once the process ended."""
        return self._connection.fileno()

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = self._connection.recv(1)
            assert more, "what forks commands ended"
            line += more
        return line


def inherited() -> dict[str, Any]:
    """What a child has of this thread besides the environment: limits, user, rights, mask of files, cores, signals,
    namespaces, cgroup and priority."""
    import resource

    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    me = Path("/proc/thread-self")
    status = dict(line.split(":", 1) for line in (me / "status").read_text().splitlines())
    spaces = {path.name: os.readlink(path) for path in (me / "ns").iterdir()}
    rest = {name: status.get(name) for name in INHERITED}
    cgroup = (me / "cgroup").read_text() if (me / "cgroup").exists() else ""
    return {**limits, **spaces, **rest, "cgroup": cgroup, "nice": os.getpriority(os.PRIO_PROCESS, 0)}


INHERITED = (
    "Uid", "Gid", "Groups", "Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Cpus_allowed", "SigBlk", "SigIgn",
)  # fmt: skip  # lines of /proc/PID/status


@cache
def _forking() -> tuple[Path, Mapping[str, str], dict[str, Any]]:
    """The folder of a process that forks commands, which lives as long as this one, its environment, and what it
    inherits."""
    mine, own = inherited(), {**os.environ, "PYTHONPATH": str(ROOT)}
    return process_that_forks(own, COMMANDS), own, mine


def process_that_forks(env: Mapping[str, str], modules: Sequence[str]) -> Path:
    """Start forking.py with these modules; its folder."""
    folder = Path(tempfile.mkdtemp(prefix="forking-"))
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("forking.py")), str(folder), *modules],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    _ALIVE.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return folder


_ALIVE: list[subprocess.Popen[str]] = []  # it ends with its standard input, which is closed with this process


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
    process = _started(name, (*arguments, *host, "--json"), env, log)
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


def _started(
    name: str, arguments: tuple[str, ...], env: Mapping[str, str], log: Path
) -> subprocess.Popen[str] | Forked:
    with log.open("w") as errors:
        if not may_fork(env):
            return subprocess.Popen(
                command(name, *arguments), env=env, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        reading, writing = os.pipe()
        with open(writing, "w") as output:
            forked = Forked(f"mesh.commands.{name}", arguments, env, Path.cwd(), output, errors)
        forked.stdout = os.fdopen(reading)
        return forked
