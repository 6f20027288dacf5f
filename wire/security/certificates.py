"""Keys, certificates and revocation lists of a mesh (docs/protocol.md, "Identity").

A node's id is the hash of its public key, so nobody can claim another's.  The authority of a mesh signs certificates
that say a node's id and role.  Their serial number is made of the node's id, so one entry of the revocation list takes
back everything that a node was ever given, and nobody has to remember what was issued.

Certificates are DER bytes outside this file, which alone knows cryptography.  It does not know TLS, files, tokens or
the clock.  A new thing to certify is a name in `_names`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..errors import ConfigError, ProtocolError
from ..roles import CLIENT, MORE, ROLES
from . import base32

CERTIFICATE_S = 24 * 3600.0  # a node that is not renewed is out after a day
WEB_CERTIFICATE_S = 30 * 86400.0  # of an HTTP server, which has a new one each day
BACKDATED_S = 300.0  # clocks of home machines differ by minutes
AUTHORITY_S = 10 * 365 * 86400.0
AUTHORITY_BACKDATED_S = 86400.0  # leaves room for the times of revocation lists, see `revocations`
JOIN_NAME = "join.mesh"  # the name only a coordinator has: a node that joins knows no other yet
REQUEST_BYTES_MAX = 1024  # of a certificate request with a P-256 key: about 200
CERTIFICATE_BYTES_MAX = 2048  # about 650

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ROLE = "urn:mesh:role:"
_MORE = "urn:mesh:more:"  # beside a client's role
_LIST_PEM = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----\n?", re.DOTALL)
_BAD = (  # what cryptography raises for bytes that make no sense
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.ExtensionNotFound,
)


def server_name(node_id: str, mesh: str) -> str:
    """The name to ask TLS for when dialling this node."""
    return f"{node_id}.{_label(mesh)}.mesh"


def any_server_name(mesh: str) -> str:
    """The name to ask TLS for when any node of the mesh may answer; look at its `member_of` then."""
    return f"node.{_label(mesh)}.mesh"


# -- keys --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A P-256 key that its owner proved to hold, and the id of the node it makes."""

    node_id: str
    _key: ec.EllipticCurvePublicKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A node's private key; it never leaves the node."""

    node_id: str
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.node_id, self._key.public_key())

    def pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def request(self) -> bytes:
        """A certificate request (PKCS#10): the public key, signed by its owner."""
        builder = x509.CertificateSigningRequestBuilder(_name(self.node_id))
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)


def new_key() -> NodeKey:
    return _node_key(ec.generate_private_key(ec.SECP256R1()))


def key_of_secret(secret: bytes) -> NodeKey:
    """The key that follows from a secret, at both ends that know it.  One secret is for one connection."""
    wide = HKDF(SHA256(), 48, salt=None, info=b"graph-mesh key of a connection 1").derive(secret)
    number = int.from_bytes(wide) % (_P256_ORDER - 1) + 1
    return _node_key(ec.derive_private_key(number, ec.SECP256R1()))


def own_certificate(key: NodeKey, now_s: float) -> bytes:
    """A certificate by which a key names itself, and nothing else: a reader must know the key."""
    begins = datetime.fromtimestamp(now_s - BACKDATED_S, UTC)
    builder = x509.CertificateBuilder(
        _name(key.node_id), _name(key.node_id), key.public._key, x509.random_serial_number()
    )
    return (
        builder.not_valid_before(begins).not_valid_after(begins + timedelta(days=1)).sign(key._key, SHA256())
    ).public_bytes(Encoding.DER)


