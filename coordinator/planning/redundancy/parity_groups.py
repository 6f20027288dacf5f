"""Parity groups: contents of several workers that are checked together, and which workers keep the checks.  Pure.

A group has contents of different workers, and as many checks of them on workers that have none of these: so whoever
dies takes one share of a group at most, and any of the others give it back (`wire/erasure/gf256.py`).  A group of one
content is a copy with a buddy.  Contents of like size are put together, since a check is as long as the longest.

A content that several workers have already, more than may die, is in no group.  It does not know what contents are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wire.erasure.gf256 import SHARES_MAX, checks, coefficients
from wire.policy.redundancy import Copies


@dataclass(frozen=True, slots=True)
class HeldContent:
    """A content and the workers that have it."""

    content: Hashable
    size_bytes: int
    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Group:
    """`members`, each of another worker, and by check the worker that keeps it."""

    members: tuple[HeldContent, ...]
    keepers: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of each check: that of the largest member."""
        return max(member.size_bytes for member in self.members)

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The factors of every check, one for each member."""
        return checks(len(self.members), len(self.keepers))

    def size_of(self, share: int) -> int:
        """The size of a share: a member, or a check, which are numbered after the members."""
        return self.members[share].size_bytes if share < len(self.members) else self.size_bytes

    def repair(self, wanted: int, there: Iterable[int], near: Collection[int] = ()) -> dict[int, int] | None:
        """The factors by which other shares sum to the wanted one; None if too few are `there`.

        Of those that are there the `near` ones are preferred, and then the smallest.
        """
        k = len(self.members)
        order = sorted(set(there) - {wanted}, key=lambda share: (share not in near, self.size_of(share), share))
        if len(order) < k:
            return None
        chosen = tuple(sorted(order[:k]))
        factors = coefficients(k, len(self.keepers), wanted, chosen)
        return {share: factor for share, factor in zip(chosen, factors, strict=True) if factor}


def grouped(
    held: Iterable[HeldContent], nodes: Collection[str], copies: Copies, room: Mapping[str, int] | None = None
) -> tuple[Group, ...]:
    """Groups for what too few of these workers have; none where there are too few workers to keep checks.

    With `room`, bytes that workers have left, nobody keeps more than that, and what nobody has room for is in no group.
    """
    contents = list(held)
    spread = _GreedyPacker(contents, nodes, copies, room, roomiest_first=False).groups()
    if room is None or not unkept(contents, nodes, copies, spread):
        return spread
    packed = _GreedyPacker(contents, nodes, copies, room, roomiest_first=True).groups()
    return min(spread, packed, key=lambda groups: _total(unkept(contents, nodes, copies, groups)))


def unkept(
    held: Iterable[HeldContent], nodes: Collection[str], copies: Copies, groups: Iterable[Group]
) -> list[HeldContent]:
    """What too few of these workers have, and is in no group."""
    kept = {member.content for group in groups for member in group.members}
    return [content for content in _exposed(held, nodes, copies) if content.content not in kept]


def _exposed(held: Iterable[HeldContent], nodes: Collection[str], copies: Copies) -> list[HeldContent]:
    """What as many deaths may take along as the policy has to survive."""
    return [content for content in held if len(content.owners & set(nodes)) <= copies.extra]


class _GreedyPacker:
    """Make one group after another: of the largest content that is left, with one of each owner that has most left.

    Checks go to the workers that keep least for the same owners, since a death hits all of that at once; with
    `roomiest_first` to those that have most room.
    """

    def __init__(
        self, held: Iterable[HeldContent], nodes: Collection[str], copies: Copies, room: Mapping[str, int] | None,
        roomiest_first: bool,
    ) -> None:  # fmt: skip
        self._left: dict[str, list[HeldContent]] = {}  # by owner, the largest first
        for content in sorted(_exposed(held, nodes, copies), key=lambda c: (-c.size_bytes, str(c.content))):
            self._left.setdefault(min(content.owners), []).append(content)
        members_max = min(len(nodes), SHARES_MAX) - copies.extra
        self._members_max = min(copies.members or members_max, members_max)
        self._checks = copies.extra
        self._bounded, self._roomiest_first = room is not None, roomiest_first
        self._free = {node: float("inf") if room is None else room.get(node, 0) for node in sorted(nodes)}
        self._kept = dict.fromkeys(self._free, 0)
        self._kept_for = dict.fromkeys(itertools.product(nodes, nodes), 0)  # by owner and keeper

    def groups(self) -> tuple[Group, ...]:
        groups = []
        while self._members_max > 0 and any(self._left.values()):
            owners = self._owners_left()
            group = self._group_of(owners)
            if group is None:
                self._left[owners[0]].pop(0)  # owned by too many, or too large for what room there is
            else:
                self._take(group)
                groups.append(group)
        return tuple(groups)

    def _owners_left(self) -> list[str]:
        """Owners of what is in no group yet, those of most bytes first."""
        owners = (owner for owner in self._left if self._left[owner])
        return sorted(owners, key=lambda owner: (-_total(self._left[owner]), owner))

    def _group_of(self, owners: Sequence[str]) -> Group | None:
        """A group of the largest content of each of some owners, the first among them; None if nobody can keep it."""
        for chosen in self._choices(owners):
            members = tuple(self._left[owner][0] for owner in chosen)
            keepers = self._keepers(members)
            if len(keepers) >= self._checks:
                return Group(members, tuple(keepers[: self._checks]))
        return None

    def _choices(self, owners: Sequence[str]) -> Iterator[Sequence[str]]:
        """Owners for one group: as many as may be, then fewer, which leave more workers that may keep a check."""
        yield owners[: self._members_max]
        others = owners
        if self._bounded:
            others = [owners[0], *sorted(owners[1:], key=lambda owner: self._free[owner])]
        for count in range(min(self._members_max, len(owners)), 0, -1):
            yield others[:count]

    def _keepers(self, members: Sequence[HeldContent]) -> list[str]:
        """The workers that may keep a check of these, the best first."""
        owners, size = _owners(members), max(member.size_bytes for member in members)
        able = [node for node in self._free if node not in owners and self._free[node] >= size]
        if self._roomiest_first:
            return sorted(able, key=lambda node: (-self._free[node], node))
        return sorted(able, key=lambda node: (self._kept_of(owners, node), self._kept[node], node))

    def _kept_of(self, owners: Iterable[str], keeper: str) -> int:
        return sum(self._kept_for.get((owner, keeper), 0) for owner in owners)

    def _take(self, group: Group) -> None:
        for member in group.members:
            self._left[min(member.owners)].remove(member)
        for node in group.keepers:
            self._free[node] -= group.size_bytes
            self._kept[node] += group.size_bytes
            for owner in _owners(group.members) & self._free.keys():
                self._kept_for[owner, node] += group.size_bytes


def kept_bytes(groups: Iterable[Group]) -> dict[str, int]:
    """The bytes that each worker keeps for others."""
    kept: dict[str, int] = {}
    for group in groups:
        for node in group.keepers:
            kept[node] = kept.get(node, 0) + group.size_bytes
    return kept


def moved_bytes(groups: Sequence[Group], dead: str) -> dict[str, int]:
    """The bytes that each of the others would fetch to have what one worker alone had.

    Every content is made again where least of it moves.  What is in no group counts for nobody: it is lost.
    """
    moved: dict[str, int] = {}
    for group in groups:
        for place, member in enumerate(group.members):
            if member.owners <= {dead}:
                node, size = cheapest(group, place, dead)
                moved[node] = moved.get(node, 0) + size
    return moved


def cheapest(group: Group, place: int, dead: str) -> tuple[str, int]:
    """The worker that can make a member again with least to fetch, and how much that is."""
    holders = _holders(group, dead)
    ways = []
    for node in sorted(set().union(*holders.values())):
        near = {share for share, nodes in holders.items() if node in nodes}
        factors = group.repair(place, holders, near) or {}
        ways.append((sum(group.size_of(share) for share in factors if share not in near), node))
    size, node = min(ways)
    return node, size


def _holders(group: Group, dead: str) -> Mapping[int, frozenset[str]]:
    """The workers that have each share, without one worker."""
    holders = [*(member.owners for member in group.members), *(frozenset({node}) for node in group.keepers)]
    return {share: nodes - {dead} for share, nodes in enumerate(holders) if nodes - {dead}}


def _owners(held: Iterable[HeldContent]) -> frozenset[str]:
    return frozenset[str]().union(*(content.owners for content in held))


def _total(held: Iterable[HeldContent]) -> int:
    return sum(content.size_bytes for content in held)
