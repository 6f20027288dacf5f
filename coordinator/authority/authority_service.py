"""Authority service: a coordinator's answers to operators and admins elsewhere: nodes out, tokens, the authority.

Who may ask is decided before (`wire/protocol/client_requests.py`).  It does not know what a token or an authority is
made of; the folder's lock orders what is asked at once, here and by the commands on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from wire.link.link import Link
from wire.protocol.messages import (
    AskAuthority,
    AskTokens,
    AuthorityReport,
    CreateToken,
    Done,
    MemberReport,
    Message,
    Revoked,
    RevokeNode,
    RevokeToken,
    RotateAuthority,
    TokenCreated,
    TokenReport,
    Tokens,
)
from wire.roles import member_id
from wire.system.file_lock import behind_lock

from .authority import Authority, Rotation
from .token_table import TokenRecord

BEHIND_MAX = 4096  # members in one answer


class AuthorityService:
    """`answers` are what a coordinator's table of requests gets."""

    def __init__(self, authority: Authority, clock: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._clock = clock
        self.answers: dict[type, Callable[[Link, Any], Awaitable[Message]]] = {
            RevokeNode: self._revoke_node,
            AskTokens: self._tokens,
            CreateToken: self._create_token,
            RevokeToken: self._revoke_token,
            AskAuthority: self._show,
            RotateAuthority: self._rotate,
        }

    async def _revoke_node(self, link: Link, body: RevokeNode) -> Revoked:
        out = await behind_lock(self._authority.revoke_node, body.node, _asking_member(link), link.peer.role)
        return Revoked(out.node_id, out.name)

    async def _tokens(self, link: Link, body: AskTokens) -> Tokens:
        return tokens_message(await behind_lock(self._authority.tokens), self._clock())

    async def _create_token(self, link: Link, body: CreateToken) -> TokenCreated:
        terms = body.role, body.uses, body.ttl_s, body.untrusted
        token = await behind_lock(self._authority.create_token, *terms, _asking_member(link))
        return TokenCreated(token.key_id, token.text)

    async def _revoke_token(self, link: Link, body: RevokeToken) -> Done:
        await behind_lock(self._authority.revoke_token, body.id, _asking_member(link))
        return Done()

    async def _show(self, link: Link, body: AskAuthority) -> AuthorityReport:
        return authority_message(await behind_lock(self._authority.rotation))

    async def _rotate(self, link: Link, body: RotateAuthority) -> AuthorityReport:
        return authority_message(await behind_lock(self._authority.rotate, body.overlap_s, _asking_member(link)))


def _asking_member(link: Link) -> str:
    """The member that asks, for the audit log."""
    return member_id(link.peer.node_id)


def tokens_message(records: Sequence[TokenRecord], now_s: float) -> Tokens:
    """The tokens, as the answer to AskTokens."""
    return Tokens(
        tuple(
            TokenReport(
                each.key_id, each.role, each.state(now_s), len(each.nodes), each.uses, each.expires_s, each.untrusted
            )
            for each in records
        )
    )


def authority_message(rotation: Rotation) -> AuthorityReport:
    """The authority, as the answer to AskAuthority."""
    behind = tuple(MemberReport(each.name, each.node_id, each.role) for each in rotation.behind[:BEHIND_MAX])
    withdrawn = tuple(each.key_id for each in rotation.withdrawn)
    return AuthorityReport(rotation.name, rotation.number, rotation.former_until_s, behind, withdrawn)
