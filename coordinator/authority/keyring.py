"""The authorities of one mesh in files: the present one, the one before while that is trusted, and no others.

They are counted from 1.  Which of them count is in the list of members, which is written last; so an authority that was
being made when the power went never was one, and `keep_only` clears up after it.  It does not know tokens or members.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from wire.security.certificates import (
    CertificateAuthority,
    authority_from_pem,
    certificate_from_pem,
    certificate_pem,
    new_authority,
)
from wire.system.atomic_files import Disk

_FILE = re.compile(r"authority(?:-(\d+))?\.(?:key|pem|former\.pem)")


class Keyring:
    """The authorities in `folder`.  OSError for files that are not there, ConfigError for damaged ones."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._known: dict[int, CertificateAuthority] = {}

    def get(self, number: int) -> CertificateAuthority:
        if number not in self._known:
            key, certificate = self._path(number, "key"), self._path(number, "pem")
            self._known[number] = authority_from_pem(key.read_bytes(), certificate.read_bytes())
        return self._known[number]

    def make(self, number: int, mesh: str, now_s: float) -> CertificateAuthority:
        """A new authority under this number, in place of what may be there."""
        authority = new_authority(mesh, now_s)
        self._known.pop(number, None)
        self._disk.write_whole(self._path(number, "key"), [authority.key_pem()])
        self._disk.write_whole(self._path(number, "pem"), [certificate_pem(authority.certificate)])
        return authority

    def succeed(self, number: int, mesh: str, now_s: float, until_s: float) -> CertificateAuthority:
        """The successor of authority `number`, by whose word that is trusted until then."""
        successor = self.make(number + 1, mesh, now_s)
        vouched = successor.vouch(self.get(number).certificate, now_s, until_s)
        self._disk.write_whole(self._path(number + 1, "former.pem"), [certificate_pem(vouched)])
        return successor

    def vouched(self, number: int) -> bytes:
        """The certificate that authority `number` made for the one before."""
        return certificate_from_pem(self._path(number, "former.pem").read_bytes())

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove all others; the keys go first."""
        matches = {path: _FILE.fullmatch(path.name) for path in self._folder.glob("authority*")}
        gone = [path for path, match in matches.items() if match and int(match[1] or 1) not in numbers]
        for path in sorted(gone, key=lambda path: path.suffix != ".key"):
            self._disk.remove(path)
        self._known = {number: authority for number, authority in self._known.items() if number in numbers}

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / (f"authority.{kind}" if number == 1 else f"authority-{number}.{kind}")
