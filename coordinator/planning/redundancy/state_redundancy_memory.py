"""What copies of a session's state take of workers' memory.  Pure.

While a copy is made, the one before it is still there, so two of each are counted: what a worker holds of its own state
as it was, and what it keeps for others (`coordinator/sessions/state.py` says who).  A state that several workers make
alike is copied by that alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from wire.policy.redundancy import Copies, copies_of

from ..model.plan import Plan
from ..model.profiles import Profiles
from .parity_groups import HeldContent, grouped, kept_bytes, unkept
from .redundancy_memory import CopiesOfPlan, FreeBytes, KeptCopies, contents_of, weights_kept

COPIES_HELD = 2
OWN_SHARE = 0.4  # about, of a worker's memory, where all of it is a state and its copies
NOTHING_KEPT: FreeBytes = {}


def session_kept(profiles: Profiles, state: str, weights: str) -> CopiesOfPlan:
    """What workers keep of each other's `state`, by this policy, and of the `weights` that steps only read."""
    copies, nodes = copies_of(state), [worker.node_id for worker in profiles.workers]
    of_weights = weights_kept(profiles, weights) if copies_of(weights).on_workers else None

    def keeps(plan: Plan, room: FreeBytes | None) -> KeptCopies:
        held = [
            HeldContent(content.content, content.size_bytes, frozenset({min(content.owners)}))
            for content in _copied(plan, copies)
        ]
        kept, bare = _state_kept(held, nodes, copies, room)
        left = None if room is None else {node: size - kept.get(node, 0) for node, size in room.items()}
        if left is not None and any(size < 0 for size in left.values()):
            bare = held
        more = of_weights(plan, left) if of_weights is not None else KeptCopies(NOTHING_KEPT)
        return KeptCopies(_sum(kept, more.bytes), (*bare, *more.bare))

    return keeps


def _copied(plan: Plan, copies: Copies) -> list[HeldContent]:
    """What of the state is copied."""
    state = contents_of(plan, state=True)
    alike = copies.text == "buddy" and all(len(content.owners) > 1 for content in state)
    return [] if alike or not (copies.on_workers or copies.here) else state


def _state_kept(
    held: list[HeldContent], nodes: Collection[str], copies: Copies, room: FreeBytes | None
) -> tuple[dict[str, int], list[HeldContent]]:
    mine = _by_owner(held)
    if not copies.on_workers or len(nodes) <= copies.extra:
        return _times(mine), []
    if copies.members == 1:
        ring = sorted(nodes)
        kept = {ring[(ring.index(node) + 1) % len(ring)]: size for node, size in mine.items()}
        return _times(_sum(mine, kept)), []
    half_room = None if room is None else {node: size // COPIES_HELD - mine.get(node, 0) for node, size in room.items()}
    groups = grouped(held, nodes, copies, half_room)
    return _times(_sum(mine, kept_bytes(groups))), unkept(held, nodes, copies, groups)


def _by_owner(held: Iterable[HeldContent]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for content in held:
        owner = min(content.owners)
        totals[owner] = totals.get(owner, 0) + content.size_bytes
    return totals


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {node: one.get(node, 0) + other.get(node, 0) for node in {**one, **other}}


def _times(sizes: Mapping[str, int]) -> dict[str, int]:
    return {node: COPIES_HELD * size for node, size in sizes.items()}
