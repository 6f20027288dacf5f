"""Reconnect: dial a node, and again whenever its link ends, for ever.

Either side may dial, so a link that the other one made counts as well.  It does not know what a link is for; who asks
for it says with `ready` what makes it a good one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ..errors import MeshError
from ..system.steady_log import steady_logger
from .endpoint import Endpoint
from .link import Link

log = steady_logger("graph_mesh.transport")

STABLE_S = 1.0  # a link that lived so long was one; what ends sooner is refused, and is asked less and less often

LOGGED_MAX = 32  # texts that are not logged again: failures of several addresses come in turns, for as long as it takes


async def nothing_more(link: Link) -> None:
    """A link is good as soon as it stands."""


async def stay_linked(
    endpoint: Endpoint,
    addresses: Callable[[], Sequence[str]],
    ready: Callable[[Link], Awaitable[object]] = nothing_more,
    link: Link | None = None,
    failed: Callable[[MeshError], object] = lambda error: None,
    judged: bool = False,
) -> None:
    """Keep a link to the node that listens on `addresses()`, beginning with `link` if there is one already; never
    returns.

    No failure is final: an address without a route has one again when the cable is back.  Failures are logged, but with
    `judged` those after a link only: the failure detector of the caller says that it is gone.
    """
    waits = endpoint.timeouts.reconnect_first_s, endpoint.timeouts.reconnect_most_s
    loop, backoff = asyncio.get_running_loop(), Backoff(endpoint.chance, *waits)
    logged: deque[str] = deque(maxlen=LOGGED_MAX)  # since there was a link
    linked = False
    while True:
        try:
            link = link or await endpoint.reach(addresses())
            await ready(link)
            logged.clear()
            since_s, linked = loop.time(), True
            await link.wait_closed()
            if loop.time() - since_s >= STABLE_S:
                backoff.reset()
            link = endpoint.links.get(link.peer.node_id)  # the other side may have made a new one
            if link is not None:
                continue
        except MeshError as error:
            link = None
            failed(error)
            text = str(error)
            if text not in logged:
                logged.append(text)
                where = " and ".join(addresses()) or "nowhere"
                level = logging.DEBUG if judged and linked else logging.INFO
                log.log(level, "%s%s", "" if where in text else f"{where}: ", error)
        await asyncio.sleep(backoff.next_s())


@dataclass(slots=True)
class Backoff:
    """The waits between attempts, with full jitter: each is drawn evenly from 0 to a bound that doubles up to a cap.

    So a hundred workers whose coordinator comes back do not all dial it at the same moment.  `chance` gives numbers
    from 0 up to 1.  The first wait is at most `first_s`, none is longer than `cap_s`.
    """

    chance: Callable[[], float]
    first_s: float
    cap_s: float
    _bound_s: float = 0.0

    def next_s(self) -> float:
        """Seconds to wait now."""
        self._bound_s = min(self._bound_s * 2, self.cap_s) or self.first_s
        return self.chance() * self._bound_s

    def reset(self) -> None:
        """The attempt worked: the next failure is a first one."""
        self._bound_s = 0.0
