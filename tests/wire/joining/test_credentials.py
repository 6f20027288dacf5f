"""A node's identity in its folder: made once, kept, renewed, and refused where it is damaged."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from pathlib import Path

import pytest
from support.hostile.faulty_disk import HANGS_S, FaultyDisk, Fuse, QuickDisk, SlowDisk
from support.tls import MESH, Pair

from wire.errors import ConfigError, ConnectFailed, ProtocolError
from wire.joining.credentials import LOOK_S, Credentials, keep_renewed, renewal_due_s
from wire.joining.join_protocol import Admitted, Grant
from wire.security.certificates import (
    CERTIFICATE_S,
    CertificateAuthority,
    Member,
    NodeKey,
    new_authority,
    new_key,
    server_name,
)
from wire.timeouts import DEFAULT_TIMEOUTS as LAN

NOW_S = time.time()
BY = new_authority(MESH, NOW_S)


def granted(
    key: NodeKey,
    by: CertificateAuthority = BY,
    *,
    now_s: float = NOW_S,
    revoked: tuple[str, ...] = (),
    number: int = 0,
    epoch: int = 1,
) -> Admitted:
    certificate = by.issue(key.public, "worker", MESH, now_s)
    return Admitted(Grant(certificate, by.revocations(revoked, number), MESH, epoch), by.certificate)


def member(folder: Path) -> Credentials:
    made = Credentials(folder, QuickDisk())
    made.adopt(granted(made.key))
    return made


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first, again, other = (Credentials(tmp_path / name, QuickDisk()) for name in ("one", "one", "two"))
    assert first.node_id == again.node_id != other.node_id
    assert not first.enrolled
    with pytest.raises(ConfigError, match="joined no mesh"):
        first.server_context()


def test_an_identity_is_there_again_after_a_restart(tmp_path: Path) -> None:
    made = member(tmp_path)
    again = Credentials(tmp_path, QuickDisk())
    assert again.enrolled and (again.node_id, again.mesh, again.certificate) == (made.node_id, MESH, made.certificate)
    assert again.member == Member(made.node_id, "worker", made.member.starts_s, made.member.ends_s)
    assert again.admitted == made.admitted


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no mode bits")
def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    made = member(tmp_path / "new" / "node")
    folder = made.files.key.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    os.chmod(made.files.key, 0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Credentials(folder, QuickDisk())


def test_a_certificate_for_another_node_or_of_another_authority_is_not_kept(tmp_path: Path) -> None:
    made = Credentials(tmp_path, QuickDisk())
    other = new_authority(MESH, NOW_S)
    good = granted(made.key)
    for wrong, says in (
        (granted(new_key()), "for another node"),
        (Admitted(good.grant, other.certificate), "not signed"),
        (Admitted(Grant(good.grant.certificate, other.revocations([], 0), MESH, 1), BY.certificate), "revocation list"),
    ):
        with pytest.raises(ProtocolError, match=says):
            made.adopt(wrong)
        assert not made.enrolled and not Credentials(tmp_path, QuickDisk()).enrolled


@pytest.mark.parametrize("change", ["trust", "renewal"])
def test_a_process_of_a_former_identity_leaves_the_one_that_was_joined_with_since(tmp_path: Path, change: str) -> None:
    """A user joins again, for another role say, while a program of theirs runs: that one hears of changes, too."""
    running, fresh = member(tmp_path / "client"), member(tmp_path / "joining")
    fresh.move_to(tmp_path / "client")
    renewed, revoked = granted(running.key, now_s=NOW_S + 60), BY.revocations(["a" * 26], 1)
    with pytest.raises(ConfigError, match="joined again meanwhile"):
        running.adopt(renewed) if change == "renewal" else running.take_trust(revoked)
    kept = Credentials(tmp_path / "client", QuickDisk())
    assert (kept.node_id, kept.certificate) == (fresh.node_id, fresh.certificate)


@pytest.mark.parametrize("name", ["certificate.pem", "trust.pem", "mesh.json", "node.key"])
@pytest.mark.parametrize("damage", ["cut", "empty", "swapped"])
def test_a_damaged_identity_is_named(tmp_path: Path, name: str, damage: str) -> None:
    member(tmp_path / "one")
    path = tmp_path / "one" / name
    other = {"node.key": new_key().pem(), "mesh.json": b"[" * 100_000}.get(name, b"nonsense")
    path.write_bytes({"cut": path.read_bytes()[:20], "empty": b"", "swapped": other}[damage])
    with pytest.raises(ConfigError) as raised:
        Credentials(tmp_path / "one", QuickDisk())
    assert "key" in str(raised.value) or "Remove that folder and join with a new token" in str(raised.value)


def test_a_disk_that_refuses_leaves_a_node_that_can_go_on(tmp_path: Path) -> None:
    """What is there after any step failed is the old identity, or the new one, or none and joining again."""
    failures = 0
    for step in range(1, 100):
        folder = tmp_path / str(step)
        old = member(folder)
        fuse = Fuse(fails_at=step)
        renewing = Credentials(folder, FaultyDisk(fuse))
        renewed = granted(renewing.key, now_s=NOW_S + 60.0, number=1)
        try:
            renewing.adopt(renewed)
        except ConfigError:
            failures += 1
        else:
            break
        again = Credentials(folder, QuickDisk())
        assert again.certificate in (old.certificate, renewed.grant.certificate) and again.server_context()
    assert failures > 5


def test_an_identity_that_was_moved_is_there_after_a_power_cut(tmp_path: Path) -> None:
    """A token may be good for one node: what it bought is on the disk once the command says so."""

    class Notes(QuickDisk):
        def __init__(self) -> None:
            self.synced: list[tuple[str, list[str]]] = []

        def sync_folder(self, folder: str | Path) -> None:
            self.synced.append((str(folder), sorted(os.listdir(folder))))

    disk, kept = Notes(), tmp_path / "kept"
    fresh = Credentials(tmp_path / "joining", disk)
    fresh.adopt(granted(fresh.key))
    kept.mkdir()
    fresh.move_to(kept)
    assert disk.synced[-1] == (str(kept), ["certificate.pem", "mesh.json", "node.key", "trust.pem"])


# -- renewal and revocation


def test_contexts_follow_renewals_and_revocations(tmp_path: Path) -> None:
    server, client, bad = (member(tmp_path / name) for name in ("server", "client", "bad"))
    accepting, name = server.server_context(), server_name(server.node_id, MESH)
    assert Pair(accepting, bad.client_context(), name).handshake() == b"hello"
    renewed = granted(server.key, now_s=NOW_S + 60.0, revoked=(bad.node_id,), number=1)
    server.adopt(renewed)
    pair = Pair(accepting, client.client_context(), name)
    assert pair.handshake() == b"hello"
    assert pair.client.getpeercert(binary_form=True) == renewed.grant.certificate
    with pytest.raises(OSError, match="revoked"):
        Pair(accepting, bad.client_context(), name).handshake()
    assert server.revocations.includes(bad.node_id) and not server.revocations.includes(client.node_id)


def test_a_newer_revocation_list_is_taken_and_an_older_one_never(tmp_path: Path) -> None:
    node = member(tmp_path)
    bad = new_key().node_id
    assert node.take_trust(BY.revocations([bad], 2))
    assert not node.take_trust(BY.revocations([], 1)) and not node.take_trust(BY.revocations([], 2))
    node.adopt(granted(node.key, now_s=NOW_S + 60.0, number=1))  # a renewal that was under way meanwhile
    assert node.revocations.number == 2 and node.revocations.includes(bad)
    assert Credentials(tmp_path, QuickDisk()).revocations.includes(bad)
    with pytest.raises(ProtocolError, match="not signed"):
        node.take_trust(new_authority(MESH, NOW_S).revocations([], 9))


async def test_on_an_event_loop_a_thread_writes_and_what_comes_meanwhile_follows_from_it(tmp_path: Path) -> None:
    """A renewal, and a revocation that comes while it is written: the new certificate and the new list both count."""
    disk, bad = SlowDisk(), new_key().node_id
    disk.goes_on.set()
    node = Credentials(tmp_path, disk)
    node.adopt(granted(node.key))
    disk.hold()
    renewed = granted(node.key, now_s=NOW_S + 60.0)
    adopting = asyncio.create_task(node.adopt_here(renewed))
    await disk.begins()
    trusting = asyncio.create_task(node.take_trust_here(BY.revocations([bad], 2)))
    older = asyncio.create_task(node.take_trust_here(BY.revocations([], 1)))
    await asyncio.sleep(0.01)
    adopting.cancel()  # as whoever asks at a join port gives up: the thread writes on
    assert node.certificate != renewed.grant.certificate, "it is used once it is on the disk"
    disk.goes_on.set()
    async with asyncio.timeout(HANGS_S):
        assert await trusting and not await older
    for each in (node, Credentials(tmp_path, QuickDisk())):
        assert each.certificate == renewed.grant.certificate and each.revocations.includes(bad)
    with pytest.raises(ProtocolError, match="not signed"):
        node.check_trust(new_authority(MESH, NOW_S).revocations([], 9), b"", None)


async def test_what_a_disk_refuses_on_an_event_loop_changes_nothing(tmp_path: Path) -> None:
    before = member(tmp_path).certificate
    node = Credentials(tmp_path, FaultyDisk(Fuse(fails_at=1)))
    with pytest.raises(ConfigError, match="cannot write"):
        await node.adopt_here(granted(node.key, now_s=NOW_S + 60.0))
    assert node.certificate == before == Credentials(tmp_path, QuickDisk()).certificate


def test_a_node_that_joins_another_mesh_trusts_the_old_one_no_more(tmp_path: Path) -> None:
    node, old = member(tmp_path / "node"), member(tmp_path / "old")
    node.server_context()
    other = new_authority("other", NOW_S)
    node.adopt(granted(node.key, other))
    with pytest.raises(OSError, match=r"(?i)verify failed"):
        Pair(node.server_context(), old.client_context(), server_name(node.node_id, MESH)).handshake()


@pytest.mark.parametrize(("jitter", "hours"), [(-1.0, 13.6), (0.0, 16.0), (1.0, 18.4)])
def test_a_certificate_is_due_after_two_thirds_of_its_time_give_or_take_a_tenth(jitter: float, hours: float) -> None:
    member = Member("x", "worker", NOW_S - 300.0, NOW_S + CERTIFICATE_S)
    assert renewal_due_s(member, jitter) == pytest.approx(NOW_S + hours * 3600)


async def test_once_it_has_run_out_a_certificate_is_asked_for_more_often(tmp_path: Path) -> None:
    node = member(tmp_path)
    slept: list[float] = []
    now_s = NOW_S + CERTIFICATE_S - LAN.certificate_retry_s - 1.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError

    async def ask() -> Admitted:
        raise ConnectFailed("the network is not up yet")

    with pytest.raises(asyncio.CancelledError):
        await keep_renewed(node, ask, lambda: now_s, sleep)
    assert slept == [
        LAN.certificate_retry_s,
        LAN.certificate_retry_s,
        LAN.certificate_expired_retry_s,
        LAN.certificate_expired_retry_s,
    ]


async def test_certificates_are_renewed_in_time_for_ever(tmp_path: Path) -> None:
    node = member(tmp_path)
    now_s = int(NOW_S) + 0.0
    asked_s: list[float] = []
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        slept.append(seconds)
        if len(asked_s) == 4:
            raise asyncio.CancelledError

    async def ask() -> Admitted:
        asked_s.append(now_s)
        if len(asked_s) == 2:
            raise ConnectFailed("nobody answers")
        return granted(node.key, now_s=now_s)

    with pytest.raises(asyncio.CancelledError):
        await keep_renewed(node, ask, lambda: now_s, sleep, lambda low, high: 0.0)
    due = [
        NOW_S + 16 * 3600,
        NOW_S + 32 * 3600,
        NOW_S + 32 * 3600 + LAN.certificate_retry_s,
        NOW_S + 48 * 3600 + LAN.certificate_retry_s,
    ]
    assert asked_s == pytest.approx(due, abs=2.0)
    assert max(slept) <= LOOK_S == LAN.certificate_retry_s


def test_a_key_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    """As one that is another user's, which this user could read if it runs the tests as root."""
    (tmp_path / "node.key").mkdir(0o700)
    with pytest.raises(ConfigError, match=r"the key .*node\.key cannot be read") as raised:
        Credentials(tmp_path)
    assert "join with a new token" in raised.value.next_step
