"""Admission: lets members into the mesh of a coordinator: its certificate, the join port, revocations.

Part of the composition root.  `mesh-coord serve` has one with a join port; a program that is its own coordinator, and
runs as the user whose mesh it is, has one without.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from coordinator.authority.authority import Authority, Trust
from coordinator.authority.refusal_log import ALL_CLIENTS, CLIENT, RefusalLog
from coordinator.coordinator import Coordinator
from coordinator.workers.records import Enrolled
from wire.errors import ConfigError, MeshError
from wire.joining.credentials import Credentials, InterruptibleSleep, keep_renewed
from wire.joining.join_port import PORT_OFFSET, JoinPort, join_port_of, serve_joining
from wire.joining.join_protocol import Admitted
from wire.joining.join_tokens import Token, discovery_key
from wire.link.link import Link
from wire.link.websocket_carrier import Endpoint
from wire.protocol.messages import Revocations
from wire.roles import member_id
from wire.security.tls_listener import addresses_of
from wire.system.file_lock import behind_lock
from wire.system.shared_memory import SharedDir
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks

log = steady_logger("graph_mesh.identity")

FIRST_TOKEN_USES = 8  # a home's machines, joined in one go
FIRST_TOKEN_S = 3600.0
PORTS_TRIED = 20
NOTED_S = 1.0  # at the end, for the audit log


class Admission:
    """The admission of the coordinator whose identity is in `folder`; without one, a new identity for this process
    alone.

    Blocks for a few disk writes when it is made.
    """

    def __init__(self, authority: Authority, folder: Path | None = None) -> None:
        self.authority = authority
        self._own: SharedDir | None = None
        if folder is None:
            self._own = SharedDir.create(Path(tempfile.gettempdir()))
            weakref.finalize(self, self._own.close)
            folder = self._own.path
        self.credentials = Credentials(folder)
        self.credentials.adopt(self.certify())
        self._pins = authority.trust().pins
        self._acts = RefusalLog(CLIENT, ALL_CLIENTS)
        self._join_port: JoinPort | None = None
        self._tasks, self._notes = Tasks(), Tasks()

    def first_token(self) -> Token | None:
        """A token for a mesh that has nobody yet and no open token, to be shown once."""
        if self.authority.members() or self.authority.tokens():
            return None
        return self.authority.create_token("worker", FIRST_TOKEN_USES, FIRST_TOKEN_S)

    async def listen(self, coordinator: Coordinator, host: str, ports: Sequence[int]) -> int:
        """Open the first of these ports that is free together with its join port; the port."""
        failure: ConfigError | None = None
        for port in ports if ports[0] else _free_ports():
            try:
                return await self._listen(coordinator, host, port)
            except ConfigError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def discovery_keys(self) -> Sequence[bytes]:
        """The keys of the mesh's announcements: that of the authority, and that of the one before."""
        return [discovery_key(pin) for pin in self._pins]

    def begin(self, coordinator: Coordinator) -> None:
        """Begin to renew the certificate, to enforce revocations, and to tell members of a new authority."""
        coordinator.names_come_from(self._enrolled)
        if isinstance(coordinator.endpoint, Endpoint):
            coordinator.endpoint.audit_strangers(self.authority.turned_away)

        async def renew() -> Admitted:
            return await behind_lock(self.certify)

        nap, timeouts = InterruptibleSleep(), coordinator.config.timeouts
        coordinator.link_watch.woke.append(nap.end)  # the machine slept: the certificate may be due
        renewing = partial(keep_renewed, self.credentials, renew, sleep=nap, timeouts=timeouts)
        self._tasks.keep("following the trust of the authority", partial(self._follow, coordinator))
        self._tasks.keep("renewing the certificate", renewing)

    def _enrolled(self, node_id: str) -> Enrolled:
        """What the list of members says of a worker.  One that is not on it, as where a standby has an older copy, or
        that cannot be looked up, may be anybody's."""
        try:
            member = self.authority.member(member_id(node_id))
        except (OSError, MeshError) as error:
            log.error("cannot read the list of members, so a worker that joins now is not trusted: %s", error)
            member = None
        return Enrolled(member.name, member.untrusted) if member is not None else Enrolled("", untrusted=True)

    def imposter(self, where: str, error: MeshError) -> None:
        """Log a node that announced itself as one of this mesh, and could not prove it."""
        self._note(self.authority.distrusted, where, str(error))

    def acted(self, link: Link, what: str, to: str) -> None:
        """Log what a client did, unless it did much of late."""
        client = member_id(link.peer.node_id)
        unlogged_count = self._acts.record(client, f"{what} {to}", time.time())
        if unlogged_count is not None:
            self._note(self.authority.acted, what, client, to, unlogged_count)

    def _note(self, write: Callable[..., None], *what: object) -> None:
        """Have something written into the audit log, soon."""
        self._notes.run("writing to the audit log", behind_lock(write, *what), log.error)

    async def close(self) -> None:
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # what was done is noted, unless another process has the lock
            async with asyncio.timeout(NOTED_S):
                await asyncio.gather(*self._notes, return_exceptions=True)
        if self._join_port is not None:
            await self._join_port.close()
        if self._own is not None:
            self._own.close()

    async def _listen(self, coordinator: Coordinator, host: str, port: int) -> int:
        join_port, _ = await serve_joining(
            addresses_of(host),
            join_port_of(port),
            self.credentials,
            self.authority,
            timeouts=coordinator.config.timeouts,
        )
        try:
            bound = await coordinator.endpoint.listen(host, port, port)
        except ConfigError:
            await join_port.close()
            raise
        self._join_port = join_port
        return bound

    async def _follow(self, coordinator: Coordinator) -> None:
        """Follow the trust of the authority, and send it to all members."""
        async for trust in self.authority.watch():
            await self._adopt(trust, coordinator.config.timeouts.certificate_retry_s)
            dropped, self._pins = len(trust.pins) < len(self._pins), trust.pins
            former = (trust.former.certificate, trust.former.revocations) if trust.former else (b"", b"")
            coordinator.revoke(Revocations(trust.data, trust.authority, *former), trust.node_ids)
            if dropped:
                _end_links_of_before(coordinator, trust)

    async def _adopt(self, trust: Trust, retry_s: float) -> None:
        """Adopt a new trust before members learn of it, so that they can renew; a full disk delays that."""
        while True:
            try:
                known = self.credentials.admitted
                if (known.authority, known.former is None) == (trust.authority, trust.former is None):
                    await self.credentials.take_trust_here(trust.data, trust.authority, trust.former)
                else:
                    await self.credentials.adopt_here(await behind_lock(self.certify))
                return
            except MeshError as error:
                log.error("cannot go on to a new authority or revocation list: %s", error)
            await asyncio.sleep(retry_s)

    def certify(self) -> Admitted:
        """A certificate for this coordinator, by the authority in its folder."""
        return self.authority.certify_coordinator(self.credentials.key.public)


def _end_links_of_before(coordinator: Coordinator, trust: Trust) -> None:
    """End the links of members that have no certificate of the new authority, once the former one has expired."""
    for link in list(coordinator.endpoint.links.values()):
        if member_id(link.peer.node_id) not in trust.certified:
            log.warning("%s has no certificate of the new authority", link.peer.name)
            link.close("the authority of this node's certificate was replaced")


def _free_ports() -> Sequence[int]:
    """Free ports, chosen by the system, whose join port is a valid port, too."""
    ports = []
    for _ in range(PORTS_TRIED):
        with contextlib.closing(socket.socket()) as here:
            here.bind(("127.0.0.1", 0))
            port = here.getsockname()[1]
        ports.append(port if port + PORT_OFFSET < 1 << 16 else 20_000 + secrets.randbelow(10_000))
    return ports
