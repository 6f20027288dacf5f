"""Web certificate: what a server of models proves who it is by, where the mesh's authority is this user's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from coordinator.authority.authority import Authority
from wire.addresses import EVERY
from wire.errors import ConfigError, MeshError
from wire.link.interfaces import interfaces_here
from wire.security.certificates import new_key
from wire.security.tls import TLSContext, reload_web, web_context
from wire.system.atomic_files import Disk
from wire.system.file_lock import behind_lock
from wire.system.private_folder import private_folder
from wire.system.steady_log import steady_logger

from ..backends.enrolment import at_home, authority_folder

RENEWED_S = 24 * 3600.0
AGAIN_S = 3600.0
log = steady_logger("graph_mesh.serving")


class WebCertificate:
    """A certificate of the mesh's authority for a server on this machine; `keep` renews it each day.

    ConfigError where the authority is elsewhere.
    """

    def __init__(self, mesh: str, state_dir: str, folder: Path, hosts: Sequence[str]) -> None:
        if not at_home(mesh, state_dir):
            raise ConfigError(
                f"the authority of mesh {mesh!r} is not on this machine, or not this user's",
                next_step="Serve on the machine of mesh-coord serve, or give --tls-cert and --tls-key",
            )
        self._authority = Authority(authority_folder(mesh, state_dir), mesh)
        self._hosts = hosts
        self._certificate, self._key = private_folder(folder) / "web.pem", folder / "web.key"
        self._issue()
        self.context: TLSContext = web_context(self._certificate, self._key)

    async def keep(self, renewed_s: float = RENEWED_S, again_s: float = AGAIN_S) -> None:
        """Renew the certificate each day, until it is cancelled; where that fails, say so and try again in an hour."""
        wait_s = renewed_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = renewed_s
            try:
                await behind_lock(self._renew)
            except (MeshError, OSError) as error:
                log.error("the certificate %s is not renewed, and is tried again: %s", self._certificate, error)
                wait_s = again_s

    def _renew(self) -> None:
        self._issue()
        reload_web(self.context, self._certificate, self._key)

    def _issue(self) -> None:
        key = new_key()
        certificate = self._authority.certify_web(key.public, self._hosts)
        Disk().write_whole(self._key, [key.pem()])
        Disk().write_whole(self._certificate, [certificate])


def names_here(host: str, more: Sequence[str]) -> list[str]:
    """The names and addresses under which a server that listens on `host` is called."""
    own = [address for each in interfaces_here() for address in each.addresses] if host in EVERY else [host]
    plain = [address.partition("%")[0] for address in own]
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname().lower(), *plain, *more]))
