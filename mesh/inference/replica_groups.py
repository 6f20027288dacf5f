"""Replica groups: which workers each replica of a model has for itself.  Pure.

There are as many groups as replicas are asked for, or fewer where there are not enough workers, or a group would not
have the memory that a replica needs.  A worker that comes goes where workers or memory lack, and moves nobody; a group
whose workers are all gone is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wire.policy.strategies import Auto, Single, Strategy

Group = tuple[str, ...]  # the ids of its workers


@dataclass(frozen=True, slots=True)
class Machine:
    """A worker that may compute: its id, its name and the memory that it may use."""

    node: str
    name: str
    memory_bytes: int


def stands_apart(strategy: Strategy) -> bool:
    """Whether a replica may be on a worker of its own; other strategies say that a model is to be on all of them."""
    return isinstance(strategy, Single) or (isinstance(strategy, Auto) and not strategy.use_all)


def regrouped(
    before: Sequence[Group], machines: Sequence[Machine], replicas: int, needed_bytes: int
) -> tuple[Group, ...]:
    """The groups for so many replicas on these machines, where those `before` keep their workers.

    A group has `needed_bytes` of memory together; if not even all workers have that, they are one group.
    """
    by_size = sorted(machines, key=lambda machine: (-machine.memory_bytes, machine.name, machine.node))
    memory = {machine.node: machine.memory_bytes for machine in by_size}
    kept = [tuple([node for node in group if node in memory]) for group in before]
    groups = [group for group in kept if group][:replicas]
    taken = {node for group in groups for node in group}
    spare = [machine.node for machine in by_size if machine.node not in taken]

    def has(group: Group) -> int:
        return sum(memory[node] for node in group)

    while spare and groups and has(poorest := min(groups, key=has)) < needed_bytes:
        groups[groups.index(poorest)] = (*poorest, spare.pop(0))
    for count in range(replicas - len(groups), 0, -1):
        dealt = _dealt(spare, count, memory)
        if dealt and (all(has(group) >= needed_bytes for group in dealt) or (count == 1 and not groups)):
            return (*groups, *dealt)
    for node in spare if groups else ():
        poorest = min(groups, key=has)
        groups[groups.index(poorest)] = (*poorest, node)
    return tuple(groups)


def _dealt(nodes: Sequence[str], count: int, memory: dict[str, int]) -> list[Group]:
    """The workers, the largest first, each to the group that has least until then; [] if there are too few."""
    if len(nodes) < count:
        return []
    groups: list[Group] = [()] * count
    for node in nodes:
        least = min(range(count), key=lambda place: sum(memory[each] for each in groups[place]))
        groups[least] = (*groups[least], node)
    return groups
