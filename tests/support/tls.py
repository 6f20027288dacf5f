"""TLS between two contexts without sockets, and members of a mesh to hold the ends."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from wire.joining.credentials import Credentials
from wire.joining.join_protocol import Admitted, Grant
from wire.security.certificates import (
    CertificateAuthority,
    NodeKey,
    certificate_pem,
    new_authority,
    new_key,
    revocations_pem,
)
from wire.security.tls import TLSFiles

from .hostile.faulty_disk import QuickDisk

MESH = "home"


@dataclass(frozen=True)
class Card:
    """A node of a test's mesh: its key, its certificate, and the files of both."""

    key: NodeKey
    certificate: bytes
    files: TLSFiles

    @property
    def node_id(self) -> str:
        return self.key.node_id


def authority(now_s: float | None = None) -> CertificateAuthority:
    return new_authority(MESH, time.time() if now_s is None else now_s)


def card(
    folder: Path,
    by: CertificateAuthority,
    role: str = "worker",
    *,
    now_s: float | None = None,
    key: NodeKey | None = None,
    trusting: CertificateAuthority | None = None,
) -> Card:
    """A node certified by `by`, that trusts the authority `trusting` or the same."""
    key = key or new_key()
    certificate = by.issue(key.public, role, MESH, time.time() if now_s is None else now_s)
    home = folder / key.node_id
    home.mkdir(parents=True)
    files = TLSFiles(home / "key.pem", home / "certificate.pem", home / "trust.pem")
    files.key.write_bytes(key.pem())
    files.certificate.write_bytes(certificate_pem(certificate))
    write_trust(files, trusting or by)
    return Card(key, certificate, files)


def credentials(
    folder: Path,
    by: CertificateAuthority,
    role: str = "worker",
    *,
    now_s: float | None = None,
    revoked: tuple[str, ...] = (),
    mesh: str = MESH,
) -> Credentials:
    """The identity in a folder, made now, of a node that joined."""
    made = Credentials(folder, QuickDisk())
    certificate = by.issue(made.key.public, role, mesh, time.time() if now_s is None else now_s)
    made.adopt(Admitted(Grant(certificate, by.revocations(revoked, len(revoked)), mesh, 1), by.certificate))
    return made


def write_trust(files: TLSFiles, by: CertificateAuthority, revoked: tuple[str, ...] = (), number: int = 0) -> None:
    files.trust.write_bytes(certificate_pem(by.certificate) + revocations_pem(by.revocations(revoked, number)))


class Pair:
    """Two ends of one connection; `said` is the application data that reached the server."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname=name)

    def handshake(self, say: bytes = b"hello") -> bytes:
        """Shake hands, send `say` as early as TLS lets the client, and give what the server could read.

        The first SSLError of either side is raised.
        """
        client_done = server_done = False
        for _ in range(10):
            if not client_done:
                client_done = _try(self.client.do_handshake)
                if client_done:
                    self.client.write(say)
            if not server_done:
                server_done = _try(self.server.do_handshake)
        assert client_done and server_done
        return self.server.read(4096)


def _try(step: object) -> bool:
    try:
        step()  # type: ignore[operator]
    except ssl.SSLWantReadError:
        return False
    return True
