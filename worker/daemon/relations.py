"""Relations: what the node at the other end of a link is to this worker (`wire/protocol/permissions.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wire.link.guard import Test
from wire.link.link import Link
from wire.protocol.messages import BlobStream, GaveUp, Landed, Letter, LettersRead, Meet, Push
from wire.protocol.permissions import Relation
from wire.transfer.content_exchange import BlobExchange
from wire.transfer.link_probe import Meter

from .collective_bridge import Bridge
from .machine_shell import MachineShell


class Relations:
    """The tests of a worker's guard.  `know` passes the objects that it asks, before the first message arrives."""

    def __init__(self, shell: MachineShell) -> None:
        self._shell = shell
        self._bridge: Bridge
        self._asked: Mapping[type, Callable[[Link, Any], bool]] = {}

    def know(self, bridge: Bridge, exchange: BlobExchange, meter: Meter) -> None:
        self._bridge = bridge
        self._asked = {BlobStream: exchange.asked, Landed: meter.asked}

    def tests(self) -> Mapping[Relation, Test]:
        return {
            Relation.OWNER: self._is_owner,
            Relation.SOURCE: self._is_source,
            Relation.PEER: self._is_peer,
            Relation.ASKED: lambda link, body: self._asked[type(body)](link, body),
        }

    def _is_owner(self, link: Link, body: Any) -> bool:
        owner = self._shell.owner
        return owner is not None and link.peer.node_id == owner.node and link.peer.role == "coordinator"

    def _is_source(self, link: Link, body: Push) -> bool:
        machine = self._shell.machine
        if machine is None or link.peer.role not in ("coordinator", "worker"):
            return False
        return machine.may_send(link.peer.node_id, body.plan, body.part, body.slot)

    def _is_peer(self, link: Link, body: Letter | LettersRead | GaveUp | Meet) -> bool:
        return link.peer.role == "worker" and self._bridge.is_between(body, link.peer.node_id)
