"""Availability: what this machine does and its user wants beside the mesh.  It is paused, sleeps, wakes, or is short of
memory; the machine of the worker hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from wire.deadlines import LAST_WORDS
from wire.link.endpoint import Endpoint
from wire.link.link import Link
from wire.link.membership import Membership

from ..state import events as ev
from .machine_shell import MachineShell, Performers
from .pause_file import FINISHING, PAUSED, SERVING, PauseFiles, PauseWatch
from .system_sleep import SleepWatch

MEMORY_LOOK_S = 1.0  # while something is kept for a coordinator that is silent
LAST_WORDS_S = LAST_WORDS.seconds  # a machine waits up to 5 s before it sleeps


class Availability:
    """`memory` says what is left of the machine's memory, None where nobody can say."""

    def __init__(
        self,
        shell: MachineShell,
        endpoint: Endpoint,
        membership: Membership | None,
        files: PauseFiles,
        memory: Callable[[], ev.MemoryLeft] | None,
    ) -> None:
        self.pauses = PauseWatch(files, shell.feed, self._duty)
        self.memory = memory
        self._shell = shell
        self._endpoint = endpoint
        self._membership = membership

    def performers(self) -> Performers:
        return {ev.KeepPause: lambda action: self.pauses.keep(action.by)}

    def _duty(self) -> str:
        """What becomes of a wish to lend this machine, or not."""
        machine = self._shell.machine
        if machine is None or not machine.paused:
            return SERVING
        return FINISHING if machine.queue_depth else PAUSED

    def sleep(self) -> None:
        """The machine is about to sleep: hand the work back, and be nobody's until `wake`."""
        self._shell.feed(ev.SleepRequested())

    def wake(self, announced: bool = True) -> None:
        """The machine is awake, or seems to have been away: find the coordinator at once."""
        if self._membership:
            self._membership.woke()
        self._shell.feed(ev.Woke(announced))

    async def watch_sleep(self) -> None:
        """Hear of the machine's sleep, for ever."""
        await SleepWatch(self._fall_asleep, self.wake).run()

    async def watch_memory(self) -> None:
        """What is kept for a coordinator that is silent is not to cost other programs theirs."""
        while self.memory is not None:
            await asyncio.sleep(MEMORY_LOOK_S)
            machine = self._shell.machine
            if machine is not None and machine.owner is not None and not machine.served:
                self._shell.feed(self.memory())

    def _fall_asleep(self) -> Awaitable[None]:
        """Go to sleep.  The result is to be awaited: then the coordinator knows."""
        link = self._endpoint.links.get(self._shell.owner_id())
        self.sleep()
        return _last_words(link)


async def _last_words(link: Link | None) -> None:
    """Wait until the coordinator ends the link, as it does once it gets Leaving."""
    if link is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(link.wait_closed(), LAST_WORDS_S)
