"""The join exchange: who is let in, every refusal, what a stranger learns and costs (docs/protocol.md, "Joining")."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.authority.token_table import (
    ASKED_MAX,
    REMEMBERED_S,
    TOKENS_MAX,
    TTL_S_MAX,
    USES_MAX,
    TokenRecord,
    TokenTable,
)
from wire.errors import ConfigError, InputError, JoinRefused, MeshError, NotTrusted, ProtocolError, VersionMismatch
from wire.joining.join_protocol import (
    GRANT_BYTES_MAX,
    REFUSALS,
    STRANGER_BYTES_MAX,
    Admitted,
    Ask,
    Authority,
    Former,
    Frame,
    Grant,
    JoiningCoordinator,
    JoiningNode,
    JoinRequested,
    Refusal,
    Renew,
    RenewalRequested,
    RenewingNode,
    Send,
    Verify,
    encode,
    prove_grant,
)
from wire.joining.join_tokens import Token, new_token

AUTHORITY, LEAF = b"the authority's certificate", b"the coordinator's certificate"
GRANT = Grant(b"certificate", b"revocations", "home", 3)
NOW_S = 1000.0


def token(number: int = 1, authority: bytes = AUTHORITY) -> Token:
    return new_token(authority, bytes([number]) * 5, bytes([number]) * 20)


def node(held: Token, nonce: int = 1, role: str = "worker", request: bytes = b"request") -> JoiningNode:
    return JoiningNode("10.0.0.1:8100", held, role, "desk", request, bytes([nonce]) * 32)


@dataclass
class Mesh:
    """A coordinator of the pure machines; a request's node is its `request` bytes.  `audit` is what it would log."""

    authority: bytes = AUTHORITY
    leaf: bytes = LEAF
    table: TokenTable = field(default_factory=lambda: TokenTable(b"d" * 32))
    audit: list[str] = field(default_factory=list)
    now_s: float = NOW_S

    def decide(self, asked: JoinRequested) -> Grant | Refusal:
        proof = self.table.prove(asked)
        if proof.record is None:
            self.audit.append(proof.why)
            return Refusal("invalid")
        reason = self.table.admit(proof.record, asked, asked.ask.request.decode(), self.now_s)
        self.audit.append(reason or "joined")
        return Refusal(reason) if reason else prove_grant(GRANT, proof.record.key, asked.ask.nonce)

    def call(self, said: bytes) -> bytes:
        """One call: what the coordinator sends in all to a caller that says `said`."""
        end = JoiningCoordinator(self.authority, self.leaf)
        sent = b"".join(action.data for action in end.connected())
        asked = end.received(said)
        if isinstance(asked, JoinRequested):
            sent += b"".join(action.data for action in end.answer(self.decide(asked)))
        return sent

    def let_in(self, joining: JoiningNode) -> Admitted:
        """Make both calls of a node, in pieces of any size."""
        (verify,) = joining.received(self.call(b""))
        assert verify == Verify(self.authority)
        (ask,) = joining.connected(self.leaf)
        assert isinstance(ask, Send)
        (joined,) = [action for piece in pieces(self.call(ask.data)) for action in joining.received(piece)]
        assert isinstance(joined, Admitted)
        return joined


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 7] for at in range(0, len(data), 7)]


def asked_by(joining: JoiningNode, leaf: bytes = LEAF) -> bytes:
    """The bytes with which a node asks, having found the authority right."""
    joining.received(encode(Authority(1, AUTHORITY)))
    (ask,) = joining.connected(leaf)
    assert isinstance(ask, Send)
    return ask.data


@pytest.fixture
def mesh() -> Mesh:
    made = Mesh()
    made.table.create(token(), "worker", 1, 900.0, NOW_S)
    return made


def refused(mesh: Mesh, joining: JoiningNode) -> str:
    with pytest.raises(JoinRefused) as raised:
        mesh.let_in(joining)
    assert raised.value.next_step and "10.0.0.1:8100" in str(raised.value)
    return raised.value.reason


