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


RETRY_S = 2.0  # a worker that is busy, or about to listen, is asked again for as long as it announces itself


class AutoJoin:
    """Joins every announced worker of the coordinator's mesh until closed."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._joined: set[Candidate] = set()
        self._failures: dict[Candidate, MeshError] = {}
        self._changed = asyncio.Event()
        self._tasks: dict[Candidate, asyncio.Task[None]] = {}
        self._browser = Browser(coordinator.config.mesh, self._found, self._gone, role="worker")

    @property
    def joined(self) -> int:
        """How many announced workers have joined."""
        return len(self._joined)

    @property
    def failures(self) -> list[str]:
        """Why others have not."""
        return [str(error) for error in self._failures.values()]

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
        for task in self._tasks.values():
            task.cancel()

    def _found(self, candidate: Candidate) -> None:
        self._tasks[candidate] = asyncio.get_running_loop().create_task(self._join(candidate))

    async def _join(self, candidate: Candidate) -> None:
        where = f"{candidate.host}:{candidate.port}"
        while True:
            try:
                view = await self._coordinator.connect(candidate.host, candidate.port)
                break
            except MeshError as error:
                if str(error) != str(self._failures.get(candidate)):
                    log.warning("%s announced itself but did not join: %s", where, error)
                self._failures[candidate] = error
                if not error.retry:
                    return
            await asyncio.sleep(RETRY_S)
        log.info("%s joined from %s", view.name, where)
        self._failures.pop(candidate, None)
        self._joined.add(candidate)
        self._changed.set()

    def _gone(self, candidate: Candidate) -> None:
        task = self._tasks.pop(candidate, None)
        if task is not None:
            task.cancel()
        self._failures.pop(candidate, None)
        self._joined.discard(candidate)
        self._coordinator.forget(candidate.host, candidate.port)
