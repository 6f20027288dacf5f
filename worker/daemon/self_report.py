"""Self report: what a worker says of itself: that it is ready, what it has as it joins, and its last words."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Collection

from wire.link.link import Link
from wire.protocol.messages import Joined, Leaving, LogLines, Message, TailLog
from wire.protocol.peer import Identity
from wire.system.steady_log import steady_logger

from ..config import WorkerConfig
from ..state import events as ev
from .device_reports import devices_text, memory_bytes_of, ready_fields
from .device_work import DeviceWork
from .engine_hosts import EngineHosts
from .link_handler import Answer
from .machine_shell import MachineShell, Performers

log = steady_logger("graph_mesh.worker")
LEAVING_LOG_LINES = 64


class SelfReport:
    """`notify` sends a message to a node, `log_lines` are the newest lines of this process's log."""

    def __init__(
        self,
        config: WorkerConfig,
        identity: Identity,
        shell: MachineShell,
        hosts: EngineHosts,
        devices: DeviceWork,
        notify: Callable[[str, Message], None],
        log_lines: Collection[str],
    ) -> None:
        self._config = config
        self._identity = identity
        self._shell = shell
        self._hosts = hosts
        self._devices = devices
        self._notify = notify
        self._log_lines = log_lines

    def performers(self) -> Performers:
        return {ev.ReplyJoined: self._reply_joined, ev.SendLeaving: self._send_leaving}

    def requests(self) -> dict[type[Message], Answer]:
        return {TailLog: self._tail_log}

    @property
    def memory_bytes(self) -> int:
        """The budget of all devices together."""
        return self._config.memory_bytes or memory_bytes_of(self._devices.reports)

    def announce(self, address: str, port: int) -> None:
        """Say in the log, and to a program that reads it, that the worker serves at this address."""
        reports = self._devices.reports
        log.info("mesh-worker %s ready on %s with %s", self._identity.name, address, devices_text(reports))
        log.info("sandbox of the engine hosts: %s", self._hosts.sandbox)
        if self._config.announce_json:
            print(json.dumps(ready_fields(self._identity, address, port, os.getpid(), reports)), flush=True)

    def _reply_joined(self, action: ev.ReplyJoined) -> None:
        here = self._devices.reports, self.memory_bytes, action.blobs, platform.system()
        held = action.deployed, self._hosts.without_gpu, action.steps_done, self._hosts.sandbox
        self._shell.answer(action.request, Joined(*here, action.paused, *held))

    def _send_leaving(self, action: ev.SendLeaving) -> None:
        lines = tuple(self._log_lines)[-LEAVING_LOG_LINES:] if action.failed else ()
        self._notify(action.node, Leaving(action.reason[:4096], lines))

    async def _tail_log(self, link: Link, body: TailLog) -> Message:
        return LogLines(tuple(self._log_lines)[-body.lines :] if body.lines else ())
