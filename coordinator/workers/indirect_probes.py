"""Indirect probes: before a silent worker is declared dead, another worker is asked whether it reaches it, and this
process checks whether it is cut off itself.

What follows from the answers, the failure detector decides (`failure_detector.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks

from .failure_detector import AskPeer, ProbeSelf
from .link_prober import probe_through_peer
from .records import Member

log = steady_logger("graph_mesh.coordinator")


class IndirectProber:
    """Probes `members`.  `publish` publishes events; the detector gets the results from `probed` and `self_probed`."""

    def __init__(
        self,
        members: Mapping[str, Member],
        publish: Callable[[str, str, str], None],
        probed: Callable[[AskPeer, bool | None], None],
        self_probed: Callable[[bool], None],
        tasks: Tasks,
    ) -> None:
        self._members = members
        self._publish = publish
        self._probed = probed
        self._self_probed = self_probed
        self._tasks = tasks

    def ask_peer(self, ask: AskPeer) -> None:
        """Have a worker try to reach one that is silent."""
        self._tasks.run("asking a worker about another", self._ask_peer(ask), lambda _: self._probed(ask, None))

    def probe_self(self, probe: ProbeSelf) -> None:
        """Ping the workers that still answered lately, after many others went silent at once."""
        self._tasks.run("asking whether we are well", self._probe_self(probe), lambda _: self._self_probed(False))

    async def _ask_peer(self, ask: AskPeer) -> None:
        peer, member = self._members.get(ask.peer), self._members.get(ask.node)
        if member is None:
            return
        reached, text = await probe_through_peer(None if peer is None else peer.link, member.link, ask.wait_s)
        self._publish("probed", ask.node, f"{peer.profile.name if peer else 'a peer that left'} {text}")
        self._probed(ask, reached)

    async def _probe_self(self, probe: ProbeSelf) -> None:
        links = [self._members[peer].link for peer in probe.peers if peer in self._members]
        answers = await asyncio.gather(*(link.ping(probe.wait_s) for link in links), return_exceptions=True)
        well = any(isinstance(answer, float) for answer in answers)
        text = "the others answer" if well else "nobody else answers, so this may be our own fault"
        log.warning("at least half of the workers fell silent together; %s", text)
        self._self_probed(well)
