"""The shell of a worker's machine goes on after a fault of the machine."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from mesh.simulation.loop import VirtualLoop
from worker.daemon.machine_shell import MachineShell
from worker.state import events as ev


def test_time_goes_on_for_a_machine_that_failed_as_it_passed() -> None:
    """Leases end, and steps of lost links are given up, as time passes."""

    class Machine:
        def __init__(self) -> None:
            self.ticked_s: list[float] = []
            self._due_s = 1.0

        def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
            if isinstance(event, ev.Tick):
                self.ticked_s.append(now)
                if len(self.ticked_s) == 1:
                    raise ValueError("no one foresaw this")
                self._due_s = now + 1.0
            return []

        def next_deadline(self) -> float:
            return self._due_s

    machine = Machine()

    async def story() -> None:
        shell = MachineShell("desk")
        shell.machine = cast(Any, machine)
        shell.feed(ev.DrainRequested("the first event"))
        await asyncio.sleep(5.5)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert 4 <= len(machine.ticked_s) < 50
