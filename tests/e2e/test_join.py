"""Joining and links by mutual TLS over real sockets: who gets in, and that nobody else gets a byte through."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.audit_events import read_events
from support.hostile.faulty_disk import QuickDisk
from support.machines.links import Recorder
from support.tls import MESH, Card, card
from support.tls import authority as new_ca
from support.tls import credentials as identity_of
from support.waiting import until

from coordinator.authority.audit_log import verify
from coordinator.authority.authority import Authority
from wire.errors import ConnectFailed, JoinRefused, MeshError, NotTrusted
from wire.joining.credentials import Credentials
from wire.joining.join_port import NOT_ASKED, PORT_OFFSET, JoinPort, join, renew, serve_joining
from wire.joining.join_protocol import STRANGER_BYTES_MAX, Admitted, Renew, encode
from wire.joining.join_protocol import Authority as Greeting
from wire.joining.join_tokens import Token
from wire.link.identity import identity_here
from wire.link.membership import Membership
from wire.link.websocket_carrier import Endpoint
from wire.security.certificates import CERTIFICATE_S, JOIN_NAME, new_key, server_name
from wire.security.connection_limiter import ConnectionLimiter
from wire.security.tls import client_context, join_client_context, peer_member, unverified_context
from wire.timeouts import DEFAULT_TIMEOUTS

HOST = "127.0.0.1"
HANGS_S = 120.0


@dataclass
class Clock:
    """The authority's clock; TLS goes by the machine's."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Coordinator:
    folder: Path
    clock: Clock
    authority: Authority
    credentials: Credentials
    open: JoinPort
    port: int
    gate: ConnectionLimiter

    def audit(self) -> list[str]:
        return [f"{each['event']} {each.get('reason', '')}".strip() for each in read_events(self.folder, 1000)]

    async def until_audited(self, event: str) -> None:
        async with asyncio.timeout(HANGS_S):
            while event not in self.audit():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def coordinator(folder: Path, mesh: str = MESH, **times: float) -> AsyncIterator[Coordinator]:
    clock, gate, timeouts = Clock(), ConnectionLimiter(), dataclasses.replace(DEFAULT_TIMEOUTS, **times)
    made = Authority(folder / "authority", mesh, clock, QuickDisk())
    credentials = Credentials(folder / "coordinator", QuickDisk())
    credentials.adopt(made.certify_coordinator(credentials.key.public))
    opened, port = await serve_joining([HOST], 0, credentials, made, gate, timeouts)
    try:
        yield Coordinator(folder / "authority", clock, made, credentials, opened, port, gate)
    finally:
        await opened.close()


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with coordinator(tmp_path) as made:
        yield made


async def joined(there: Coordinator, folder: Path, name: str = "desk", role: str = "worker") -> Credentials:
    """A node that asked with a new token and kept what it got."""
    node = Credentials(folder / name, QuickDisk())
    token = await asyncio.to_thread(there.authority.create_token, role)
    node.adopt(await join(HOST, there.port, token, node.key, role, name))
    return node


# -- joining


async def test_a_node_joins_with_a_token_and_is_a_member(there: Coordinator, tmp_path: Path) -> None:
    node = await joined(there, tmp_path)
    assert node.enrolled and node.mesh == MESH and node.member.role == "worker"
    assert [member.name for member in there.authority.members()] == ["desk"]
    assert there.audit() == ["coordinator certified", "token created", "joined"]
    assert not verify(there.folder).broken


async def test_many_nodes_join_at_once_with_one_token(tmp_path: Path) -> None:
    """In one process, which has to do all of it by turns."""
    times = dict.fromkeys(("first_word_s", "tls_handshake_s", "join_call_s"), HANGS_S)
    patient = dataclasses.replace(DEFAULT_TIMEOUTS, **times)
    async with coordinator(tmp_path, **times) as there:
        token = there.authority.create_token(uses=20)
        keys = [new_key() for _ in range(20)]
        await asyncio.gather(*(join(HOST, there.port, token, key, "worker", "n", patient) for key in keys))
        assert {member.node_id for member in there.authority.members()} == {key.node_id for key in keys}
        with pytest.raises(JoinRefused, match="used as often"):
            await join(HOST, there.port, token, new_key(), "worker", "n", patient)


