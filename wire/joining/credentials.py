"""A node's key and certificate in its state folder: who it is, across restarts (docs/protocol.md, "Identity").

The key is made once and stays.  The certificate comes by joining and is renewed long before it runs out.  Workers,
clients and coordinators keep theirs alike.  This file does not know sockets; a new thing to keep is a file and a line
of `adopt`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..errors import ConfigError, MeshError, ProtocolError
from ..security.certificates import (
    BACKDATED_S,
    Member,
    Revocations,
    certificate_from_pem,
    certificate_pem,
    certificates_from_pem,
    check_issued,
    is_issued,
    key_from_pem,
    member_of,
    new_key,
    read_revocations,
    revocations_from_pem,
    revocations_pem,
)
from ..security.tls import TLSContext, TLSFiles, client_context, join_server_context, reload, server_context
from ..system.atomic_files import Disk
from ..system.in_order import InOrder
from ..system.private_folder import private_folder
from ..system.steady_log import steady_logger
from ..timeouts import DEFAULT_TIMEOUTS, Timeouts
from .join_protocol import Admitted, Former, Grant
from .join_tokens import discovery_key, pin_of

log = steady_logger("graph_mesh.identity")

LOOK_S = 60.0  # how often the clock is looked at: a laptop that slept wakes with a certificate that is due


class Credentials:
    """The identity in `folder`; ConfigError if what is there cannot be used.  Programs of one client share a folder; a
    worker and a coordinator have one each.

    What changes it has two forms: one that waits for the disk, and one for event loops, which do not.
    """

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.files = TLSFiles(folder / "node.key", folder / "certificate.pem", folder / "trust.pem")
        self._mesh_file = folder / "mesh.json"
        self._disk = disk or Disk()
        self._contexts: dict[Callable[[TLSFiles], TLSContext], TLSContext] = {}
        self._changes = InOrder()
        private_folder(folder)
        if not self.files.key.exists():
            self._write(self.files.key, new_key().pem())
        _check_private(self.files.key)
        self._pem = _read_key(self.files.key)
        self.key = key_from_pem(self._pem)
        self._admitted: Admitted | None = None
        if self.files.certificate.exists():
            self._use(self._read())

    @property
    def node_id(self) -> str:
        return self.key.node_id

    @property
    def enrolled(self) -> bool:
        """Whether it has joined a mesh; its certificate may have run out meanwhile, and can be renewed all the same."""
        return self._admitted is not None

    @property
    def admitted(self) -> Admitted:
        """What the mesh gave it."""
        if self._admitted is None:
            raise ConfigError("this node has joined no mesh", next_step="Join one with a token: mesh-worker join")
        return self._admitted

    @property
    def mesh(self) -> str:
        return self.admitted.grant.mesh

    @property
    def discovery_key(self) -> bytes:
        """What its mesh's announcements are made and read with."""
        return discovery_key(pin_of(self.admitted.authority))

    @property
    def certificate(self) -> bytes:
        return self.admitted.grant.certificate

    @property
    def member(self) -> Member:
        """What its certificate says: role and times."""
        return member_of(self.certificate)

    @property
    def revocations(self) -> Revocations:
        """The revoked nodes, as far as this node has heard."""
        return read_revocations(self.admitted.grant.revocations, self.admitted.authority)

    @property
    def outdated(self) -> bool:
        """Whether its certificate is of the authority before, and so good for no longer than that is trusted.

        A coordinator uses it until then: not all members know the new authority.
        """
        return self.member.role != "coordinator" and not is_issued(self.certificate, self.admitted.authority)

    # -- changes

    def adopt(self, admitted: Admitted) -> Member:
        """Keep what joining or renewing gave, and use it from the next handshake on.

        ProtocolError, and nothing changed, unless it is for this node's key and signed by the authority.
        """
        admitted = self._checked(admitted)
        self._keep(admitted)
        self._use(admitted)
        return self.member

    async def adopt_here(self, admitted: Admitted) -> Member:
        """`adopt` on an event loop."""
        await self._change(lambda: admitted)
        return self.member

    async def _change(self, change: Callable[[], Admitted | None]) -> bool:
        """Adopt what `change` says once those before are done, as it depends on them; False if it says None."""

        async def adopt() -> bool:
            admitted = change()
            if admitted is None:
                return False
            admitted = self._checked(admitted)
            await asyncio.to_thread(self._keep, admitted)
            self._use(admitted)
            return True

        return await self._changes.do("writing whom to trust", adopt)

    def _keep(self, admitted: Admitted) -> None:
        self._check_own()
        trusted = [(admitted.authority, admitted.grant.revocations)]
        if admitted.former is not None:
            trusted.append((admitted.former.certificate, admitted.former.revocations))
        pem = (certificate_pem(certificate) + revocations_pem(revoked) for certificate, revoked in trusted)
        self._write(self.files.trust, b"".join(pem))
        self._write(self._mesh_file, json.dumps({"mesh": admitted.grant.mesh, "epoch": admitted.grant.epoch}).encode())
        self._write(
            self.files.certificate, certificate_pem(admitted.grant.certificate)
        )  # last: with it, it is a member

    def _check_own(self) -> None:
        """Check that the key on the disk is ours: a certificate of ours beside another one would spoil both."""
        with contextlib.suppress(OSError):  # what cannot be read cannot be written either, which is said then
            if self.files.key.read_bytes() != self._pem:
                raise ConfigError(
                    f"the identity in {self.files.key.parent} is no longer the one of this process: its user joined "
                    "again meanwhile",
                    next_step="Start this program again",
                )

    def move_to(self, folder: Path) -> None:
        """Make this the identity in another folder, instead of what was there; of no use itself from then on."""
        (folder / self.files.certificate.name).unlink(missing_ok=True)
        for path in (self.files.key, self.files.trust, self._mesh_file, self.files.certificate):
            os.replace(path, folder / path.name)  # last what makes it a member
        self._disk.sync_folder(folder)

    def take_trust(self, data: bytes, authority: bytes = b"", former: Former | None = None) -> bool:
        """Trust what the coordinator says, from the next handshake on; False if it is nothing new.

        `data` is the revocation list, `authority` a new one if there is one, `former` the one before while that is
        trusted, too.
        """
        news = self._trusting(data, authority, former)
        if news is not None:
            self.adopt(news)
        return news is not None

    def check_trust(self, data: bytes, authority: bytes, former: Former | None) -> None:
        """Check what `take_trust` is given, and change nothing; ProtocolError where that would raise it."""
        news = self._trusting(data, authority, former)
        if news is not None:
            self._checked(news)

    async def take_trust_here(self, data: bytes, authority: bytes = b"", former: Former | None = None) -> bool:
        """`take_trust` on an event loop."""
        return await self._change(lambda: self._trusting(data, authority, former))

    def _trusting(self, data: bytes, authority: bytes, former: Former | None) -> Admitted | None:
        admitted, grant = self.admitted, self.admitted.grant
        authority = authority or admitted.authority
        number = read_revocations(data, authority).number
        same = authority == admitted.authority and _vouched(former) == _vouched(admitted.former)
        if same and number <= self.revocations.number:
            return None
        return Admitted(Grant(grant.certificate, data, grant.mesh, grant.epoch), authority, former)

    # -- TLS

    def server_context(self) -> TLSContext:
        """The context for accepting links.  It stays up to date by itself, as the others do."""
        return self._context(server_context)

    def client_context(self) -> TLSContext:
        """The context for dialling links, and for renewing at the join port."""
        return self._context(client_context)

    def join_server_context(self) -> TLSContext:
        """The context for a coordinator's join port."""
        return self._context(join_server_context)

    def _context(self, make: Callable[[TLSFiles], TLSContext]) -> TLSContext:
        assert self.admitted
        if make not in self._contexts:
            self._contexts[make] = make(self.files)
        return self._contexts[make]

    # -- files

    def _use(self, admitted: Admitted) -> None:
        before = self._admitted
        if before is not None and _trusted(before) != _trusted(admitted):
            self._contexts.clear()  # a context never forgets whom it trusted
        self._admitted = admitted
        for context in self._contexts.values():
            reload(context, self.files)

    def _checked(self, admitted: Admitted) -> Admitted:
        """What was admitted, checked, with the newer of its revocation lists and ours."""
        grant, former, ours = admitted.grant, admitted.former, self._admitted
        if former is not None:
            check_issued(former.certificate, admitted.authority)
            read_revocations(former.revocations, former.certificate)
        if former is None or not is_issued(grant.certificate, former.certificate):
            check_issued(grant.certificate, admitted.authority)
        if member_of(grant.certificate).node_id != self.node_id:
            raise ProtocolError("a certificate came that is for another node")
        came = read_revocations(grant.revocations, admitted.authority)
        if ours is None or _trusted(ours) != _trusted(admitted) or came.number >= self.revocations.number:
            return admitted
        newer = Grant(grant.certificate, ours.grant.revocations, grant.mesh, grant.epoch)
        return Admitted(newer, ours.authority, ours.former)

    def _read(self) -> Admitted:
        try:
            fields = json.loads(self._mesh_file.read_bytes())
            trust = self.files.trust.read_bytes()
            certificate = certificate_from_pem(self.files.certificate.read_bytes())
            (authority, *former), (revoked, *theirs) = certificates_from_pem(trust), revocations_from_pem(trust)
            grant = Grant(certificate, revoked, str(fields["mesh"]), int(fields["epoch"]))
            return self._checked(Admitted(grant, authority, Former(*former, *theirs) if former else None))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, MeshError) as error:
            raise ConfigError(
                f"the identity in {self.files.key.parent} cannot be used",
                cause=str(error),
                next_step="Remove that folder and join with a new token",
            ) from None

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._disk.write_whole(path, [data])
        except OSError as error:
            raise ConfigError(f"cannot write {path}", cause=str(error)) from None


