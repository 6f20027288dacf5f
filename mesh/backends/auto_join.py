"""Auto join: workers that announce themselves join, as they come and go.

Part of the composition root: it ties the auto dialer (wire.discovery.auto_dialer) to a coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coordinator.coordinator import Coordinator
from wire.addresses import parse_address
from wire.discovery.announcements import Candidate
from wire.discovery.auto_dialer import AutoDialer
from wire.discovery.mdns import Browser, Keys
from wire.errors import MeshError
from wire.system.steady_log import steady_logger

log = steady_logger("graph_mesh.joining")


class AutoJoin:
    """Joins every announced worker of the coordinator's mesh until closed.

    Members give the `key` of their mesh's announcements, or a function that returns its current keys, and the
    `interfaces` to use, if not all.  A worker that is busy, or does not listen yet, is asked again while it announces
    itself.  `imposter(where, error)` is called for those that are no members.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        key: bytes | Keys | None = None,
        interfaces: Sequence[str] = (),
        imposter: Callable[[str, MeshError], object] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._joined: dict[str, tuple[str, int]] = {}  # label -> where it was dialled
        self._changed = asyncio.Event()
        mesh, redial_s = key or coordinator.config.mesh, coordinator.config.timeouts.discovery_redial_s
        browser = Browser(mesh, on_gone=self._gone, role="worker", interfaces=interfaces, redial_s=redial_s)
        self._dialer = AutoDialer(browser, self._join, self._wanted, "join", imposter)

    @property
    def joined(self) -> int:
        """How many announced workers have joined."""
        return len(self._joined)

    @property
    def failures(self) -> list[str]:
        """The errors of announced workers that have not joined."""
        return [str(error) for error in self._dialer.failures.values()]

    async def start(self) -> None:
        await self._dialer.start()

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
        await self._dialer.close()

    def _wanted(self, candidate: Candidate) -> bool:
        return candidate.label not in self._joined

    async def _join(self, candidate: Candidate) -> None:
        endpoint = self._coordinator.endpoint
        linked = set(endpoint.links.values())
        link = await endpoint.reach(candidate.addresses)
        where = parse_address(link.address or candidate.addresses[0])
        if link not in linked or link.address:  # one that dialled us has joined already, and will dial again
            worker = await self._coordinator.adopt(link, *where)
            log.debug("%s joined from %s", worker.name, link.address or "where it dialled from")
        self._joined[candidate.label] = where
        self._dialer.browser.joined(candidate)
        self._changed.set()

    def _gone(self, candidate: Candidate) -> None:
        self._dialer.forget(candidate)
        where = self._joined.pop(candidate.label, None)
        if where is not None:
            self._coordinator.forget(*where)