@pytest.mark.parametrize("case", ["used", "expired", "withdrawn", "wrong", "unknown", "role", "revoked"])
async def test_a_refusal_is_one_line_and_one_record(there: Coordinator, tmp_path: Path, case: str) -> None:
    token, key, role = there.authority.create_token(), new_key(), "worker"
    says = case
    match case:
        case "used":
            await join(HOST, there.port, token, new_key(), role, "first")
        case "expired":
            there.clock.ahead_s = 901.0
            says = "time is over"
        case "withdrawn":
            there.authority.revoke_token(token.key_id)
            says = "was revoked"
        case "wrong":
            token, says = Token(token.pin, token.key_id, bytes(20)), "not valid there"
        case "unknown":
            token, says = Token(token.pin, "aaaaaaaa", bytes(20)), "not valid there"
        case "role":
            role, says = "client", "another role"
        case "revoked":
            bad = await joined(there, tmp_path, "bad")
            there.authority.revoke_node("bad")
            key, says = bad.key, "this node was revoked"
    before = len(there.audit())
    with pytest.raises(JoinRefused, match=says) as raised:
        await join(HOST, there.port, token, key, role, "desk")
    assert "\n" not in str(raised.value) and raised.value.next_step
    (record,) = there.audit()[before:]
    assert record.startswith("refused ") and not verify(there.folder).broken


async def test_a_token_of_another_mesh_is_noticed_before_anything_is_sent_and_both_sides_say_so(
    tmp_path: Path,
) -> None:
    other = Authority(tmp_path / "other", MESH, disk=QuickDisk())
    async with coordinator(tmp_path, join_second_call_s=0.2) as there:
        for _ in range(3):
            with pytest.raises(NotTrusted, match="not the coordinator that made this token"):
                await join(HOST, there.port, other.create_token(), new_key(), "worker", "desk")
            await until(lambda: not there.open._greeted, HANGS_S)
        await there.until_audited(f"turned away {NOT_ASKED}")
        assert there.audit() == ["coordinator certified", f"turned away {NOT_ASKED}"], "once, however often it tries"


async def test_who_joins_has_no_record_but_that_it_did(there: Coordinator, tmp_path: Path) -> None:
    await joined(there, tmp_path)
    assert not there.open._greeted, "its question came"
    assert there.audit() == ["coordinator certified", "token created", "joined"]


async def test_nobody_there_is_said(there: Coordinator, unused_port: int) -> None:
    with pytest.raises(ConnectFailed, match="nobody answers"):
        await join(HOST, unused_port, there.authority.create_token(), new_key(), "worker", "desk")


