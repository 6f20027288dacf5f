"""Announcements: how nodes of one mesh know each other's announcements, and which are worth a dial (docs/protocol.md).

An advert is a random name, a nonce and a tag that only the mesh's discovery key makes; to others it is noise.  Members
make that key of their authority's pin; nodes without a token, which keep to loopback, of the mesh's name.  One that
matches is an address to try and no more: TLS verifies the node there.  Pure: it does not know multicast, and time is an
argument.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..bounds import CANDIDATES, JOINED_CANDIDATES

FORMAT = b"1"
NONCE_BYTES, TAG_BYTES = 8, 16
BUCKET_S = 600.0  # an advert is good in its ten minutes and those beside them: clocks may be so far apart
ROLES = ("worker", "coordinator")
TTL_S = 120  # how long a node that died without a word stays a candidate

CANDIDATES_MAX = CANDIDATES.most
JOINED_MAX = JOINED_CANDIDATES.most
ADDRESSES_MAX = 8  # of one candidate

# Where an announcement may lead: networks that end at this home's router.
NEAR = tuple(
    ipaddress.ip_network(block)
    for block in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "127.0.0.0/8", "fc00::/7", "fe80::/10",
        "::1/128",
    )
)  # fmt: skip


def key_of_name(mesh: str) -> bytes:
    """The discovery key of nodes without a token: it keeps two meshes of one machine apart, and nothing secret."""
    return hashlib.blake2b(mesh.encode(), digest_size=32, person=b"graph-mesh").digest()


def bucket_of(wall_s: float) -> int:
    """Number the ten minutes that a time of day, in seconds since 1970, is in."""
    return int(wall_s // BUCKET_S)


def text_of(key: bytes, label: str, nonce: bytes, role: str, port: int, bucket: int) -> dict[bytes, bytes]:
    """The text record of the advert named `label`."""
    return {b"v": FORMAT, b"n": nonce, b"t": _tag(key, label, nonce, role, port, bucket)}


def role_in(key: bytes, label: str, text: Mapping[bytes, bytes | None], port: int, bucket: int) -> str:
    """The role of the node that made this text record; "" for a record of another mesh, another time or nobody."""
    nonce, tag = text.get(b"n"), text.get(b"t")
    if text.get(b"v") != FORMAT or nonce is None or tag is None or (len(nonce), len(tag)) != (NONCE_BYTES, TAG_BYTES):
        return ""
    for near_bucket in (bucket, bucket - 1, bucket + 1):
        for role in ROLES:
            if hmac.compare_digest(tag, _tag(key, label, nonce, role, port, near_bucket)):
                return role
    return ""


def fields_of(text: bytes) -> dict[bytes, bytes]:
    """The fields of a text record as DNS-SD has them; what is no field is left out."""
    fields: dict[bytes, bytes] = {}
    at = 0
    while at < len(text):
        name, equals, value = text[at + 1 : at + 1 + text[at]].partition(b"=")
        if name and equals:
            fields.setdefault(name, value)
        at += 1 + text[at]
    return fields


def near(address: str) -> bool:
    """Whether an address may be announced and dialled: private, link-local or loopback."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(parsed in network for network in NEAR)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where a node of this mesh may be: `addresses` are "host:port", to be tried side by side.

    `label` is random per start of the node, and "" where a person named the addresses; `role` "" where it is unknown.
    """

    addresses: tuple[str, ...]
    role: str = ""
    label: str = ""


class Candidates:
    """The candidates of now, each to be dialled at most once per `redial_s`; bounded, whatever is announced.

    Those that have joined are not dialled, and leave their places to others: they were verified, as by TLS.
    """

    def __init__(self, redial_s: float) -> None:
        self._redial_s = redial_s
        self._known: dict[str, _Known] = {}
        self._joined: set[str] = set()
        self._turned_away = False  # somebody, since `ask_again`

    def __len__(self) -> int:
        return sum(bool(known.until) for known in self._known.values())

    def heard(
        self, label: str, role: str, addresses: Iterable[str], now_s: float, ttl_s: float = TTL_S
    ) -> Candidate | None:
        """Take what a recognised advert says; the candidate if that is new."""
        known = self._known.get(label)
        if known is None:
            if self._is_full():
                self._turned_away = True
                return None
            known = self._known[label] = _Known(role)
        before = set(known.until)
        for address in addresses:
            known.until.pop(address, None)
            known.until[address] = now_s + min(ttl_s, TTL_S)
        for oldest in list(known.until)[:-ADDRESSES_MAX]:
            del known.until[oldest]
        return self._candidate(label) if set(known.until) != before else None

    def gone(self, label: str, now_s: float) -> Candidate | None:
        """Take a goodbye; the candidate that was there."""
        known = self._known.get(label)
        if known is None or not known.until:
            return None
        was = self._candidate(label)
        known.until.clear()
        self._joined.discard(label)
        self._tidy(now_s)
        return was

    def expired(self, now_s: float) -> list[Candidate]:
        """Forget the nodes of which nothing has been heard for too long, and return them."""
        went = []
        for label, known in self._known.items():
            was = self._candidate(label)
            for address in [address for address, until_s in known.until.items() if until_s <= now_s]:
                del known.until[address]
            if was.addresses and not known.until:
                went.append(was)
                self._joined.discard(label)
        self._tidy(now_s)
        return went

    def joined(self, label: str) -> None:
        """A candidate has joined: it is not dialled any more while it announces itself."""
        known = self._known.get(label)
        if known is not None and known.until and len(self._joined) < JOINED_MAX:
            self._joined.add(label)

    def ask_again(self) -> bool:
        """Whether somebody was turned away since the last time, and there is room now."""
        asks = self._turned_away and not self._is_full()
        self._turned_away &= not asks
        return asks

    def due(self, now_s: float) -> Candidate | None:
        """A candidate to dial now, which counts as dialled; the one that waited longest."""
        waiting = [label for label, known in self._dialled() if known.due_s <= now_s]
        if not waiting:
            return None
        label = min(waiting, key=lambda label: self._known[label].due_s)
        self._known[label].due_s = now_s + self._redial_s
        return self._candidate(label)

    def next_due_s(self) -> float | None:
        """The earliest time at which `due` gives one again; None where there is none."""
        return min((known.due_s for _, known in self._dialled()), default=None)

    def _dialled(self) -> Iterator[tuple[str, _Known]]:
        """Candidates that are there and have not joined."""
        return ((label, known) for label, known in self._known.items() if known.until and label not in self._joined)

    def _is_full(self) -> bool:
        return len(self._known) - len(self._joined) >= CANDIDATES_MAX

    def _candidate(self, label: str) -> Candidate:
        known = self._known[label]
        return Candidate(
            tuple(sorted(known.until, key=lambda address: (address.startswith("["), address))), known.role, label
        )

    def _tidy(self, now_s: float) -> None:
        """A node that was just dialled keeps its place, so that saying goodbye does not get it dialled more often."""
        for label in [label for label, known in self._known.items() if not known.until and known.due_s <= now_s]:
            del self._known[label]


@dataclass(slots=True)
class _Known:
    role: str
    until: dict[str, float] = field(default_factory=dict)  # address -> when it is forgotten
    due_s: float = float("-inf")  # when it may be dialled again


def _tag(key: bytes, label: str, nonce: bytes, role: str, port: int, bucket: int) -> bytes:
    """The name is part of it, so that a copied advert is one candidate however often it is repeated."""
    return hmac.digest(key, nonce + f"|{role}|{port}|{bucket}|{label}".encode(), "sha256")[:TAG_BYTES]
