"""Dial collisions: which of several connections between two nodes becomes their one link (docs/protocol.md,
"Simultaneous dials").

Both nodes may dial at once, and one may dial again while the other still holds the old link.  Each side keeps a
DialCollisions; the rules are chosen so that both keep the same link whatever the order of frames:

1. An acceptor that holds or has committed to another link of the same boot names it in its answer.
2. If the answer names a link that the dialer knows, the dialer drops its own and waits for that one.  A link that it
   does not know is dead: it continues, and the new link replaces the old.
3. If the answer names none, but the dialer has accepted a dial from that node, it continues if its node id is the
   smaller, and waits otherwise.
4. If the answer names none, but another dial of the dialer to that node is further, it waits for that one.

It knows no connections: links are their ids.  A node that restarted (another boot id) starts afresh.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Stage(enum.Enum):
    ACCEPTED = "accepted"  # theirs: we answered the hello
    COMMITTED = "committed"  # ours: we sent the bulk hello
    OPEN = "open"


@dataclass(slots=True)
class _Entry:
    node_id: str
    boot_id: str
    stage: Stage


class DialCollisions:
    """The links of one node that exist or are being made."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._links: dict[bytes, _Entry] = {}
        self._of: dict[str, list[bytes]] = {}  # the links to and from a node, the oldest first

    def accept(self, link_id: bytes, node_id: str, boot_id: str) -> bytes:
        """A node dialled: the link we keep instead unless it does not know it, or b""."""
        kept = self._find(node_id, boot_id, Stage.OPEN) or self._find(node_id, boot_id, Stage.COMMITTED)
        self._add(link_id, _Entry(node_id, boot_id, Stage.ACCEPTED))
        return kept

    def acknowledged(self, link_id: bytes, node_id: str, boot_id: str, existing: bytes) -> bytes:
        """Our dial was answered: the link to wait for instead, or b"" to go on with the bulk connection."""
        if existing in self._links:
            return existing
        ours = self._find(node_id, boot_id, Stage.COMMITTED)
        if not existing and ours:
            return ours
        if not existing and self._node_id > node_id:
            theirs = self._find(node_id, boot_id, Stage.ACCEPTED)
            if theirs:
                return theirs
        self._add(link_id, _Entry(node_id, boot_id, Stage.COMMITTED))
        return b""

    def opened(self, link_id: bytes) -> bytes:
        """A link stands: the open one to the same node that it replaces, or b""."""
        entry = self._links[link_id]
        replaced = self._find(entry.node_id, None, Stage.OPEN)
        entry.stage = Stage.OPEN
        return replaced

    def gone(self, link_id: bytes) -> None:
        """A connection ended at whatever stage."""
        entry = self._links.pop(link_id, None)
        if entry is None:
            return
        self._of[entry.node_id].remove(link_id)
        if not self._of[entry.node_id]:
            del self._of[entry.node_id]

    def _add(self, link_id: bytes, entry: _Entry) -> None:
        self.gone(link_id)
        self._links[link_id] = entry
        self._of.setdefault(entry.node_id, []).append(link_id)

    def _find(self, node_id: str, boot_id: str | None, stage: Stage) -> bytes:
        for link_id in self._of.get(node_id, ()):
            entry = self._links[link_id]
            if entry.stage is stage and boot_id in (None, entry.boot_id):
                return link_id
        return b""
