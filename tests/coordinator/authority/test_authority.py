"""The authority in its folder: tokens, members and revocations that are on disk before they count."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.audit_events import read_events
from support.hostile.faulty_disk import FaultyDisk, Fuse, QuickDisk

from coordinator.authority.audit_log import verify
from coordinator.authority.authority import Authority
from coordinator.authority.member_roster import (
    LISTED_S,
    MEMBERS_MAX,
    REVOKED_REMEMBERED_S,
    MemberRecord,
    Roster,
    from_json,
    to_json,
)
from coordinator.authority.token_table import TokenTable
from mesh.simulation.loop import VirtualLoop
from wire.errors import ConfigError, InputError, JoinRefused
from wire.joining.join_protocol import Authority as Greeting
from wire.joining.join_protocol import Grant, JoiningCoordinator, JoiningNode, JoinRequested, Refusal, Send, encode
from wire.joining.join_tokens import Token, request_mac
from wire.limits import DEFAULT
from wire.security.certificates import (
    CERTIFICATE_S,
    NodeKey,
    authority_from_pem,
    certificate_from_pem,
    certificate_pem,
    check_issued,
    member_of,
    new_key,
    read_revocations,
)

LEAF = b"the coordinator's certificate"


@dataclass
class Clock:
    now_s: float = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Authority:
    return Authority(tmp_path, "home", clock, QuickDisk(), epoch=7)


def asked(
    authority: Authority, token: Token, key: NodeKey, nonce: int = 1, role: str = "worker", name: str = "desk"
) -> JoinRequested:
    node = JoiningNode("there", token, role, name, key.request(), bytes([nonce]) * 32)
    node.received(encode(Greeting(1, authority.certificate)))
    (ask,) = node.connected(LEAF)
    assert isinstance(ask, Send)
    question = JoiningCoordinator(authority.certificate, LEAF).received(ask.data)
    assert isinstance(question, JoinRequested)
    return question


def let_in(authority: Authority, key: NodeKey, name: str = "desk", role: str = "worker") -> Grant:
    answer = authority.admit(asked(authority, authority.create_token(role), key, role=role, name=name), "10.0.0.2")
    assert isinstance(answer, Grant)
    return answer


def events(folder: Path) -> list[str]:
    return [f"{line['event']} {line.get('reason', '')}".strip() for line in read_events(folder, 100)]


# -- joining


def test_a_node_is_let_in_certified_and_written_down(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    key = new_key()
    grant = let_in(authority, key)
    check_issued(grant.certificate, authority.certificate)
    said = member_of(grant.certificate)
    assert (said.node_id, said.role, said.ends_s) == (key.node_id, "worker", clock.now_s + CERTIFICATE_S)
    assert (grant.mesh, grant.epoch) == ("home", 7)
    assert read_revocations(grant.revocations, authority.certificate).number == 0
    (member,) = authority.members()
    assert (member.node_id, member.name, member.role, member.host) == (key.node_id, "desk", "worker", "10.0.0.2")
    assert events(tmp_path) == ["token created", "joined"] and not verify(tmp_path).broken
    assert read_events(tmp_path, 1)[0]["node"] == key.node_id


def test_everything_is_there_again_after_a_restart(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    key, token = new_key(), authority.create_token(uses=2)
    authority.admit(asked(authority, token, key), "h")
    again = Authority(tmp_path, "home", clock, QuickDisk())
    assert again.certificate == authority.certificate and again.members() == authority.members()
    assert again.tokens() == authority.tokens()
    assert again.admit(asked(again, token, key), "h") == Refusal("replayed")
    assert isinstance(again.admit(asked(again, token, new_key()), "h"), Grant)
    assert again.admit(asked(again, token, new_key()), "h") == Refusal("used")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no mode bits")
def test_nobody_else_reads_the_folder(authority: Authority, tmp_path: Path) -> None:
    let_in(authority, new_key())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_no_file_holds_a_secret(authority: Authority, tmp_path: Path) -> None:
    token = authority.create_token()
    let_in(authority, new_key())
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert token.text.encode() not in data and token.secret not in data and token.secret.hex().encode() not in data


def test_every_refusal_is_in_the_log_once(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    token = authority.create_token()
    wrong = Token(token.pin, token.key_id, bytes(20))
    assert authority.admit(asked(authority, wrong, new_key()), "h") == Refusal("invalid")
    unknown = Token(token.pin, "aaaaaaaa", bytes(20))
    assert authority.admit(asked(authority, unknown, new_key()), "h") == Refusal("invalid")
    assert authority.admit(asked(authority, token, new_key(), role="client"), "h") == Refusal("role")
    clock.now_s += 900.0
    assert authority.admit(asked(authority, token, new_key()), "h") == Refusal("expired")
    authority.revoke_token(token.key_id)
    assert authority.admit(asked(authority, token, new_key()), "h") == Refusal("withdrawn")
    assert events(tmp_path)[1:] == [
        "refused wrong secret",
        "refused unknown token",
        "refused role",
        "refused expired",
        "token revoked",
        "refused withdrawn",
    ]
    assert authority.members() == []


def test_a_request_that_its_key_did_not_sign_is_refused_and_costs_no_use(authority: Authority) -> None:
    token = authority.create_token()

    class Borrowed:
        """A key whose owner it is not: the request of one node with the signature of another."""

        def request(self) -> bytes:
            mine, theirs = new_key().request(), new_key().request()
            return mine[:-60] + theirs[-60:]

    answer = authority.admit(asked(authority, token, Borrowed()), "h")  # type: ignore[arg-type]
    assert answer == Refusal("malformed") and authority.tokens()[0].nodes == ()


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[2J", "../up"])
def test_names_that_no_node_can_have_are_refused(authority: Authority, name: str) -> None:
    token = authority.create_token()
    good = asked(authority, token, new_key())
    unsigned = dataclasses.replace(good.ask, name=name)
    ask = dataclasses.replace(unsigned, mac=request_mac(token.key, LEAF, unsigned.signed))
    assert authority.admit(JoinRequested(ask, LEAF), "h") == Refusal("malformed") and authority.members() == []


def test_a_mesh_has_a_limit(authority: Authority, clock: Clock) -> None:
    with authority._changing() as roster:
        filler = let_in_many(roster, clock.now_s + 1.0)
        authority._write(roster)
    assert authority.admit(asked(authority, authority.create_token(), new_key()), "h") == Refusal("full")
    authority.revoke_node(filler)
    let_in(authority, new_key())


def test_members_that_are_gone_take_no_place(authority: Authority, clock: Clock) -> None:
    """A laptop that comes with a new name each time is another member.  Those of long ago are forgotten in the end, and
    those that were thrown out are not."""
    key = new_key()
    grant = let_in(authority, key)
    with authority._changing() as roster:
        let_in_many(roster, clock.now_s + 1.0)
        authority._write(roster)
    clock.now_s += CERTIFICATE_S + 1.0
    let_in(authority, new_key())
    assert isinstance(authority.renew(grant.certificate, "h"), Grant), "who was gone may return"
    authority.revoke_node("n0001")
    with authority._changing() as roster:
        let_in_many(roster, clock.now_s - 1.0, MEMBERS_MAX, "m")
        authority._write(roster)
    newest = let_in(authority, new_key())
    members = {member.node_id for member in authority.members()}
    assert len(members) == MEMBERS_MAX + 1, "and the one that was thrown out"
    assert {"n0001", key.node_id, member_of(newest.certificate).node_id} < members and "n0002" not in members


def let_in_many(roster: Roster, ends_s: float, count: int = DEFAULT.nodes_max, stem: str = "n") -> str:
    for number in range(count):
        node_id = f"{stem}{number:04}"
        roster.members[node_id] = MemberRecord(node_id, f"name {node_id}", "worker", "t", "h", 1.0, ends_s)
    return f"{stem}0000"


def test_a_flood_of_strangers_fills_no_log(authority: Authority, tmp_path: Path) -> None:
    token = authority.create_token()
    wrong = asked(authority, Token(token.pin, token.key_id, bytes(20)), new_key())
    for _ in range(200):
        authority.admit(wrong, "10.0.0.1")
        authority.turned_away("10.0.0.1", "noise")
    assert events(tmp_path) == ["token created", "refused wrong secret", "turned away noise"]
    assert isinstance(authority.admit(asked(authority, token, new_key()), "10.0.0.1"), Grant)


# -- renewal


def test_a_member_is_renewed_in_its_role_whenever_it_comes(authority: Authority, clock: Clock) -> None:
    key = new_key()
    old = let_in(authority, key, role="client")
    clock.now_s += 7 * 86400.0
    new = authority.renew(old.certificate, "h")
    assert isinstance(new, Grant)
    said = member_of(new.certificate)
    assert (said.node_id, said.role, said.ends_s) == (key.node_id, "client", clock.now_s + CERTIFICATE_S)
    assert authority.members()[0].ends_s == said.ends_s


def test_who_is_no_member_is_not_renewed(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other", "home", disk=QuickDisk())
    grant = let_in(stranger, new_key())
    assert authority.renew(grant.certificate, "h") == Refusal("unknown")
    assert events(tmp_path) == ["refused unknown"]


# -- revocation


def test_a_revoked_node_is_listed_and_gets_nothing_more(authority: Authority, tmp_path: Path) -> None:
    key, other = new_key(), new_key()
    grant = let_in(authority, key, "bad")
    let_in(authority, other, "good")
    assert authority.revoke_node("bad").node_id == key.node_id
    out = authority.trust()
    found = read_revocations(out.data, authority.certificate)
    assert out.node_ids == {key.node_id} and found.number == 1
    assert found.includes(key.node_id) and not found.includes(other.node_id)
    assert authority.renew(grant.certificate, "h") == Refusal("revoked")
    assert authority.admit(asked(authority, authority.create_token(), key), "h") == Refusal("revoked")
    with pytest.raises(InputError, match="no node 'bad'"):
        authority.revoke_node("bad")
    assert events(tmp_path)[-4:] == ["node revoked", "refused revoked", "token created", "refused revoked"]


def test_the_tokens_that_a_revoked_node_knows_go_with_it(authority: Authority, tmp_path: Path) -> None:
    token = authority.create_token(uses=5)
    authority.admit(asked(authority, token, new_key(), name="bad"), "h")
    authority.revoke_node("bad")
    assert authority.admit(asked(authority, token, new_key()), "h") == Refusal("withdrawn")
    assert "token revoked bad knows it" in events(tmp_path)


def test_nodes_are_revoked_by_name_id_or_its_start_and_never_by_guess(authority: Authority) -> None:
    keys = [new_key() for _ in range(4)]
    for key in keys:
        let_in(authority, key, "twin")
    with pytest.raises(InputError, match="4 nodes are called 'twin'") as raised:
        authority.revoke_node("twin")
    assert keys[0].node_id in raised.value.next_step
    assert authority.revoke_node(keys[0].node_id).node_id == keys[0].node_id
    assert authority.revoke_node(keys[1].node_id[:12]).node_id == keys[1].node_id
    with pytest.raises(InputError):
        authority.revoke_node(keys[2].node_id[:3])


def test_the_list_stays_short_and_the_node_stays_out(authority: Authority, clock: Clock) -> None:
    key = new_key()
    grant = let_in(authority, key)
    authority.revoke_node("desk")
    clock.now_s += CERTIFICATE_S + LISTED_S - 1.0
    assert authority.trust().node_ids == {key.node_id}
    clock.now_s += 2.0
    assert authority.trust().node_ids == frozenset() and authority.trust().number == 1
    assert authority.renew(grant.certificate, "h") == Refusal("revoked")
    clock.now_s += CERTIFICATE_S + REVOKED_REMEMBERED_S
    let_in(authority, new_key(), "next")
    authority.revoke_node("next")
    assert authority.renew(grant.certificate, "h") == Refusal("unknown")


def test_a_revocation_by_another_process_is_noticed_within_a_second(authority: Authority, tmp_path: Path) -> None:
    key = new_key()
    let_in(authority, key)

    async def watched() -> None:
        loop, watching = asyncio.get_running_loop(), authority.watch()
        assert not (await anext(watching)).node_ids
        other = Authority(tmp_path, "home", disk=QuickDisk(), clock=authority._clock)
        other.create_token()  # no revocation
        other.revoke_node("desk")
        revoked_s = loop.time()
        assert (await anext(watching)).node_ids == {key.node_id}
        assert loop.time() - revoked_s < 1.0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watched())


# -- the folder


def test_a_folder_belongs_to_one_mesh(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to mesh home, not work"):
        Authority(tmp_path, "work")


@pytest.mark.parametrize("name", ["authority.key", "authority.pem", "members.json"])
@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": 2}', b"\xff"])
def test_a_damaged_folder_is_refused(authority: Authority, tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError):
        Authority(tmp_path, "home")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 1e999),
        ("number", "1"),
        ("mesh", None),
        ("members", [[]]),
        ("tokens", [{"key": "", "nodes": []}]),
        ("authority", -1),
    ],
)
def test_a_list_of_members_with_other_values_is_refused(authority: Authority, field: str, value: object) -> None:
    said = json.loads(to_json(authority._read()))
    with pytest.raises(ConfigError, match="the list of members is damaged"):
        from_json(json.dumps({**said, field: value}).encode(), bytes(32))


@pytest.mark.parametrize(("field", "value"), [("ends_s", 10**400), ("name", 7), ("revoked_s", None), ("more", 1)])
def test_a_member_with_other_values_is_refused(authority: Authority, field: str, value: object) -> None:
    let_in(authority, new_key())
    said = json.loads(to_json(authority._read()))
    said["members"][0][field] = value
    with pytest.raises(ConfigError, match="the list of members is damaged"):
        from_json(json.dumps(said).encode(), bytes(32))


def test_a_list_of_members_that_is_too_deep_is_refused() -> None:
    with pytest.raises(ConfigError, match="the list of members is damaged"):
        from_json(b"[" * 100_000, bytes(32))


def test_an_authority_whose_certificate_holds_no_key_is_refused(authority: Authority, tmp_path: Path) -> None:
    der = certificate_from_pem((tmp_path / "authority.pem").read_bytes())
    point = der.index(b"\x03\x42\x00\x04") + 3
    damaged = certificate_pem(der[:point] + b"\x05" + der[point + 1 :])  # not the form of a point of the curve
    with pytest.raises(ConfigError, match="the authority's certificate cannot be used"):
        authority_from_pem((tmp_path / "authority.key").read_bytes(), damaged)


def test_a_first_start_that_was_cut_short_starts_again(tmp_path: Path) -> None:
    failures = 0
    for step in range(1, 50):
        folder = tmp_path / str(step)
        try:
            Authority(folder, "home", disk=FaultyDisk(Fuse(fails_at=step)))
        except ConfigError:
            failures += 1
        made = Authority(folder, "home", disk=QuickDisk())
        assert isinstance(let_in(made, new_key()), Grant)
    assert 5 < failures < 49


def test_what_is_granted_is_on_disk_whatever_step_fails(tmp_path: Path, clock: Clock) -> None:
    """A full disk refuses, says so, and costs no use that the node could not take by asking again."""
    first = Authority(tmp_path, "home", clock, QuickDisk())
    outcomes = set()
    for step in range(1, 12):
        key, token = new_key(), first.create_token()
        faulty = Authority(tmp_path, "home", clock, FaultyDisk(Fuse(fails_at=step)))
        answer = faulty.admit(asked(faulty, token, key, name=f"node {step}"), "h")
        outcomes.add(type(answer))
        again = Authority(tmp_path, "home", clock, QuickDisk())
        if isinstance(answer, Grant):
            assert key.node_id in {member.node_id for member in again.members()}
        else:
            assert answer == Refusal("failed")
            assert isinstance(again.admit(asked(again, token, key, nonce=2), "h"), Grant)
        assert not verify(tmp_path).broken
    assert outcomes == {Grant, Refusal}


def test_the_list_of_members_comes_back_from_its_text(authority: Authority) -> None:
    let_in(authority, new_key())
    authority.revoke_node("desk")
    roster = authority._read()
    again = from_json(to_json(roster), bytes(32))
    assert to_json(again) == to_json(roster) and again.members == roster.members and again.number == 1
    empty = Roster("home", TokenTable(bytes(32)))
    assert from_json(to_json(empty), bytes(32)).members == {}


def test_the_coordinator_certifies_itself(authority: Authority) -> None:
    key = new_key()
    joined = authority.certify_coordinator(key.public)
    assert member_of(joined.grant.certificate).role == "coordinator" and joined.authority == authority.certificate


def test_a_refusal_reaches_the_node_in_words(authority: Authority) -> None:
    token = authority.create_token()
    node = JoiningNode("there", token, "client", "desk", new_key().request(), bytes(32))
    node.received(encode(Greeting(1, authority.certificate)))
    node.connected(LEAF)
    answer = authority.admit(asked(authority, token, new_key(), role="client"), "h")
    with pytest.raises(JoinRefused, match="for nodes of another role") as refused:
        node.received(encode(answer))
    assert "|" not in refused.value.next_step, "a shell takes it for a pipe, which has the new token"
