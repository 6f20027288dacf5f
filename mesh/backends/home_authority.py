"""Home authority: what an admin does with a mesh whose authority is this user's, in its folder and asking nobody.

It has the methods that `Remote` has for an admin elsewhere, so that a command need not know which of them it uses.
"""

from __future__ import annotations

import time

from coordinator.authority.authority import Authority
from coordinator.authority.authority_service import authority_message, tokens_message
from wire.protocol.messages import AuthorityReport, Revoked, TokenCreated, Tokens


class HomeAuthority:
    """Works whether the coordinator runs or not: the folder is locked for each change."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def revoke_node(self, who: str) -> Revoked:
        out = self._authority.revoke_node(who)
        return Revoked(out.node_id, out.name)

    async def create_token(self, role: str, uses: int, ttl_s: float, untrusted: bool) -> TokenCreated:
        token = self._authority.create_token(role, uses, ttl_s, untrusted)
        return TokenCreated(token.key_id, token.text)

    async def tokens(self) -> Tokens:
        return tokens_message(self._authority.tokens(), time.time())

    async def revoke_token(self, key_id: str) -> None:
        self._authority.revoke_token(key_id)

    async def authority(self) -> AuthorityReport:
        return authority_message(self._authority.rotation())

    async def rotate_authority(self, overlap_s: float) -> AuthorityReport:
        return authority_message(self._authority.rotate(overlap_s))
