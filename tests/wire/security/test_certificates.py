"""Keys, certificates, revocation and TLS contexts: what is trusted, and that nothing else is (docs/protocol.md)."""

from __future__ import annotations

import re
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from support.tls import MESH, Card, Pair, authority, card, write_trust

from wire.errors import ConfigError, ConnectFailed, NotTrusted, ProtocolError
from wire.security import certificates
from wire.security.certificates import (
    BACKDATED_S,
    CERTIFICATE_BYTES_MAX,
    CERTIFICATE_S,
    JOIN_NAME,
    REQUEST_BYTES_MAX,
    CertificateAuthority,
    any_server_name,
    authority_from_pem,
    certificate_from_pem,
    certificate_pem,
    key_from_pem,
    key_of_certificate,
    key_of_request,
    member_of,
    new_authority,
    new_key,
    read_revocations,
    revocations_from_pem,
    revocations_pem,
    server_name,
)
from wire.security.tls import (
    client_context,
    explain,
    join_client_context,
    join_server_context,
    reload,
    server_context,
    unverified_context,
)

NOW_S = 1_790_000_000.0


# -- keys and ids


def test_a_node_id_is_made_of_its_key_and_survives_a_file() -> None:
    key = new_key()
    assert re.fullmatch("[a-z2-7]{26}", key.node_id)
    assert key_from_pem(key.pem()).node_id == key.node_id == key_of_request(key.request()).node_id
    assert new_key().node_id != key.node_id


def test_a_key_is_never_shown() -> None:
    key = new_key()
    assert (
        key.pem().decode() not in repr(key) and "PrivateKey" not in repr(key) and "PrivateKey" not in repr(key.public)
    )


@pytest.mark.parametrize("pem", [b"", b"nonsense", certificate_pem(authority().certificate)])
def test_a_file_that_is_no_key_is_named(pem: bytes) -> None:
    with pytest.raises(ConfigError, match="key"):
        key_from_pem(pem)


def test_other_kinds_of_keys_are_refused() -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(ConfigError, match="P-256"):
            key_from_pem(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    strangers = (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048))
    for stranger in strangers:
        builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
        with pytest.raises(ProtocolError, match="P-256"):
            key_of_request(builder.sign(stranger, SHA256()).public_bytes(Encoding.DER))


def test_a_request_with_any_bit_flipped_is_refused_or_for_the_same_key() -> None:
    """Proof of possession: no other key than the signer's comes out of a damaged request."""
    key = new_key()
    request = key.request()
    assert len(request) <= REQUEST_BYTES_MAX
    refused = 0
    for position in range(len(request) * 8):
        damaged = bytearray(request)
        damaged[position // 8] ^= 1 << position % 8
        try:
            assert key_of_request(bytes(damaged)) == key.public
        except ProtocolError:
            refused += 1
    assert refused > 0.99 * len(request) * 8


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_cut_request_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="makes no sense"):
        key_of_request(new_key().request()[:length])


# -- certificates


@pytest.mark.parametrize("role", ["worker", "client", "operator", "admin", "coordinator"])
def test_a_certificate_says_who_and_as_what(role: str) -> None:
    key = new_key()
    certificate = authority(NOW_S).issue(key.public, role, MESH, NOW_S)
    member = member_of(certificate)
    assert (member.node_id, member.role) == (key.node_id, role)
    assert (member.starts_s, member.ends_s) == (NOW_S - BACKDATED_S, NOW_S + CERTIFICATE_S)
    assert key_of_certificate(certificate).node_id == key.node_id
    assert certificate_from_pem(certificate_pem(certificate)) == certificate
    assert len(certificate) <= CERTIFICATE_BYTES_MAX


