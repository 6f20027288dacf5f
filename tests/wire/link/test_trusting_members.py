"""A member that its disk refuses for a while: what its coordinator says once counts all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.hostile.faulty_disk import HANGS_S, FaultyDisk, Fuse, QuickDisk, SlowDisk
from support.tls import MESH

from mesh.simulation.loop import VirtualLoop
from wire.errors import ProtocolError
from wire.joining.credentials import Credentials
from wire.joining.join_protocol import Admitted, Grant
from wire.link.membership import Membership, coordinator_known
from wire.security.certificates import CertificateAuthority, new_authority, new_key

NOW_S = time.time()
BY = new_authority(MESH, NOW_S)
BAD = new_key().node_id
NOBODY = b"", b""


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def member(folder: Path, fuse: Fuse, by: CertificateAuthority = BY) -> Membership:
    made = Credentials(folder, QuickDisk())
    certificate = by.issue(made.key.public, "client", MESH, NOW_S)
    made.adopt(Admitted(Grant(certificate, by.revocations([], 0), MESH, 1), by.certificate))
    return Membership(Credentials(folder, FaultyDisk(fuse)), folder)


def endpoint(*nodes: str) -> Any:
    ended = list[str]()

    def link(node: str) -> Any:
        peer = SimpleNamespace(node_id=node, name=node)
        return SimpleNamespace(peer=peer, close=lambda why: ended.append(node))

    return SimpleNamespace(links={node: link(node) for node in nodes}, ended=ended)


def test_who_was_thrown_out_is_so_once_the_disk_takes_it_and_its_refusal_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, here = member(tmp_path, Fuse(fails_at=1, heals_at=9)), endpoint(BAD, "good")

    async def story() -> None:
        node.trust(here, BY.revocations([BAD], 1), b"", NOBODY)
        await asyncio.sleep(1)
        assert here.ended == [] and not node.credentials.revocations.includes(BAD)
        await asyncio.sleep(300)

    run(story)
    assert here.ended == [BAD] and node.credentials.revocations.includes(BAD)
    assert Credentials(tmp_path, QuickDisk()).revocations.includes(BAD)
    assert caplog.text.count("the new trust is not written") == 1


def test_what_is_said_later_counts_though_the_disk_refused_what_was_said_before(tmp_path: Path) -> None:
    """The mesh gets a new authority while the disk is full: the older word is not taken up after the newer one."""
    later = new_authority(MESH, NOW_S)
    vouched = later.vouch(BY.certificate, NOW_S, NOW_S + 3600.0)
    node, here = member(tmp_path, Fuse(fails_at=1, heals_at=4)), endpoint()

    async def story() -> None:
        node.trust(here, BY.revocations([BAD], 1), b"", NOBODY)
        await asyncio.sleep(1)
        node.trust(here, later.revocations([], 0), later.certificate, (vouched, BY.revocations([BAD], 1)))
        await asyncio.sleep(300)

    run(story)
    assert node.credentials.admitted.authority == later.certificate and node.credentials.outdated


async def test_what_is_said_again_while_it_is_written_is_heeded_all_the_same(tmp_path: Path) -> None:
    """It comes over each new link."""
    member(tmp_path, Fuse())
    disk, here = SlowDisk(), endpoint(BAD, "good")
    node = Membership(Credentials(tmp_path, disk), tmp_path)
    node.trust(here, BY.revocations([BAD], 1), b"", NOBODY)
    await disk.begins()
    again = node.trust(here, BY.revocations([BAD], 1), b"", NOBODY)
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        await again
    assert here.ended == [BAD]


def test_whoever_signs_for_another_mesh_is_blamed_at_once(tmp_path: Path) -> None:
    node = member(tmp_path, Fuse())

    async def story() -> None:
        with pytest.raises(ProtocolError, match="not signed"):
            node.trust(endpoint(), new_authority(MESH, NOW_S).revocations([], 9), b"", NOBODY)

    run(story)


def test_one_that_is_closed_tries_nothing_again(tmp_path: Path) -> None:
    fuse = Fuse(fails_at=1)
    node = member(tmp_path, fuse)

    async def story() -> None:
        node.trust(endpoint(), BY.revocations([BAD], 1), b"", NOBODY)
        await asyncio.sleep(1)
        node.close()
        tried = fuse.steps
        await asyncio.sleep(300)
        assert fuse.steps == tried > 0

    run(story)


def test_where_the_coordinator_is_dialled_is_remembered_in_order(tmp_path: Path) -> None:
    node, file = member(tmp_path, Fuse()), tmp_path / "coordinator.json"

    async def story() -> None:
        node.met(["10.0.0.1:7100"])
        node.met(["10.0.0.2:7100", "10.0.0.1:7100"])
        await node.remembered()
        assert node.coordinator == coordinator_known(file) == ("10.0.0.2:7100", "10.0.0.1:7100")
        names = ("desk.local:7100", "localhost:7100", "[::1]:7100")
        node.met(["10.0.0.1:7100", *names, "10.0.0.2:7100"])
        node.met(["10.0.0.3:7100"])
        assert node.coordinator == ("10.0.0.3:7100", *names), "a user may call it so again"
        node.met([f"10.0.0.{each}:7100" for each in range(20)])
        assert len(node.coordinator) == 16
        await node.remembered()
        file.unlink()
        for known in (node.coordinator, ()):
            node.met(known)
            await node.remembered()
        assert not file.exists(), "what is known is not written again"

    run(story)
