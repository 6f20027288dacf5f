"""How a node is let into a mesh: the exchange of the join port for both sides, as pure machines (docs/protocol.md).

A node with a token connects twice.  First it reads the authority's certificate, sends nothing, and compares it with the
token.  Then it connects again by TLS that trusts this authority only, and proves to the server with exactly that
certificate that it knows the token's secret.  A member whose certificate expired connects once, and its key is its
proof.

The machines take bytes and return actions.  They do not know sockets, TLS, tables of tokens or the clock.  A new frame
is a dataclass and a row of `_ROWS`; a new reason to refuse is a row of `REFUSALS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..addresses import check_name
from ..errors import JoinRefused, MeshError, NotTrusted, ProtocolError, VersionMismatch
from ..limits import KIB
from .join_tokens import (
    KEY_ID_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    Token,
    grant_mac,
    key_id_text,
    pin_of,
    request_mac,
    same,
)

VERSION = 1
STRANGER_BYTES_MAX = 4 * KIB  # read from a side that has proved nothing
GRANT_BYTES_MAX = 128 * KIB  # a revocation list of 1,024 nodes has 37 KiB, and there may be two

JOIN = "mesh-coord join for a program, or mesh-worker join for a worker"
ROLE = (  # no "worker|client", which a shell takes for a pipe
    "Make one with: mesh-coord token create, for mesh-worker join; "
    "or with: mesh-coord token create --role client, for mesh-coord join"
)

# reason -> what the node says, and what to do.  A node that does not know the secret always gets `invalid`.
REFUSALS = {
    "invalid": ("the token is not valid there", "Make a new one with: mesh-coord token create"),
    "expired": ("the token's time is over", "Make a new one with: mesh-coord token create"),
    "used": ("the token was used as often as it may be used", "Make a new one with: mesh-coord token create --uses N"),
    "withdrawn": ("the token was revoked", "Make a new one with: mesh-coord token create"),
    "role": ("the token is for nodes of another role", ROLE),
    "replayed": ("this request was made before", "Try again"),
    "full": ("the mesh has as many nodes as it may have", "Revoke nodes that are gone: mesh-coord nodes revoke NAME"),
    "revoked": ("this node was revoked", "Join again with a new token, and so a new key: " + JOIN),
    "unknown": ("this node is no member of the mesh any more", "Join again with a new token: " + JOIN),
    "malformed": ("it could not read the request", "Use the same version of graph-mesh on both machines"),
    "failed": ("it could not write down the new member", "Look at the coordinator's log"),
}


# -- frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Authority:
    """Coordinator to every caller, first of all: the authority that nodes of this mesh trust."""

    version: int
    certificate: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """A node with a token asks for a certificate.  `request` is PKCS#10.  `mac` covers all other fields."""

    version: int
    key_id: bytes
    nonce: bytes
    role: str
    name: str
    request: bytes
    mac: bytes

    @property
    def key_name(self) -> str:
        """The key id as tokens and lists have it."""
        return key_id_text(self.key_id)

    @property
    def signed(self) -> bytes:
        """What the proof is about: every field but the proof."""
        return b"".join(_fields(self)[:-1])


@dataclass(frozen=True, slots=True)
class Renew:
    """A member asks for a new certificate.  TLS has proved which member it is, and that it has the key."""

    version: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Coordinator to node: the node is a member.  `mac` is empty in the answer to Renew, where there is no shared
    secret."""

    certificate: bytes
    revocations: bytes
    mesh: str
    epoch: int
    mac: bytes = b""

    @property
    def signed(self) -> bytes:
        return b"".join(_fields(self)[:-1])


@dataclass(frozen=True, slots=True)
class Former:
    """Coordinator to node, before Grant: the previous authority, signed by its successor, is trusted for a while.

    `revocations` is that authority's own list.
    """

    certificate: bytes
    revocations: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Coordinator to node: the node is refused, for one of the reasons below."""

    reason: str


Frame = Authority | Ask | Renew | Grant | Former | Refusal


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int  # bytes
    most: int
    encode: Callable[[Any], bytes] = bytes
    decode: Callable[[bytes], Any] = bytes


def _number(name: str, size: int) -> _Field:
    return _Field(name, size, size, lambda value: value.to_bytes(size), int.from_bytes)


def _text(name: str, most: int) -> _Field:
    return _Field(name, 0, most, str.encode, bytes.decode)


@dataclass(frozen=True, slots=True)
class _Row:
    kind: int
    frame: type[Any]
    fields: tuple[_Field, ...]


