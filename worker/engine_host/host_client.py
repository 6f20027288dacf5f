"""The daemon's end of one engine host: starts the child, talks to it, notices when it is gone or stuck.

It decides nothing: messages go to `on_message`, and `on_lost` is called once with DeviceLost or OutOfMemory when the
child died, sent nonsense, or hung (`watchdog.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from wire.errors import MeshError
from wire.system.child_python import python_command
from wire.system.steady_log import steady_logger
from wire.system.tasks import as_error

from ..config import WorkerConfig
from ..engine import descriptors
from ..engine.host_messages import (
    STOP_BYTES,
    Alive,
    Executed,
    ExecuteFailed,
    ExecutePart,
    Explained,
    ExplainPart,
    Export,
    Exported,
    Forget,
    FromHost,
    Open,
    Opened,
    OpenFailed,
    Prepared,
    PrepareFailed,
    PreparePart,
    Resume,
    Splitter,
    Suspended,
    ToHost,
    Tune,
    TuneDone,
    pack,
    unpack_from_host,
    with_descriptors,
)
from .stderr_lines import StderrLines
from .suspension import suspend_mark
from .watchdog import Watchdog, loss_of

log = steady_logger("graph_mesh.worker")
EXIT_S = 1.0  # from the end of a child's pipe to its own, on a busy machine: an earlier look loses its status
_ANSWERED = (ExecutePart, Resume, ExplainPart, Tune, PreparePart, Export)
_ANSWERS = (Prepared, PrepareFailed, Executed, Suspended, ExecuteFailed, Explained, TuneDone, Exported)


HOST = python_command("worker.engine_host.host")


class HostProcess(asyncio.SubprocessProtocol):
    """One engine host.  `opened` becomes its first message: the device, or why there is none.

    `command` starts the child: `main` of `host.py`, or of a module that calls it with an engine of another kind.
    """

    def __init__(
        self,
        opening: Open,
        stop_cell: memoryview,
        config: WorkerConfig,
        on_message: Callable[[HostProcess, FromHost], None],
        on_lost: Callable[[HostProcess, MeshError], None],
        command: Sequence[str] = HOST,
    ) -> None:
        self.selection = opening.device
        self.device = 0  # its number among the worker's devices, once it is one
        self._opening = opening
        self._stop_cell = stop_cell
        self._command = command
        self._config = config
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Opened | OpenFailed] = self._loop.create_future()
        self.exited = asyncio.Event()
        self._splitter = Splitter()
        self._stderr = StderrLines()
        self._forgotten: list[int] = []  # what it has to free before anything else is written
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._over = False
        self._descriptors: socket.socket | None = None  # over which it is handed others
        times = config.timeouts
        self._watchdog = Watchdog(config.host_beat_s, times.host_silence_s, times.part_s, times.part_stop_s)
        self._killed_for_memory = _killed_for_memory()
        self._checker: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._transport.get_pid() if self._transport else 0

    async def start(self) -> None:
        """Start the child; it opens its device while we go on."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment.setdefault("XDG_RUNTIME_DIR", self._opening.shared_dir)  # Mesa complains of none, four times
        if self._opening.sandboxed:  # its drivers keep kernels where it may write
            environment.setdefault("MESA_SHADER_CACHE_DIR", self._opening.cache_dir)
            environment.setdefault("__GL_SHADER_DISK_CACHE_PATH", self._opening.cache_dir)
        theirs: tuple[int, ...] = ()
        if descriptors.POSSIBLE:
            self._descriptors, end = descriptors.pair()
            theirs = (end.fileno(),)
            self._opening = with_descriptors(self._opening, end.fileno())
        try:
            await self._loop.subprocess_exec(lambda: self, *self._command, env=environment, pass_fds=theirs)
        finally:
            if theirs:
                end.close()

    def hand(self, sock: socket.socket) -> bool:
        """Give the child an open socket, which is closed here, for the message that is sent next."""
        if self._over or self._descriptors is None:
            sock.close()
            return False
        return descriptors.hand(self._descriptors, sock)

    def send(self, message: ToHost) -> None:
        """Write to the child's pipe; to a child that is gone nothing is written, since `on_lost` says it all."""
        if self._over or self._stdin is None:
            return
        if isinstance(message, Forget):  # nobody waits for it: those of a moment are one message
            if not self._forgotten:
                self._loop.call_soon(self._write)
            self._forgotten += message.kept
            return
        if isinstance(message, _ANSWERED):
            run = 0 if isinstance(message, (PreparePart, Export)) else message.run
            self._watchdog.asked(self._loop.time(), run, brief=isinstance(message, Export))
        self._write(pack(message))

    def stop_run(self, run: int) -> None:
        """Have the child give up a run it may be computing; it answers it all the same."""
        self._stop_cell[:] = run.to_bytes(STOP_BYTES, "little")
        self._watchdog.stopped(self._loop.time(), run)

    def suspend_run(self, run: int) -> None:
        """Have the child suspend a run that it may be computing, and go on with what it is asked next."""
        self._stop_cell[:] = suspend_mark(run)

    def resume_run(self, run: int, stop: bool) -> None:
        """Have the child go on with a suspended run, or give it up."""
        if stop:
            self.stop_run(run)
        else:
            self._stop_cell[:] = bytes(STOP_BYTES)
        self.send(Resume(run))

    def kill(self) -> None:
        """End the child, whatever it does; `on_lost` is not called."""
        self._over = True
        if self._checker:
            self._checker.cancel()
        if self._descriptors is not None:
            self._descriptors.close()
            self._descriptors = None
        if self._transport is not None and self._transport.get_returncode() is None:
            self._transport.kill()

    def close(self) -> None:
        """End the child, and let go of its pipes: a loop that closes must have none left."""
        self.kill()
        if self._transport is not None:
            self._transport.close()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        stdout = self._transport.get_pipe_transport(1)
        if stdout is not None:  # it has not ended yet
            stdout.set_protocol(_AtOnce(stdout.get_protocol(), partial(self.pipe_data_received, 1)))
        self._checker = self._loop.call_later(self._config.timeouts.device_open_s, self._check)
        self.send(self._opening)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log(self._stderr.take(data, self._loop.time()))
            return
        try:
            for body in self._splitter.feed(data):
                self._receive(unpack_from_host(body))
        except Exception as fault:  # what it said is lost, so its waiters hear that the host is
            self._lose(str(as_error("taking what it said failed", fault)))

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        if fd == 2:
            self._log(self._stderr.end())
        else:
            self._loop.call_later(EXIT_S, self._lose, "its pipe closed")  # the exit status says more, and comes sooner

    def process_exited(self) -> None:
        assert self._transport is not None
        code = self._transport.get_returncode() or 0
        self._lose(f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}", -code)
        self.exited.set()

    def connection_lost(self, error: Exception | None) -> None:  # it has ended, and so have its pipes
        self.close()

    # -- helpers

    def _write(self, packed: bytes = b"") -> None:
        if self._forgotten:
            packed = pack(Forget(tuple(self._forgotten))) + packed
            self._forgotten.clear()
        if packed and not self._over and self._stdin is not None:
            self._stdin.write(packed)

    def _receive(self, message: FromHost) -> None:
        self._watchdog.heard()
        if isinstance(message, Alive):
            return
        if isinstance(message, (Opened, OpenFailed)):
            if not self.opened.done():
                self.opened.set_result(message)
            self._check_later()
            return
        if isinstance(message, _ANSWERS):
            self._watchdog.answered(self._loop.time())
        self._on_message(self, message)

    def _check_later(self) -> None:
        if self._checker:
            self._checker.cancel()
        self._checker = self._loop.call_later(self._config.host_beat_s, self._check)

    def _check(self) -> None:
        if self._over:
            return
        if not self.opened.done():
            self._lose(f"the device was not open after {self._config.timeouts.device_open_s:g} s")
            return
        hung = self._watchdog.check(self._loop.time())
        if hung:
            self._lose(hung)
        else:
            self._check_later()

    def _lose(self, reason: str, killed_by: int = 0) -> None:
        if self._over:
            return
        self.kill()
        self._log(self._stderr.end())
        no_memory = killed_by == getattr(signal, "SIGKILL", 9) and _killed_for_memory() > self._killed_for_memory
        error = loss_of(self.selection, reason, no_memory)
        if not self.opened.done():
            self.opened.set_result(OpenFailed(error.to_fields()))
            return
        answer = self.opened.result()
        if isinstance(answer, Opened) and answer.device is not None:  # one that opened nothing has said why, and ends
            self._on_lost(self, error)

    def _log(self, lines: Iterable[str]) -> None:
        for line in lines:
            log.warning("engine host %s: %s", self.selection, line)


class _AtOnce(asyncio.Protocol):
    """The protocol of a child's pipe whose bytes are taken as they are read; asyncio's takes another turn of the loop
    for them.  The end of the pipe is left to asyncio."""

    def __init__(self, inner: asyncio.BaseProtocol, take: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._take = take

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)


def _killed_for_memory() -> int:
    """How many processes this system has killed for memory so far; always 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