# -- letting in


def test_a_node_with_a_token_is_let_in(mesh: Mesh) -> None:
    joined = mesh.let_in(node(token()))
    assert replace(joined.grant, mac=b"") == GRANT and joined.authority == AUTHORITY
    assert mesh.audit == ["joined"]


def test_the_secret_never_travels(mesh: Mesh) -> None:
    data = asked_by(node(token(77)))
    assert token(77).secret not in data and token(77).key not in data and len(data) < STRANGER_BYTES_MAX


def test_a_token_of_several_uses_lets_so_many_nodes_in(mesh: Mesh) -> None:
    mesh.table.create(token(2), "worker", 3, 900.0, NOW_S)
    for number in range(3):
        mesh.let_in(node(token(2), nonce=number, request=b"node %d" % number))
    assert refused(mesh, node(token(2), nonce=9, request=b"node 9")) == "used"


def test_a_node_that_lost_the_answer_asks_again_and_uses_up_nothing(mesh: Mesh) -> None:
    for nonce in range(ASKED_MAX):
        mesh.let_in(node(token(), nonce=nonce))
    assert refused(mesh, node(token(), nonce=99)) == "used"


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_a_node_with_an_impossible_name_does_not_ask(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        JoiningNode("there", token(), "worker", name, b"request", bytes(32))


# -- every refusal


def test_a_used_token_lets_no_other_node_in(mesh: Mesh) -> None:
    mesh.let_in(node(token()))
    assert refused(mesh, node(token(), nonce=2, request=b"another")) == "used"
    assert mesh.audit == ["joined", "used"]


@pytest.mark.parametrize(("later_s", "reason"), [(899.9, ""), (900.0, "expired"), (1e6, "expired")])
def test_a_token_lives_as_long_as_was_said(mesh: Mesh, later_s: float, reason: str) -> None:
    mesh.now_s = NOW_S + later_s
    if reason:
        assert refused(mesh, node(token())) == reason
    else:
        assert mesh.let_in(node(token()))


def test_a_withdrawn_token_lets_nobody_in_not_even_again(mesh: Mesh) -> None:
    mesh.let_in(node(token()))
    mesh.table.withdraw(token().key_id)
    assert refused(mesh, node(token(), nonce=2)) == "withdrawn"


def test_a_token_for_workers_lets_no_client_in_and_is_not_used_up(mesh: Mesh) -> None:
    assert refused(mesh, node(token(), role="client")) == "role"
    assert refused(mesh, node(token(), role="coordinator")) == "role"
    assert mesh.let_in(node(token()))


def test_a_wrong_secret_and_an_unknown_token_look_the_same_and_differ_in_the_log(mesh: Mesh) -> None:
    guess = Token(token().pin, token().key_id, bytes(20))
    assert mesh.call(asked_by(node(guess))) == mesh.call(asked_by(node(token(7))))
    assert mesh.audit == ["wrong secret", "unknown token"]
    assert refused(mesh, node(guess)) == "invalid"


def test_closed_tokens_tell_why_only_to_those_who_hold_them(mesh: Mesh) -> None:
    mesh.table.withdraw(token().key_id)
    guess = Token(token().pin, token().key_id, bytes(20))
    assert refused(mesh, node(guess)) == "invalid"
    assert refused(mesh, node(token())) == "withdrawn"


def test_an_unknown_token_is_compared_like_a_known_one(mesh: Mesh) -> None:
    """Both take the same path: one proof is computed and compared in either case."""
    compared: list[bytes] = []

    class Watched(JoinRequested):
        def is_proved_by(self, key: bytes) -> bool:
            compared.append(key)
            return JoinRequested.is_proved_by(self, key)

    for held in (token(), token(7)):
        asked = JoiningCoordinator(AUTHORITY, LEAF).received(asked_by(node(held)))
        assert isinstance(asked, JoinRequested)
        mesh.table.prove(Watched(asked.ask, asked.leaf))
    assert compared == [token().key, b"d" * 32]


def test_a_replayed_request_is_refused(mesh: Mesh) -> None:
    mesh.table.create(token(2), "worker", 5, 900.0, NOW_S)
    request = asked_by(node(token(2)))
    mesh.call(request)
    assert mesh.call(request).endswith(encode(Refusal("replayed"))) and mesh.audit == ["joined", "replayed"]


def test_a_request_made_for_another_server_is_refused(mesh: Mesh) -> None:
    """A node that stands between and passes a proof on has another certificate than the coordinator."""
    mesh.call(asked_by(node(token()), leaf=b"the certificate of someone between"))
    assert mesh.audit == ["wrong secret"]


def test_a_request_with_any_bit_flipped_lets_nobody_in(mesh: Mesh) -> None:
    request = asked_by(node(token()))
    for bit in range(len(request) * 8):
        damaged = bytearray(request)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            mesh.call(bytes(damaged))
        except ProtocolError:
            continue
    assert set(mesh.audit) == {"wrong secret", "unknown token"}
    assert mesh.let_in(node(token()))


def test_an_answer_with_any_bit_flipped_is_refused(mesh: Mesh) -> None:
    request = asked_by(node(token()))
    answer = mesh.call(request)[len(encode(Authority(1, AUTHORITY))) :]
    for bit in range(len(answer) * 8):
        damaged = bytearray(answer)
        damaged[bit // 8] ^= 1 << bit % 8
        joining = node(token())
        asked_by(joining)
        try:
            actions = joining.received(bytes(damaged))
        except MeshError:
            continue
        assert actions == [], "an answer that claims more bytes than came"


# -- imposters


def test_an_imposter_with_another_authority_gets_no_proof() -> None:
    joining = node(token())
    with pytest.raises(NotTrusted, match="not the coordinator that made this token"):
        joining.received(encode(Authority(1, b"another authority")))
    with pytest.raises(AssertionError):
        joining.connected(LEAF)


def test_an_imposter_with_the_genuine_certificate_gets_no_proof() -> None:
    """It can show the authority's certificate; the second call is TLS's to refuse, and before it nothing is sent."""
    joining = node(token())
    assert joining.received(encode(Authority(1, AUTHORITY))) == [Verify(AUTHORITY)]


@pytest.mark.parametrize("frame", [GRANT, Refusal("used"), Renew(1)])
def test_an_answer_before_the_question_is_refused(frame: Frame) -> None:
    with pytest.raises(ProtocolError, match="before it said who it is"):
        node(token()).received(encode(frame))


def test_a_grant_of_someone_who_does_not_know_the_token_is_refused() -> None:
    joining = node(token())
    asked_by(joining)
    with pytest.raises(NotTrusted, match="does not know the token"):
        joining.received(encode(GRANT))


def test_a_second_call_that_names_another_authority_is_refused() -> None:
    joining = node(token())
    asked_by(joining)
    with pytest.raises(ProtocolError, match="another authority"):
        joining.received(encode(Authority(1, b"another")))


def test_a_new_authority_is_told_to_members_and_the_one_before_to_all() -> None:
    """TLS has shown a member that it speaks with its coordinator; a node with a token knows the new one by that."""
    former = Former(b"the one before", b"its list")
    call = JoiningCoordinator(b"the new one", LEAF, former)
    said = b"".join(send.data for send in (*call.connected(), *call.answer(GRANT)))
    member = RenewingNode("there", AUTHORITY)
    assert member.received(said) == [Admitted(GRANT, b"the new one", former)]
    joining, secret = node(token()), token()
    asked_by(joining)
    answer = JoiningCoordinator(AUTHORITY, LEAF, former).answer(prove_grant(GRANT, secret.key, joining._nonce))
    (admitted,) = joining.received(b"".join(send.data for send in answer))
    assert isinstance(admitted, Admitted) and admitted.former == former
    assert JoiningCoordinator(AUTHORITY, LEAF, former).answer(Refusal("used")) == [Send(encode(Refusal("used")))]
    with pytest.raises(ProtocolError, match="before it said who it is"):
        node(token()).received(encode(former))


def test_another_version_says_whom_to_upgrade() -> None:
    with pytest.raises(VersionMismatch, match="Upgrade graph-mesh on this machine"):
        node(token()).received(encode(Authority(2, AUTHORITY)))
    with pytest.raises(ProtocolError, match="version 9"):
        JoiningCoordinator(AUTHORITY, LEAF).received(encode(Renew(9)))


def test_every_reason_has_words_and_an_unknown_one_too() -> None:
    for reason in (*REFUSALS, "of a newer version"):
        joining = node(token())
        asked_by(joining)
        with pytest.raises(JoinRefused, match="does not let this node in"):
            joining.received(encode(Refusal(reason)))


def test_hanging_up_is_explained() -> None:
    assert "hung up" in str(node(token()).ended())
    assert "does not accept this node's certificate" in str(RenewingNode("there", AUTHORITY).ended())


# -- renewal


def test_a_member_renews_without_a_token() -> None:
    member, end = RenewingNode("there", AUTHORITY), JoiningCoordinator(AUTHORITY, LEAF)
    (said,) = member.connected()
    assert isinstance(said, Send) and end.received(said.data) == RenewalRequested()
    (greeting,), (answer,) = end.connected(), end.answer(GRANT)
    assert member.received(greeting.data + answer.data) == [Admitted(GRANT, AUTHORITY)]


def test_a_renewal_can_be_refused() -> None:
    member = RenewingNode("there", AUTHORITY)
    with pytest.raises(JoinRefused, match="was revoked"):
        member.received(encode(Refusal("revoked")))


# -- bytes


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x02\xff\xff",
        b"\x09\x00\x01x",
        encode(GRANT),
        encode(Authority(1, AUTHORITY)),
        encode(Refusal("used")),
        b"\x03\x00\x03\x00\x01\x01" + b"x" * STRANGER_BYTES_MAX,
        b"\x02\x00\x00",
        b"\x03\x00\x04\x00\x01\x01\x00",
        b"\x05\x00\x03\x00\x01\xff",
    ],
)
def test_bytes_that_are_no_question_end_the_call(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        JoiningCoordinator(AUTHORITY, LEAF).received(said)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_strangers_are_read_up_to_the_limit(extra: int) -> None:
    """One byte at a time, so that a header which claims a whole limit is believed as long as it can be."""
    end = JoiningCoordinator(AUTHORITY, LEAF)
    said = b"\x02" + (STRANGER_BYTES_MAX - 3).to_bytes(2) + bytes(STRANGER_BYTES_MAX - 3 + extra)
    if extra < 0:
        assert end.received(said) is None
    else:
        with pytest.raises(ProtocolError):
            end.received(said)


def test_a_node_reads_no_more_from_a_stranger_either() -> None:
    with pytest.raises(ProtocolError, match="more bytes"):
        node(token()).received(bytes(STRANGER_BYTES_MAX + 1))
    member = RenewingNode("there", AUTHORITY)
    with pytest.raises(ProtocolError, match="more bytes"):
        member.received(bytes(STRANGER_BYTES_MAX + GRANT_BYTES_MAX + 1))


def test_a_revocation_list_of_a_full_mesh_fits() -> None:
    full = replace(GRANT, revocations=bytes(37 * 1024 + 200))
    assert RenewingNode("there", AUTHORITY).received(encode(full)) == [Admitted(full, AUTHORITY)]


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_wait_for_more(said: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert JoiningCoordinator(AUTHORITY, LEAF).received(said) in (None, RenewalRequested())


def test_damaged_frames_raise_nothing_but_our_errors() -> None:
    """Structured fuzzing: valid frames with bytes changed, dropped, doubled and sizes rewritten."""
    rng = random.Random(7)
    seeds = [
        asked_by(node(token())),
        encode(Renew(1)),
        encode(GRANT),
        encode(Refusal("used")),
        encode(Authority(1, AUTHORITY)),
    ]
    outcomes = {"frame": 0, "refused": 0, "waiting": 0}
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2)) or b"\0"
        for end in (JoiningCoordinator(AUTHORITY, LEAF), RenewingNode("there", AUTHORITY)):
            try:
                outcomes["frame" if end.received(bytes(data)) else "waiting"] += 1
            except MeshError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


