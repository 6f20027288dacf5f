"""What the coordinator knows of members is at its standby, too: who was thrown out stays so after a takeover."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.standby import following as following_module
from coordinator.standby.following import Following
from coordinator.standby.replication import Replication
from mesh.simulation.loop import VirtualLoop
from wire.protocol.messages import AuthorityFile, AuthorityFiles
from wire.system.file_lock import FileLock
from wire.system.tasks import Tasks


def files(text: bytes) -> AuthorityFiles:
    return AuthorityFiles((AuthorityFile("members.json", text),))


def follower(folder: Path) -> Any:
    following = cast(Any, Following.__new__(Following))
    following._authority, following._authority_files = folder, None
    following._authority_news = asyncio.Event()
    return following


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_command_that_has_the_lock_and_stands_still_holds_up_no_loop(tmp_path: Path) -> None:
    """As one that was stopped with Ctrl-Z does: the standby would neither vote nor be heard of."""
    following, tasks = follower(tmp_path), Tasks()
    tasks.keep("writing", following._keep_authority)
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    for text in (b"older", b"newer"):
        following.on_notify(cast(Any, None), files(text))
        await asyncio.sleep(0.05)
    assert not (tmp_path / "members.json").exists()
    lock.release()
    await eventually(lambda: (tmp_path / "members.json").exists())
    await eventually(lambda: (tmp_path / "members.json").read_bytes() == b"newer")
    tasks.cancel()


def test_what_the_disk_refuses_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError(28, "no space left on the test's device")] * 3
    take = Following._take_authority

    def refuses(following: Following, body: AuthorityFiles) -> None:
        if refusals:
            raise refusals.pop()
        take(following, body)

    monkeypatch.setattr(following_module.Following, "_take_authority", refuses)

    async def story() -> None:
        following, tasks = follower(tmp_path), Tasks()
        tasks.keep("writing", following._keep_authority)
        following.on_notify(cast(Any, None), files(b"known"))
        await asyncio.sleep(60)
        tasks.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert not refusals and (tmp_path / "members.json").read_bytes() == b"known"


async def test_it_is_sent_again_over_a_new_link(tmp_path: Path) -> None:
    """What was said over a link that ended meanwhile may not have come."""

    class Link:
        def __init__(self) -> None:
            self.peer, self.closed, self.sent = SimpleNamespace(role="coordinator"), False, list[AuthorityFiles]()

        def notify(self, message: AuthorityFiles) -> None:
            self.sent.append(message)

    (tmp_path / "members.json").write_bytes(b"one")
    first, second = Link(), Link()
    links = {"standby": first}
    replication = cast(Any, Replication.__new__(Replication))
    replication._coordinator = SimpleNamespace(endpoint=SimpleNamespace(links=links))
    replication._file = SimpleNamespace(remembered=SimpleNamespace(peers={"standby": ()}))
    replication._authority, replication._sent_authority = tmp_path, {}
    for _ in range(3):
        await replication._send_authority()
    assert first.sent == [files(b"one")]
    first.closed, links["standby"] = True, second
    for _ in range(3):
        await replication._send_authority()
    (tmp_path / "members.json").write_bytes(b"two")
    await replication._send_authority()
    assert second.sent == [files(b"one"), files(b"two")] and first.sent == [files(b"one")]
    assert [*replication._sent_authority] == [second]