_ROWS = (
    _Row(1, Authority, (_number("version", 1), _Field("certificate", 1, 2 * KIB))),
    _Row(
        2,
        Ask,
        (
            _number("version", 1),
            _Field("key_id", KEY_ID_BYTES, KEY_ID_BYTES),
            _Field("nonce", NONCE_BYTES, NONCE_BYTES),
            _text("role", 16),
            _text("name", 64),
            _Field("request", 1, KIB),
            _Field("mac", MAC_BYTES, MAC_BYTES),
        ),
    ),
    _Row(3, Renew, (_number("version", 1),)),
    _Row(
        4,
        Grant,
        (
            _Field("certificate", 1, 2 * KIB),
            _Field("revocations", 1, 48 * KIB),
            _text("mesh", 64),
            _number("epoch", 8),
            _Field("mac", 0, MAC_BYTES),
        ),
    ),
    _Row(5, Refusal, (_text("reason", 32),)),
    _Row(6, Former, (_Field("certificate", 1, 2 * KIB), _Field("revocations", 1, 48 * KIB))),
)
_BY_KIND = {row.kind: row for row in _ROWS}
_BY_FRAME = {row.frame: row for row in _ROWS}
_HEADER = struct.Struct(">BH")  # kind, bytes that follow
_LENGTH = struct.Struct(">H")  # before every field


def encode(frame: Frame) -> bytes:
    body = b"".join(_fields(frame))
    return _HEADER.pack(_BY_FRAME[type(frame)].kind, len(body)) + body


def _fields(frame: Frame) -> list[bytes]:
    """Every field with its length before it."""
    data = [field.encode(getattr(frame, field.name)) for field in _BY_FRAME[type(frame)].fields]
    return [_LENGTH.pack(len(field_bytes)) + field_bytes for field_bytes in data]