# -- the table of tokens


@pytest.mark.parametrize(
    ("role", "uses", "ttl_s", "says"),
    [
        ("coordinator", 1, 900.0, "roles worker, client, operator, admin"),
        ("worker", 0, 900.0, "1 to 1024 uses"),
        ("worker", USES_MAX + 1, 900.0, "1 to 1024 uses"),
        ("worker", 1, 0.0, "at most 30 days"),
        ("worker", 1, TTL_S_MAX + 1, "at most 30 days"),
    ],
)
def test_tokens_have_bounds(role: str, uses: int, ttl_s: float, says: str) -> None:
    table = TokenTable(b"d" * 32)
    with pytest.raises(ConfigError, match=says):
        table.create(token(), role, uses, ttl_s, NOW_S)
    assert table.create(token(), "client", USES_MAX, TTL_S_MAX, NOW_S).state(NOW_S) == "open"


def test_records_keep_no_secret_and_show_no_key() -> None:
    record = TokenTable(b"d" * 32).create(token(), "worker", 1, 900.0, NOW_S)
    assert token().secret not in record.key and repr(record.key) not in repr(record)


def test_a_list_tells_the_state_of_every_token(mesh: Mesh) -> None:
    for number, at_s in ((2, 1.0), (3, 2.0), (4, -2000.0)):
        mesh.table.create(token(number), "worker", 1, 900.0, NOW_S + at_s)
    mesh.let_in(node(token()))
    mesh.table.withdraw(token(2).key_id)
    shown = [(record.key_id, record.state(NOW_S)) for record in mesh.table.records]
    states = ["open", "withdrawn", "used", "expired"]
    assert shown == [(token(number).key_id, state) for number, state in zip((3, 2, 1, 4), states, strict=True)]


