"""Partition: which worker computes which node.

Every candidate is judged by the one cost function, `CostModel.predict`; the algorithms below only propose.

  * Small graphs: branch and bound over all assignments, exact.  The bound is the prediction of the units so far, and
    what the others take at least.
  * `singles`: everything on one worker.
  * `slices`: contiguous slices of the topological order, one per worker, by dynamic programming over (cut position,
    worker) as in PipeDream (Narayanan et al., SOSP 2019, section 3.1), within each worker's memory; minimising either
    the slowest stage (strategy "pipeline") or the sum of stages and transfers (one call's latency).
  * `earliest_finish`: list scheduling by upward rank, HEFT (Topcuoglu, Hariri, Wu 2002), for graphs with branches.
  * `refine`: moves of single nodes across a cut while they help, after Kernighan-Lin / Fiduccia-Mattheyses (1982).

To add a strategy: a property of Partitioner and a case of `best`.  docs/planning.md says why these and what they miss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.cached_property import cached_property

from ..model.cost_model import Assignment, CostModel, Prediction
from .least_seconds import LeastSeconds

EXACT_ASSIGNMENTS_MAX = 600_000  # 3 workers to the power of 12 nodes
EXACT_PREDICTIONS_MAX = 20_000  # some 2 s, after which the best of those that were looked at is refined
POSITIONS_MAX = 160  # cut positions the dynamic program considers
ORDERS_MAX = 24  # orders of workers along a pipeline that are tried
REFINE_UNITS_MAX = 600  # above this a single prediction is too dear to try moves
REFINE_TRIES = 120
EVERY_COUNT_UNITS_MAX = 20_000  # above, a graph is cut for 2, 4, 8, ... and all workers only
PROPOSALS_OF_LARGE_MAX = 2  # orders of a large graph that are predicted, for every number of workers

Best = tuple[Prediction, list[int]]


class Partitioner:
    """The cheapest assignment for each strategy, by `Prediction.objective`; each is looked for when asked for.

    Whether it fits is for the caller to see.  Graphs with more units than `exact_max` and `refine_max` allow are not
    searched as thoroughly, nor are those of which `predictions_max` do not show what is cheapest.
    """

    def __init__(
        self,
        model: CostModel,
        exact_max: int = EXACT_ASSIGNMENTS_MAX,
        refine_max: int = REFINE_UNITS_MAX,
        predictions_max: int = EXACT_PREDICTIONS_MAX,
    ) -> None:
        self.model = model
        self.exact = False  # whether `auto` is the cheapest of all assignments, as far as it was looked for
        self._exact_max, self._predictions_max = exact_max, predictions_max
        self._large = len(model.index.units) > refine_max  # a single prediction is too dear to try moves

    def best(self, strategy: str) -> Best:
        if not self.model.index.units:
            return self.model.predict([]), []
        match strategy:
            case "single":
                return self.single
            case "pipeline":
                return self.pipeline
        return self.auto

    @cached_property
    def single(self) -> Best:
        return cheapest(self.model, self._bounds, _singles(self.model))

    @cached_property
    def pipeline(self) -> Best:
        """Uses every worker, where the graph has a unit for each."""
        best = cheapest(self.model, self._bounds, _pipelines(self._slices))
        return best if best[0].fits or self._large else _refine(self.model, best, keep=True)

    @cached_property
    def auto(self) -> Best:
        model = self.model
        workers = len(model.profiles.workers)
        if workers == 1:
            self.exact = True
            return self.single
        best = min(self.single, self.pipeline, key=lambda best: best[0].objective)
        best = cheapest(model, self._bounds, _latencies(self._slices), best)
        if workers ** len(model.index.units) <= self._exact_max:
            best, self.exact = _branch_and_bound(model, self._bounds, best, self._predictions_max)
            if self.exact:
                return best
        return best if self._large else _refine(model, best)

    @cached_property
    def _slices(self) -> _Slices:
        return _Slices(self.model, self._large)

    @cached_property
    def _bounds(self) -> LeastSeconds:
        return LeastSeconds(self.model)


def cheapest(model: CostModel, bounds: LeastSeconds, proposals: Iterable[list[int]], known: Best | None = None) -> Best:
    """The cheapest of the proposals and of what is `known`.  What a bound shows to be dearer is not predicted."""
    best = known
    for assignment in {tuple(proposal): proposal for proposal in proposals}.values():
        if best is not None and best[0].fits and bounds.of(assignment) > best[0].seconds:
            continue
        prediction = model.predict(assignment)
        if best is None or prediction.objective < best[0].objective:
            best = prediction, assignment
    assert best is not None, "there is a proposal for every graph"
    return best


# -- proposals --------------------------------------------------------------------------------------------


def _latencies(slices: _Slices) -> Iterator[list[int]]:
    """Two workers and more, for the least time of one call."""
    yield _earliest_finish(slices.model)
    units, most = len(slices.model.index.units), min(len(slices.model.profiles.workers), len(slices.model.index.units))
    few = {most, *(1 << power for power in range(1, most.bit_length()))}
    for count in range(2, most + 1):
        if units <= EVERY_COUNT_UNITS_MAX or count in few:
            yield from _sliced(slices, count, np.add)


def _pipelines(slices: _Slices) -> Iterator[list[int]]:
    """Slices over every worker, each with at least one unit where the graph has enough."""
    model = slices.model
    count = min(len(model.profiles.workers), len(model.index.units))
    yield from _sliced(slices, count, np.maximum)
    yield _repaired(model, [unit * count // len(model.index.units) for unit in range(len(model.index.units))])


def _singles(model: CostModel) -> Iterator[list[int]]:
    for worker in model.by_speed:
        if model.profiles.twins[worker] < 0:
            yield _repaired(model, [worker] * len(model.index.units))


def _repaired(model: CostModel, assignment: list[int]) -> list[int]:
    """Units that their worker cannot compute go to the fastest that can."""
    if all(-1 not in model.device[worker] for worker in set(assignment)):
        return assignment
    for unit, worker in enumerate(assignment):
        if model.device[worker][unit] < 0:
            assignment[unit] = min(model.able[unit], key=lambda able: (model.seconds[able][unit], able))
    return assignment


# -- contiguous slices ------------------------------------------------------------------------------------


def _sliced(slices: _Slices, count: int, combine: Callable[..., NDArray[np.float64]]) -> Iterator[list[int]]:
    """Cut the topological order for several orders of `count` workers, by dynamic programming.

    `combine` joins a stage's cost to what came before: np.maximum for the bottleneck, np.add for the sum.  Of a large
    graph only the orders that look best are proposed, because a prediction of it is dear.
    """
    model = slices.model
    ranked = [(*slices.cut(order, combine), order) for order in _orders(model, count)]
    ranked.sort(key=lambda row: row[0])
    for cost, cuts, order in ranked[: PROPOSALS_OF_LARGE_MAX if slices.large else ORDERS_MAX]:
        if cost < float("inf"):
            yield _repaired(model, slices.assignment(order, cuts))


def _orders(model: CostModel, count: int) -> list[tuple[int, ...]]:
    """Some orders of the fastest and of the roomiest workers; of orders that differ by twins only, one."""
    workers = model.profiles.workers
    roomy = sorted(model.by_speed, key=lambda worker: -workers[worker].memory_bytes)
    first: list[int] = []
    for worker, twin in enumerate(model.profiles.twins):
        first.append(worker if twin < 0 else first[twin])
    orders: dict[tuple[int, ...], tuple[int, ...]] = {}
    for chosen in (model.by_speed[:count], roomy[:count]):
        for order in itertools.islice(itertools.permutations(chosen), ORDERS_MAX):
            orders.setdefault(tuple(first[worker] for worker in order), order)
    return list(orders.values())[:ORDERS_MAX]


class _Slices:
    """Costs of every slice between two cut positions, as matrices."""

    def __init__(self, model: CostModel, large: bool = False) -> None:
        self.model = model
        self.large = large
        count = len(model.index.units)
        steps = np.linspace(0, count, min(count, POSITIONS_MAX) + 1).astype(np.int64)
        self.positions = np.array([*dict.fromkeys(steps.tolist())])
        rows = map(np.array, model.seconds)
        finite = (np.where(np.isinf(row), 0.0, row) for row in rows)
        self._prefix = [np.concatenate([[0.0], np.cumsum(row)])[self.positions] for row in finite]
        self._crossing = _crossing_bytes(model)[self.positions]
        self._held = self._held_bytes()
        places = np.arange(len(self.positions))
        self._forward = places[None, :] > places[:, None]
        self._origin = np.where(places == 0, 0.0, np.inf)
        self._order: tuple[Sequence[int], object] = (), None
        self._states: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []

    def _held_bytes(self) -> NDArray[np.float64]:
        """[i, j]: bytes of leaves first used between positions i and j.  Shared leaves count at their first use only:
        an underestimate that the final prediction corrects."""
        seen: set[int] = set()
        new = []
        for leaves in self.model.index.leaves:
            fresh = [leaf for leaf in leaves if leaf not in seen]
            seen.update(fresh)
            new.append(float(sum(self.model.index.leaf_bytes[leaf] for leaf in fresh)))
        prefix = np.concatenate([[0.0], np.cumsum(new)])[self.positions]
        held: NDArray[np.float64] = prefix[None, :] - prefix[:, None] + 2.0 * self._crossing[:, None]
        return held

    def cut(self, order: Sequence[int], combine: Callable[..., NDArray[np.float64]]) -> tuple[float, list[int]]:
        """The best cuts' cost (inf: memory admits none) and the positions (indices) where each worker's slice ends."""
        places = len(self.positions)
        if places - 1 < len(order):
            return float("inf"), []
        self._follow(order, combine)
        best = self._states[-1][0]
        if not np.isfinite(best[-1]):
            return float("inf"), []
        cuts, place = [places - 1], places - 1
        for _, choice in reversed(self._states[1:]):
            place = int(choice[place])
            cuts.append(place)
        return float(best[-1]), cuts[::-1]

    def _follow(self, order: Sequence[int], combine: Callable[..., NDArray[np.float64]]) -> None:
        """Make `_states` those of this order: by stage, the least cost up to each place, and where the stage begins
        then.  What the order before begins with as well stays: orders are permutations, of which neighbours are alike
        but for the end."""
        before, how = self._order
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, order, strict=False)))
        del self._states[same if how is combine else 0 :]
        self._order = order, combine
        for stage in range(len(self._states), len(order)):
            best = self._states[-1][0] if stage else self._origin
            total = combine(best[:, None], self._stage_cost(order, stage))
            total[~np.isfinite(best)] = np.inf
            self._states.append((total.min(axis=0), total.argmin(axis=0)))

    def _stage_cost(self, order: Sequence[int], stage: int) -> NDArray[np.float64]:
        worker = order[stage]
        profile = self.model.profiles.workers[worker]
        seconds = self._prefix[worker][None, :] - self._prefix[worker][:, None] + profile.devices[0].dispatch_s
        if stage:
            link = self.model.profiles.link(self.model.profiles.workers[order[stage - 1]].node_id, profile.node_id)
            seconds = seconds + (link.latency_s + self._crossing[:, None] / link.bytes_per_s)
        return np.where(self._forward & (self._held <= profile.memory_bytes), seconds, np.inf)

    def assignment(self, order: Sequence[int], cuts: Sequence[int]) -> list[int]:
        ends = self.positions[list(cuts)].tolist()
        assignment: list[int] = []
        for worker, end in zip(order, ends, strict=True):
            assignment.extend([worker] * (end - len(assignment)))
        return assignment


def _crossing_bytes(model: CostModel) -> NDArray[np.float64]:
    """[i]: bytes of results of units before i that units from i on need."""
    change = np.zeros(len(model.index.units) + 1)
    for unit, consumers in enumerate(model.index.consumers):
        if consumers:
            change[unit + 1] += model.sent_bytes[unit]
            change[max(consumers) + 1] -= model.sent_bytes[unit]
    return np.cumsum(change)


# -- list scheduling --------------------------------------------------------------------------------------


def _earliest_finish(model: CostModel) -> list[int]:
    """HEFT: units by upward rank, each to the worker where it ends first."""
    workers = model.profiles.workers
    link = model.profiles.link(workers[0].node_id, workers[1].node_id)
    rows = _rows_by_kind(model)
    sending_s = [link.latency_s + size / link.bytes_per_s for size in model.sent_bytes]
    rank = _upward_ranks(model, rows, sending_s)
    free = [0.0] * len(workers)
    finish = [0.0] * len(rank)
    assignment = [0] * len(rank)
    for unit in sorted(range(len(rank)), key=[-each for each in rank].__getitem__):
        operands, row = model.index.operands[unit], rows[model.kind_of[unit]]
        there_s = max([finish[operand] + sending_s[operand] for operand in operands], default=0.0)
        best = (float("inf"), 0)
        for worker in {assignment[operand] for operand in operands}:  # where some of the operands need not travel
            ready_s = free[worker]
            for operand in operands:
                travels_s = 0.0 if assignment[operand] == worker else sending_s[operand]
                ready_s = max(ready_s, finish[operand] + travels_s)
            best = min(best, (ready_s + model.seconds[worker][unit], worker))
        for seconds, worker in row.fastest:
            if there_s + seconds > best[0]:
                break  # nor would any slower one end before
            ready_s = there_s if there_s > free[worker] else free[worker]
            best = min(best, (ready_s + seconds, worker))
        finish[unit], assignment[unit] = best
        free[best[1]] = best[0]
    return assignment


class _Row(NamedTuple):
    """What list scheduling knows of all units of a kind."""

    mean_s: float
    fastest: tuple[tuple[float, int], ...]  # seconds and workers that can compute it


def _rows_by_kind(model: CostModel) -> list[_Row]:
    first = {kind: unit for unit, kind in reversed([*enumerate(model.kind_of)])}
    rows = []
    for _, unit in sorted(first.items()):
        seconds = [(model.seconds[worker][unit], worker) for worker in model.able[unit]]
        mean_s = float(np.mean([each for each, _ in seconds]))
        rows.append(_Row(mean_s, tuple(sorted(seconds))))
    return rows


def _upward_ranks(model: CostModel, rows: Sequence[_Row], sending_s: Sequence[float]) -> list[float]:
    """How long it is from the beginning of each unit to the end of all, on average workers."""
    rank = [0.0] * len(model.kind_of)
    for unit in reversed(range(len(rank))):
        row, ahead = rows[model.kind_of[unit]], [rank[consumer] for consumer in model.index.consumers[unit]]
        rank[unit] = row.mean_s + (sending_s[unit] + max(ahead) if ahead else 0.0)
    return rank


# -- improvement ------------------------------------------------------------------------------------------


def _refine(model: CostModel, best: Best, keep: bool = False) -> Best:
    """Move single units across a cut while that helps; `keep` leaves every worker that has units at least one."""
    assignment = list(best[1])
    tries, unmoved = 0, 0
    for unit in itertools.cycle(range(len(assignment))):
        unmoved += 1
        for worker in _neighbours(model, assignment, unit):
            before = assignment[unit]
            if keep and assignment.count(before) == 1:
                continue
            assignment[unit] = worker
            candidate = model.predict(assignment)
            tries += 1
            if candidate.objective < best[0].objective:
                best, unmoved = (candidate, list(assignment)), 0
            else:
                assignment[unit] = before
        if tries >= REFINE_TRIES or unmoved >= len(assignment):
            return best
    return best


def _neighbours(model: CostModel, assignment: Assignment, unit: int) -> list[int]:
    """The other workers that make or use what a unit uses or makes, and can compute it."""
    near = {assignment[other] for other in (*model.index.operands[unit], *model.index.consumers[unit])} - {
        assignment[unit]
    }
    return sorted(worker for worker in near if model.device[worker][unit] >= 0)


def _branch_and_bound(model: CostModel, bounds: LeastSeconds, best: Best, predictions_max: int) -> tuple[Best, bool]:
    """Every assignment that could still be better than the best found, depth first in topological order; and whether
    these were all."""
    twins = model.profiles.twins
    assignment: list[int] = []
    left = predictions_max

    def descend() -> None:
        nonlocal best, left
        unit = len(assignment)
        for worker in model.able[unit]:
            if twins[worker] >= 0 and twins[worker] not in assignment:
                continue  # the twin has its turn first, and the rest would be the same
            assignment.append(worker)
            if left and (not best[0].fits or bounds.of(assignment) <= best[0].seconds):
                left -= best[0].fits  # one that fits is looked for to the end
                bound = model.predict(assignment)
                if bound.objective < best[0].objective:
                    if unit + 1 == len(model.index.units):
                        best = (bound, list(assignment))
                    else:
                        descend()
            assignment.pop()

    descend()
    return best, left > 0
