"""Heartbeats: what a worker reports to its coordinator at every beat, and how long its event loop was blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wire.link.keepalive import StepKeepalive
from wire.protocol.messages import Beat, Message
from wire.system.loop_lag import recent_lag_s
from wire.system.tasks import isolated

from ..state import events as ev
from .machine_shell import MachineShell, Performers


class Heartbeats:
    """`notify` sends a message to a node.  `steps` watches the links that runs in flight wait for.  `forget` discards
    what was relayed for plans of a coordinator whose time is over."""

    def __init__(
        self,
        shell: MachineShell,
        notify: Callable[[str, Message], None],
        steps: StepKeepalive,
        forget: Callable[[], None],
    ) -> None:
        self._shell = shell
        self._notify = notify
        self._steps = steps
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beats = 0

    def performers(self) -> Performers:
        return {ev.StartBeats: self._start, ev.StopBeats: self._stop, ev.SendBeat: self._send}

    def _start(self, action: ev.StartBeats) -> None:
        self._stop(None)
        self._beat(action, self._loop.time())

    def _stop(self, _action: ev.StopBeats | None) -> None:
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, action: ev.StartBeats, due_s: float) -> None:
        machine = self._shell.machine
        if machine is None:  # the worker ends
            return
        with isolated("a heartbeat"):  # the next one is sent in any case
            self._send(None)
        with isolated("the watch over links of steps"):
            self._steps.check(machine.used())
        due_s = max(due_s + action.beat_s, self._loop.time())
        self._timer = self._loop.call_at(due_s, self._beat, action, due_s)

    def _send(self, _action: ev.SendBeat | None) -> None:
        machine = self._shell.machine
        if machine is None or machine.owner is None or not machine.served:
            return
        self._beats += 1
        working = machine.working(self._loop.time())
        beat = Beat(machine.incarnation, self._beats, recent_lag_s(self._loop), machine.queue_depth, working)
        self._notify(machine.owner.node, beat)
