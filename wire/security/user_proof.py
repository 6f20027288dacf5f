"""The proof of the user: how both ends of a connection on one machine show that the same user runs them
(docs/protocol.md, "Proof of the user").

    dialer:    graph-mesh user 1 <nonce>
    acceptor:  graph-mesh user 1 <nonce> <proof> <name of the user>
    dialer:    <proof>

A proof is an HMAC by the user's secret over who it is from, both nonces, and both ends of the connection as the system
knows them.  So it cannot be sent back, used twice, or passed on: a process that listens on the port in place of the
node, and talks to the node meanwhile, has two connections with other ends.

Pure: it is given nonces and makes bytes of bytes.  The texts end as an HTTP request does, so a web server at the port
answers at once.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass

from ..errors import NotTrusted

NONCE_BYTES = 32
ANSWER_BYTES_MAX = 512
END = b"\r\n\r\n"
_GREETING = b"graph-mesh user 1 "
_HEX = 2 * NONCE_BYTES
OPENING_BYTES = len(_GREETING) + _HEX + len(END)
PROOF_BYTES = 2 * hashlib.sha256().digest_size + len(END)

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a TCP connection."""

    dialer: Address
    acceptor: Address


@dataclass(frozen=True, slots=True)
class Answer:
    """What the acceptor said: `user` is a name for people, which nothing proves."""

    nonce: bytes
    proof: bytes
    user: str


def opening(nonce: bytes) -> bytes:
    """The dialer's first words."""
    return _GREETING + nonce.hex().encode() + END


def opening_size(begin: bytes) -> int:
    """The size of an opening that begins so; ValueError for what no dialer says."""
    if not _GREETING.startswith(begin[: len(_GREETING)]):
        raise ValueError("it is no node, or one of an older version")
    return OPENING_BYTES


def nonce_of(said: bytes) -> bytes:
    """The nonce of an opening; NotTrusted for anything else."""
    if len(said) != OPENING_BYTES or not said.startswith(_GREETING) or not said.endswith(END):
        raise NotTrusted("it is no node, or one of an older version")
    return _from_hex(said[len(_GREETING) : -len(END)])


def answer(secret: bytes, dialer: bytes, acceptor: bytes, ends: Ends, user: str) -> bytes:
    """The acceptor's words, of both nonces."""
    name = user.encode("ascii", "replace")[:64]
    proof = _proof(secret, b"acceptor", dialer, acceptor, ends)
    return b"%b%b %b %b%b" % (_GREETING, acceptor.hex().encode(), proof, name, END)


def read_answer(said: bytes) -> Answer | None:
    """What an acceptor said; None for what no acceptor says."""
    if not said.startswith(_GREETING) or not said.endswith(END) or len(said) > ANSWER_BYTES_MAX:
        return None
    nonce, _, rest = said[len(_GREETING) : -len(END)].partition(b" ")
    proof, _, name = rest.partition(b" ")
    if len(nonce) != _HEX:
        return None
    user = "".join(letter if letter.isprintable() else "?" for letter in name.decode("ascii", "replace"))
    return Answer(_from_hex(nonce), proof, user)


def is_acceptors(secret: bytes, dialer: bytes, said: Answer, ends: Ends) -> bool:
    """Whether an answer is that of a node that knows the secret, at the other end of this very connection."""
    return hmac.compare_digest(said.proof, _proof(secret, b"acceptor", dialer, said.nonce, ends))


def dialers_proof(secret: bytes, dialer: bytes, acceptor: bytes, ends: Ends) -> bytes:
    """The dialer's last words."""
    return _proof(secret, b"dialer", dialer, acceptor, ends) + END


def is_dialers(secret: bytes, dialer: bytes, acceptor: bytes, said: bytes, ends: Ends) -> bool:
    """Whether these are the last words of a node that knows the secret."""
    return hmac.compare_digest(said, dialers_proof(secret, dialer, acceptor, ends))


def _proof(secret: bytes, side: bytes, dialer: bytes, acceptor: bytes, ends: Ends) -> bytes:
    between = f"{_text(ends.dialer)} {_text(ends.acceptor)}".encode()
    said = b"graph-mesh user proof 1|%b|%b%b|%b" % (side, dialer, acceptor, between)
    return hmac.new(secret, said, hashlib.sha256).hexdigest().encode()


def _text(address: Address) -> str:
    """An address as both ends have it: one listens for IPv4 on IPv6, the other dials plain IPv4."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    plain = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return f"{plain or host} {address[1]}"


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise NotTrusted("what should be a nonce is none") from None