@pytest.mark.parametrize(
    "uris",
    [
        ("urn:mesh:role:client", "urn:mesh:more:client"),
        ("urn:mesh:role:client", "urn:mesh:more:coordinator"),
        ("urn:mesh:role:client", "urn:mesh:more:"),
        ("urn:mesh:role:client", "urn:mesh:more:operator", "urn:mesh:more:admin"),
        ("urn:mesh:role:worker", "urn:mesh:more:admin"),
        ("urn:mesh:role:operator", "urn:mesh:role:admin"),
        ("urn:mesh:more:admin",),
        (),
    ],
)
def test_a_certificate_says_one_role_and_one_that_there_is(
    uris: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(node_id: str, role: str, mesh: str) -> list[x509.GeneralName]:
        return [x509.DNSName(server_name(node_id, mesh)), *map(x509.UniformResourceIdentifier, uris)]

    monkeypatch.setattr(certificates, "_names", names)
    certificate = authority(NOW_S).issue(new_key().public, "client", MESH, NOW_S)
    with pytest.raises(ProtocolError, match="a certificate does not"):
        member_of(certificate)


def test_a_request_chooses_nothing_but_its_key() -> None:
    """Names, extensions and roles that a node asks for are ignored."""
    private = ec.generate_private_key(ec.SECP256R1())
    greedy = (
        x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "boss")]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(JOIN_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, SHA256())
        .public_bytes(Encoding.DER)
    )
    key = key_of_request(greedy)
    issued = x509.load_der_x509_certificate(authority(NOW_S).issue(key, "worker", MESH, NOW_S))
    assert issued.subject.rfc4514_string() == f"CN={key.node_id}"
    assert issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [server_name(key.node_id, MESH), any_server_name(MESH)]


def test_only_a_coordinator_has_the_name_that_joining_nodes_ask_for() -> None:
    for role in ("worker", "client", "coordinator"):
        issued = x509.load_der_x509_certificate(authority(NOW_S).issue(new_key().public, role, MESH, NOW_S))
        names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert (JOIN_NAME in names.get_values_for_type(x509.DNSName)) is (role == "coordinator")


def test_the_authority_signs_leaves_only_for_ten_years() -> None:
    certificate = x509.load_der_x509_certificate(new_authority(MESH, NOW_S).certificate)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 1, (
        "itself and its predecessor"
    )
    assert certificate.not_valid_after_utc == datetime.fromtimestamp(NOW_S + 3650 * 86400, UTC)


@pytest.mark.parametrize("mesh", ["home", "Ömer's Büro", "x" * 64, "default-ann"])
def test_names_of_meshes_do_not_show(mesh: str) -> None:
    name = server_name(new_key().node_id, mesh)
    assert len(max(name.split("."), key=len)) <= 63 and name.isascii()
    by = new_authority(mesh, NOW_S)
    leaf = by.issue(new_key().public, "worker", mesh, NOW_S)
    assert mesh.encode() not in by.certificate and mesh.encode() not in leaf
    assert server_name("a", "one") != server_name("a", "two")


def test_an_authority_survives_its_files_and_only_with_its_own_key() -> None:
    first, second = authority(), authority()
    again = authority_from_pem(first.key_pem(), certificate_pem(first.certificate))
    assert again.certificate == first.certificate
    with pytest.raises(ConfigError, match="do not belong together"):
        authority_from_pem(second.key_pem(), certificate_pem(first.certificate))


@pytest.mark.parametrize("data", [b"", b"\x30\x82", b"0" * 500])
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        member_of(data)
    with pytest.raises(ConfigError):
        certificate_from_pem(data)


def test_a_certificate_that_names_another_node_than_its_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="names no node"):
        member_of(authority().certificate)


# -- revocation lists


def test_a_revocation_list_names_nodes() -> None:
    by, inside, outside = authority(), new_key().node_id, new_key().node_id
    data = by.revocations([outside], 7)
    revoked = read_revocations(*revocations_from_pem(revocations_pem(data)), by.certificate)
    assert revoked.number == 7 and revoked.includes(outside) and not revoked.includes(inside)


def test_a_revocation_list_of_another_authority_or_damaged_is_refused() -> None:
    by, other = authority(), authority()
    data = by.revocations([new_key().node_id], 1)
    for wrong in (other.revocations([], 1), data[:-1], b"", data.replace(data[60:64], b"\0\0\0\0")):
        with pytest.raises(ProtocolError, match="revocation list"):
            read_revocations(wrong, by.certificate)


# -- TLS


@pytest.fixture
def by() -> CertificateAuthority:
    return authority()


def shake(server: Card, client: Card, name: str = "") -> bytes:
    name = name or server_name(server.node_id, MESH)
    return Pair(server_context(server.files), client_context(client.files), name).handshake()


def test_two_members_talk_by_tls_1_3_and_know_each_other(tmp_path: Path, by: CertificateAuthority) -> None:
    server, client = card(tmp_path, by), card(tmp_path, by, "client")
    pair = Pair(server_context(server.files), client_context(client.files), server_name(server.node_id, MESH))
    assert pair.handshake() == b"hello"
    assert pair.server.version() == "TLSv1.3"
    seen = member_of(pair.server.getpeercert(binary_form=True) or b"")
    assert (seen.node_id, seen.role) == (client.node_id, "client")
    assert member_of(pair.client.getpeercert(binary_form=True) or b"").node_id == server.node_id