def _vouched(former: Former | None) -> bytes:
    return b"" if former is None else former.certificate


def _trusted(admitted: Admitted) -> tuple[bytes, bytes]:
    """The authorities whose signatures count."""
    return admitted.authority, _vouched(admitted.former)


def _check_private(path: Path) -> None:
    if sys.platform != "win32" and path.stat().st_mode & 0o077:
        raise ConfigError(f"others can read the key {path}", next_step=f"chmod 600 {path}, or remove its folder")


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:  # it is another user's, where a command once ran by sudo
        step = f"Make it yours again, or remove {path.parent} and join with a new token"
        raise ConfigError(
            f"the key {path} cannot be read", cause=error.strerror or str(error), next_step=step
        ) from None


# -- renewal -----------------------------------------------------------------------------------------------


def renewal_due_s(member: Member, jitter: float) -> float:
    """The time to renew, in seconds since 1970: after two thirds of the time, give or take a tenth (`jitter` -1 to
    1)."""
    issued_s = member.starts_s + BACKDATED_S
    return issued_s + (member.ends_s - issued_s) * (2 / 3 + jitter / 10)


class InterruptibleSleep:
    """A sleep that another task may end early."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        self._over.clear()

    def end(self) -> None:
        """End the sleep of now, or the next one at once."""
        self._over.set()


async def keep_renewed(
    credentials: Credentials,
    ask: Callable[[], Awaitable[Admitted]],
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    chance: Callable[[float, float], float] = random.SystemRandom().uniform,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> None:
    """Renew the certificate whenever it is due, for ever: `ask` gets a new one from the coordinator.

    It is due, too, once the mesh has a new authority.
    """
    logged = ""
    while True:
        due_s = renewal_due_s(credentials.member, chance(-1.0, 1.0))
        while (left_s := due_s - clock()) > 0 and not credentials.outdated:
            await sleep(min(left_s, LOOK_S))
        try:
            member = await credentials.adopt_here(await ask())
            log.info("certificate renewed, good for %.0f h", (member.ends_s - clock()) / 3600)
            logged = ""
        except MeshError as error:
            if str(error) != logged:
                logged = str(error)
                log.warning("the certificate is not renewed: %s", error)
            expired = clock() >= credentials.member.ends_s
            await sleep(timeouts.certificate_expired_retry_s if expired else timeouts.certificate_retry_s)