@pytest.fixture
async def unused_port() -> int:
    server = await asyncio.start_server(lambda *_: None, HOST, 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def test_a_coordinators_renewed_certificate_holds_for_the_next_join(there: Coordinator, tmp_path: Path) -> None:
    there.credentials.adopt(there.authority.certify_coordinator(there.credentials.key.public))
    assert (await joined(there, tmp_path)).enrolled


# -- imposters


@dataclass
class Imposter:
    """A server that says what it likes and writes down what it is told inside TLS."""

    says: bytes
    heard: bytearray = field(default_factory=bytearray)
    calls: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        with contextlib.suppress(OSError):
            writer.write(self.says)
            while data := await reader.read(4096):
                self.heard += data
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self, context: ssl.SSLContext) -> AsyncIterator[int]:
        server = await asyncio.start_server(self.serve, HOST, 0, ssl=context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()


def plain_context(shown: Card) -> ssl.SSLContext:
    """TLS as any stranger can speak it: a certificate, and no questions."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.files.certificate, shown.files.key)
    return context


async def test_an_imposter_with_an_authority_of_its_own_hears_nothing(there: Coordinator, tmp_path: Path) -> None:
    own = new_ca()
    imposter = Imposter(encode(Greeting(1, own.certificate)))
    async with imposter.listening(plain_context(card(tmp_path, own, "coordinator"))) as port:
        with pytest.raises(NotTrusted):
            await join(HOST, port, there.authority.create_token(), new_key(), "worker", "desk")
    assert imposter.calls == 1 and not imposter.heard


@pytest.mark.parametrize("signed_by", ["itself", "the mesh, as a worker", "the mesh, as a client"])
async def test_an_imposter_with_the_genuine_certificate_hears_nothing(
    there: Coordinator, tmp_path: Path, signed_by: str
) -> None:
    """It shows the authority's certificate, which is no secret; even a member cannot play the coordinator."""
    if signed_by == "itself":
        shown = plain_context(card(tmp_path, new_ca(), "coordinator"))
    else:
        member = await joined(there, tmp_path, role=signed_by.rpartition(" ")[2])
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(member.files.certificate, member.files.key)
    imposter = Imposter(encode(Greeting(1, there.authority.certificate)))
    async with imposter.listening(shown) as port:
        with pytest.raises(NotTrusted):
            await join(HOST, port, there.authority.create_token(), new_key(), "worker", "desk")
    assert imposter.calls >= 1 and not imposter.heard


async def test_a_server_that_is_silent_or_talks_too_much_is_given_up(there: Coordinator, tmp_path: Path) -> None:
    token = there.authority.create_token()
    chatty = Imposter(bytes(STRANGER_BYTES_MAX * 2))
    async with chatty.listening(plain_context(card(tmp_path, new_ca()))) as port:
        with pytest.raises(MeshError):
            await join(HOST, port, token, new_key(), "worker", "desk")
    server = await asyncio.start_server(Imposter(b"SSH-2.0-OpenSSH_9.9\r\n").serve, HOST, 0)
    with pytest.raises((NotTrusted, ConnectFailed), match=r"does not speak TLS|broke off"):
        await join(HOST, server.sockets[0].getsockname()[1], token, new_key(), "worker", "desk")
    server.close()


# -- strangers at the join port


async def call(there: Coordinator, context: ssl.SSLContext, said: bytes) -> bytes:
    """Everything that the join port answers to these bytes."""
    reader, writer = await asyncio.open_connection(HOST, there.port, ssl=context, server_hostname=JOIN_NAME)
    heard = b""
    with contextlib.suppress(OSError):
        writer.write(said)
        while data := await reader.read(4096):
            heard += data
    writer.close()
    return heard.removeprefix(encode(Greeting(1, there.authority.certificate)))


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x02\x0f\xfe" + bytes(STRANGER_BYTES_MAX), encode(Renew(1))],
    ids=["http", "oversize", "renewal without a certificate"],
)
async def test_strangers_get_no_answer_and_one_record(there: Coordinator, said: bytes) -> None:
    assert await call(there, unverified_context(), said) == b""
    await until(lambda: len(there.audit()) == 2, HANGS_S)
    assert there.audit()[1].startswith("turned away ")


