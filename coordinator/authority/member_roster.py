"""The members of a mesh: who was let in by which token, who was thrown out, and what either question decides.

Pure: certificates, files and the clock are the business of `authority.py`.  As text it is JSON; a new field gets a
default in `MemberRecord` or `TokenRecord`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from wire.bounds import MEMBERS
from wire.errors import ConfigError, InputError, NotTrusted
from wire.joining.join_protocol import JoinRequested
from wire.limits import DEFAULT
from wire.roles import ADMIN, may

from .token_table import TokenRecord, TokenTable

FORMAT = 1
NUMBER_MAX = 1 << 53  # of counts, and of seconds since 1970
LISTED_S = 3600.0  # a revoked node stays on the list until its last certificate ran out, and so long after
REVOKED_REMEMBERED_S = 30 * 86400.0  # then it is unknown instead, which lets it in as little
MEMBERS_MAX = MEMBERS.most
ID_PREFIX_MIN = 4  # characters of a node id that stand for it


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """`token` is the key id of the token that let it in, `ends_s` when its last certificate runs out."""

    node_id: str
    name: str
    role: str
    token: str
    host: str
    joined_s: float
    ends_s: float
    revoked_s: float = 0.0  # 0: it was not
    authority: int = 1  # which of the mesh's certified it last, counted from the first
    untrusted: bool = False  # it is on another person's machine, as its token says

    @property
    def revoked(self) -> bool:
        return self.revoked_s > 0.0

    def certified(self, now_s: float) -> bool:
        """Whether its certificate is still valid.  A node without one is not counted, and may come back."""
        return not self.revoked and self.ends_s > now_s


@dataclass(slots=True)
class Roster:
    """`number` counts revocations; it is the number of the revocation list.

    `authority` counts the mesh's authorities; the one before is trusted until `former_until_s`, 0 if there is none.
    """

    mesh: str
    tokens: TokenTable
    members: dict[str, MemberRecord] = field(default_factory=dict)
    number: int = 0
    authority: int = 1
    former_until_s: float = 0.0

    def former(self, now_s: float) -> int:
        """The authority that is trusted beside the present one, 0 for none."""
        return self.authority - 1 if now_s < self.former_until_s else 0

    def rotate(self, now_s: float, until_s: float) -> list[TokenRecord]:
        """Go over to a new authority; the former one is trusted until then.  Open tokens name it, so they are
        withdrawn."""
        if self.former(now_s):
            left_h = (self.former_until_s - now_s) / 3600
            raise InputError(
                f"mesh {self.mesh} got a new authority lately; the one before is trusted for another {left_h:.1f} h",
                next_step="Wait until then; who has not heard of it yet, says: mesh-coord authority show",
            )
        self.authority += 1
        self.former_until_s = until_s
        return self.tokens.withdraw_open(now_s)

    def behind(self) -> list[MemberRecord]:
        """The members that have no certificate of the present authority yet."""
        return [member for member in self.members.values() if not member.revoked and member.authority < self.authority]

    def certified(self) -> list[str]:
        """The ids of those that have one."""
        return [
            member.node_id
            for member in self.members.values()
            if not member.revoked and member.authority == self.authority
        ]

    def admit(
        self, record: TokenRecord, request: JoinRequested, node_id: str, host: str, now_s: float, ends_s: float
    ) -> str:
        """Let a node in that proved to know the token of `record`: "" then, else a reason of `joining.REFUSALS`."""
        known = self.members.get(node_id)
        if known is not None and known.revoked:
            return "revoked"
        if known is None and sum(member.certified(now_s) for member in self.members.values()) >= DEFAULT.nodes_max:
            return "full"
        reason = self.tokens.admit(record, request, node_id, now_s)
        if not reason:
            self._forget(now_s)
            name = request.ask.name
            ours = MemberRecord(
                node_id, name, record.role, record.key_id, host, now_s, ends_s, untrusted=record.untrusted
            )
            self._let_in(ours)
        return reason

    def admit_here(self, node_id: str, role: str, name: str, now_s: float, ends_s: float) -> bool:
        """Let in a node of this machine, without a token; False if it was revoked."""
        known = self.members.get(node_id)
        if known is not None and known.revoked:
            return False
        self._let_in(MemberRecord(node_id, name, role, "", "this machine", now_s, ends_s))
        return True

    def renew(self, node_id: str, ends_s: float) -> MemberRecord | str:
        """The member to certify anew, or a reason of `joining.REFUSALS`."""
        member = self.members.get(node_id)
        if member is None:
            return "unknown"
        if member.revoked:
            return "revoked"
        return self._let_in(replace(member, ends_s=ends_s))

    def revoke(self, who: str, now_s: float, by: str = ADMIN) -> tuple[MemberRecord, list[TokenRecord]]:
        """Throw a node out, by its name, its id or the start of that, with the open tokens that it knows.  NotTrusted
        for an admin, if somebody of a lesser role asks."""
        found = self.find(who)
        if found.role == ADMIN and not may(by, ADMIN):
            raise NotTrusted(f"{found.name} is an admin: only an admin may throw it out")
        member = replace(found, revoked_s=now_s)
        self.members[member.node_id] = member
        self.number += 1
        self._forget(now_s)
        return member, self.tokens.withdraw_used_by(member.node_id, now_s)

    def find(self, who: str) -> MemberRecord:
        """The one member that is meant and not revoked; InputError if there is none, or several."""
        left = [member for member in self.members.values() if not member.revoked]
        matching = [member for member in left if who in (member.name, member.node_id)]
        if not matching and len(who) >= ID_PREFIX_MIN:
            matching = [member for member in left if member.node_id.startswith(who)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            ids = ", ".join(member.node_id for member in matching)
            raise InputError(f"{len(matching)} nodes are called {who!r}", next_step=f"Give the id of one: {ids}")
        raise InputError(f"there is no node {who!r} in mesh {self.mesh}", next_step="List them with: mesh-coord nodes")

    def listed(self, now_s: float) -> list[str]:
        """The ids on the revocation list: revoked nodes whose certificates could still be shown."""
        return [
            member.node_id for member in self.members.values() if member.revoked and member.ends_s + LISTED_S > now_s
        ]

    def _let_in(self, member: MemberRecord) -> MemberRecord:
        self.members[member.node_id] = replace(member, authority=self.authority)
        return self.members[member.node_id]

    def _forget(self, now_s: float) -> None:
        for member in list(self.members.values()):
            if member.revoked and now_s > max(member.ends_s, member.revoked_s) + REVOKED_REMEMBERED_S:
                del self.members[member.node_id]
        gone = sorted((member.ends_s, member.node_id) for member in self.members.values() if not member.revoked)
        for ends_s, node_id in gone[: max(0, len(gone) + 1 - MEMBERS_MAX)]:
            if ends_s <= now_s:
                del self.members[node_id]


def to_json(roster: Roster) -> bytes:
    return json.dumps(
        {
            "format": FORMAT,
            "mesh": roster.mesh,
            "number": roster.number,
            "authority": roster.authority,
            "former_until_s": roster.former_until_s,
            "tokens": [_token_fields(record) for record in roster.tokens.records],
            "members": [_saved(dataclasses.asdict(member)) for member in roster.members.values()],
        },
        indent=1,
    ).encode()


def _saved(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record in the file.  A release that cannot keep to `untrusted` refuses it as a field that it does
    not know; where nobody is untrusted, such a release reads the file."""
    return {name: value for name, value in fields.items() if name != "untrusted" or value}