def test_any_member_answers_to_the_name_that_all_have(tmp_path: Path, by: CertificateAuthority) -> None:
    assert shake(card(tmp_path, by), card(tmp_path, by), any_server_name(MESH)) == b"hello"


def test_another_member_at_the_address_is_noticed(tmp_path: Path, by: CertificateAuthority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake(card(tmp_path, by), card(tmp_path, by), server_name(new_key().node_id, MESH))
    assert "another node" in str(explain(raised.value, "10.0.0.1:7100"))


def test_a_worker_is_not_taken_for_a_coordinator(tmp_path: Path, by: CertificateAuthority) -> None:
    assert shake(card(tmp_path, by, "coordinator"), card(tmp_path, by), JOIN_NAME) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(card(tmp_path, by, "worker"), card(tmp_path, by), JOIN_NAME)


DAY_S = 86400.0


@pytest.mark.parametrize(
    ("issued_s", "says"),
    [(-CERTIFICATE_S - 60.0, "ran out"), (BACKDATED_S + 60.0, "not valid yet")],
    ids=["expired", "future"],
)
def test_certificates_outside_their_time_are_refused_by_both_sides(tmp_path: Path, issued_s: float, says: str) -> None:
    by = authority(time.time() - 3 * DAY_S)
    wrong, right = card(tmp_path, by, now_s=time.time() + issued_s), card(tmp_path, by)
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake(wrong, right)
    assert says in str(explain(raised.value, "there"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(right, wrong)


def test_clocks_may_differ_by_minutes(tmp_path: Path, by: CertificateAuthority) -> None:
    assert shake(card(tmp_path, by, now_s=time.time() + BACKDATED_S - 10.0), card(tmp_path, by)) == b"hello"


def test_members_of_other_meshes_are_refused_by_both_sides(tmp_path: Path, by: CertificateAuthority) -> None:
    other = authority()
    ours, theirs = card(tmp_path, by), card(tmp_path, other)
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake(theirs, ours)
    assert "another mesh" in str(explain(raised.value, "there"))
    spy = card(tmp_path, other, trusting=by)  # believes us, and hopes we believe it
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ours, spy)


def test_a_leaf_cannot_certify_others(tmp_path: Path, by: CertificateAuthority) -> None:
    """A member that signs certificates itself gets none of them accepted: pathlen 0, and no right to sign."""
    member = new_key()
    signer = CertificateAuthority(by.certificate, member._key)  # the authority's name, another key
    forged, ours = card(tmp_path, signer, trusting=by), card(tmp_path, by)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ours, forged)


def test_without_a_certificate_nothing_is_read(tmp_path: Path, by: CertificateAuthority) -> None:
    server = card(tmp_path, by)
    bare = join_client_context(by.certificate)
    with pytest.raises(ssl.SSLError, match=r"(?i)peer.did.not.return"):
        Pair(server_context(server.files), bare, any_server_name(MESH)).handshake()


def test_older_tls_is_refused(tmp_path: Path, by: CertificateAuthority) -> None:
    server, client = card(tmp_path, by), card(tmp_path, by)
    old = client_context(client.files)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol|no.protocols|version"):
        Pair(server_context(server.files), old, server_name(server.node_id, MESH)).handshake()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\x16\x03\x01\xff\xff" + b"x" * 64])
def test_bytes_that_are_not_tls_end_the_handshake(tmp_path: Path, by: CertificateAuthority, data: bytes) -> None:
    up = ssl.MemoryBIO()
    server = server_context(card(tmp_path, by).files).wrap_bio(up, ssl.MemoryBIO(), server_side=True)
    up.write(data)
    with pytest.raises(ssl.SSLError) as raised:
        server.do_handshake()
    assert not isinstance(raised.value, ssl.SSLWantReadError)


def test_a_revoked_node_is_refused_from_the_next_handshake_on(tmp_path: Path, by: CertificateAuthority) -> None:
    """The lists of one second, too: each is newer than the last."""
    server, one, two = card(tmp_path, by), card(tmp_path, by), card(tmp_path, by)
    accepting = server_context(server.files)
    name = server_name(server.node_id, MESH)
    assert Pair(accepting, client_context(one.files), name).handshake() == b"hello"
    write_trust(server.files, by, (one.node_id,), 1)
    reload(accepting, server.files)
    write_trust(server.files, by, (one.node_id, two.node_id), 2)
    reload(accepting, server.files)
    for revoked in (one, two):
        with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
            Pair(accepting, client_context(revoked.files), name).handshake()
    assert Pair(accepting, client_context(card(tmp_path, by).files), name).handshake() == b"hello"


def test_every_certificate_of_a_revoked_node_is_revoked(tmp_path: Path, by: CertificateAuthority) -> None:
    key = new_key()
    server, renewed = card(tmp_path, by), card(tmp_path, by, key=key, now_s=time.time() + 60.0)
    write_trust(server.files, by, (key.node_id,), 1)
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shake(server, renewed)
    assert read_revocations(by.revocations([key.node_id], 1), by.certificate).includes(renewed.node_id)


def test_a_renewed_certificate_holds_for_the_next_handshake(tmp_path: Path, by: CertificateAuthority) -> None:
    server, client = card(tmp_path, by), card(tmp_path, by)
    accepting, dialling = server_context(server.files), client_context(client.files)
    fresh = by.issue(server.key.public, "worker", MESH, time.time() + 60.0)
    server.files.certificate.write_bytes(certificate_pem(fresh))
    reload(accepting, server.files)
    pair = Pair(accepting, dialling, server_name(server.node_id, MESH))
    assert pair.handshake() == b"hello" and pair.client.getpeercert(binary_form=True) == fresh


def test_files_that_do_not_fit_are_named(tmp_path: Path, by: CertificateAuthority) -> None:
    one = card(tmp_path, by)
    one.files.key.write_bytes(new_key().pem())
    with pytest.raises(ConfigError, match=r"certificate\.pem"):
        server_context(one.files)
    with pytest.raises(ConfigError, match="cannot use"):
        reload(server_context(card(tmp_path, by).files), one.files)


# -- the join port's contexts


def test_a_join_port_hears_strangers_members_and_members_that_were_off_too_long(tmp_path: Path) -> None:
    by = authority(time.time() - 5 * DAY_S)
    server = card(tmp_path, by, "coordinator")
    accepting = join_server_context(server.files)
    stranger = join_client_context(by.certificate)
    sleeper = card(tmp_path, by, now_s=time.time() - 3 * DAY_S)
    for context in (stranger, client_context(card(tmp_path, by).files), client_context(sleeper.files)):
        assert Pair(accepting, context, JOIN_NAME).handshake() == b"hello"
    assert Pair(accepting, unverified_context(), JOIN_NAME).handshake() == b"hello"


def test_a_join_port_refuses_revoked_and_foreign_members(tmp_path: Path, by: CertificateAuthority) -> None:
    server, revoked = card(tmp_path, by, "coordinator"), card(tmp_path, by)
    write_trust(server.files, by, (revoked.node_id,), 1)
    foreign = card(tmp_path, authority(), trusting=by)
    for wrong in (revoked, foreign):
        with pytest.raises(ssl.SSLCertVerificationError):
            Pair(join_server_context(server.files), client_context(wrong.files), JOIN_NAME).handshake()


def test_a_joining_node_speaks_only_with_the_coordinator_of_its_authority(
    tmp_path: Path, by: CertificateAuthority
) -> None:
    stranger = join_client_context(by.certificate)
    for wrong in (card(tmp_path, by, "worker"), card(tmp_path, authority(), "coordinator")):
        with pytest.raises(ssl.SSLCertVerificationError):
            Pair(join_server_context(wrong.files), stranger, JOIN_NAME).handshake()


# -- errors


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ConnectionRefusedError(111, "Connection refused"), ConnectFailed, "nobody answers at there"),
        (ConnectionResetError(104, "Connection reset by peer"), ConnectFailed, "there broke off the connection"),
        (EOFError(), NotTrusted, "did not accept our certificate"),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] ssl/tls alert"), NotTrusted, "ran out"),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert"), NotTrusted, "token"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca"), NotTrusted, "another mesh"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), NotTrusted, "does not speak TLS"),
        (ssl.SSLError(1, "[SSL: SOMETHING_NEW]"), ConnectFailed, "broke off"),
    ],
)
def test_failures_are_explained(error: OSError | EOFError, kind: type, says: str) -> None:
    explained = explain(error, "there")
    assert isinstance(explained, kind) and says in str(explained)
