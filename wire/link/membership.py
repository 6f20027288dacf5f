"""A node as a member of its mesh, while it runs: its certificate stays valid, its coordinator stays known.

Workers and clients have one.  It knows no message and decides nothing about work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterable, Sequence
from functools import partial
from pathlib import Path

from ..addresses import parse_address
from ..errors import ConfigError, ConnectFailed, JoinRefused, MeshError, NotTrusted
from ..joining.credentials import Credentials, InterruptibleSleep, keep_renewed
from ..joining.join_port import PORT_OFFSET, join, join_port_of, renew
from ..joining.join_protocol import Admitted, Former
from ..joining.join_tokens import Token
from ..roles import member_id
from ..security.certificates import NodeKey
from ..system.atomic_files import Disk
from ..system.in_order import InOrder
from ..system.steady_log import steady_logger
from ..system.tasks import Tasks
from ..timeouts import DEFAULT_TIMEOUTS, Timeouts
from .address_policy import is_address, is_loopback
from .endpoint import Endpoint

log = steady_logger("graph_mesh.identity")

COORDINATOR_FILE = "coordinator.json"
KNOWN_MAX = 16  # addresses of coordinators that are remembered, the latest first
TRUST_AGAIN_S = 5.0  # until what the disk refused is written again


class Membership:
    """The membership of the node whose identity is in `folder`."""

    def __init__(self, credentials: Credentials, folder: Path, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self.credentials = credentials
        self._timeouts = timeouts
        self._file = folder / COORDINATOR_FILE
        self.coordinator = coordinator_known(self._file)
        self._nap = InterruptibleSleep()
        self._notes = InOrder()
        self._noting: asyncio.Task[None] | None = None  # the newest
        self._tasks = Tasks()
        self._trusting: asyncio.Task[None] | None = None  # as the coordinator said last

    def met(self, addresses: Sequence[str]) -> None:
        """The coordinator can be dialled at these "host:port": it renews certificates, and is looked for after a
        restart.  Names by which it was dialled before stay behind them: by such a name a user asks for it again."""
        known = tuple(dict.fromkeys((*addresses, *filter(_is_name, self.coordinator))))[:KNOWN_MAX]
        if addresses and known != self.coordinator:
            self.coordinator = known
            write = partial(asyncio.to_thread, remember_coordinator, self._file.parent, self.coordinator)
            self._noting = self._notes.begin("remembering the coordinator", write)

    async def remembered(self) -> None:
        """Return once the disk has where the coordinator is, or has refused it."""
        if self._noting is not None:
            await asyncio.shield(self._noting)

    async def keep(self) -> None:
        """Keep the certificate renewed, for ever; at once if it has run out."""
        failure = await self.refresh()
        if failure is not None:
            log.warning("%s", failure)
        await keep_renewed(self.credentials, self._renewed, sleep=self._nap, timeouts=self._timeouts)

    async def refresh(self, address: str = "") -> MeshError | None:
        """Renew a certificate that ran out, or is of the authority before: a machine that was off needs no new token.

        By the coordinator at this "host:port", if one is given; why not, if it could not be.  A command that heard of a
        new authority calls it at its end, for it may not come again in time.
        """
        out = self.credentials.member.ends_s < time.time()
        if not (out or self.credentials.outdated) or not (address or self.coordinator):
            return None
        try:
            await self.credentials.adopt_here(await self._renewed(address))
        except MeshError as error:
            what = "has run out" if out else "is of an authority that is replaced"
            return NotTrusted(
                f"the certificate of this node {what}, and is not renewed: {error.message}",
                cause=error.cause,
                next_step=error.next_step or f"The join port must be open: the coordinator's port + {PORT_OFFSET}",
            )
        return None

    async def why(self, address: str) -> MeshError | None:
        """Why the coordinator at this "host:port" does not take this node, as it says at its join port."""
        try:
            async with asyncio.timeout(self._timeouts.refusal_reason_s):
                await self.credentials.adopt_here(await self._renewed(address))
        except (JoinRefused, NotTrusted) as error:
            return error
        except (MeshError, TimeoutError) as error:
            log.debug("nothing is said at the join port, either: %s", error)
        return None

    def woke(self) -> None:
        """The machine slept: the certificate may be due, or have run out."""
        self._nap.end()

    def close(self) -> None:
        """Try nothing again."""
        self._tasks.cancel()

    def trust(
        self, endpoint: Endpoint, data: bytes, authority: bytes, former: tuple[bytes, bytes]
    ) -> asyncio.Task[None]:
        """The coordinator says who is out, and has no link from now on, and whom to trust (see `take_trust`).

        It is heeded once the disk has it, which is tried again where it refuses: it is said once.  ProtocolError for
        what the mesh's authority did not sign.
        """
        trust = data, authority, Former(*former) if all(former) else None
        self.credentials.check_trust(*trust)
        if self._trusting is not None:
            self._trusting.cancel()  # what was said before is not tried again
        self._trusting = self._tasks.run("taking up whom to trust", self._trust(endpoint, *trust), log.error)
        return self._trusting

    async def trusted(self) -> None:
        """Return once what the coordinator said last of whom to trust is heeded."""
        if self._trusting is not None:
            await asyncio.wait([self._trusting])

    async def _trust(self, endpoint: Endpoint, data: bytes, authority: bytes, former: Former | None) -> None:
        last_logged = ""
        while True:
            try:
                news = await self.credentials.take_trust_here(data, authority, former)
                break
            except ConfigError as error:
                if str(error) != last_logged:
                    last_logged = str(error)
                    log.error("the new trust is not written, and does not apply before that: %s", error)
            await asyncio.sleep(TRUST_AGAIN_S)
        # Also where it is no news: it may have been written for one that was said before, and is not awaited any more.
        if self.credentials.outdated:
            log.log(logging.INFO if news else logging.DEBUG, "mesh %s has a new authority", self.credentials.mesh)
            self._nap.end()
        out = self.credentials.revocations
        for link in list(endpoint.links.values()):
            if out.includes(member_id(link.peer.node_id)):
                log.warning("%s was revoked", link.peer.name)
                link.close("this node was revoked")

    async def _renewed(self, named: str = "") -> Admitted:
        failure: MeshError = ConnectFailed("no coordinator is known that could renew the certificate")
        for address in (named,) if named else self.coordinator:
            host, port = parse_address(address)
            try:
                return await renew(host, join_port_of(port), self.credentials, self._timeouts)
            except MeshError as error:
                failure = error
        raise failure


async def ask_to_join(
    addresses: AsyncIterable[str],
    token: Token,
    key: NodeKey,
    role: str,
    name: str,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> tuple[Admitted, str]:
    """Ask the coordinators at these addresses, one after another, to let a node in; also the address that did.

    Raises what the coordinator said that knows the token, else what the last one said.
    """
    failure: MeshError = ConfigError(
        "no coordinator of the token's mesh announces itself here",
        next_step="Name it: --peer HOST:PORT (a client: --coordinator HOST:PORT)",
    )
    async for address in addresses:
        host, port = parse_address(address)
        try:
            return await join(host, join_port_of(port), token, key, role, name, timeouts), address
        except JoinRefused:
            raise
        except MeshError as error:
            failure = error
    raise failure


def remember_coordinator(folder: Path, addresses: Sequence[str]) -> None:
    """Remember it for the node whose identity is in `folder`; losing it costs a --peer, so a disk that refuses is only
    logged."""
    try:
        Disk().write_whole(folder / COORDINATOR_FILE, [json.dumps(list(addresses)).encode()])
    except OSError as error:
        log.warning("cannot remember the coordinator: %s", error)


def _is_name(address: str) -> bool:
    """Whether a "host:port" is one that no coordinator says of itself: the name of a machine, or of this one."""
    host = parse_address(address)[0]
    return is_loopback(host) or not is_address(host)


def coordinator_known(path: Path) -> tuple[str, ...]:
    """What such a file says, nothing where it cannot be read."""
    try:
        addresses = json.loads(path.read_bytes())
        if not isinstance(addresses, list):
            return ()
        for address in addresses:
            parse_address(address)
    except (OSError, ValueError, AttributeError, RecursionError, ConfigError):  # AttributeError: no text
        return ()
    return tuple(addresses)