def key_from_pem(pem: bytes) -> NodeKey:
    """The key in a file; ConfigError if it is none of ours."""
    try:
        key = load_pem_private_key(pem, password=None)
    except _BAD as error:
        raise ConfigError("a node key cannot be read", cause=str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("a node key is not a P-256 key")
    return _node_key(key)


def key_of_request(request: bytes) -> PublicKey:
    """The key that a certificate request is for, its signature checked; everything else in it is ignored."""
    try:
        loaded = x509.load_der_x509_csr(request)
        if not loaded.is_signature_valid:
            raise ProtocolError("a certificate request is not signed by its own key")
        return _public_key(loaded.public_key())
    except _BAD as error:
        raise ProtocolError("a certificate request makes no sense", cause=str(error)) from None


def key_of_certificate(certificate: bytes) -> PublicKey:
    return _certified_key(_load(certificate))


# -- what a certificate says -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """The node that a certificate of the mesh names, and from when to when (seconds since 1970)."""

    node_id: str
    role: str
    starts_s: float
    ends_s: float


def member_of(certificate: bytes) -> Member:
    """What a certificate that TLS has verified says of its node; ProtocolError if it is not a node's."""
    loaded = _load(certificate)
    node_id = _certified_key(loaded).node_id
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _BAD as error:
        raise ProtocolError("a certificate names no node", cause=str(error)) from None
    hosts = names.get_values_for_type(x509.DNSName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    roles = [uri.removeprefix(_ROLE) for uri in uris if uri.startswith(_ROLE)]
    if not hosts or hosts[0].split(".")[0] != node_id or len(roles) != 1 or roles[0] not in ROLES:
        raise ProtocolError("a certificate does not name the node whose key it holds")
    more = [uri.removeprefix(_MORE) for uri in uris if uri.startswith(_MORE)]
    if more and (roles[0] != CLIENT or len(more) != 1 or more[0] not in MORE):
        raise ProtocolError("a certificate does not say which role its node has")
    (role,) = more or roles
    return Member(node_id, role, loaded.not_valid_before_utc.timestamp(), loaded.not_valid_after_utc.timestamp())


def check_issued(certificate: bytes, authority: bytes) -> None:
    """Check that the authority with this certificate signed `certificate`; ProtocolError if not."""
    try:
        _load(certificate).verify_directly_issued_by(_load(authority))
    except (InvalidSignature, *_BAD) as error:
        raise ProtocolError("a certificate is not signed by the mesh's authority", cause=str(error)) from None


def is_issued(certificate: bytes, authority: bytes) -> bool:
    """Whether the authority with this certificate signed `certificate`."""
    try:
        check_issued(certificate, authority)
    except ProtocolError:
        return False
    return True


def is_authority_of(certificate: bytes, mesh: str) -> bool:
    """Whether this is, by its own words, the certificate of an authority of a mesh of that name."""
    try:
        names = _load(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ProtocolError, *_BAD):
        return False
    return len(names) == 1 and str(names[0].value).endswith(f"{_label(mesh)}.mesh")


def certificate_pem(certificate: bytes) -> bytes:
    return _load(certificate).public_bytes(Encoding.PEM)


def certificate_from_pem(pem: bytes) -> bytes:
    """The first certificate in a file."""
    return certificates_from_pem(pem)[0]


def certificates_from_pem(pem: bytes) -> list[bytes]:
    """The certificates in a file, at least one."""
    try:
        return [certificate.public_bytes(Encoding.DER) for certificate in x509.load_pem_x509_certificates(pem)]
    except _BAD as error:
        raise ConfigError("a certificate cannot be read", cause=str(error)) from None


# -- the authority -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """Signs the certificates of one mesh."""

    certificate: bytes
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    def key_pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def issue(self, key: PublicKey, role: str, mesh: str, now_s: float) -> bytes:
        """A certificate of 24 h for the node with this key."""
        assert role in ROLES, role
        authority = _load(self.certificate)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(key.node_id))
            .issuer_name(authority.subject)
            .public_key(key._key)
            .serial_number(_serial(key.node_id))
            .not_valid_before(_time(now_s - BACKDATED_S))
            .not_valid_after(_time(now_s + CERTIFICATE_S))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(leaf=True), critical=True)
            .add_extension(_BOTH_WAYS, critical=False)
            .add_extension(x509.SubjectAlternativeName(_names(key.node_id, role, mesh)), critical=False)
            .add_extension(_points_to(authority), critical=False)
        )
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)

    def issue_web(self, key: PublicKey, hosts: Sequence[str], now_s: float) -> bytes:
        """A certificate of 30 days for an HTTP server with these names and addresses, which makes nobody a member."""
        authority = _load(self.certificate)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name("models.mesh"))
            .issuer_name(authority.subject)
            .public_key(key._key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_time(now_s - BACKDATED_S))
            .not_valid_after(_time(now_s + WEB_CERTIFICATE_S))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(leaf=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([*map(_host_name, hosts)]), critical=False)
            .add_extension(_points_to(authority), critical=False)
        )
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)

    def revocations(self, node_ids: Iterable[str], number: int) -> bytes:
        """The list (CRL) of nodes that are out; `number` grows with every change of it.

        TLS takes the newest list it was given, in whole seconds; so a list's time is the authority's start plus its
        number, newer than the last one's whatever the clock does.  It never lapses: one that did would refuse everyone.
        """
        authority = _load(self.certificate)
        issued_at = authority.not_valid_before_utc + timedelta(seconds=number)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(issued_at)
            .next_update(authority.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(_points_to(authority), critical=False)
        )
        for node_id in sorted(node_ids):
            entry = x509.RevokedCertificateBuilder().serial_number(_serial(node_id)).revocation_date(issued_at)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)

    def vouch(self, former: bytes, now_s: float, until_s: float) -> bytes:
        """A certificate for the authority before this one: what that signed is good until then, and no longer.

        A node that trusts this authority needs nothing else to accept the other's nodes, and forgets them by itself.
        """
        theirs, ours = _load(former), _load(self.certificate)
        builder = (
            x509.CertificateBuilder()
            .subject_name(theirs.subject)
            .issuer_name(ours.subject)
            .public_key(theirs.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_time(now_s - AUTHORITY_BACKDATED_S))
            .not_valid_after(_time(until_s))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(leaf=False), critical=True)
            .add_extension(theirs.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value, critical=False)
            .add_extension(_points_to(ours), critical=False)
        )
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.DER)