def _decode(row: _Row, body: bytes) -> Frame:
    values, at = {}, 0
    for field in row.fields:
        if at + _LENGTH.size > len(body):
            raise ProtocolError(f"{row.frame.__name__} ends before its {field.name}")
        (size,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if not field.least <= size <= field.most or at + size > len(body):
            raise ProtocolError(f"{row.frame.__name__} has a {field.name} of {size} bytes")
        try:
            values[field.name] = field.decode(body[at : at + size])
        except UnicodeDecodeError:
            raise ProtocolError(f"{row.frame.__name__} has a {field.name} that is no text") from None
        at += size
    if at != len(body):
        raise ProtocolError(f"{row.frame.__name__} has {len(body) - at} bytes too many")
    frame: Frame = row.frame(**values)
    return frame


class _Inbox:
    """Frames from bytes, never more than a limit of them; a header that claims more ends it at once."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._data = b""

    def feed(self, data: bytes) -> list[Frame]:
        self._left -= len(data)
        if self._left < 0:
            raise ProtocolError("more bytes came than a join takes")
        self._data += data
        frames: list[Frame] = []
        while len(self._data) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._data)
            if kind not in _BY_KIND or size > self._left + len(self._data) - _HEADER.size:
                raise ProtocolError("bytes came that are no frame of a join")
            end = _HEADER.size + size
            if len(self._data) < end:
                break
            frames.append(_decode(_BY_KIND[kind], self._data[_HEADER.size : end]))
            self._data = self._data[end:]
        return frames


# -- the node's side ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verify:
    """Hang up, call again by TLS that trusts this authority only, and say `connected` once it stands."""

    authority: bytes


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """The end: what the coordinator gave, the authority to trust, and the one before while that is trusted, too."""

    grant: Grant
    authority: bytes
    former: Former | None = None


NodeAction = Verify | Send | Admitted


class JoiningNode:
    """A node with a token.  Every refusal is a MeshError; nothing but the second call ever carries a proof."""

    def __init__(self, where: str, token: Token, role: str, name: str, request: bytes, nonce: bytes) -> None:
        self._where = where
        self._token = token
        self._role, self._name, self._request, self._nonce = role, check_name("node", name), request, nonce
        self._authority = b""  # until it is found to be the token's
        self._former: Former | None = None
        self._proving = False
        self._inbox = _Inbox(STRANGER_BYTES_MAX)

    def connected(self, leaf: bytes) -> list[NodeAction]:
        """The second call stands; `leaf` is the server's certificate, which TLS found to be the coordinator's."""
        assert self._authority
        self._proving = True
        self._inbox = _Inbox(STRANGER_BYTES_MAX + GRANT_BYTES_MAX)
        ask = Ask(
            VERSION, self._token.key_id_bytes, self._nonce, self._role, self._name, self._request, bytes(MAC_BYTES)
        )
        return [Send(encode(replace(ask, mac=request_mac(self._token.key, leaf, ask.signed))))]

    def again(self, nonce: bytes) -> None:
        """The second call broke off before its end: another one may be made, by a nonce that was not heard yet."""
        self._nonce = nonce
        self._former = None

    def received(self, data: bytes) -> list[NodeAction]:
        for frame in self._inbox.feed(data):
            if isinstance(frame, Authority):
                if not self._proving:
                    return self._compare(frame)
                _same_authority(self._where, frame, self._authority)
            elif not self._proving:
                raise ProtocolError(f"{self._where} answered before it said who it is")
            elif isinstance(frame, Former):
                self._former = frame
            else:
                return [self._answered(frame)]
        return []

    def ended(self) -> MeshError:
        """What it means that the coordinator hung up before the end."""
        return ProtocolError(f"{self._where} hung up", next_step="Try again; look at the coordinator's log")

    def _compare(self, frame: Authority) -> list[NodeAction]:
        _same_version(self._where, frame)
        if pin_of(frame.certificate) != self._token.pin:
            raise NotTrusted(
                f"{self._where} is not the coordinator that made this token",
                next_step="Check the address; if the mesh has a new authority since, make a new token there",
            )
        self._authority = frame.certificate
        return [Verify(frame.certificate)]

    def _answered(self, frame: Frame) -> Admitted:
        grant = _granted(self._where, frame)
        if not same(grant_mac(self._token.key, self._nonce, grant.signed), grant.mac):
            raise NotTrusted(f"{self._where} does not know the token itself")
        return Admitted(grant, self._authority, self._former)


class RenewingNode:
    """A member whose certificate is due or ran out; TLS has verified both sides before the first byte.

    So it may learn of a new authority here.
    """

    def __init__(self, where: str, authority: bytes) -> None:
        self._where = where
        self._authority = authority
        self._former: Former | None = None
        self._inbox = _Inbox(STRANGER_BYTES_MAX + GRANT_BYTES_MAX)

    def connected(self) -> list[NodeAction]:
        return [Send(encode(Renew(VERSION)))]

    def received(self, data: bytes) -> list[NodeAction]:
        for frame in self._inbox.feed(data):
            if isinstance(frame, Authority):
                _same_version(self._where, frame)
                self._authority = frame.certificate
            elif isinstance(frame, Former):
                self._former = frame
            else:
                return [Admitted(_granted(self._where, frame), self._authority, self._former)]
        return []

    def ended(self) -> MeshError:
        """The error where the other side hung up.

        By TLS 1.3 a server that does not accept a certificate hangs up after the handshake.  It is of our mesh, or the
        handshake had failed here.
        """
        return NotTrusted(
            f"{self._where}, the mesh's coordinator, does not accept this node's certificate: it was revoked, or is of "
            "an authority that was replaced",
            next_step=f"Join again with a new token: {JOIN}",
        )


class Listening:
    """A caller that only wants to know which authority a coordinator names."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._inbox = _Inbox(STRANGER_BYTES_MAX)

    def received(self, data: bytes) -> list[Authority]:
        return [frame for frame in self._inbox.feed(data) if isinstance(frame, Authority)]

    def ended(self) -> MeshError:
        return ProtocolError(f"{self._where} hung up")


def _granted(where: str, frame: Frame) -> Grant:
    if isinstance(frame, Refusal):
        meaning, then = REFUSALS.get(frame.reason, ("it gives a reason that this version does not know", ""))
        raise JoinRefused(f"{where} does not let this node in: {meaning}", reason=frame.reason, next_step=then)
    if not isinstance(frame, Grant):
        raise ProtocolError(f"{where} asks where it should answer")
    return frame


def _same_authority(where: str, frame: Authority, authority: bytes) -> None:
    _same_version(where, frame)
    if frame.certificate != authority:
        raise ProtocolError(f"{where} names another authority than its certificate has")


def _same_version(where: str, frame: Authority) -> None:
    if frame.version != VERSION:
        older = "this machine" if frame.version > VERSION else where
        raise VersionMismatch(
            f"{where} joins by version {frame.version} and this machine by {VERSION}",
            expected=str(VERSION),
            got=str(frame.version),
            upgrade=older,
            next_step=f"Upgrade graph-mesh on {older}",
        )


# -- the coordinator's side --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """A node asks to be let in.  The decider looks up the token's key and first of all calls `is_proved_by`."""

    ask: Ask
    leaf: bytes

    def is_proved_by(self, key: bytes) -> bool:
        return same(request_mac(key, self.leaf, self.ask.signed), self.ask.mac)


@dataclass(frozen=True, slots=True)
class RenewalRequested:
    """A member asks for a new certificate; TLS has verified which member it is."""


class JoiningCoordinator:
    """One call to the join port: says who it is, hears one question, answers it."""

    def __init__(self, authority: bytes, leaf: bytes, former: Former | None = None) -> None:
        self._authority, self._leaf, self._former = authority, leaf, former
        self._inbox = _Inbox(STRANGER_BYTES_MAX)

    def connected(self) -> list[Send]:
        return [Send(encode(Authority(VERSION, self._authority)))]

    def received(self, data: bytes) -> JoinRequested | RenewalRequested | None:
        """The question, once it is complete; ProtocolError for anything else."""
        for frame in self._inbox.feed(data):
            if not isinstance(frame, Ask | Renew):
                raise ProtocolError("a caller answers where it should ask")
            if frame.version != VERSION:
                raise ProtocolError(f"a caller asks by version {frame.version}")
            return JoinRequested(frame, self._leaf) if isinstance(frame, Ask) else RenewalRequested()
        return None

    def answer(self, decision: Grant | Refusal) -> list[Send]:
        before = [self._former] if self._former is not None and isinstance(decision, Grant) else []
        return [Send(encode(frame)) for frame in (*before, decision)]


def prove_grant(grant: Grant, key: bytes, nonce: bytes) -> Grant:
    """The grant with the proof that its maker knows the token, too."""
    return replace(grant, mac=grant_mac(key, nonce, grant.signed))
