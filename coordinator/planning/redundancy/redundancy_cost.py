"""What a redundancy policy costs: in memory of each worker, and in bytes and seconds after each death.  Pure.

It is counted from a plan and from the groups that `coordinator/plan_service/weight_redundancy.py` makes of it, and so
is what it will be: which workers hold which weights, which keep checks of them, and what has to go where to make again
what a worker alone had.  Seconds are those until the others have it, by the slowest link that it goes over; a death is
noticed before that, and planned for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wire.policy.redundancy import KINDS, copies_of
from wire.units import size_text, time_text

from ..model.cost_model import REPLAN_S
from ..model.plan import FromParam, Plan
from ..model.profiles import CLIENT, Profiles, WorkerProfile
from .parity_groups import Group, HeldContent, cheapest, grouped, kept_bytes, moved_bytes, unkept
from .redundancy_memory import contents_of, room_of, standing_by

NOTHING = "nothing is kept, since there are too few workers, or too little memory"


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The bytes that a worker computes with, and those that it keeps for others."""

    worker: str
    own_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class DeathCost:
    """What follows from the death of a worker: the bytes that it alone had, those that move until the others have
    them, those of them that come from this process, and the seconds until then."""

    worker: str
    lost_bytes: int
    moved_bytes: int
    client_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RedundancyCost:
    """What a policy costs and achieves; `copies` is its text and `meaning` says it in words."""

    copies: str
    meaning: str
    deaths_survived: int
    unkept_bytes: int
    memory: tuple[WorkerMemory, ...]
    deaths: tuple[DeathCost, ...]

    def describe(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def redundancy_cost(
    plan: Plan, profiles: Profiles, text: str, standby: Mapping[str, Plan] | None = None, state: bool = False
) -> RedundancyCost:
    """What a policy costs for a plan's weights, or for its state.

    `standby` are the plans without each worker, where replicas are kept.
    """
    copies, held = copies_of(text), contents_of(plan, state)
    nodes = [worker.node_id for worker in profiles.workers]
    groups = grouped(held, nodes, copies, room_of(plan, profiles)) if copies.on_workers else ()
    kept = kept_bytes(groups) if standby is None else standing_by(plan, standby.values())
    deaths = _deaths(held, groups, standby or {}, profiles)
    alone = sum(content.size_bytes for content in unkept(held, nodes, copies, groups)) if copies.on_workers else 0
    survived = (copies.extra if groups and not alone else 0) if standby is None else int(bool(standby))
    nothing = deaths and (copies.on_workers or copies.on_devices) and not (groups or standby)
    memory = tuple(
        WorkerMemory(
            worker.name,
            sum(content.size_bytes for content in held if worker.node_id in content.owners),
            kept.get(worker.node_id, 0),
        )
        for worker in profiles.workers
    )
    meaning = NOTHING if nothing else KINDS[text.split(" ", 1)[0]].meaning
    return RedundancyCost(text, meaning, survived, alone, memory, deaths)


def _deaths(
    held: Sequence[HeldContent], groups: tuple[Group, ...], standby: Mapping[str, Plan], profiles: Profiles
) -> tuple[DeathCost, ...]:
    """The cost of every death that takes along what no other worker has."""
    in_groups = {member.content for group in groups for member in group.members}
    deaths = []
    for worker in profiles.workers:
        lost = [content for content in held if content.owners <= {worker.node_id}]
        if lost:
            replicated = worker.node_id in standby
            bare = 0 if replicated else sum(c.size_bytes for c in lost if c.content not in in_groups)
            deaths.append(_death_cost(worker, sum(c.size_bytes for c in lost), bare, groups, profiles))
    return tuple(deaths)


def _death_cost(
    dead: WorkerProfile, lost_bytes: int, client_bytes: int, groups: tuple[Group, ...], profiles: Profiles
) -> DeathCost:
    """`client_bytes` are those of which no other worker has a share, which come from this process."""
    others = [worker.node_id for worker in profiles.workers if worker.node_id != dead.node_id]
    moved = moved_bytes(groups, dead.node_id)
    fetched = [(node, size) for node, size in moved.items() if size]
    ways = [(size, profiles.link(source, node)) for node, size in fetched for source in others if source != node]
    ways += [(client_bytes, profiles.link(CLIENT, node)) for node in others[:1] if client_bytes]
    seconds = REPLAN_S + max((link.seconds(size) for size, link in ways), default=0.0)
    return DeathCost(dead.name, lost_bytes, sum(moved.values()) + client_bytes, client_bytes, seconds)


def sentences(plan: Plan, profiles: Profiles, text: str) -> list[str]:
    """What copies of a session's state cost, for people; nothing where none are made."""
    copies = copies_of(text)
    if not (copies.on_workers or copies.here):
        return []
    cost = redundancy_cost(plan, profiles, text, state=True)
    kept = sum(row.kept_bytes for row in cost.memory)
    where = "this process keeps" if copies.here else f"workers keep {size_text(kept)} for"
    moved = max((death.moved_bytes for death in cost.deaths), default=0)
    seconds = max((death.seconds for death in cost.deaths), default=0)
    what = "the state" if copies.here else "each other"
    return [f"copies {text}: {where} {what}, and a death moves {size_text(moved)} at most, in {time_text(seconds)}"]


def kept_elsewhere(plan: Plan, profiles: Profiles, text: str, dead: str) -> tuple[dict[str, set[str]], dict[str, int]]:
    """The copies of whole params besides those that are computed with, by name: the workers that would have one; and
    the bytes that move to make again what only a worker has that dies."""
    whole: dict[str, set[str]] = {}
    made: dict[str, int] = {}
    nodes, room = [worker.node_id for worker in profiles.workers], room_of(plan, profiles)
    for group in grouped(contents_of(plan), nodes, copies_of(text), room):
        for place, member in enumerate(group.members):
            if not isinstance(member.content, FromParam) or member.content.window is not None:
                continue
            if len(group.members) == 1:
                whole.setdefault(member.content.name, set()).update(group.keepers)
            elif member.owners <= {dead}:
                made[member.content.name] = cheapest(group, place, dead)[1]
    return whole, made
