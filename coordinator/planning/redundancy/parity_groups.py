"""Parity groups: contents of several workers that are checked together, and who keeps the checks.  Pure.

A group has contents of different workers, and as many checks of them on workers that have none of these: so whoever
dies takes one share of a group at most, and any of the others give it back (`wire/erasure/gf256.py`).  A group of one
content is a copy with a buddy.  Contents of like size are put together, since a check is as long as the longest.

A content that several workers have already, more than may die, is in no group.  It does not know what contents are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wire.erasure.gf256 import checks, coefficients
from wire.policy.redundancy import Copies


@dataclass(frozen=True, slots=True)
class Held:
    """A content and the workers that have it."""

    content: Hashable
    size_bytes: int
    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Group:
    """`members` each of another worker, and who keeps which check of them."""

    members: tuple[Held, ...]
    keepers: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Of a check."""
        return max(member.size_bytes for member in self.members)

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """By which factors every check is made."""
        return checks(len(self.members), len(self.keepers))

    def size_of(self, share: int) -> int:
        """Of a member, or of a check behind them."""
        return self.members[share].size_bytes if share < len(self.members) else self.size_bytes

    def repair(self, wanted: int, there: Iterable[int], near: Collection[int] = ()) -> dict[int, int] | None:
        """By which factors the shares that are `there` give one that is not, those that are `near` first and then the
        smallest; None if they are too few."""
        k = len(self.members)
        order = sorted(set(there) - {wanted}, key=lambda share: (share not in near, self.size_of(share), share))
        if len(order) < k:
            return None
        chosen = tuple(sorted(order[:k]))
        factors = coefficients(k, len(self.keepers), wanted, chosen)
        return {share: factor for share, factor in zip(chosen, factors, strict=True) if factor}


def grouped(
    held: Iterable[Held], nodes: Collection[str], copies: Copies, room: Mapping[str, int] | None = None
) -> tuple[Group, ...]:
    """Groups for what too few of these workers have; none where there are too few workers to keep checks.

    With `room`, bytes that workers have left, nobody keeps more than that, and what nobody has room for is in no group.
    """
    pieces = list(held)
    spread = _grouped(pieces, nodes, copies, room, by_room=False)
    if room is None or not unkept(pieces, nodes, copies, spread):
        return spread
    packed = _grouped(pieces, nodes, copies, room, by_room=True)
    return min(spread, packed, key=lambda found: _total(unkept(pieces, nodes, copies, found)))


def unkept(held: Iterable[Held], nodes: Collection[str], copies: Copies, groups: Iterable[Group]) -> list[Held]:
    """What too few of these workers have, and is in no group."""
    kept = {each.content for group in groups for each in group.members}
    return [each for each in _lone(held, nodes, copies) if each.content not in kept]


def _lone(held: Iterable[Held], nodes: Collection[str], copies: Copies) -> list[Held]:
    return [each for each in held if len(each.owners & set(nodes)) <= copies.extra]


def _grouped(
    held: Iterable[Held], nodes: Collection[str], copies: Copies, room: Mapping[str, int] | None, by_room: bool
) -> tuple[Group, ...]:
    """Checks go to who keeps least for the same owners, since their deaths hit all of it alike, or `by_room`."""
    left: dict[str, list[Held]] = {}
    for each in sorted(_lone(held, nodes, copies), key=lambda each: (-each.size_bytes, str(each.content))):
        left.setdefault(min(each.owners), []).append(each)
    most = len(nodes) - copies.extra
    members = min(copies.members or most, most)
    free = {node: float("inf") if room is None else room.get(node, 0) for node in sorted(nodes)}
    kept_for = dict.fromkeys(itertools.product(nodes, nodes), 0)  # by owner and keeper
    kept = dict.fromkeys(free, 0)

    def keepers(taken: Sequence[Held]) -> list[str]:
        owning, size = _owners(taken), max(each.size_bytes for each in taken)
        able = [node for node in free if node not in owning and free[node] >= size]
        if by_room:
            return sorted(able, key=lambda node: (-free[node], node))
        return sorted(able, key=lambda node: (sum(kept_for.get((o, node), 0) for o in owning), kept[node], node))

    found = []
    while members > 0 and any(left.values()):
        owners = sorted((owner for owner in left if left[owner]), key=lambda owner: (-_total(left[owner]), owner))
        others = owners if room is None else [owners[0], *sorted(owners[1:], key=lambda owner: free[owner])]
        ways = (owners[:members], *(others[:count] for count in range(min(members, len(owners)), 0, -1)))
        taken, chosen = tuple[Held, ...](), list[str]()
        for way in ways:  # fewer members leave more workers that may keep a check
            taken = tuple(left[owner][0] for owner in way)
            chosen = keepers(taken)
            if len(chosen) >= copies.extra:
                break
        else:
            left[owners[0]].pop(0)  # owned by too many, or too large for what room there is
            continue
        for owner in way:
            left[owner].pop(0)
        group = Group(taken, tuple(chosen[: copies.extra]))
        for node in group.keepers:
            free[node] -= group.size_bytes
            kept[node] += group.size_bytes
            for owner in _owners(taken) & free.keys():
                kept_for[owner, node] += group.size_bytes
        found.append(group)
    return tuple(found)


def kept_bytes(groups: Iterable[Group]) -> dict[str, int]:
    """What workers keep for others."""
    found: dict[str, int] = {}
    for group in groups:
        for node in group.keepers:
            found[node] = found.get(node, 0) + group.size_bytes
    return found


def moved_bytes(groups: Sequence[Group], dead: str) -> dict[str, int]:
    """What each of the others would fetch to have what one worker alone had, every content where least of it moves.
    What is in no group counts for nobody: it is lost."""
    found: dict[str, int] = {}
    for group in groups:
        for place, member in enumerate(group.members):
            if member.owners <= {dead}:
                node, size = cheapest(group, place, dead)
                found[node] = found.get(node, 0) + size
    return found


def cheapest(group: Group, place: int, dead: str) -> tuple[str, int]:
    """Where a member is made again with least to fetch, and how much that is."""
    where = _shares(group, dead)
    ways = []
    for node in sorted(set().union(*where.values())):
        near = {share for share, nodes in where.items() if node in nodes}
        factors = group.repair(place, where, near) or {}
        ways.append((sum(group.size_of(share) for share in factors if share not in near), node))
    size, node = min(ways)
    return node, size


def _shares(group: Group, dead: str) -> Mapping[int, frozenset[str]]:
    """Who has which share, without one worker."""
    whole = [*(each.owners for each in group.members), *(frozenset({node}) for node in group.keepers)]
    return {share: nodes - {dead} for share, nodes in enumerate(whole) if nodes - {dead}}


def _owners(held: Iterable[Held]) -> frozenset[str]:
    return frozenset[str]().union(*(each.owners for each in held))


def _total(each: Iterable[Held]) -> int:
    return sum(held.size_bytes for held in each)