def new_authority(mesh: str, now_s: float) -> CertificateAuthority:
    """An authority for a mesh.  Its certificate does not contain the mesh's name, since every caller may get it.

    Its own name is new each time, or OpenSSL would take two authorities of one mesh for the same.  It may certify an
    authority, but none that certifies a third: see `vouch`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{_public_key(key.public_key()).node_id}.{_label(mesh)}.mesh")
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_s - AUTHORITY_BACKDATED_S))
        .not_valid_after(_time(now_s + AUTHORITY_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(leaf=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return CertificateAuthority(builder.sign(key, SHA256()).public_bytes(Encoding.DER), key)


def authority_from_pem(key: bytes, certificate: bytes) -> CertificateAuthority:
    """The authority kept in two files; ConfigError if they do not belong together."""
    der = certificate_from_pem(certificate)
    node_key = key_from_pem(key)
    try:
        theirs = key_of_certificate(der).node_id
    except ProtocolError as error:
        raise ConfigError("the authority's certificate cannot be used", cause=error.message) from None
    if theirs != node_key.node_id:
        raise ConfigError("the authority's key and certificate do not belong together")
    return CertificateAuthority(der, node_key._key)


# -- revocation lists --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Revocations:
    """A revocation list that its authority signed."""

    number: int
    _serials: frozenset[int]

    def includes(self, node_id: str) -> bool:
        return _serial(node_id) in self._serials


def read_revocations(data: bytes, authority: bytes) -> Revocations:
    """The list in `data`; ProtocolError unless the authority with this certificate signed it."""
    try:
        loaded = x509.load_der_x509_crl(data)
        signer = _load(authority).public_key()
        if not isinstance(signer, ec.EllipticCurvePublicKey) or not loaded.is_signature_valid(signer):
            raise ProtocolError("a revocation list is not signed by the mesh's authority")
        number = loaded.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return Revocations(number, frozenset(entry.serial_number for entry in loaded))
    except _BAD as error:
        raise ProtocolError("a revocation list makes no sense", cause=str(error)) from None


def revocations_pem(data: bytes) -> bytes:
    return x509.load_der_x509_crl(data).public_bytes(Encoding.PEM)


def revocations_from_pem(pem: bytes) -> list[bytes]:
    """The revocation lists in a file, at least one."""
    try:
        lists = _LIST_PEM.findall(pem)
        return [x509.load_pem_x509_crl(block).public_bytes(Encoding.DER) for block in lists or [pem]]
    except _BAD as error:
        raise ConfigError("a revocation list cannot be read", cause=str(error)) from None


# -- helpers -----------------------------------------------------------------------------------------------

_BOTH_WAYS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def _names(node_id: str, role: str, mesh: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(server_name(node_id, mesh)), x509.DNSName(any_server_name(mesh))]
    if role == "coordinator":
        names.append(x509.DNSName(JOIN_NAME))
    # to releases that know neither an operator nor an admin, these are clients, which may do less
    uris = [_ROLE + CLIENT, _MORE + role] if role in MORE else [_ROLE + role]
    return [*names, *map(x509.UniformResourceIdentifier, uris)]


def _host_name(host: str) -> x509.GeneralName:
    """The name of an HTTP server: an address, or a name; ConfigError for what is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"{host!r} is no name of a host") from None


def _label(mesh: str) -> str:
    """A mesh's name as a part of a host name: any name fits, and strangers on the network cannot read it."""
    return base32.encode(hashlib.sha256(b"graph-mesh\0" + mesh.encode()).digest())[:16]


def _serial(node_id: str) -> int:
    """The serial number of a node's certificates: 129 bits, so positive and never short."""
    return 1 << 128 | int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:16])


def _node_key(key: ec.EllipticCurvePrivateKey) -> NodeKey:
    return NodeKey(_public_key(key.public_key()).node_id, key)


def _public_key(key: object) -> PublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ProtocolError("a node's key is not a P-256 key")
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(base32.encode(hashlib.sha256(spki).digest())[:26], key)


def _load(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(certificate)
    except _BAD as error:
        raise ProtocolError("a certificate makes no sense", cause=str(error)) from None


def _certified_key(certificate: x509.Certificate) -> PublicKey:
    try:
        return _public_key(certificate.public_key())
    except _BAD as error:
        raise ProtocolError("a certificate's key makes no sense", cause=str(error)) from None


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _points_to(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _usage(leaf: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=leaf,
        key_cert_sign=not leaf,
        crl_sign=not leaf,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
