"""Who is thrown out of a mesh is so at its coordinator, whatever went wrong there before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.audit_events import read_events

from coordinator.authority.authority import Authority
from coordinator.authority.authority_service import AuthorityService
from mesh.backends.admission import Admission
from wire.errors import NodeLost
from wire.joining.credentials import Credentials
from wire.protocol.messages import CreateToken, TokenCreated
from wire.system.file_lock import FileLock
from wire.timeouts import DEFAULT_TIMEOUTS

HANGS_S = 120.0
THREADS_MAX = 36  # of asyncio.to_thread, on any machine


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
    async with asyncio.timeout(HANGS_S):
        await out.wait()
    assert faults
    await admission.close()


async def test_a_command_that_has_the_lock_and_stands_still_holds_up_no_other_work(tmp_path: Path) -> None:
    """As one that was stopped with Ctrl-Z does: plans are made, and the journal is written, by threads, too."""
    authority = Authority(tmp_path / "authority", "home")
    admission = Admission(authority, tmp_path / "identity")
    lock = FileLock(tmp_path / "authority" / "lock")
    assert lock.try_acquire()
    try:
        for number in range(2 * THREADS_MAX):
            link = SimpleNamespace(peer=SimpleNamespace(node_id=f"client-{number}"))
            admission.acted(cast(Any, link), "submit", f"job {number}")
            admission.imposter(f"10.0.0.{number}:7100", NodeLost(f"imposter {number}"))
        answer = AuthorityService(authority).answers[CreateToken]
        asking = asyncio.ensure_future(answer(cast(Any, link), CreateToken("worker", 1, 60.0)))
        async with asyncio.timeout(HANGS_S):
            for _ in range(3):
                assert await asyncio.to_thread(sum, (1, 2)) == 3
        assert not asking.done()
    finally:
        lock.release()
    async with asyncio.timeout(HANGS_S):
        assert isinstance(await asking, TokenCreated)
        await admission.close()
    assert len([each for each in read_events(tmp_path / "authority", 1000) if each["event"] == "submit"]) == (
        2 * THREADS_MAX
    )
