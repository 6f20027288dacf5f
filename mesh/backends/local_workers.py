"""Local workers: workers on this machine, started and ended by this process.

Each is the ordinary `mesh-worker` in a process of its own (never multiprocessing, so scripts need no main guard),
started with `python -P` so that a file in the current folder cannot take the place of a library.  It is not announced
on the network, keeps its state in a temporary folder and its kernels in this user's cache, and ends by itself within a
second when this process dies, because its standard input then closes.  The folder goes with the mesh, or with this
process if nobody closes the mesh; after a kill -9 the next worker that starts on this machine removes it.

Part of the composition root: it knows the worker's command line and its ready line, nothing else of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

from wire.errors import ConfigError, ConnectFailed
from wire.limits import DEFAULT, KIB, THREADS_MAX
from wire.security.user_secret import new_secret
from wire.system.cores import core_count
from wire.system.shared_memory import SharedDir
from wire.timeouts import DEFAULT_TIMEOUTS, WORKER, Timeouts

from ..util.units import counted
from .enrolment import authority_folder
from .gather import gather_all

LOG_TAIL_BYTES = 16 * KIB  # some 150 lines


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """A worker process that said it is ready at 127.0.0.1:`port`."""

    name: str
    pid: int
    port: int


class LocalWorkers:
    """The workers of one mesh object; `start`, then `close`.

    With `members` they are let in by the mesh's authority, which is on this machine, and speak TLS as its others do.
    Else they talk to whoever knows `secret`; by default to this object's own mesh alone.
    """

    def __init__(
        self,
        mesh: str,
        cache_dir: Path | None = None,
        memory_bytes: int | None = None,
        members: bool = False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        threads: int = 0,
        secret: bytes = b"",
    ) -> None:
        self._mesh = mesh
        self.secret = secret or new_secret()
        self._threads = threads
        self._timeouts = timeouts
        self._members = members
        self._cache_dir = cache_dir
        self._kernels = (
            cache_dir / "kernels" if cache_dir else user_cache_path("graph-mesh", appauthor=False) / "@kernels"
        )
        self._memory_bytes = memory_bytes
        self._folder: SharedDir | None = None
        self._processes: list[asyncio.subprocess.Process] = []
        self._logs: dict[int, Path] = {}

    async def start(self, devices: Sequence[Sequence[str]], names: Sequence[str] = ()) -> list[LocalWorker]:
        """One worker per entry, each with the devices named there; ConnectFailed with the log of each that fails.

        `names` are theirs, by default local-0, local-1 and so on.  They share this machine's cores and memory evenly
        where the number of threads and the memory of each were not given.
        """
        self._folder = SharedDir.create(Path(tempfile.gettempdir()))
        weakref.finalize(self, self._folder.close)
        names = names or [f"local-{index}" for index in range(len(devices))]
        threads = self._threads or max(core_count() // len(devices), 1)
        shared = ["--threads", str(threads), "--sharers", str(len(devices))]
        starts = [self._start_one(*worker, shared) for worker in zip(names, devices, strict=True)]
        try:
            return await gather_all(starts)
        except BaseException:
            await self.close()
            raise

    def last_words(self, pid: int) -> tuple[str, ...]:
        """The last lines of the log of a worker that this process started; none for others."""
        log = self._logs.get(pid)
        if log is None:
            return ()
        with contextlib.suppress(OSError):
            return tuple(_tail(log).splitlines())
        return ()

    async def close(self) -> None:
        """End every worker in order, or by force after a while, and remove their folder."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
            _signal(process, getattr(signal, "SIGCONT", signal.SIGTERM))  # a stopped process must hear it too
        await asyncio.gather(*(self._await_end(process) for process in self._processes))
        self._processes.clear()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)
            self._folder = None

    async def _start_one(self, name: str, devices: Sequence[str], shared: Sequence[str]) -> LocalWorker:
        assert self._folder is not None
        folder = self._folder.path
        log = folder / f"{name}.log"
        cache = self._cache_dir / name if self._cache_dir else folder / f"{name}-cache"
        command = [sys.executable, "-P", "-m", "mesh.commands.worker", "--local", "--port", "0"]
        command += ["--name", name, "--mesh", self._mesh]
        command += ["--state-dir", str(folder / name), "--cache-dir", str(cache)]
        command += ["--kernel-dir", str(self._kernels)]  # of all: ranks have the same
        trusting = ["--authority", str(authority_folder(self._mesh))] if self._members else ["--secret-on-stdin"]
        command += trusting
        command += ["--max-memory", str(self._memory_bytes)] if self._memory_bytes else []
        command += shared
        command += self._timeouts.arguments(WORKER)
        for device in devices:
            command += ["--device", device]
        with log.open("wb") as errors:
            process = await start_process(command, errors)
        self._processes.append(process)
        self._logs[process.pid] = log
        if not self._members:
            assert process.stdin is not None
            process.stdin.write(self.secret.hex().encode() + b"\n")
        try:
            async with asyncio.timeout(self._timeouts.local_worker_start_s):
                return await _ready(process, name)
        except (TimeoutError, ValueError, KeyError) as error:
            await self._await_end(process)
            late = isinstance(error, TimeoutError)
            why = f"within {self._timeouts.local_worker_start_s:g} s" if late else f"(exit code {process.returncode})"
            raise ConnectFailed(f"local worker {name} did not start {why}", node=name, cause=_tail(log)) from None

    async def _await_end(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(self._timeouts.local_worker_stop_s):
                await process.wait()
        except TimeoutError:
            _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            await process.wait()


async def start_process(command: Sequence[str], errors: IO[bytes]) -> asyncio.subprocess.Process:
    """A process in a session of its own, which is spoken with by its standard input and output."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=errors, env=environment(), start_new_session=True
    )


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES, 0))
        return file.read().decode("utf-8", "replace").strip()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal.  Process.send_signal would reap a process that just died, and asyncio's watcher would miss its
    end."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # Windows: it is ending already
            os.kill(process.pid, number)


def environment() -> dict[str, str]:
    """This process's environment, with the folder that holds these packages importable under `python -P`."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def devices_per_worker(count: int, engine: str | Sequence[str]) -> list[list[str]]:
    """The `--device` names of each of `count` workers: `engine` is one name for all, or a list of one each."""
    if not isinstance(count, int) or not 1 <= count <= DEFAULT.nodes_max:
        raise ConfigError(f"a mesh has at least one local worker, and a whole number of them, got {count!r}")
    if not isinstance(engine, Iterable):
        raise ConfigError(f"local({count}): an engine is a name, such as 'cpu', not {engine!r}")
    names = [engine] * count if isinstance(engine, str) else list(engine)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"local({count}): an engine is a name, such as 'cpu', got {names}")
    if len(names) != count:
        raise ConfigError(f"local({count}): {counted(len(names), 'engine')} given; give one name, or a list of {count}")
    return [[] if name == "auto" else [name] for name in names]


def thread_count(threads: int | None) -> int:
    """The number of threads of a worker that somebody asks for; 0 where it is left to the machine."""
    if threads is None:
        return 0
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"a worker has one thread or more, and a whole number of them, not {threads!r}")
    if threads > THREADS_MAX:
        raise ConfigError(f"a worker has at most {THREADS_MAX} threads, not {threads}")
    return threads


async def _ready(process: asyncio.subprocess.Process, name: str) -> LocalWorker:
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    return LocalWorker(name, int(line["pid"]), int(line["port"]))
