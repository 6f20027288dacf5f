"""What the ranks of several machines show each other: certificates of an authority that lives as long as the launch.

Every machine has a key and a certificate of its own, and all know by which name to expect which.  They are made by the
launcher and go to the machines with what else it says to them, so to others by ssh; on each they are files that this
user alone can read, in the folder where its ranks meet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wire.errors import ConfigError
from wire.security.certificates import certificate_pem, new_authority, new_key, revocations_pem, server_name
from wire.security.tls import TLSFiles

MESH = "ranks"
KEY, CERTIFICATE, TRUST, NAMES = "own.key", "own.pem", "trust.pem", "names.json"


@dataclass(frozen=True, slots=True)
class Passport:
    """A machine's own, and the name in every machine's certificate."""

    files: TLSFiles
    names: Mapping[str, str]


def issue(hosts: Iterable[str], now_s: float) -> dict[str, dict[str, str]]:
    """The files of every host, as texts by name."""
    authority = new_authority(MESH, now_s)
    keys = {host: new_key() for host in dict.fromkeys(hosts)}
    trust = certificate_pem(authority.certificate) + revocations_pem(authority.revocations((), 1))
    names = json.dumps({host: server_name(key.node_id, MESH) for host, key in keys.items()})
    return {
        host: {
            KEY: key.pem().decode(),
            CERTIFICATE: certificate_pem(authority.issue(key.public, "worker", MESH, now_s)).decode(),
            TRUST: trust.decode(),
            NAMES: names,
        }
        for host, key in keys.items()
    }


def keep(texts: Mapping[str, str], folder: Path) -> None:
    """Write a host's files where its ranks find them."""
    for name, text in texts.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)


def passport(folder: Path) -> Passport:
    """This host's own; ConfigError where it has none."""
    files = TLSFiles(folder / KEY, folder / CERTIFICATE, folder / TRUST)
    try:
        return Passport(files, json.loads((folder / NAMES).read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"ranks on several machines need certificates, which {folder} has not",
            cause=str(error),
            next_step="Start them with: mesh-coord launch --hostfile FILE script.py",
        ) from None