def from_json(data: bytes, dummy_key: bytes) -> Roster:
    """The roster in a file; ConfigError if it is none."""
    try:
        fields = json.loads(data)
        if fields["format"] != FORMAT:
            raise ConfigError(f"the list of members has format {fields['format']}", next_step="Upgrade graph-mesh")
        members = [_typed(MemberRecord(**member)) for member in fields["members"]]
        table = TokenTable(dummy_key, _records(fields["tokens"]))
        by_id = {member.node_id: member for member in members}
        rotation = fields.get("authority", 1), fields.get("former_until_s", 0.0)
        return _typed(Roster(fields["mesh"], table, by_id, fields["number"], *rotation))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError("the list of members is damaged", cause=f"{type(error).__name__}: {error}") from None


_Record = TypeVar("_Record", MemberRecord, TokenRecord, Roster)


def _typed(record: _Record) -> _Record:
    """Check the types of a record's plain fields, and return it; TypeError where one is another type."""
    for spec in dataclasses.fields(record):
        value = getattr(record, spec.name)
        kinds = _KINDS.get(str(spec.type))
        if kinds and (type(value) not in kinds or (kinds[0] is int and not 0 <= value < NUMBER_MAX)):
            raise TypeError(f"{spec.name} is {value!r:.40}")
    return record


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}


def _token_fields(record: TokenRecord) -> dict[str, Any]:
    nodes = {node_id: [nonce.hex() for nonce in nonces] for node_id, nonces in record.nodes}
    plain = {spec.name: getattr(record, spec.name) for spec in dataclasses.fields(record)}
    return _saved({**plain, "key": record.key.hex(), "nodes": nodes})


def _records(rows: Iterable[dict[str, Any]]) -> list[TokenRecord]:
    return [
        _typed(
            TokenRecord(
                **{
                    **row,
                    "key": bytes.fromhex(row["key"]),
                    "nodes": tuple(
                        (node_id, tuple(map(bytes.fromhex, nonces))) for node_id, nonces in row["nodes"].items()
                    ),
                }
            )
        )
        for row in rows
    ]