def test_withdrawing_what_is_not_there_is_an_error(mesh: Mesh) -> None:
    with pytest.raises(InputError, match="mesh-coord token list"):
        mesh.table.withdraw("nothing")


def test_the_tokens_of_a_revoked_node_are_withdrawn_with_it(mesh: Mesh) -> None:
    """It knows their secrets and could come back as another."""
    mesh.table.create(token(2), "worker", 5, 900.0, NOW_S)
    mesh.let_in(node(token(2), request=b"bad"))
    assert [record.key_id for record in mesh.table.withdraw_used_by("bad", NOW_S)] == [token(2).key_id]
    assert refused(mesh, node(token(2), request=b"bad with a new key")) == "withdrawn"
    assert mesh.let_in(node(token()))


def test_old_tokens_are_forgotten_and_open_ones_have_a_limit() -> None:
    records = [TokenRecord(f"{n}", bytes(32), "worker", 1, NOW_S, NOW_S + 900.0) for n in range(TOKENS_MAX)]
    table = TokenTable(b"d" * 32, records)
    with pytest.raises(ConfigError, match="256 tokens already"):
        table.create(token(), "worker", 1, 900.0, NOW_S)
    table.create(token(), "worker", 1, 900.0, NOW_S + 900.0 + REMEMBERED_S)
    assert [record.key_id for record in table.records] == [token().key_id]


def test_the_largest_question_fits_the_limit_for_strangers() -> None:
    largest = Ask(1, bytes(5), bytes(32), "x" * 16, "x" * 64, bytes(1024), bytes(32))
    assert len(encode(largest)) < STRANGER_BYTES_MAX
    assert JoiningCoordinator(AUTHORITY, LEAF).received(encode(largest)) == JoinRequested(largest, LEAF)
