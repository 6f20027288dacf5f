"""A mesh gets a new authority: who trusts whom meanwhile, what is left after a crash, and what is over after a day.

The authority's clock is simulated; TLS goes by the machine's, so for it the day is moved into the past.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from support.audit_events import read_events
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk
from support.tls import MESH, Pair

from coordinator.authority.audit_log import verify
from coordinator.authority.authority import OVERLAP_S, Authority, Trust
from mesh.simulation.loop import VirtualLoop
from wire.errors import ConfigError, InputError, MeshError, ProtocolError
from wire.joining.credentials import Credentials
from wire.joining.join_protocol import Admitted, Grant, Refusal
from wire.security.certificates import CERTIFICATE_S, any_server_name, check_issued, is_issued
from wire.security.tls import TLSContext, join_client_context
from wire.system.atomic_files import Data, Disk

HOUR_S = 3600.0


@dataclass
class Mesh:
    """An authority, its coordinator, and members as they would be over their links, without any."""

    folder: Path
    now_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.authority = self.opened()
        self.coordinator = Credentials(self.folder / "coordinator", QuickDisk())
        self.follow()

    def opened(self, disk: Disk | None = None) -> Authority:
        return Authority(self.folder / "authority", MESH, lambda: self.now_s, disk or QuickDisk())

    def follow(self) -> None:
        """The coordinator sees what changed, as `Admission` does."""
        self.coordinator.adopt(self.authority.certify_coordinator(self.coordinator.key.public))

    def member(self, name: str, role: str = "worker") -> Credentials:
        made = Credentials(self.folder / name, QuickDisk())
        made.adopt(self.authority.admit_here(made.key.public, role, name))
        return made

    def tells(self, member: Credentials) -> None:
        """What the coordinator says as soon as there is a link."""
        trust = self.authority.trust()
        member.take_trust(trust.data, trust.authority, trust.former)

    def renews(self, member: Credentials) -> None:
        answer = self.authority.renew(member.certificate, "h")
        assert isinstance(answer, Grant)
        trust = self.authority.trust()
        member.adopt(Admitted(answer, trust.authority, trust.former))

    def events(self) -> list[str]:
        assert not verify(self.folder / "authority").broken
        return [str(each["event"]) for each in read_events(self.folder / "authority", 1000)]


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


def talk(server: Credentials, client: Credentials) -> bool:
    return shakes(server.server_context(), client.client_context())


def shakes(server: TLSContext, client: TLSContext, name: str = any_server_name(MESH)) -> bool:
    try:
        return Pair(server, client, name).handshake() == b"hello"
    except ssl.SSLError:
        return False


def both(one: Credentials, other: Credentials) -> bool:
    return talk(one, other) and talk(other, one)


# -- while both are trusted


def test_members_hear_of_it_and_renew_without_a_token(mesh: Mesh) -> None:
    desk, attic = mesh.member("desk"), mesh.member("attic")
    before = mesh.authority.certificate
    rotated = mesh.authority.rotate()
    mesh.follow()
    assert mesh.authority.certificate != before
    assert {each.name for each in rotated.behind} == {"desk", "attic"}
    for member in (desk, attic):
        assert both(member, mesh.coordinator), "one that has heard nothing still meets the coordinator"
        mesh.tells(member)
        assert member.outdated and both(member, mesh.coordinator)
    assert both(desk, attic)
    mesh.renews(desk)
    assert not desk.outdated and both(desk, attic) and both(desk, mesh.coordinator)
    check_issued(desk.certificate, mesh.authority.certificate)
    assert [each.name for each in mesh.authority.rotation().behind] == ["attic"]


def test_one_that_was_away_for_hours_meets_the_coordinator_and_all_others_after_it(mesh: Mesh) -> None:
    """A member was off and is back in the same day: its certificate ran out meanwhile, and it missed the change."""
    away, there = mesh.member("away"), mesh.member("there")
    mesh.authority.rotate()
    mesh.follow()
    mesh.tells(there)
    mesh.renews(there)
    assert not talk(away, there), "it knows nobody who vouches for a certificate of the new one"
    mesh.renews(away)  # at the join port, whose certificate it believes
    assert shakes(mesh.coordinator.join_server_context(), away.client_context(), "join.mesh")
    assert both(away, there) and both(away, mesh.coordinator)


def test_a_token_made_before_lets_nobody_in_and_one_made_after_does(mesh: Mesh) -> None:
    old, used_up = mesh.authority.create_token(uses=5), mesh.authority.create_token()
    mesh.authority.revoke_token(used_up.key_id)
    rotated = mesh.authority.rotate()
    mesh.follow()
    assert [each.key_id for each in rotated.withdrawn] == [old.key_id]
    states = {each.key_id: each.state(mesh.now_s) for each in mesh.authority.tokens()}
    assert states[old.key_id] == "withdrawn"
    new = mesh.authority.create_token()
    assert new.pin != old.pin
    port = mesh.coordinator.join_server_context()
    assert shakes(port, join_client_context(mesh.authority.certificate), "join.mesh"), "who has a new token believes it"
    assert mesh.events()[-5:] == [
        "authority made", "authority changed", "token revoked", "coordinator certified", "token created",
    ]  # fmt: skip


def test_a_revoked_node_is_out_by_either_authority(mesh: Mesh) -> None:
    bad, good = mesh.member("bad"), mesh.member("good")
    mesh.authority.rotate()
    mesh.follow()
    for member in (bad, good):
        mesh.tells(member)
    mesh.renews(good)
    assert both(bad, good)
    mesh.authority.revoke_node("bad")
    for each in (good, mesh.coordinator):
        mesh.tells(each)
        assert not talk(each, bad) and not talk(bad, each)
    assert mesh.authority.renew(bad.certificate, "h") == Refusal("revoked")
    assert both(good, mesh.coordinator)


def test_an_older_revocation_list_does_not_bring_a_node_back(mesh: Mesh) -> None:
    mesh.member("bad")
    good = mesh.member("good")
    mesh.authority.rotate()
    earlier = mesh.authority.trust()
    mesh.authority.revoke_node("bad")
    mesh.tells(good)
    assert not good.take_trust(earlier.data, earlier.authority, earlier.former)
    assert good.revocations.number == 1
    former = good.admitted.former
    assert former is not None and earlier.former is not None and former.revocations != earlier.former.revocations


def test_whoever_is_not_vouched_for_is_not_trusted(mesh: Mesh, tmp_path: Path) -> None:
    other = Mesh(tmp_path / "other")
    other.authority.rotate()
    theirs, ours = other.authority.trust().former, mesh.authority.trust()
    desk = mesh.member("desk")
    with pytest.raises(ProtocolError, match="not signed"):
        desk.take_trust(ours.data, ours.authority, theirs)
    strange = other.authority.trust()
    with pytest.raises(ProtocolError, match="not signed"):  # its own certificate would be of neither
        desk.take_trust(strange.data, strange.authority, strange.former)
    assert both(desk, mesh.coordinator)


def test_an_identity_of_such_a_time_is_there_again_after_a_restart(mesh: Mesh, tmp_path: Path) -> None:
    desk = mesh.member("desk")
    mesh.authority.rotate()
    mesh.follow()
    mesh.tells(desk)
    again = Credentials(tmp_path / "desk", QuickDisk())
    assert again.admitted == desk.admitted and again.outdated and both(again, mesh.coordinator)


# -- once the time is over


def test_what_the_one_before_signed_ends_with_it_by_everyones_own_clock(tmp_path: Path) -> None:
    """The new authority was made a day ago, and nobody told the members that the day is over."""
    mesh = Mesh(tmp_path, time.time() - OVERLAP_S + HOUR_S)
    heard, renewed, gone = mesh.member("heard"), mesh.member("renewed"), mesh.member("gone")
    mesh.authority.rotate(OVERLAP_S - 2 * HOUR_S)  # its time was over an hour ago, and all certificates last on
    mesh.follow()
    for member in (heard, renewed):
        mesh.tells(member)
    mesh.renews(renewed)
    assert heard.member.ends_s > time.time() and mesh.coordinator.member.ends_s > time.time()
    assert not talk(renewed, heard) and not talk(heard, gone) and not talk(renewed, gone)
    assert not talk(renewed, mesh.coordinator), "until it, too, has a new certificate"
    mesh.now_s = time.time()
    mesh.follow()
    assert both(renewed, mesh.coordinator)
    assert not talk(mesh.coordinator, heard) and not talk(mesh.coordinator, gone)
    assert not talk(gone, mesh.coordinator)
    assert is_issued(mesh.coordinator.certificate, mesh.authority.certificate)


def test_the_key_of_the_one_before_is_gone_after_its_time(mesh: Mesh, tmp_path: Path) -> None:
    folder = tmp_path / "authority"
    mesh.authority.rotate()
    assert {path.name for path in folder.glob("*.key")} == {"authority.key", "authority-2.key"}
    mesh.now_s += OVERLAP_S - 1.0
    assert mesh.opened().trust().former is not None
    mesh.now_s += 1.0
    assert mesh.authority.trust().former is None, "whether anybody cleared up or not"
    assert mesh.authority.rotation().former_until_s == 0.0
    assert {path.name for path in folder.glob("authority*")} == {
        "authority-2.key", "authority-2.pem", "authority-2.former.pem",
    }  # fmt: skip
    assert mesh.events()[-1] == "authority dropped"


def test_one_change_after_the_other(mesh: Mesh) -> None:
    desk = mesh.member("desk")
    mesh.authority.rotate()
    mesh.now_s += OVERLAP_S - 2 * HOUR_S
    with pytest.raises(InputError, match=r"trusted for another 2\.0 h"):
        mesh.authority.rotate()
    mesh.renews(desk)
    mesh.now_s += 2 * HOUR_S
    for _ in range(3):
        mesh.authority.rotate()
        mesh.follow()
        mesh.renews(desk)
        assert not desk.outdated
        mesh.now_s += OVERLAP_S
    assert mesh.authority.rotation().number == 5 and mesh.authority.rotation().behind == ()


@pytest.mark.parametrize("overlap_s", [0.0, -1.0, 31 * 86400.0])
def test_an_overlap_has_limits(mesh: Mesh, overlap_s: float) -> None:
    with pytest.raises(ConfigError):
        mesh.authority.rotate(overlap_s)
    assert mesh.authority.rotation().number == 1


def test_the_coordinator_is_told_of_a_change_and_of_its_end(mesh: Mesh) -> None:
    """The change is seen within a second, whichever process made it."""

    async def watched() -> None:
        watching = mesh.authority.watch()

        async def next_one() -> Trust:
            async with asyncio.timeout(1.0):
                return await anext(watching)

        first = await next_one()
        await asyncio.to_thread(mesh.opened().rotate)
        second = await next_one()
        assert second.former is not None and second.pins[1:] == first.pins and second.authority != first.authority
        mesh.now_s += OVERLAP_S
        third = await next_one()
        assert third.former is None and third.authority == second.authority and third.pins == second.pins[:1]
        assert mesh.events()[-1] == "authority dropped"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watched())


# -- crashes


class Killed(BaseException):
    """The process ends here: no handler of an error runs."""


class DyingDisk(FaultyDisk):
    """The process is killed at a step, before or after it."""

    def __init__(self, fuse: Fuse, after: bool) -> None:
        super().__init__(fuse)
        self._after = after

    def _at(self, step: Callable[[], None]) -> None:
        dies = self.fuse.step()
        if not dies or self._after:
            step()
        if dies:
            raise Killed

    def write(self, fd: int, data: Data) -> None:
        self._at(lambda: Disk.write(self, fd, data))

    def sync(self, fd: int) -> None:
        self._at(lambda: None)

    def replace(self, old: str | Path, new: str | Path) -> None:
        self._at(lambda: Disk.replace(self, old, new))

    def remove(self, path: str | Path) -> None:
        self._at(lambda: Disk.remove(self, path))


@pytest.mark.parametrize(
    "disk",
    [FaultyDisk, partial(DyingDisk, after=False), partial(DyingDisk, after=True)],
    ids=["refused", "killed before", "killed after"],
)
def test_a_change_that_was_cut_short_has_happened_or_not(tmp_path: Path, disk: Callable[[Fuse], Disk]) -> None:
    """The disk fails at every step in turn: the mesh works on with its members, and the change can be made again."""
    outcomes = set()
    for step in range(1, 50):
        mesh = Mesh(tmp_path / str(step))
        desk = mesh.member("desk")
        try:
            mesh.opened(disk(Fuse(fails_at=step))).rotate()
        except (Killed, MeshError):
            outcomes.add("cut short")
        mesh.authority = mesh.opened()
        happened = mesh.authority.rotation().number == 2
        outcomes.add(happened)
        keys = {path.name for path in (mesh.folder / "authority").glob("*.key")}
        assert keys == ({"authority.key", "authority-2.key"} if happened else {"authority.key"})
        mesh.follow()
        mesh.tells(desk)
        mesh.renews(desk)
        assert not desk.outdated and both(desk, mesh.coordinator)
        assert mesh.events().count("authority made") >= happened
        if not happened:
            mesh.authority.rotate()
            mesh.renews(desk)
        mesh.now_s += OVERLAP_S
        assert mesh.opened().rotation().former_until_s == 0.0
    assert outcomes == {"cut short", True, False}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_end_that_was_cut_short_is_made_up_for(tmp_path: Path, after: bool) -> None:
    for step in range(1, 16):
        mesh = Mesh(tmp_path / str(step))
        mesh.authority.rotate()
        mesh.now_s += OVERLAP_S
        dying = mesh.opened(DyingDisk(Fuse(fails_at=step), after))
        try:
            dying.rotation()
        except Killed:
            assert step < 15
        assert mesh.opened().rotation().former_until_s == 0.0
        assert {path.name for path in (mesh.folder / "authority").glob("*.key")} == {"authority-2.key"}
        assert mesh.events()


def test_a_full_day_of_a_mesh(mesh: Mesh) -> None:
    """A year goes by hour by hour: each member renews in time, and none ever needs a token."""
    members = [mesh.member(f"node {number}".replace(" ", "-")) for number in range(6)]
    due_s = [mesh.now_s + (1 + number) / 6 * 2 / 3 * CERTIFICATE_S for number in range(6)]
    mesh.authority.rotate()
    for _ in range(26):
        for number, member in enumerate(members):
            if mesh.now_s >= due_s[number]:
                mesh.renews(member)
                due_s[number] = mesh.now_s + 2 / 3 * CERTIFICATE_S
        mesh.now_s += HOUR_S
    assert mesh.authority.rotation().behind == () and not any(member.outdated for member in members)
    assert mesh.authority.trust().former is None
