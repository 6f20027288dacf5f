"""Parity: checks of a session's copies, made on workers, and lost pieces restored from what others keep.

It knows the groups of each copy and where their shares are; who is to have what, the state machine decides
(`state.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from wire.errors import MeshError
from wire.policy.redundancy import Copies

from ..delivery.deployer import Deployer, Term
from ..planning.redundancy.parity_groups import Group, HeldContent, grouped
from ..workers.records import Member
from .events import Checked, MakeChecks
from .manifest import CopyRecord

COPIES_MAX = 8  # of which it is known: one that is given up before it was asked for is never let go


class SessionParity:
    """The parity of one session's copies, on the workers of `members`."""

    def __init__(self, deployer: Deployer, members: Mapping[str, Member]) -> None:
        self._deployer = deployer
        self._members = members
        self._groups: dict[int, dict[Group, tuple[bytes, ...]]] = {}  # by copy: addresses of all shares, checks last

    async def make(self, action: MakeChecks, sizes: Mapping[Any, int], copies: Copies) -> tuple[Checked, ...]:
        """Have workers make the checks of a copy; MeshError."""
        held = [HeldContent(piece, sizes[piece], frozenset({node})) for piece, node in action.owners.items()]
        groups = grouped(held, action.nodes, copies)
        checks_by_group = await asyncio.gather(*(self._checks(group, action.contents) for group in groups))
        while len(self._groups) >= COPIES_MAX:
            del self._groups[next(iter(self._groups))]
        self._groups[action.copy] = {
            group: (*(action.contents[member.content] for member in group.members), *checks)
            for group, checks in zip(groups, checks_by_group, strict=True)
        }
        return tuple(
            Checked(
                tuple(member.content for member in group.members),
                group.size_bytes,
                tuple(zip(group.keepers, checks, strict=True)),
            )
            for group, checks in zip(groups, checks_by_group, strict=True)
        )

    def take_over(self, copy: CopyRecord, sizes: Mapping[Any, int]) -> None:
        """Know the checks of a copy that another process had made."""
        groups = {}
        for checked in copy.checked:
            members = tuple(HeldContent(piece, sizes[piece], copy.holders[piece]) for piece in checked.pieces)
            keepers, checks = zip(*checked.checks, strict=True)
            groups[Group(members, keepers)] = (*((copy.contents or {})[piece] for piece in checked.pieces), *checks)
        self._groups[copy.number] = groups

    def forget(self, copy: int) -> None:
        """A copy was released."""
        self._groups.pop(copy, None)

    async def restore(self, node: str, wanted: Iterable[bytes]) -> None:
        """Have a worker restore pieces that nobody has, as far as there are shares; MeshError."""
        groups = {blob: self._group_of(blob) for blob in wanted}
        await asyncio.gather(*(self._make(node, blob, *group) for blob, group in groups.items() if group is not None))

    async def restored(self, blob: bytes) -> set[str]:
        """Restore a piece that nobody has on some worker: the set of that worker, empty where it cannot be restored."""
        group = self._group_of(blob)
        if group is None:
            return set()
        for node in sorted(node for nodes in self._where(group[0]).values() for node in nodes):
            try:
                await self._make(node, blob, *group)
            except MeshError:
                continue
            return {node}
        return set()

    async def _checks(self, group: Group, contents: Mapping[Any, bytes]) -> tuple[bytes, ...]:
        sums = []
        for keeper, row in zip(group.keepers, group.rows, strict=True):
            terms = {
                contents[member.content]: Term(factor, member.size_bytes, member.owners)
                for factor, member in zip(row, group.members, strict=True)
            }
            sums.append(self._deployer.combine(keeper, terms, group.size_bytes))
        return tuple(made.blob for made in await asyncio.gather(*sums))

    def _group_of(self, blob: bytes) -> tuple[Group, tuple[bytes, ...]] | None:
        for groups in reversed(self._groups.values()):
            for group, blobs in groups.items():
                if blob in blobs[: len(group.members)]:
                    return group, blobs
        return None

    def _where(self, group: Group) -> dict[int, Collection[str]]:
        """The connected workers that hold each share."""
        owners = [*(member.owners for member in group.members), *(frozenset({node}) for node in group.keepers)]
        return {share: there for share, nodes in enumerate(owners) if (there := nodes & self._members.keys())}

    async def _make(self, node: str, blob: bytes, group: Group, blobs: tuple[bytes, ...]) -> None:
        where, place = self._where(group), blobs.index(blob)
        factors = group.repair(place, where, {share for share, nodes in where.items() if node in nodes})
        if factors is None:
            return
        terms = {blobs[share]: Term(factor, group.size_of(share), where[share]) for share, factor in factors.items()}
        await self._deployer.combine(node, terms, group.members[place].size_bytes, blob)