async def test_plain_text_at_the_join_port_gets_no_answer(there: Coordinator) -> None:
    reader, writer = await asyncio.open_connection(HOST, there.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await there.until_audited("turned away it does not speak TLS")


async def test_a_replayed_request_gets_a_refusal(there: Coordinator) -> None:
    """Byte for byte, as someone would who could read what a node sent."""
    sent = bytearray()
    token = there.authority.create_token(uses=5)
    real = asyncio.StreamWriter.write

    def recording(writer: asyncio.StreamWriter, data: bytes) -> None:
        if data[:1] == b"\x02":
            sent[:] = data
        real(writer, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.StreamWriter, "write", recording)
        await join(HOST, there.port, token, new_key(), "worker", "desk")
    context = join_client_context(there.authority.certificate)
    assert b"replayed" in await call(there, context, bytes(sent))
    assert there.audit()[-1] == "refused replayed"


async def test_a_crowd_of_silent_connections_keeps_nobody_out(there: Coordinator, tmp_path: Path) -> None:
    crowd = [await asyncio.open_connection(HOST, there.port) for _ in range(200)]
    assert (await joined(there, tmp_path)).enrolled
    assert len(there.open.listener._strangers) <= 64
    for _, writer in crowd:
        writer.close()


async def test_a_silent_caller_is_dropped_in_3_s_and_one_that_shook_hands_in_5(there: Coordinator) -> None:
    async def silent(context: ssl.SSLContext | None) -> None:
        name = JOIN_NAME if context else None
        reader, writer = await asyncio.open_connection(HOST, there.port, ssl=context, server_hostname=name)
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
        writer.close()

    async with asyncio.timeout(HANGS_S):
        await asyncio.gather(silent(None), silent(unverified_context()))
    await there.until_audited("turned away it said nothing for 3 s")
    await there.until_audited("turned away a call took more than 5 s")


async def test_the_port_closes_with_callers_on_it(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as there:
        readers = [(await asyncio.open_connection(HOST, there.port))[0] for _ in range(5)]
    async with asyncio.timeout(HANGS_S):
        for reader in readers:
            with contextlib.suppress(OSError):
                assert await reader.read() == b""


# -- renewal at the join port


def aged(there: Coordinator, node: Credentials, hours: float) -> Credentials:
    """The node with a certificate that was made so many hours ago."""
    there.clock.ahead_s = -hours * 3600.0
    answer = there.authority.renew(node.certificate, HOST)
    there.clock.ahead_s = 0.0
    node.adopt(Admitted(answer, there.authority.certificate))  # type: ignore[arg-type]
    return node


@pytest.mark.parametrize("hours", [0.0, 16.0, 23.0])
async def test_a_member_renews_without_a_token(there: Coordinator, tmp_path: Path, hours: float) -> None:
    node = aged(there, await joined(there, tmp_path), hours)
    got = await renew(HOST, there.port, node)
    member = node.adopt(got)
    assert member.node_id == node.node_id and member.ends_s > time.time() + CERTIFICATE_S - 60.0
    assert there.audit()[-1] == "renewed"


async def test_a_member_that_was_off_for_days_renews_too(tmp_path: Path) -> None:
    """The authority is as old as its members."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "__call__", lambda self: time.time() - 7 * 86400.0 + self.ahead_s)
        old = Authority(tmp_path / "authority", MESH, Clock(), QuickDisk())
        node = Credentials(tmp_path / "node", QuickDisk())
        before = Credentials(tmp_path / "before", QuickDisk())
        before.adopt(old.certify_coordinator(before.key.public))
    async with coordinator(tmp_path) as there:
        there.clock.ahead_s = -7 * 86400.0
        node.adopt(await join(HOST, there.port, there.authority.create_token(), node.key, "worker", "desk"))
        there.clock.ahead_s = 0.0
        assert node.member.ends_s < time.time() - 5 * 86400.0
        node.adopt(await renew(HOST, there.port, node))
        assert node.member.ends_s > time.time()


async def test_a_revoked_member_is_not_renewed(there: Coordinator, tmp_path: Path) -> None:
    node = await joined(there, tmp_path)
    there.authority.revoke_node("desk")
    with pytest.raises(JoinRefused, match="this node was revoked"):  # its list is not on this port yet
        await renew(HOST, there.port, node)
    there.credentials.take_trust(there.authority.trust().data)
    with pytest.raises(NotTrusted, match="revoked"):
        await renew(HOST, there.port, node)


async def test_a_member_of_another_mesh_is_not_renewed(there: Coordinator, tmp_path: Path) -> None:
    spy = identity_of(tmp_path / "spy", new_ca())
    spy.files.trust.write_bytes(there.credentials.files.trust.read_bytes())
    with pytest.raises(NotTrusted):
        await renew(HOST, there.port, spy)
    assert "renewed" not in there.audit()


# -- callers of the main port


@contextlib.asynccontextmanager
async def main_port(there: Coordinator) -> AsyncIterator[int]:
    """Where members link, with the same audit log."""
    identity = dataclasses.replace(identity_here("coordinator", MESH, "hub", None), node_id=there.credentials.node_id)
    endpoint = Endpoint(identity, Recorder(), credentials=there.credentials)
    endpoint.audit_strangers(there.authority.turned_away)
    try:
        yield await endpoint.listen(HOST, 0)
    finally:
        await endpoint.close()


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("no member", "it does not speak TLS"),
        ("no certificate", "a caller has no certificate: it joined no mesh"),
        ("of another mesh", "a caller gave up the handshake: it may expect another mesh"),
        ("pretends", "a caller belongs to another mesh, or to this one by an authority that this node does not know"),
    ],
)
async def test_who_links_without_being_a_member_is_one_line_and_one_record(
    there: Coordinator, tmp_path: Path, who: str, why: str
) -> None:
    stranger = None if who in ("no member", "no certificate") else identity_of(tmp_path / "spy", new_ca())
    if who == "pretends" and stranger is not None:
        stranger.files.trust.write_bytes(there.credentials.files.trust.read_bytes())
    name = "x" if stranger is None else stranger.node_id
    here = Endpoint(dataclasses.replace(identity_here("worker", MESH, "w", None), node_id=name), Recorder(),
                    credentials=stranger)  # fmt: skip
    async with main_port(there) as port:
        for _ in range(3):
            if who == "no certificate":
                with contextlib.suppress(OSError):
                    await asyncio.open_connection(HOST, port, ssl=unverified_context(), server_hostname=JOIN_NAME)
            else:
                with pytest.raises(MeshError) as raised:
                    await here.dial(HOST, port)
                assert "\n" not in str(raised.value) and raised.value.next_step
        await there.until_audited(f"turned away {why}")
    await here.close()
    assert there.audit() == ["coordinator certified", f"turned away {why}"], "once, however often it tries"


# -- a new authority


async def rotated(there: Coordinator, overlap_s: float = CERTIFICATE_S) -> None:
    await asyncio.to_thread(there.authority.rotate, overlap_s)
    there.credentials.adopt(there.authority.certify_coordinator(there.credentials.key.public))


async def test_who_renews_or_joins_hears_of_a_new_authority(there: Coordinator, tmp_path: Path) -> None:
    old, before = await joined(there, tmp_path, "old"), there.authority.certificate
    await rotated(there)
    assert not old.outdated
    old.adopt(await renew(HOST, there.port, old))
    new = await joined(there, tmp_path, "new")
    for node in (old, new):
        assert node.admitted.authority == there.authority.certificate != before and not node.outdated
        async with serving(there.credentials) as service:  # with a certificate of the one before
            name = server_name(there.credentials.node_id, MESH)
            assert await service.ask(node.client_context(), name) == b"heard"


async def test_a_running_member_that_slept_too_long_renews_as_it_wakes(there: Coordinator, tmp_path: Path) -> None:
    """Without a token: it has its key.  Nobody is there at first, as on a network that is not up yet."""
    node = aged(there, await joined(there, tmp_path), 30.0)
    never = dataclasses.replace(DEFAULT_TIMEOUTS, certificate_expired_retry_s=3600.0)
    membership = Membership(node, tmp_path, never)
    keeping = asyncio.create_task(membership.keep())
    await asyncio.sleep(0.05)
    assert node.member.ends_s < time.time(), "no coordinator is known"
    membership.met([f"{HOST}:{there.port - PORT_OFFSET}"])
    membership.woke()
    await until(lambda: node.member.ends_s > time.time(), HANGS_S)
    keeping.cancel()


async def test_a_running_member_renews_as_soon_as_it_hears(there: Coordinator, tmp_path: Path) -> None:
    node = await joined(there, tmp_path)
    membership = Membership(node, tmp_path)
    membership.met([f"{HOST}:{there.port - PORT_OFFSET}"])
    keeping = asyncio.create_task(membership.keep())
    await rotated(there)
    await asyncio.sleep(0)
    trust = there.authority.trust()
    assert trust.former is not None
    endpoint = Endpoint(identity_here("worker", MESH, "desk", None, node.node_id), Recorder(), credentials=node)
    former = trust.former.certificate, trust.former.revocations
    await membership.trust(endpoint, trust.data, trust.authority, former)
    assert node.outdated
    await until(lambda: not node.outdated, HANGS_S)
    keeping.cancel()
    await endpoint.close()


async def test_a_member_that_was_away_all_the_time_is_told_what_to_do(there: Coordinator, tmp_path: Path) -> None:
    worker, client = await joined(there, tmp_path), await joined(there, tmp_path, "me", "client")
    await rotated(there)
    there.clock.ahead_s = CERTIFICATE_S
    there.credentials.adopt(there.authority.certify_coordinator(there.credentials.key.public))
    for node, verb in ((worker, "mesh-worker join"), (client, "mesh-coord join")):
        with pytest.raises(NotTrusted, match=f"mesh '{MESH}' has a new authority") as raised:
            await renew(HOST, there.port, node)
        assert verb in raised.value.next_step and "mesh-coord token create" in raised.value.next_step


# -- links by mutual TLS


@dataclass
class Service:
    """What stands behind mutual TLS: it counts every byte that gets through, and answers."""

    heard: list[tuple[str, bytes]] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = peer_member(writer)
        while data := await reader.read(4096):
            self.heard.append((who.node_id, data))
            writer.write(b"heard")
        writer.close()

    async def ask(self, context: ssl.SSLContext | None, name: str | None) -> bytes:
        """What it answers, b"" where it hangs up; whoever does not believe it gets an SSLError."""
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname=name)
        try:
            writer.write(b"hello")
            return await reader.read(5)
        except (ConnectionError, ssl.SSLError):
            return b""
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(node: Credentials) -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.serve, HOST, 0, ssl=node.server_context())
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()


async def test_members_talk_and_know_each_other(there: Coordinator, tmp_path: Path) -> None:
    one, two = await joined(there, tmp_path, "one"), await joined(there, tmp_path, "two", "client")
    async with serving(one) as service:
        assert await service.ask(two.client_context(), server_name(one.node_id, MESH)) == b"heard"
        assert await service.ask(there.credentials.client_context(), server_name(one.node_id, MESH)) == b"heard"
    assert [who for who, _ in service.heard] == [two.node_id, there.credentials.node_id]


@pytest.mark.parametrize("case", ["plain text", "no certificate", "another mesh", "expired", "forged", "revoked"])
async def test_strangers_get_no_byte_through(there: Coordinator, tmp_path: Path, case: str) -> None:
    one, two = await joined(there, tmp_path, "one"), await joined(there, tmp_path, "two")
    name: str | None = server_name(one.node_id, MESH)
    context: ssl.SSLContext | None = None
    match case:
        case "plain text":
            name = None
        case "no certificate":
            context = join_client_context(there.authority.certificate)
        case "another mesh":
            spy = card(tmp_path / "spies", new_ca())
            spy.files.trust.write_bytes(one.files.trust.read_bytes())
            context = client_context(spy.files)
        case "expired":
            context = aged(there, two, 24.5).client_context()
        case "forged":
            member = card(tmp_path / "spies", new_ca(), key=two.key)
            member.files.trust.write_bytes(one.files.trust.read_bytes())
            context = client_context(member.files)
        case "revoked":
            there.authority.revoke_node("two")
            one.take_trust(there.authority.trust().data)
            context = two.client_context()
    async with serving(one) as service:
        assert await service.ask(context, name) in (b"", b"\x15\x03\x03\x00\x02")  # nothing, or an alert in plain text
        good = await joined(there, tmp_path, "good")
        assert await service.ask(good.client_context(), server_name(one.node_id, MESH)) == b"heard"
    assert [who for who, _ in service.heard] == [good.node_id]


async def test_a_revocation_holds_for_the_next_handshake_and_leaves_others_alone(
    there: Coordinator, tmp_path: Path
) -> None:
    one, bad, good = [await joined(there, tmp_path, name) for name in ("one", "bad", "good")]

    async def follow() -> None:
        async for trust in there.authority.watch():
            one.take_trust(trust.data)

    watching = asyncio.create_task(follow())
    name = server_name(one.node_id, MESH)
    async with serving(one) as service:
        reader, writer = await asyncio.open_connection(
            HOST, service.port, ssl=good.client_context(), server_hostname=name
        )
        assert await service.ask(bad.client_context(), name) == b"heard"
        await asyncio.to_thread(there.authority.revoke_node, "bad")
        await until(lambda: one.revocations.includes(bad.node_id), HANGS_S)
        assert await service.ask(bad.client_context(), name) == b""
        writer.write(b"still here")
        assert await reader.read(5) == b"heard"
        assert await service.ask(good.client_context(), name) == b"heard"
        writer.close()
    watching.cancel()


async def test_a_server_that_was_revoked_is_not_believed(there: Coordinator, tmp_path: Path) -> None:
    bad, good = [await joined(there, tmp_path, name) for name in ("bad", "good")]
    there.authority.revoke_node("bad")
    good.take_trust(there.authority.trust().data)
    async with serving(bad) as service:
        with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
            await service.ask(good.client_context(), server_name(bad.node_id, MESH))
    assert service.heard == []
