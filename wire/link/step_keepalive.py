"""Step keepalive: notices soon that a link somebody works over is silent.

A network may swallow what two nodes send each other while both are well heard elsewhere.  So over links in use both
ends ask every few heartbeats, and a link without a sign of life for as many as make a node time-out is ended.  Silence
is counted in checks, not timed: where this process stood still, one check heard nothing, not ten.  A sign of life is
any frame that comes, and any that a full socket takes, for that needs the other end too: a slow line with much to carry
is not silent, however late answers come.

It does not know which links are in use, nor what an end of one means.  `keepalive.py` watches the others, with more
patience.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..errors import NodeLost
from ..timeouts import BEATS, SILENT
from .endpoint import Endpoint
from .link import Link

ASK_EVERY = 3  # checks; regularly, so that answers keep coming where a queue makes each of them late


@dataclass(slots=True)
class _Watched:
    link: Link
    signs: float
    silent: int = 0  # checks
    age: int = 0


class Vigil:
    """Over one endpoint's links; `check` is to be called with every heartbeat."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._watched: dict[str, _Watched] = {}

    def check(self, nodes: Collection[str]) -> None:
        """Look at the links to these nodes, which are in use now."""
        found = {node: link for node in nodes if (link := self._endpoint.links.get(node)) is not None}
        self._watched = {node: self._still(node, link) for node, link in found.items() if not link.closed}
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
