"""What if: what follows if a worker dies: the plan then, which weights have to go where, and from whom.  Pure.

A weight comes from the nearest that has it: it is on the worker already, computed by or cached on its disk; another
worker is known to have it; else the client sends it, which holds it for as long as its handle lives.  It does not know
when a death is noticed, which is the detector's business (`coordinator/workers/failure_detector.py`), nor of a
session's copies (`redundancy_cost.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.cost_model import REPLAN_S
from ..model.plan import FromParam, Plan
from ..model.profiles import CLIENT, Profiles

NOTHING: Mapping[str, int] = {}
Holds = Callable[[str], Collection[str]]  # by worker, the names of params that it has on its disk


@dataclass(frozen=True, slots=True)
class Move:
    """A weight, or a window of it, that a worker needs after the death; `source` is "disk", "peer" or "client"."""

    param: str
    node: str
    source: str
    size_bytes: int
    seconds: float


def moves(
    before: Plan, after: Plan, profiles: Profiles, dead: str, holds: Holds, made: Mapping[str, int] = NOTHING
) -> list[Move]:
    """Every weight of the plan after a death that its worker did not compute with before; `made` are those that it can
    make of what others keep, and the bytes that it takes for that."""
    homes: dict[FromParam, set[str]] = {}
    for part in before.parts:
        for source in part.sizes(FromParam):
            homes.setdefault(source, set()).add(part.node)
    needed: dict[tuple[str, FromParam], Move] = {}
    for part in after.parts:
        for source, size in part.sizes(FromParam).items():
            if part.node in homes.get(source, ()):
                continue
            peers = homes.get(source, set()) | {
                worker.node_id
                for worker in profiles.workers
                if source.window is None and source.name in holds(worker.node_id)
            }
            needed[part.node, source] = _move(source, part.node, size, peers - {dead}, profiles, made)
    return list(needed.values())


def _move(
    source: FromParam, node: str, size: int, having: Collection[str], profiles: Profiles, made: Mapping[str, int]
) -> Move:
    if node in having:
        return Move(source.name, node, "disk", 0, 0.0)
    ways = [profiles.link(other, node).seconds(size) for other in having]
    if ways:
        return Move(source.name, node, "peer", size, min(ways))
    if source.name in made and source.window is None:
        others = (worker.node_id for worker in profiles.workers if worker.node_id != node)
        slowest = max(profiles.link(other, node).seconds(made[source.name]) for other in others)
        return Move(source.name, node, "peer", made[source.name], slowest)
    return Move(source.name, node, "client", size, profiles.link(CLIENT, node).seconds(size))


def described(
    before: Plan, after: Plan, profiles: Profiles, dead: str, holds: Holds, ahead: bool,
    made: Mapping[str, int] = NOTHING,
) -> dict[str, Any]:  # fmt: skip
    """What follows, as plain data; `seconds` are those until the others have all they need, `call_s` of a call then."""
    names = {worker.node_id: worker.name for worker in profiles.workers}
    moved = moves(before, after, profiles, dead, holds, made)
    waits: dict[str, float] = {}
    for move in moved:
        waits[move.node] = waits.get(move.node, 0.0) + move.seconds
    return {
        "worker": names[dead],
        "planned_ahead": ahead,
        "call_s": after.seconds,
        "before_s": before.seconds,
        "seconds": REPLAN_S + max(waits.values(), default=0.0),
        "moved_bytes": sum(move.size_bytes for move in moved),
        "weights": [
            {
                "param": move.param,
                "worker": names[move.node],
                "source": move.source,
                "size_bytes": move.size_bytes,
                "seconds": move.seconds,
            }
            for move in moved
        ],
        "plan": after.describe(),
    }
