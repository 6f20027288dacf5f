"""Workers that announce themselves join, as they come and go.

Part of the composition root: it ties the browser (wire.discovery) to a coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from coordinator.runtime import DIAL_TIMEOUT_S, Coordinator
from wire.address import parse_address
from wire.adverts import Candidate
from wire.discovery import Browser
from wire.errors import MeshError

log = logging.getLogger("graph_mesh.joining")

LINES_PER_MINUTE_MAX = 20  # of failures: whoever has the discovery key may announce what it likes


class AutoJoin:
    """Joins every announced worker of the coordinator's mesh until closed.

    Members give the `key` that their mesh knows adverts by, and the `interfaces` to use, if not all.  One that is busy,
    or about to listen, is asked again for as long as it announces itself.
    """

    def __init__(self, coordinator: Coordinator, key: bytes | None = None, interfaces: Sequence[str] = ()) -> None:
        self._coordinator = coordinator
        self._joined: dict[str, tuple[str, int]] = {}  # label -> where it was dialled
        self._failures: dict[str, MeshError] = {}
        self._changed = asyncio.Event()
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._lines: deque[float] = deque(maxlen=LINES_PER_MINUTE_MAX)
        self._dialling: asyncio.Task[None] | None = None
        self.browser = Browser(key or coordinator.config.mesh, on_gone=self._gone, role="worker", interfaces=interfaces)

    @property
    def joined(self) -> int:
        """How many announced workers have joined."""
        return len(self._joined)

    @property
    def failures(self) -> list[str]:
        """Why others have not."""
        return [str(error) for error in self._failures.values()]

    async def start(self) -> None:
        await self.browser.start()
        self._dialling = asyncio.get_running_loop().create_task(self._dial_all())

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
        await self.browser.close()
        for task in (self._dialling, *self._joining.values()):
            if task is not None:
                task.cancel()

    async def _dial_all(self) -> None:
        while True:
            candidate = await self.browser.next()
            label = candidate.label
            failure = self._failures.get(label)
            if label not in self._joined and label not in self._joining and (failure is None or failure.retry):
                self._joining[label] = asyncio.get_running_loop().create_task(self._join(candidate))

    async def _join(self, candidate: Candidate) -> None:
        try:
            link = await self._coordinator.endpoint.reach(candidate.addresses, timeout_s=DIAL_TIMEOUT_S)
            where = parse_address(link.address or candidate.addresses[0])
            view = await self._coordinator.adopt(link, *where)
        except MeshError as error:
            self._tell(candidate, error)
            self._failures[candidate.label] = error
            return
        finally:
            self._joining.pop(candidate.label, None)
        log.info("%s joined from %s", view.name, link.address or "where it dialled from")
        self._failures.pop(candidate.label, None)
        self._joined[candidate.label] = where
        self._changed.set()

    def _tell(self, candidate: Candidate, error: MeshError) -> None:
        """One line for each new failure, and few where there are many."""
        now_s = asyncio.get_running_loop().time()
        if str(error) == str(self._failures.get(candidate.label)):
            return
        if len(self._lines) < LINES_PER_MINUTE_MAX or now_s - self._lines[0] > 60:
            self._lines.append(now_s)
            log.warning("%s announced itself but did not join: %s", " and ".join(candidate.addresses), error)

    def _gone(self, candidate: Candidate) -> None:
        task = self._joining.pop(candidate.label, None)
        if task is not None:
            task.cancel()
        self._failures.pop(candidate.label, None)
        where = self._joined.pop(candidate.label, None)
        if where is not None:
            self._coordinator.forget(*where)
