"""Tuning by an engine host that does nothing else, for `mesh-worker tune` and for workers without work.

A form of a kernel that crashes or hangs its driver ends the host, and not the command.  Then another host goes on with
the same class; which form it was stands in the file of what was measured (`worker/wgsl/tuned_file.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from wire.errors import ConfigError, DeviceLost, InputError, MeshError, Unsupported, from_fields
from wire.system.shared_memory import SharedDir
from wire.units import counted

from ..config import WorkerConfig
from ..devices.registry import ON_PROCESSOR
from ..engine import host_messages as hm
from ..engine.protocol import EngineInfo, Tuned
from .host_client import HOST, HostProcess

CLASS_S_MIN, CLASS_S_MAX = 1.0, 20.0  # for one class
HANG_S = 60.0  # for one class, after which its host hangs
STOP_S = 0.5  # for a run that is given up
LOSSES_MAX = 6  # of hosts by one class

Classes = Callable[[EngineInfo], Sequence[str]]


class Tuning:
    """Measures on the device that `selection` means; `report` is called with the result of each class, in order.

    To stop it, cancel `run`.
    """

    def __init__(
        self, config: WorkerConfig, selection: str, report: Callable[[Tuned], None], command: Sequence[str] = HOST
    ) -> None:
        if selection in ON_PROCESSOR:
            raise ConfigError(
                f"the device {selection} has nothing to tune",
                next_step="Name a graphics adapter with --device, as --list-devices shows it",
            )
        times = config.timeouts
        self._config = replace(config, timeouts=replace(times, part_s=min(times.part_s, HANG_S)))
        self._selection, self._report, self._command = selection, report, command
        self._host: HostProcess | None = None
        self._gone = True  # the host, or there was none yet
        self._answer: asyncio.Future[hm.TuneDone] | None = None
        self._asked = 0

    async def run(self, classes: Classes, limit_s: float) -> EngineInfo:
        """Measure these classes, of a device described so, for at most about so long; the device.  MeshError."""
        self._config.check()
        with closing(SharedDir.create()) as shared:
            try:
                info = await self._start(shared)
                await self._each(shared, list(classes(info)), limit_s)
            finally:
                await self._end()
        return info

    async def _each(self, shared: SharedDir, classes: Sequence[str], limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        for place, shape_class in enumerate(classes):
            left_s = until_s - loop.time()
            if left_s <= 0:
                self._report(Tuned(shape_class, why="the time was over before its turn"))
                continue
            seconds = min(max(left_s / (len(classes) - place), CLASS_S_MIN), CLASS_S_MAX)
            self._report(await self._measured(shared, shape_class, seconds, until_s))

    async def _measured(self, shared: SharedDir, shape_class: str, seconds: float, until_s: float) -> Tuned:
        """Measure a class; after a loss of the host again, unless the time is over."""
        why, losses = "", 0
        while losses < LOSSES_MAX and (not losses or asyncio.get_running_loop().time() < until_s):
            try:
                if self._gone:
                    await self._start(shared)
                return await self._ask(shape_class, seconds)
            except DeviceLost as error:
                why, losses = error.message, losses + 1
                await self._end()
            except (ConfigError, InputError, Unsupported):
                raise
            except MeshError as error:
                return Tuned(shape_class, why=error.message)
        return Tuned(shape_class, why=f"it lost {counted(losses, 'engine host')}, the last one because: {why}")

    async def _ask(self, shape_class: str, seconds: float) -> Tuned:
        assert self._host is not None, "it is started"
        self._asked += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._host.send(hm.Tune(self._asked, shape_class, seconds))
        done = await asyncio.shield(self._answer)
        if done.tuned is None:
            raise from_fields(done.error)
        return done.tuned

    async def _start(self, shared: SharedDir) -> EngineInfo:
        stop, config = shared.allocate(hm.STOP_BYTES), self._config
        opening = hm.Open(
            device=self._selection,
            memory_bytes=config.memory_bytes,
            threads=config.threads,
            cache_dir=str(config.kernel_folder),
            measured_dir=str(config.measured_folder),
            shared_dir=str(shared.path),
            stop_file=stop.name,
            parent_pid=os.getpid(),
            beat_s=config.host_beat_s,
            sandboxed=config.sandbox,
        )
        self._host = HostProcess(opening, stop.buffer, config, self._on_message, self._lost, self._command)
        self._gone = False
        await self._host.start()
        answer = await self._host.opened
        if isinstance(answer, hm.OpenFailed):
            raise from_fields(answer.error)
        if answer.device is None:
            raise ConfigError(
                "there is no graphics adapter here but software, if any",
                next_step="--device wgsl tunes for a software adapter; --list-devices shows what there is",
            )
        return answer.device.info

    def _on_message(self, host: HostProcess, message: hm.FromHost) -> None:
        if isinstance(message, hm.TuneDone) and self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def _lost(self, host: HostProcess, error: MeshError) -> None:
        self._gone = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(DeviceLost(error.message))

    async def _end(self) -> None:
        """End the host, and wait until its process is gone.  One that measures may end the run that it is at first:
        else it would seem that the form took its host with it."""
        host, self._host = self._host, None
        if host is None or not host.pid:
            return
        if not self._gone and self._answer is not None and not self._answer.done():
            host.stop_run(self._asked)
            await asyncio.wait([self._answer], timeout=STOP_S)
        self._gone = True
        host.kill()
        await host.exited.wait()
