"""What a redundancy policy costs: in memory of each worker, and in bytes and seconds after each death.  Pure.

It is counted from a plan and from the groups that `guarding.py` makes of it, and so is what it will be: who holds which
weights, who keeps checks of them, and what has to go where to make again what a worker alone had.  Seconds are those
until the others have it, by the slowest link that it goes over; a death is noticed before that, and planned for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from wire.redundancy import KINDS, copies_of

from .groups import Group, Held, cheapest, grouped, kept_bytes, moved_bytes
from .plan import FromParam, FromState, Plan
from .profile import CLIENT, Profiles

SETTLE_S = 0.05  # messages, and a plan
NOTHING = "nothing is kept, since there are too few workers, or too little memory"


def outlook(
    plan: Plan, profiles: Profiles, text: str, standby: Mapping[str, Plan] | None = None, state: bool = False
) -> dict[str, Any]:
    """A policy for a plan's weights, or its state, as plain data: what it keeps, for every worker what it holds for
    itself and for others, and for the death of each what was lost, what moves from where, and the seconds.  `standby`
    are the plans without each worker, where replicas are kept."""
    copies, held = copies_of(text), contents_of(plan, state)
    nodes = [worker.node_id for worker in profiles.workers]
    groups = grouped(held, nodes, copies) if copies.on_workers else ()
    kept = kept_bytes(groups) if standby is None else _standing_by(held, standby.values())
    sure = {each.content for group in groups for each in group.members}
    rows = []
    for worker in profiles.workers:
        lost = [each for each in held if each.owners <= {worker.node_id}]
        if lost:
            bare = [] if standby and worker.node_id in standby else [each for each in lost if each.content not in sure]
            rows.append({"worker": worker.name, **_death(worker.node_id, lost, bare, groups, profiles)})
    survived = copies.extra if groups else int(bool(standby))
    nothing = rows and not survived and (copies.on_workers or copies.on_devices)
    return {
        "copies": text,
        "meaning": NOTHING if nothing else KINDS[text.split(" ", 1)[0]].meaning,
        "deaths_survived": survived,
        "memory": [
            {
                "worker": worker.name,
                "own_bytes": sum(each.size_bytes for each in held if worker.node_id in each.owners),
                "kept_bytes": kept.get(worker.node_id, 0),
            }
            for worker in profiles.workers
        ],
        "deaths": rows,
    }


def sentences(plan: Plan, profiles: Profiles, text: str) -> list[str]:
    """What copies of a session's state cost, for people; nothing where none are made."""
    copies = copies_of(text)
    if not (copies.on_workers or copies.here):
        return []
    found = outlook(plan, profiles, text, state=True)
    kept = sum(row["kept_bytes"] for row in found["memory"])
    where = "this process keeps" if copies.here else f"workers keep {kept} bytes for"
    moved, seconds = (max((row[name] for row in found["deaths"]), default=0) for name in ("moved_bytes", "seconds"))
    what = "the state" if copies.here else "each other"
    return [f"copies {text}: {where} {what}, and a death moves {moved} bytes at most, in {seconds * 1e3:.3g} ms"]


def kept_elsewhere(plan: Plan, profiles: Profiles, text: str, dead: str) -> tuple[dict[str, set[str]], dict[str, int]]:
    """By the names of whole params: who would have them besides those that compute with them; and of those that only a
    worker has that dies, and that can be made of shares, the bytes that move for that."""
    whole: dict[str, set[str]] = {}
    made: dict[str, int] = {}
    for group in grouped(contents_of(plan), [worker.node_id for worker in profiles.workers], copies_of(text)):
        for place, each in enumerate(group.members):
            if not isinstance(each.content, FromParam) or each.content.window is not None:
                continue
            if len(group.members) == 1:
                whole.setdefault(each.content.name, set()).update(group.keepers)
            elif each.owners <= {dead}:
                made[each.content.name] = cheapest(group, place, dead)[1]
    return whole, made


def contents_of(plan: Plan, state: bool = False) -> list[Held]:
    """The weights of a plan, or its state, and windows of them, and who has them."""
    sizes: dict[Hashable, int] = {}
    owners: dict[Hashable, set[str]] = {}
    for part in plan.parts:
        for source, size in (part.sizes(FromState) if state else part.sizes(FromParam)).items():
            sizes[source] = size
            owners.setdefault(source, set()).add(part.node)
    return [Held(source, size, frozenset(owners[source])) for source, size in sizes.items()]


def _death(
    dead: str, lost: Iterable[Held], bare: Iterable[Held], groups: tuple[Group, ...], profiles: Profiles
) -> dict[str, Any]:
    """What follows from one death: `bare` is what no other worker has a share of, and comes from this process."""
    others = [worker.node_id for worker in profiles.workers if worker.node_id != dead]
    moved, from_here = moved_bytes(groups, dead), sum(each.size_bytes for each in bare)
    fetched = [(node, size) for node, size in moved.items() if size]
    ways = [(size, profiles.link(source, node)) for node, size in fetched for source in others if source != node]
    ways += [(from_here, profiles.link(CLIENT, node)) for node in others[:1] if from_here]
    return {
        "lost_bytes": sum(each.size_bytes for each in lost),
        "moved_bytes": sum(moved.values()) + from_here,
        "client_bytes": from_here,
        "seconds": SETTLE_S + max((link.seconds(size) for size, link in ways), default=0.0),
    }


def _standing_by(held: Iterable[Held], plans: Iterable[Plan]) -> dict[str, int]:
    """What workers hold beside their own so that another plan can take over."""
    own = {(each.content, node) for each in held for node in each.owners}
    more = {
        (each.content, node): each.size_bytes for plan in plans for each in contents_of(plan) for node in each.owners
    }
    found: dict[str, int] = {}
    for (content, node), size in more.items():
        if (content, node) not in own:
            found[node] = found.get(node, 0) + size
    return found
