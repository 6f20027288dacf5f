"""Who is thrown out of a mesh is so at its coordinator, whatever went wrong there before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.authority.authority import Authority
from mesh.backends.admission import Admission
from wire.joining.credentials import Credentials
from wire.timeouts import DEFAULT_TIMEOUTS


async def test_revocations_are_followed_again_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "authority", "home")
    node = Credentials(tmp_path / "node")
    node.adopt(authority.admit_here(node.key.public, "worker", "desktop"))
    admission, out = Admission(authority, tmp_path / "identity"), asyncio.Event()

    def revoke(revocations: Any, node_ids: Any) -> None:
        if not faults:
            faults.append("a thread could not begin")
            raise RuntimeError(faults[0])
        if node.node_id in node_ids:
            out.set()

    faults: list[str] = []
    coordinator = SimpleNamespace(
        names_come_from=lambda enrolled: None,
        endpoint=None,
        link_watch=SimpleNamespace(woke=[]),
        config=SimpleNamespace(timeouts=DEFAULT_TIMEOUTS),
        revoke=revoke,
    )
    admission.begin(cast(Any, coordinator))
    await asyncio.to_thread(authority.revoke_node, "desktop")
    async with asyncio.timeout(30):
        await out.wait()
    assert faults
    await admission.close()
