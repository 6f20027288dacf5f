"""Engine hosts: the daemon's part that opens engine hosts, and puts new ones in the place of those that were lost.

It does not know what hosts are asked to do, nor how often a lost one is worth another try.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from wire.deadlines import HOST_END
from wire.errors import DeviceLost, MeshError, from_fields
from wire.protocol.messages import DeviceReport
from wire.protocol.missing_gpu import ASKED, NONE, failed
from wire.system.memory import default_budget
from wire.system.shared_memory import SharedDir
from wire.system.steady_log import steady_logger

from ..config import WorkerConfig
from ..devices.registry import BEST, ON_PROCESSOR, PROCESSOR
from ..engine import host_messages as hm
from ..engine_host.sandbox import sandbox_text
from .device_reports import report_of
from .environment import EngineHost, Environment, OnLost, OnMessage
from .output_files import OutputFiles

log = steady_logger("graph_mesh.worker")


class EngineHosts:
    """`content` are the folders that hosts may read.  `hosts` are those of the worker's devices, by their numbers, once
    they are open.  `on_message` takes what they say, `on_lost` hears of each that is lost, and `on_restarted` of each
    that serves again."""

    def __init__(
        self,
        config: WorkerConfig,
        environment: Environment,
        worker: str,
        shared: SharedDir,
        kernels: Path,
        content: Sequence[Path],
        on_message: OnMessage,
        on_lost: OnLost,
        on_restarted: Callable[[int], None],
    ) -> None:
        self.hosts: list[EngineHost] = []
        self._started: list[EngineHost] = []  # and not known to have ended
        self.without_gpu = ""  # why there is no GPU among them
        self.sandbox = ""  # what they gave up of the machine, in words
        self._config = config
        self._environment = environment
        self._worker = worker
        self._shared = shared
        self._kernels = kernels
        self._content = content
        self._on_message, self._on_lost, self._on_restarted = on_message, on_lost, on_restarted

    def tell(self, device: int, message: hm.ToHost) -> None:
        """Give the host of a device a message."""
        self.hosts[device].send(message)

    def hand(self, device: int, sock: socket.socket) -> bool:
        """Give the host of a device an open socket, for the message that it gets next."""
        return self.hosts[device].hand(sock)

    async def start(self, selections: Sequence[str]) -> None:
        """Begin to open these devices; `opened` says what came of it."""
        looks, folder = self._environment.adapter_cache, self._config.measured_folder
        if all(selection in ON_PROCESSOR for selection in selections):
            self.without_gpu = ASKED
        elif BEST in selections and (why := await asyncio.to_thread(looks.found_none, folder)):
            self.without_gpu = why
            selections = [selection for selection in selections if selection != BEST]
        await asyncio.gather(*(self._start(selection) for selection in selections))

    async def _start(self, selection: str) -> None:
        host = self._host(selection)
        self.hosts.append(host)
        await host.start()

    async def opened(self) -> tuple[DeviceReport, ...]:
        """Wait until every host has its device; a selection that came up empty is left out.  MeshError."""
        hosts, sandboxes = list(self.hosts), dict[str, None]()
        answers = await asyncio.gather(*(host.opened for host in hosts))
        reports: list[DeviceReport] = []
        self.hosts.clear()
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, hm.OpenFailed):
                error = from_fields(answer.error)
                if host.selection != BEST:
                    if isinstance(error, DeviceLost):  # nothing starts that host again: the worker ends
                        error.next_step = "Start mesh-worker again; its log may say why"
                    raise error
                log.warning("the best adapter cannot be used, going on without it: %s", error)
                self.without_gpu = failed(": ".join(filter(None, (error.message, error.cause))))
            elif answer.device is not None:
                host.device = len(self.hosts)
                if host.selection == PROCESSOR:
                    host.selection = answer.device.info.engine  # the host that may follow it computes the same bits
                self.hosts.append(host)
                sandboxes[sandbox_text(answer.sandbox)] = None
                reports.append(report_of(host.device, answer.device))
                continue
            elif host.selection == BEST:
                self.without_gpu = answer.without_gpu or NONE
                looks, folder = self._environment.adapter_cache, self._config.measured_folder
                await asyncio.to_thread(looks.remember_none, folder, self.without_gpu)
            host.kill()
        self.sandbox = "; others: ".join(sandboxes)[:4096]
        return tuple(reports)

    async def restart(self, device: int) -> None:
        """Put a new engine host in the place of a lost one."""
        log.info("device %d: starting its engine host again", device)
        host = self._host(self.hosts[device].selection)
        host.device = device
        self.hosts[device] = host
        await host.start()
        answer = await host.opened
        if isinstance(answer, hm.Opened) and answer.device is not None:
            log.info("device %d is back", device)
            self._on_restarted(device)
            return
        host.kill()
        gone: MeshError = DeviceLost(f"there is no {host.selection} now")
        self._on_lost(host, from_fields(answer.error) if isinstance(answer, hm.OpenFailed) else gone)

    async def close(self) -> None:
        """End every host that was started: those whose device did not open, too."""
        for host in self._started:
            host.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(host.exited.wait() for host in self._started)), HOST_END.seconds)
        for host in self._started:
            host.close()

    def _memory_bytes(self, selection: str) -> int:
        """A device's budget; 0: what it has."""
        config = self._config
        shared = config.sharers > 1 and selection in ON_PROCESSOR
        return config.memory_bytes or (default_budget() // config.sharers if shared else 0)

    def _host(self, selection: str) -> EngineHost:
        stop, files = self._shared.allocate(hm.STOP_BYTES), OutputFiles(self._shared)
        opening = hm.Open(
            device=selection,
            memory_bytes=self._memory_bytes(selection),
            threads=self._config.threads,
            cache_dir=str(self._kernels),
            measured_dir=str(self._config.measured_folder),
            shared_dir=str(self._shared.path),
            stop_file=stop.name,
            parent_pid=os.getpid(),
            beat_s=self._config.host_beat_s,
            trace=self._config.trace,
            worker=self._worker,
            readable=tuple(map(str, self._content)),
            sandboxed=self._config.sandbox,
            outputs=files.prefix,
        )
        said, lost = partial(self._said, files), partial(self._lost, files)
        host = self._environment.host(opening, stop.buffer, self._config, said, lost)
        self._started = [*(other for other in self._started if not other.exited.is_set()), host]
        return host

    def _said(self, files: OutputFiles, host: EngineHost, message: hm.FromHost) -> None:
        files.heard(message)
        self._on_message(host, message)

    def _lost(self, files: OutputFiles, host: EngineHost, error: MeshError) -> None:
        files.remove_unheard()
        self._on_lost(host, error)
