"""The link to the coordinator that owns this worker: dialling it, and finding it again when its link ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wire.errors import MeshError
from wire.link.endpoint import Endpoint
from wire.link.keepalive import LinkWatch
from wire.link.link import Link
from wire.link.membership import Membership
from wire.link.reconnect import stay_linked
from wire.protocol.messages import Coordinators, Join, Message, Revocations
from wire.protocol.peer import Identity
from wire.system.steady_log import steady_logger
from wire.timeouts import Timeouts

from ..state import events as ev
from .link_handler import Take
from .machine_shell import MachineShell, Performers
from .no_peer_warning import text_without_coordinator

if TYPE_CHECKING:
    from wire.discovery.mdns import Announcer

log = steady_logger("graph_mesh.worker")
OWNER_ANSWER_S = 86_400.0  # one that was stopped answers when it goes on; its link ends before, or the machine decides


class OwnerLink:
    """`membership` is that of this worker, None where it is no member of a mesh; `peers` are the addresses of --peer.

    `watch` is None until the endpoint listens.
    """

    def __init__(
        self,
        shell: MachineShell,
        endpoint: Endpoint,
        membership: Membership | None,
        peers: Sequence[str],
        timeouts: Timeouts,
    ) -> None:
        self.watch: LinkWatch | None = None
        self.patience_s = timeouts.worker_link_s  # for a link to another worker: as long as the coordinator waits
        self._shell = shell
        self._endpoint = endpoint
        self._membership = membership
        self._peers = peers
        self._timeouts = timeouts
        self._coordinator: Identity | None = None  # whose worker this is, or was last
        self._seeking: asyncio.Task[None] | None = None  # for the coordinator whose link ended
        self._announcer: Announcer | None = None
        self._standbys: tuple[str, ...] = ()  # where coordinators that may take over will listen
        self._failures: dict[str, str] = {}  # why an address was not reached when it was last dialled

    def performers(self) -> Performers:
        return {
            ev.LookForOwner: self._look,
            ev.AskOwner: lambda action: self._shell.begin(action, self._ask(action)),
        }

    def notifications(self) -> dict[type[Message], Take]:
        return {Revocations: self._trust, Coordinators: self._others}

    def start(self) -> None:
        """Dial every --peer, or the coordinator of before if there is none."""
        for peer in self._peers:
            self._stay_linked((peer,))
        if self._membership and self._membership.coordinator and not self._peers:
            self._seeking = self._stay_linked(self._membership.coordinator)

    def joined(self, link: Link, body: Join) -> None:
        """The coordinator at the other end of this link owns this worker from now on."""
        peer = self._coordinator = link.peer
        if self.watch is not None:
            self.watch.answer_s = max(self._timeouts.keepalive_answer_s, 1.5 * body.silence_s)
        self.patience_s = max(self._timeouts.worker_link_s, body.silence_s)
        self._standbys = ()
        if self._membership:
            self._membership.met(peer.addresses or ((link.address,) if link.address else ()))
        self._stop_seeking()

    def _others(self, link: Link, body: Coordinators) -> None:
        """Remember the coordinators that may take over from the owner."""
        if self._shell.owner_id() == link.peer.node_id:
            self._standbys = body.addresses
            if self._membership:
                self._membership.met((*link.peer.addresses, *body.addresses))

    def announced(self, announcer: Announcer) -> None:
        """This worker is announced by mDNS."""
        self._announcer = announcer

    def unlinked(self, node: str) -> None:
        """A link ended: dial the node again if it is the coordinator."""
        owner = self._coordinator
        if self._seeking is None and owner is not None and owner.node_id == node and owner.addresses:
            self._seeking = self._stay_linked((*owner.addresses, *self._standbys))

    def advice(self, waited_s: float) -> str:
        """The text of what was tried in `waited_s` seconds without a coordinator, and of what to type."""
        tallies = self._announcer.tallies if self._announcer else ()
        failures = {peer: self._failures[peer] for peer in self._peers if peer in self._failures}
        return text_without_coordinator(waited_s, self._endpoint.identity.addresses, tallies, failures)

    def _trust(self, link: Link, body: Revocations) -> None:
        """Trust whom the coordinator does."""
        if self._membership is not None:
            self._membership.trust(self._endpoint, body.data, body.authority, (body.former, body.former_data))

    def _look(self, _action: ev.LookForOwner) -> None:
        """Dial the coordinator of before at once, whatever wait the attempts so far have come to."""
        before = self._membership.coordinator if self._membership else ()
        known = (*self._coordinator.addresses, *self._standbys) if self._coordinator else before
        if known:
            self._stop_seeking()
            self._seeking = self._stay_linked(known)

    def _stop_seeking(self) -> None:
        if self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None

    def _stay_linked(self, addresses: Sequence[str]) -> asyncio.Task[None]:
        def failed(error: MeshError) -> None:
            self._failures[addresses[0]] = str(error)

        serve = self._shell.tasks.keep
        return serve("staying linked", lambda: stay_linked(self._endpoint, lambda: addresses, failed=failed))

    async def _ask(self, action: ev.AskOwner) -> None:
        link = self._endpoint.links.get(action.node)
        if link is None:
            return
        with contextlib.suppress(MeshError):  # the machine notices the silence
            await link.ping(OWNER_ANSWER_S)
            self._shell.feed(ev.Heard(action.node))
