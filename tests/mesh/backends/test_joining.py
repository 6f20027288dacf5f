"""Joining a mesh: what a token bought is kept, whatever else cannot be written."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.tls import MESH

from mesh.backends import enrolment
from mesh.backends.enrolment import JOINED_FILE, join_mesh, joined_mesh
from wire.errors import ConfigError
from wire.joining.credentials import Credentials
from wire.joining.join_protocol import Admitted, Grant
from wire.joining.join_tokens import new_token
from wire.security.certificates import new_authority

BY = new_authority(MESH, time.time())
TOKEN = new_token(BY.certificate, bytes(5), bytes(20))


async def join(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    async def asked(whom: Any, token: Any, key: Any, *about: Any) -> tuple[Admitted, str]:
        certificate = BY.issue(key.public, "worker", MESH, time.time())
        return Admitted(Grant(certificate, BY.revocations([], 0), MESH, 1), BY.certificate), "10.0.0.1:7100"

    monkeypatch.setattr(enrolment, "ask_to_join", asked)
    kept = lambda mesh: nullcontext(root / mesh / "desk")  # noqa: E731
    (root / MESH).mkdir()
    return await join_mesh(TOKEN, "worker", "desk", ["10.0.0.1:7100"], (), str(root), kept)


async def test_a_note_that_cannot_be_written_costs_no_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The token is used up: an error would say that it did nothing."""
    root = tmp_path / "graph-mesh"
    (root / JOINED_FILE).mkdir(parents=True)
    root.chmod(0o700)
    assert await join(root, monkeypatch) == MESH
    assert Credentials(root / MESH / "desk").enrolled
    assert f"--mesh {MESH}" in caplog.text


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(credentials: Credentials, folder: Path) -> None:
        raise OSError(30, "Read-only file system")

    root = tmp_path / "graph-mesh"
    root.mkdir(mode=0o700)
    monkeypatch.setattr(Credentials, "move_to", refuses)
    with pytest.raises(ConfigError, match=r"desk.*Read-only file system"):
        await join(root, monkeypatch)


def test_a_damaged_note_of_the_mesh_that_was_joined_last_is_none(tmp_path: Path) -> None:
    (tmp_path / JOINED_FILE).write_bytes(b"\xff\xfe")
    assert joined_mesh(str(tmp_path)) == ""
