"""The idle tuner: performs what `worker/state/idle_tuning.py` decides, in an engine host of its own.

What crashes or hangs there costs that host alone: the devices' own hosts, and what sessions keep in them, are others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.errors import MeshError
from wire.protocol.messages import DeviceReport
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks

from ..config import WorkerConfig
from ..engine.protocol import Tuned
from ..engine_host.tuning import CLASS_S_MAX, Tuning
from ..state.idle_tuning import IdleTuning, Look, Measure

log = steady_logger("graph_mesh.worker")
LOOK_S = 0.25


class IdleTuner:
    """`busy` says whether the worker has work, or is not to have any."""

    def __init__(self, config: WorkerConfig, tasks: Tasks, busy: Callable[[], bool]) -> None:
        self._config = config
        self._tasks = tasks
        self._busy = busy
        self._tuning = IdleTuning(config.timeouts.idle_tuning_s)
        self._task: asyncio.Task[None] | None = None

    def met(self, selection: str, report: DeviceReport, shape_classes: tuple[str, ...]) -> None:
        """A part was prepared for a device that has these classes.  Software adapters would take the cores of whoever
        uses the machine."""
        if not report.software or self._config.tune_software:
            self._tuning.met(selection, shape_classes)

    def give_way(self) -> None:
        """Stop, as there is work."""
        self._perform(self._tuning.look(True, asyncio.get_running_loop().time()))

    async def run(self) -> None:
        """Look for idle moments; never returns."""
        while True:
            self._perform(self._tuning.look(self._busy(), asyncio.get_running_loop().time()))
            await asyncio.sleep(LOOK_S)

    def _perform(self, what: Measure | Look) -> None:
        match what:
            case Measure(selection, classes):
                measuring = self._measure(selection, classes)
                self._task = self._tasks.run("measuring kernels", measuring, self._failed)
                self._task.add_done_callback(self._over)
            case Look.STOP if self._task is not None:
                self._task.cancel()
                self._task = None  # it has a moment to end in good order

    async def _measure(self, selection: str, classes: tuple[str, ...]) -> None:
        tuning = Tuning(self._config, selection, self._on_tuned)
        await tuning.run(lambda info: classes, CLASS_S_MAX * len(classes))

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._tuning.ended(failed=not task.cancelled() and task.exception() is not None)

    def _on_tuned(self, tuned: Tuned) -> None:
        self._tuning.class_done(tuned.shape_class)
        if tuned.finished and tuned.form != tuned.guess:
            log.info("%s: %s takes %.3g ms, and %s %.3g", tuned.shape_class, tuned.form, tuned.form_s * 1e3,
                     tuned.guess, tuned.guess_s * 1e3)  # fmt: skip

    def _failed(self, error: MeshError) -> None:
        log.info("kernels were not measured: %s", error)
