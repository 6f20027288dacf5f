"""Auto dialer: dials the nodes that a browser finds, in turn and for as long as they announce themselves.

Its caller says which nodes it dials and what for.  It limits how much a node that announces many can make it dial or
log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ..errors import MeshError, NotTrusted, OutOfMemory
from ..link.endpoint import Endpoint
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks
from .announcements import Candidate
from .mdns import Browser, Keys

log = steady_logger("graph_mesh.discovery")

LINES_PER_MINUTE_MAX = 20  # of failures: a node with the discovery key may announce anything


class AutoDialer:
    """The dialler calls `dial(candidate)` for every candidate that is `wanted`, at once and then every few seconds.

    A MeshError of a dial is reported once, with the `aim` that was missed; where retrying is hopeless, it is final.
    `imposter(where, error)` is called for nodes that are not what they announced.
    """

    def __init__(
        self,
        browser: Browser,
        dial: Callable[[Candidate], Awaitable[object]],
        wanted: Callable[[Candidate], bool],
        aim: str,
        imposter: Callable[[str, MeshError], object] | None = None,
    ) -> None:
        self.browser = browser
        self.failures: dict[str, MeshError] = {}  # of candidates that are there, by label
        self._dial, self._wanted, self._aim, self._imposter = dial, wanted, aim, imposter
        self._tasks = Tasks()
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._lines: deque[float] = deque(maxlen=LINES_PER_MINUTE_MAX)

    async def start(self) -> None:
        await self.browser.start()
        self._tasks.keep("looking for others", self._look)

    async def close(self) -> None:
        await self.browser.close()
        self._tasks.cancel()

    def forget(self, candidate: Candidate) -> None:
        """The node is gone: give up dialling it."""
        self.failures.pop(candidate.label, None)
        task = self._dialling.pop(candidate.label, None)
        if task is not None:
            task.cancel()

    async def _look(self) -> None:
        while True:
            candidate = await self.browser.next()
            if (
                not _is_hopeless(self.failures.get(candidate.label))
                and candidate.label not in self._dialling
                and self._wanted(candidate)
            ):
                missed = partial(self._missed, candidate)
                self._dialling[candidate.label] = self._tasks.run("dialling", self._try(candidate), missed)

    async def _try(self, candidate: Candidate) -> None:
        label = candidate.label
        try:
            await self._dial(candidate)
            self.failures.pop(label, None)
        finally:
            if self._dialling.get(label) is asyncio.current_task():
                del self._dialling[label]

    def _missed(self, candidate: Candidate, error: MeshError) -> None:
        self._tell(candidate, error)
        self.failures[candidate.label] = error

    def _tell(self, candidate: Candidate, error: MeshError) -> None:
        """One line for each new failure, and few where there are many."""
        now_s = asyncio.get_running_loop().time()
        if str(error) == str(self.failures.get(candidate.label)):
            return
        if len(self._lines) < LINES_PER_MINUTE_MAX or now_s - self._lines[0] > 60:
            self._lines.append(now_s)
            where = " and ".join(candidate.addresses)
            log.warning("%s announced itself but did not %s: %s", where, self._aim, error)
            if isinstance(error, NotTrusted) and self._imposter is not None:
                self._imposter(where, error)


def _is_hopeless(failure: MeshError | None) -> bool:
    """Whether a node that could not be dialled for this reason would fail again: not one that may be renewed, nor where
    the fault was this process's (`as_error`), which may have been short of something."""
    if failure is None or failure.retry or isinstance(failure, NotTrusted | OutOfMemory):
        return False
    return type(failure) is not MeshError


def look_for(endpoint: Endpoint, key: bytes | Keys, role: str, interfaces: Sequence[str] = ()) -> AutoDialer:
    """A lookout that dials nodes that announce themselves in a role, while this node has no link to one."""

    def forget(candidate: Candidate) -> None:
        lookout.forget(candidate)

    def missing(candidate: Candidate) -> bool:
        return all(link.peer.role != role for link in endpoint.links.values())

    redial_s = endpoint.timeouts.discovery_redial_s
    browser = Browser(key, on_gone=forget, role=role, interfaces=interfaces, redial_s=redial_s)
    lookout = AutoDialer(browser, lambda candidate: endpoint.reach(candidate.addresses), missing, "link")
    return lookout
