"""Keepalive: notices links that died without a word, and a machine that slept or moved.

LinkWatch looks at all links, with patience; StepKeepalive at those that a step is computed over.

A connection whose other end vanished looks like one with nothing to say.  So a link that was silent for a while is
pinged; and when this machine wakes, stood still, or has other addresses than before, all links are pinged at once, and
those that do not answer in time are ended, so that the node that needs them dials again.  That time is short where the
network may be another one by now.  Where this process alone was held up it is the usual one: the machine is busy, and
may hold up those who answer, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..errors import DeadlineExceeded, MeshError, NodeLost
from ..roles import ASKING, COORDINATOR
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks
from ..timeouts import BEATS, SILENT, Timeouts
from .endpoint import Endpoint
from .link import Link
from .sleep_detector import SleepDetector

log = steady_logger("graph_mesh.transport")

TICK_S = 1.0
# Links to workers that nothing depends on rest: the dialer asks first, and with a thousand of them each is asked less
# often.
RESTING_ASKED_PER_S = 7.0
RESTING_TIMES_MAX = 4  # of `keepalive_resting_s`
LOOK_S = 5.0  # how often those are looked at
ASK_EVERY = 3  # checks; regularly, so that answers keep coming where a queue makes each of them late
# Many processes of users have a coordinator inside.  Heartbeats show sooner whether one lives.  Here the link only
# has to last, so that both can continue over it.
USERS = frozenset({*ASKING, COORDINATOR})


class LinkWatch:
    """The watch over one endpoint's links while `run` runs.

    `moved()` says whether the machine's addresses changed since it was last asked; `wall` is the time of day; `woke` is
    told when either made all links doubtful.  An idle node has `answer_s` to answer, a process of a user or a
    coordinator `program_answer_s`.  `needed()` are the nodes that something depends on now: in a mesh of a thousand
    most links are to other workers, which are asked seldom.  The other times are those of the endpoint.
    """

    def __init__(
        self, endpoint: Endpoint, moved: Callable[[], bool] = lambda: False, wall: Callable[[], float] = time.time
    ) -> None:
        self.moved = moved
        self.wall = wall
        self.woke: list[Callable[[], object]] = []
        self.answer_s = endpoint.timeouts.keepalive_answer_s
        self.program_answer_s = endpoint.timeouts.keepalive_program_answer_s
        self.needed: Callable[[], Collection[str]] | None = None  # everyone is
        self._endpoint, self._timeouts = endpoint, endpoint.timeouts
        self._waking = SleepDetector()
        self._look_at_s = 0.0
        self._tasks = Tasks()
        self._asked: dict[Link, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch; never returns."""
        loop, timeouts = asyncio.get_running_loop(), self._timeouts
        try:
            while True:
                reason = self._waking.tick(loop.time(), self.wall())
                moved = self.moved()
                if moved:
                    reason = reason or "this machine's addresses changed"
                if reason:
                    log.info("%s: asking %d linked nodes whether they are there", reason, len(self._endpoint.links))
                    for tell in self.woke:
                        tell()
                for link in list(self._endpoint.links.values()) if reason else self._quiet(loop.time()):
                    usual_s = self.program_answer_s if link.peer.role in USERS else self.answer_s
                    doubtful = moved or self._waking.slept
                    answer_s = timeouts.keepalive_doubtful_answer_s if doubtful else usual_s
                    self._ask(link, answer_s, reason or f"silent for {loop.time() - link.heard_s:.0f} s")
                await asyncio.sleep(TICK_S)
        finally:
            self._tasks.cancel()

    def _quiet(self, now: float) -> list[Link]:
        """The links that were silent for long enough to be probed; links that nobody needs are seldom looked at."""
        links, needed = self._endpoint.links, self.needed() if self.needed else None
        idle_s = self._timeouts.keepalive_idle_s
        if needed is None:
            return [link for link in links.values() if now - link.heard_s >= idle_s]
        if now >= self._look_at_s:
            self._look_at_s = now + LOOK_S
            rest_s = resting_s(len(links), self._timeouts.keepalive_resting_s)
            return [link for link in links.values() if now - link.heard_s >= _quiet_s(link, needed, idle_s, rest_s)]
        return [link for node in needed if (link := links.get(node)) is not None and now - link.heard_s >= idle_s]

    def _ask(self, link: Link, answer_s: float, reason: str) -> None:
        if link not in self._asked:
            task = self._asked[link] = self._tasks.run("asking a node", _check(link, answer_s, reason), link.fail)
            task.add_done_callback(lambda _: self._asked.pop(link, None))


def resting_s(links: int, few_s: float) -> float:
    """The silence after which a link that nothing depends on is asked, where there are `links` links; `few_s` is that
    where there are few."""
    return min(max(few_s, links / RESTING_ASKED_PER_S), RESTING_TIMES_MAX * few_s)


def _quiet_s(link: Link, needed: Collection[str], idle_s: float, rest_s: float) -> float:
    """The silence after which a link is asked."""
    if link.peer.role != "worker" or link.peer.node_id in needed:
        return idle_s
    return rest_s if link.address else rest_s + 2 * LOOK_S


async def revived(link: Link, timeouts: Timeouts) -> bool:
    """Whether a link that may have rested lives; one that does not is ended."""
    if asyncio.get_running_loop().time() - link.heard_s >= timeouts.keepalive_idle_s:
        await _check(link, timeouts.keepalive_doubtful_answer_s, "it had rested")
    return not link.closed


async def _check(link: Link, answer_s: float, reason: str) -> None:
    """End a link whose other end does not answer a ping."""
    try:
        await link.ping(answer_s)
    except DeadlineExceeded:
        link.fail(NodeLost(f"no answer within {answer_s:g} s", node=link.peer.name, cause=reason))
    except MeshError:
        return  # it ended meanwhile


# -- links in use


class StepKeepalive:
    """Notices soon that a link in use is silent; `check` is to be called with every heartbeat.

    A network may swallow what two nodes send each other while both are well heard elsewhere.  So over links in use both
    ends ask every few heartbeats, and a link without a sign of life for as many as make a node time-out is ended.
    Silence is counted in checks, not timed: where this process stood still, one check heard nothing, not ten.  A sign
    of life is any frame that comes, and any that a full socket takes, for that needs the other end too: a slow line
    with much to carry is not silent, however late answers come.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._watched: dict[str, _Watched] = {}

    def check(self, nodes: Collection[str]) -> None:
        """Look at the links to these nodes, which are in use now."""
        links = {node: link for node in nodes if (link := self._endpoint.links.get(node)) is not None}
        self._watched = {node: self._still(node, link) for node, link in links.items() if not link.closed}
        for watched in list(self._watched.values()):
            self._look(watched)

    def _still(self, node: str, link: Link) -> _Watched:
        known = self._watched.get(node)
        return known if known is not None and known.link is link else _Watched(link, link.alive_s)

    def _look(self, watched: _Watched) -> None:
        link = watched.link
        watched.silent = watched.silent + 1 if link.alive_s == watched.signs else 0
        watched.signs = link.alive_s
        if watched.silent >= BEATS:
            link.fail(NodeLost(f"nothing came for {BEATS} heartbeats", node=link.peer.name, cause=SILENT))
        elif watched.age % ASK_EVERY == 0:
            link.ask()
        watched.age += 1


@dataclass(slots=True)
class _Watched:
    link: Link
    signs: float
    silent: int = 0  # checks
    age: int = 0
