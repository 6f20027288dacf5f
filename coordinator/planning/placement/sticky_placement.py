"""Sticky placement: a plan that leaves weights where they are, for what goes on after a death.  Pure.

What reads weights that a worker has is computed there, also where another cut would be faster; only what a dead worker
alone had is shared out anew, in the order of the graph, cut where calls are predicted to take least.  So no more moves
than was lost.  Where workers have no room for that, the plan is made as any other.

It does not know how lost weights are made again, nor when a plan like this is wanted
(`coordinator/plan_service/weight_redundancy.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from wire.ir.graph import WireGraph
from wire.passes.simplify import simplify
from wire.policy.strategies import strategy_of
from wire.units import size_text

from ..model.chosen_workers import chosen_profiles
from ..model.cost_model import CostModel
from ..model.device_constraints import by_worker
from ..model.memory_check import missing
from ..model.plan import Plan
from ..model.plan_builder import assigned_plan
from ..model.profiles import Profiles
from ..model.reproducible import reproducible_profiles

Homes = Mapping[str, Collection[str]]  # param -> the workers that have it
NO_HOMES: Homes = {}
STICKY_STRATEGIES = ("auto", "pipeline")  # the strategies that say nothing of which worker has what
PROPOSALS_MAX = 64
STEPS_MAX = 2_000  # of a search for an order of workers in which each can have its slice
SHARES: Mapping[int, Sequence[tuple[float, ...]]] = {2: ((0.5, 0.5), (0.25, 0.75), (0.75, 0.25))}  # else even ones
UNITS_LARGE, PROPOSALS_OF_LARGE_MAX = 600, 6  # one prediction takes time proportional to the graph


def sticky_plan(
    graph: WireGraph, profiles: Profiles, strategy: str, homes: Homes, kept: Homes = NO_HOMES
) -> Plan | None:
    """The plan, or None where there is none that leaves all weights where they are.

    What was lost goes to those who have `kept` it for others, as far as they have room for all of that.
    PlacementError where no worker is there that may compute.
    """
    graph = simplify(by_worker(graph, profiles))
    whole = not graph.has_spmd and all(node.op != "constraint" for node in graph.nodes)
    parsed = strategy_of(strategy)
    if not (homes and whole and parsed.plain.text in STICKY_STRATEGIES):
        return None
    profiles = chosen_profiles(profiles, parsed)
    model = CostModel(graph, reproducible_profiles(profiles, graph, parsed) if parsed.reproducible else profiles)
    assignment, lost = _at_home(model, homes)
    has = {unit: _having(model, unit, kept) for unit in lost}
    sizes, able = [_bytes(model, [unit]) or 1 for unit in lost], [model.able[unit] for unit in lost]
    ways = itertools.chain([_kept(model, assignment, lost, has)], cuts(sizes, able, model.by_speed))
    judged = []
    for way in itertools.islice(ways, proposals_max(model)):
        chosen = dict(zip(lost, way, strict=True))
        moved = _bytes(model, [unit for unit, worker in chosen.items() if worker not in has[unit]])
        filled = _filled(model, assignment, chosen)
        prediction = model.predict(filled)
        judged.append((sum(prediction.short_bytes), moved, prediction.seconds, filled))
    plan = _plan(model, strategy, min(judged)[-1], _bytes(model, lost))
    return None if any(missing(plan, model.profiles)) else plan


def proposals_max(model: CostModel) -> int:
    """The most assignments to predict."""
    return PROPOSALS_MAX if len(model.index.units) <= UNITS_LARGE else PROPOSALS_OF_LARGE_MAX


def _at_home(model: CostModel, homes: Homes) -> tuple[list[int], list[int]]:
    """A worker for every unit whose weights one has, -1 for the others; and of these the units whose weights nobody
    has together."""
    assignment: list[int] = []
    lost: list[int] = []
    last = -1
    for unit in range(len(model.index.units)):
        read = bool(_params(model, unit))
        able = [each for each in sorted(_having(model, unit, homes)) if model.device[each][unit] >= 0] if read else []
        worker = last if last in able else (able or [-1])[0]
        assignment.append(worker)
        last = worker if able else last
        if read and not able:
            lost.append(unit)
    return assignment, lost


def _params(model: CostModel, unit: int) -> list[int]:
    return [leaf for leaf in model.index.leaves[unit] if model.graph.nodes[leaf].op == "param"]


def _having(model: CostModel, unit: int, homes: Homes) -> set[int]:
    """The workers that have all weights of a unit, which reads some."""
    names = [model.graph.nodes[leaf].attrs["name"] for leaf in _params(model, unit)]
    places = model.profiles.places
    return set[int].intersection(*({places[node] for node in homes.get(name, ()) if node in places} for name in names))


def _kept(model: CostModel, assignment: Sequence[int], lost: Sequence[int], has: Mapping[int, set[int]]) -> list[int]:
    """A worker for each lost unit: one that has its bytes and room for them, else the one with most room."""
    workers = range(len(model.profiles.workers))
    mine = {worker: [unit for unit, at in enumerate(assignment) if at == worker] for worker in workers}
    room = {worker: model.profiles.workers[worker].memory_bytes - _bytes(model, mine[worker]) for worker in workers}
    chosen = []
    for unit in lost:
        size = _bytes(model, [unit])
        best = max(model.able[unit], key=lambda worker: (worker in has[unit] and room[worker] >= size, room[worker]))
        room[best] -= size
        chosen.append(best)
    return chosen


def cuts(sizes: Sequence[int], able: Sequence[Collection[int]], workers: Sequence[int]) -> Iterator[list[int]]:
    """Ways to share out what was lost, by its sizes and who is able to have it: in order, over one of the workers and
    more, about equal and in other proportions."""
    if not sizes:
        yield []
        return
    for several in range(min(len(workers), len(sizes)), 0, -1):
        ways = [_shared_out(sizes, shares, able, workers) for shares in SHARES.get(several, ((1.0,) * several,))]
        for found in itertools.zip_longest(*ways):
            yield from (way for way in found if way is not None)


def _shared_out(
    sizes: Sequence[int], shares: Sequence[float], able: Sequence[Collection[int]], workers: Sequence[int]
) -> Iterator[list[int]]:
    """Ways to give the slices to workers, each to one that is able to have all of it; after STEPS_MAX steps without
    another way there is no more."""
    slices = _sliced(sizes, shares)
    fit = [set(workers) for _ in shares]
    for place, having in zip(slices, able, strict=True):
        fit[place].intersection_update(having)
    order, left, steps = list[int](), [iter(workers)], 0
    while left and steps < STEPS_MAX + len(shares):
        steps += 1
        worker = next((each for each in left[-1] if each in fit[len(order)]), None)
        if worker is None:
            left.pop()
            del order[-1:]
        elif len(order) + 1 < len(shares):
            order.append(worker)
            left.append(iter([each for each in workers if each not in order]))
        else:
            yield [[*order, worker][place] for place in slices]
            steps = 0


def _sliced(sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """The slice that the middle of each size is in."""
    total, whole, before = sum(sizes), sum(shares), 0.0
    ends = [sum(shares[: place + 1]) / whole * total for place in range(len(shares))]
    slices = []
    for size in sizes:
        middle = before + size / 2
        slices.append(next((place for place, end in enumerate(ends) if middle <= end), len(ends) - 1))
        before += size
    return slices


def _filled(model: CostModel, assignment: Sequence[int], chosen: Mapping[int, int]) -> list[int]:
    """The assignment with what was lost on the workers chosen for it, and what reads no weights near its operands or
    readers."""
    filled = [chosen.get(unit, worker) for unit, worker in enumerate(assignment)]
    for unit in range(len(filled)):
        if filled[unit] < 0:
            filled[unit] = _near(model, unit, [filled[operand] for operand in model.index.operands[unit]])
    for unit in reversed(range(len(filled))):
        if filled[unit] < 0:
            filled[unit] = _near(model, unit, [filled[consumer] for consumer in model.index.consumers[unit]])
    return [worker if worker >= 0 else model.able[unit][0] for unit, worker in enumerate(filled)]


def _near(model: CostModel, unit: int, neighbours: Sequence[int]) -> int:
    fit = [worker for worker in neighbours if worker >= 0 and model.device[worker][unit] >= 0]
    return max(fit, key=fit.count) if fit else -1


def _bytes(model: CostModel, units: Collection[int]) -> int:
    """The bytes of the weights that some units read."""
    leaves = {leaf for unit in units for leaf in _params(model, unit)}
    return sum(model.index.leaf_bytes[leaf] for leaf in leaves)


def _plan(model: CostModel, strategy: str, assignment: list[int], lost_bytes: int) -> Plan:
    where = f"weights stay where they are; {size_text(lost_bytes)} that a lost worker alone had go to others"
    return assigned_plan(model, strategy, assignment, "call", where)
