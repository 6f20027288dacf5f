"""Token table: the join tokens that a coordinator has made, and the nodes that each let in.

A record holds a key derived from the token's secret, never the secret.  A use is a node: a node that asks again with
the same token, because the answer was lost, does not count twice.  Pure: time and random bytes are arguments; files and
certificates are the business of `authority.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from wire.errors import ConfigError, InputError
from wire.joining.join_protocol import JoinRequested
from wire.joining.join_tokens import Token
from wire.roles import JOINING, WORKER, lets_in

TTL_S = 900.0  # long enough to walk to the other machine
TTL_S_MAX = 30 * 86400.0
USES_MAX = 1024  # as many nodes as a mesh has
TOKENS_MAX = 256  # open or lately closed ones
REMEMBERED_S = 7 * 86400.0  # how long the holder of a closed token still hears why
SET_BACK_S_MAX = 3600.0  # of a clock: made later than so much from now, a token would live for as long as that is off
ASKED_MAX = 8  # times that one node may ask with one token


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """`nodes` are the ids it let in, each with the nonces of its requests."""

    key_id: str
    key: bytes = field(repr=False)
    role: str
    uses: int
    created_s: float
    expires_s: float
    withdrawn: bool = False
    nodes: tuple[tuple[str, tuple[bytes, ...]], ...] = ()
    untrusted: bool = False  # the nodes are on other people's machines

    def state(self, now_s: float) -> str:
        """ "open", or why not: "withdrawn", "expired" or "used"."""
        if self.withdrawn:
            return "withdrawn"
        if now_s >= self.expires_s or now_s < self.created_s - SET_BACK_S_MAX:
            return "expired"
        return "used" if len(self.nodes) >= self.uses else "open"

    def may_open(self, now_s: float) -> bool:
        """Whether it is open, or would be by a clock that is right again."""
        return self.state(max(now_s, self.created_s)) == "open"


@dataclass(frozen=True, slots=True)
class Proof:
    """The record whose secret a request proves to know; without one, `why` is for the audit log only."""

    record: TokenRecord | None
    why: str = ""


class TokenTable:
    """The records by key id.  `dummy_key` is random: it is compared with where there is no record."""

    def __init__(self, dummy_key: bytes, records: Iterable[TokenRecord] = ()) -> None:
        self._dummy_key = dummy_key
        self._records = {record.key_id: record for record in records}

    @property
    def records(self) -> list[TokenRecord]:
        """All remembered tokens, the newest first."""
        return sorted(self._records.values(), key=lambda record: (-record.created_s, record.key_id))

    def create(
        self, token: Token, role: str, uses: int, ttl_s: float, now_s: float, untrusted: bool = False
    ) -> TokenRecord:
        """Remember a new token; ConfigError for what no token can be."""
        if role not in JOINING:
            raise ConfigError(f"a token is for one of the roles {', '.join(JOINING)}, not {role!r}")
        if untrusted and role != WORKER:
            raise ConfigError(f"only workers are trusted or not, and this token is for a {role}")
        if not 1 <= uses <= USES_MAX:
            raise ConfigError(f"a token has 1 to {USES_MAX} uses, not {uses}")
        if not 0 < ttl_s <= TTL_S_MAX:
            raise ConfigError(f"a token lives at most {TTL_S_MAX / 86400:g} days, not {ttl_s:g} s")
        self._forget(now_s)
        if len(self._records) >= TOKENS_MAX:
            raise ConfigError(f"there are {TOKENS_MAX} tokens already", next_step="Give one token more uses: --uses N")
        record = TokenRecord(token.key_id, token.key, role, uses, now_s, now_s + ttl_s, untrusted=untrusted)
        self._records[record.key_id] = record
        return record

    def withdraw(self, key_id: str) -> TokenRecord:
        """Withdraw a token, which then lets nobody in; InputError if no token has this id."""
        if key_id not in self._records:
            raise InputError(f"there is no token {key_id!r}", next_step="List them with: mesh-coord token list")
        return self._put(replace(self._records[key_id], withdrawn=True))

    def withdraw_used_by(self, node_id: str, now_s: float) -> list[TokenRecord]:
        """Withdraw the open tokens that let this node in: it still knows their secrets."""
        used = [record for record in self.records if node_id in dict(record.nodes)]
        return [self.withdraw(record.key_id) for record in used if record.may_open(now_s)]

    def withdraw_open(self, now_s: float) -> list[TokenRecord]:
        """Withdraw all tokens that are open."""
        return [self.withdraw(record.key_id) for record in self.records if record.may_open(now_s)]

    def prove(self, request: JoinRequested) -> Proof:
        """The record whose secret the request proves; an unknown token takes as long as a known one."""
        record = self._records.get(request.ask.key_name)
        proved = request.is_proved_by(self._dummy_key if record is None else record.key)
        if record is None:
            return Proof(None, "unknown token")
        return Proof(record) if proved else Proof(None, "wrong secret")

    def admit(self, record: TokenRecord, request: JoinRequested, node_id: str, now_s: float) -> str:
        """Let the node in and count it: "" then, else a reason of `joining.REFUSALS`."""
        nodes = dict(record.nodes)
        nonces = nodes.get(node_id, ())
        state = record.state(now_s)
        if state != "open" and not (state == "used" and nonces):
            return state
        if not lets_in(record.role, request.ask.role):
            return "role"
        if request.ask.nonce in nonces:
            return "replayed"
        if len(nonces) >= ASKED_MAX:
            return "used"
        nodes[node_id] = (*nonces, request.ask.nonce)
        self._put(replace(record, nodes=tuple(nodes.items())))
        return ""

    def _put(self, record: TokenRecord) -> TokenRecord:
        self._records[record.key_id] = record
        return record

    def _forget(self, now_s: float) -> None:
        for record in self.records:
            if now_s >= record.expires_s + REMEMBERED_S:
                del self._records[record.key_id]
