"""Workers that announce themselves join, as they come and go.

Part of the composition root: it ties the browser (wire.discovery) to a coordinator.
"""

from __future__ import annotations

import asyncio
import logging

from coordinator.runtime import Coordinator
from wire.discovery import Browser, Candidate
from wire.errors import MeshError

log = logging.getLogger("graph_mesh.joining")


class AutoJoin:
    """Joins every announced worker of the coordinator's mesh until closed."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.joined = 0
        self.failures: list[str] = []
        self._coordinator = coordinator
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._browser = Browser(coordinator.config.mesh, self._found, self._gone, role="worker")

    async def start(self) -> None:
        await self._browser.start()

    async def wait_for(self, count: int, wait_s: float) -> bool:
        """Whether `count` workers joined within `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                while self.joined < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        await self._browser.close()
        for task in self._tasks:
            task.cancel()

    def _found(self, candidate: Candidate) -> None:
        task = asyncio.get_running_loop().create_task(self._join(candidate))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, candidate: Candidate) -> None:
        where = f"{candidate.host}:{candidate.port}"
        try:
            view = await self._coordinator.connect(candidate.host, candidate.port)
        except MeshError as error:
            log.warning("%s announced itself but did not join: %s", where, error)
            self.failures.append(str(error))
            return
        log.info("%s joined from %s", view.name, where)
        self.joined += 1
        self._changed.set()

    def _gone(self, candidate: Candidate) -> None:
        self._coordinator.forget(candidate.host, candidate.port)
