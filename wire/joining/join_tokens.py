"""The join token: what one machine shows another to be let into a mesh (docs/protocol.md, "Joining").

A token is text of 96 characters: which authority to trust, which token it is, and a secret.  The coordinator keeps only
a key made of the secret, and the secret never travels.  Pure: it knows neither who may join nor how.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from ..errors import TokenError
from ..security import base32

PREFIX = "gm1_"
PIN_BYTES, KEY_ID_BYTES, SECRET_BYTES = 32, 5, 20
TOKEN_CHARS = len(PREFIX) + 92  # base32 of all three, unpadded
NONCE_BYTES = MAC_BYTES = 32

_MAKE_ONE = "Make one with: mesh-coord token create"


@dataclass(frozen=True, slots=True)
class Token:
    """`pin` is the SHA-256 of the authority's certificate, `key_id` names the token in lists and logs."""

    pin: bytes
    key_id: str
    secret: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """What people paste.  Everyone who reads it may join: keep it out of logs and command lines."""
        return PREFIX + base32.encode(self.pin + self.key_id_bytes + self.secret)

    @property
    def key_id_bytes(self) -> bytes:
        return _unbase32(self.key_id)

    @property
    def key(self) -> bytes:
        """The key that proves the secret; all that the coordinator keeps."""
        return hkdf_sha256(self.secret, salt=self.pin, info=b"gm1/join", size_bytes=32)


def new_token(authority: bytes, key_id: bytes, secret: bytes) -> Token:
    """A token for the mesh whose authority has this certificate; `key_id` and `secret` are random bytes."""
    assert len(key_id) == KEY_ID_BYTES and len(secret) == SECRET_BYTES
    return Token(pin_of(authority), key_id_text(key_id), secret)


def parse_token(text: str) -> Token:
    """The token in `text`; TokenError says what is wrong with it, and never shows it."""
    text = text.strip() if isinstance(text, str) else ""
    if not text.startswith(PREFIX):
        raise TokenError(f"this is not a join token, which begins with {PREFIX}", next_step=_MAKE_ONE)
    if len(text) != TOKEN_CHARS:
        cut = "was it cut when it was copied?" if len(text) < TOKEN_CHARS else "is it two, or with something behind it?"
        raise TokenError(f"a join token has {TOKEN_CHARS} characters and this has {len(text)}: {cut}")
    data = _unbase32(text[len(PREFIX) :])
    if base32.encode(data) != text[len(PREFIX) :].lower():
        raise TokenError("a join token has a wrong last character", next_step="Copy it again")
    pin, key_id, secret = data[:PIN_BYTES], data[PIN_BYTES:-SECRET_BYTES], data[-SECRET_BYTES:]
    return Token(pin, key_id_text(key_id), secret)


def key_id_text(key_id: bytes) -> str:
    """How lists and logs name a token: 8 characters."""
    return base32.encode(key_id)


# -- keys and proofs ---------------------------------------------------------------------------------------


def pin_of(authority: bytes) -> bytes:
    """What a token says of the authority, and by which a node knows it again."""
    return hashlib.sha256(authority).digest()


def discovery_key(pin: bytes) -> bytes:
    """What nodes of a mesh recognise each other's announcements by: members and holders of a token can make it."""
    return hkdf_sha256(pin, salt=b"", info=b"gm1/discovery", size_bytes=32)


def request_mac(key: bytes, leaf: bytes, request: bytes) -> bytes:
    """Proof, for the coordinator with the certificate `leaf` only, that the sender of `request` knows the secret."""
    return _mac(key, b"gm1|join|" + hashlib.sha256(leaf).digest() + request)


def grant_mac(key: bytes, nonce: bytes, grant: bytes) -> bytes:
    """Proof that the sender of `grant` knows the secret, too."""
    return _mac(key, b"gm1|ok|" + nonce + grant)


def same(one: bytes, other: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)


def hkdf_sha256(secret: bytes, *, salt: bytes, info: bytes, size_bytes: int) -> bytes:
    """RFC 5869."""
    seed = _mac(salt or bytes(32), secret)
    out = block = b""
    for number in range(1, -(-size_bytes // 32) + 1):
        block = _mac(seed, block + info + bytes([number]))
        out += block
    return out[:size_bytes]


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _unbase32(text: str) -> bytes:
    try:
        return base32.decode(text)
    except ValueError:
        raise TokenError("a join token has letters and the digits 2 to 7 only", next_step="Copy it again") from None
