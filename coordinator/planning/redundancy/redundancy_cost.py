"""What a redundancy policy costs: in memory of each worker, and in bytes and seconds after each death.  Pure.

It is counted from a plan and from the groups that `coordinator/plan_service/weight_redundancy.py` makes of it, and so
is what it will be: who holds which weights, who keeps checks of them, and what has to go where to make again what a
worker alone had.  Seconds are those until the others have it, by the slowest link that it goes over; a death is noticed
before that, and planned for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wire.policy.redundancy import KINDS, copies_of
from wire.units import size_text, time_text

from ..model.cost_model import REPLAN_S
from ..model.plan import FromParam, Plan
from ..model.profiles import CLIENT, Profiles
from .parity_groups import Group, Held, cheapest, grouped, kept_bytes, moved_bytes, unkept
from .redundancy_memory import contents_of, room_of, standing_by

NOTHING = "nothing is kept, since there are too few workers, or too little memory"


def outlook(
    plan: Plan, profiles: Profiles, text: str, standby: Mapping[str, Plan] | None = None, state: bool = False
) -> dict[str, Any]:
    """A policy for a plan's weights, or its state, as plain data: what it keeps, for every worker what it holds for
    itself and for others, and for the death of each what was lost, what moves from where, and the seconds.  `standby`
    are the plans without each worker, where replicas are kept."""
    copies, held = copies_of(text), contents_of(plan, state)
    nodes = [worker.node_id for worker in profiles.workers]
    groups = grouped(held, nodes, copies, room_of(plan, profiles)) if copies.on_workers else ()
    kept = kept_bytes(groups) if standby is None else standing_by(plan, standby.values())
    sure = {each.content for group in groups for each in group.members}
    rows = []
    for worker in profiles.workers:
        lost = [each for each in held if each.owners <= {worker.node_id}]
        if lost:
            bare = [] if standby and worker.node_id in standby else [each for each in lost if each.content not in sure]
            rows.append({"worker": worker.name, **_death(worker.node_id, lost, bare, groups, profiles)})
    alone = sum(each.size_bytes for each in unkept(held, nodes, copies, groups)) if copies.on_workers else 0
    survived = (copies.extra if groups and not alone else 0) if standby is None else int(bool(standby))
    nothing = rows and (copies.on_workers or copies.on_devices) and not (groups or standby)
    return {
        "copies": text,
        "meaning": NOTHING if nothing else KINDS[text.split(" ", 1)[0]].meaning,
        "deaths_survived": survived,
        "unkept_bytes": alone,
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
    where = "this process keeps" if copies.here else f"workers keep {size_text(kept)} for"
    moved, seconds = (max((row[name] for row in found["deaths"]), default=0) for name in ("moved_bytes", "seconds"))
    what = "the state" if copies.here else "each other"
    return [f"copies {text}: {where} {what}, and a death moves {size_text(moved)} at most, in {time_text(seconds)}"]


def kept_elsewhere(plan: Plan, profiles: Profiles, text: str, dead: str) -> tuple[dict[str, set[str]], dict[str, int]]:
    """By the names of whole params: who would have them besides those that compute with them; and of those that only a
    worker has that dies, and that can be made of shares, the bytes that move for that."""
    whole: dict[str, set[str]] = {}
    made: dict[str, int] = {}
    nodes, room = [worker.node_id for worker in profiles.workers], room_of(plan, profiles)
    for group in grouped(contents_of(plan), nodes, copies_of(text), room):
        for place, each in enumerate(group.members):
            if not isinstance(each.content, FromParam) or each.content.window is not None:
                continue
            if len(group.members) == 1:
                whole.setdefault(each.content.name, set()).update(group.keepers)
            elif each.owners <= {dead}:
                made[each.content.name] = cheapest(group, place, dead)[1]
    return whole, made


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
        "seconds": REPLAN_S + max((link.seconds(size) for size, link in ways), default=0.0),
    }
