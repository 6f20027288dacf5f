"""State colocation: which worker computes what, where nodes that share a tensor of a state are kept together.  Pure.

Whole groups of nodes are shared out in the order of the graph, cut where the slowest worker has least to do, and then
single groups are moved while that helps.  What belongs to no group goes where its operands are.  It does not know how a
plan is made of it (`coordinator/planning/session_planner.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wire.errors import PlacementError

from ..model.cost_model import CostModel, Prediction
from .least_seconds import LeastSeconds
from .partition import cheapest
from .sticky_placement import Homes, cuts, proposals_max

ORDERS_MAX = 24  # of workers, that are tried
MOVES_MAX = 200
NO_UNITS: Mapping[int, int] = {}


class StateColocation:
    """Assignments in which the units that read or make one tensor of a state are on one worker.

    `carried` are the params that are a state, each with the node that is its next value.
    """

    def __init__(self, model: CostModel, carried: Mapping[str, int]) -> None:
        self.model = model
        self.groups = self._find_groups(carried)
        self._group_of = {unit: group for group in self.groups for unit in group}
        self._able = {group: self._able_of(group) for group in self.groups}

    def best(self, strategy: str) -> list[int]:
        """The cheapest assignment found; PlacementError if no worker can have some group."""
        if not self.model.index.units:
            return []
        if not all(self._able.values()):
            raise PlacementError("no worker has one device that computes all that reads or makes one tensor of a state")
        prediction, assignment = cheapest(self.model, LeastSeconds(self.model), self._proposals(strategy))
        return self._refined(prediction, assignment)[1] if strategy == "auto" else assignment

    def sticky(self, homes: Homes) -> list[int] | None:
        """The assignment that leaves tensors where their homes are, and of these one by which least moves; None if
        there is none.

        Groups whose tensors have no common home are shared out.
        """
        at_home = [self._home_of(group, homes) for group in self.groups]
        lost = [number for number, worker in enumerate(at_home) if worker < 0]
        if len(lost) == len(self.groups):
            return None
        others = (unit for unit in range(len(self.model.index.units)) if unit not in self._group_of)
        loose = {unit: self._home_of((unit,), homes) for unit in others if self._read_by((unit,))}
        sizes = [self._bytes_of(self.groups[number]) or 1 for number in lost]
        ways = cuts(sizes, [self._able[self.groups[number]] for number in lost], self.model.by_speed)
        judged = []
        for way in itertools.islice(ways, proposals_max(self.model)):
            moved = dict(zip(lost, way, strict=True))
            chosen = [moved.get(number, worker) for number, worker in enumerate(at_home)]
            for assignment in self._placed(chosen, loose):
                found, moved_bytes = self.model.predict(assignment), self._moved_bytes(assignment, homes)
                judged.append((sum(found.short_bytes), moved_bytes, found.seconds, found.cut_bytes, assignment))
        return min(judged)[-1] if judged else None

    def _moved_bytes(self, assignment: Sequence[int], homes: Homes) -> int:
        """The bytes of params that workers read which do not have them."""
        index, graph, workers = self.model.index, self.model.graph, self.model.profiles.workers
        read = {(leaf, worker) for unit, worker in enumerate(assignment) for leaf in index.leaves[unit]}
        params = ((leaf, worker) for leaf, worker in read if graph.nodes[leaf].op == "param")
        return sum(
            index.leaf_bytes[leaf]
            for leaf, worker in params
            if workers[worker].node_id not in homes.get(graph.nodes[leaf].attrs["name"], ())
        )

    def _home_of(self, group: tuple[int, ...], homes: Homes) -> int:
        """The first worker that has all tensors that a group, or a unit of none, reads and can compute it, or -1."""
        names, able = self._read_by(group), self._able.get(group, self.model.able[group[0]])
        return min((w for w in able if self._has(w, names, homes)), default=-1)

    def _has(self, worker: int, names: Iterable[str], homes: Homes) -> bool:
        node = self.model.profiles.workers[worker].node_id
        return all(node in homes.get(name, ()) for name in names)

    def _read_by(self, units: Iterable[int]) -> set[str]:
        """The names of the params that these units read."""
        nodes = (self.model.graph.nodes[leaf] for unit in units for leaf in self.model.index.leaves[unit])
        return {node.attrs["name"] for node in nodes if node.op == "param"}

    def _bytes_of(self, units: Iterable[int]) -> int:
        leaves = {leaf for unit in units for leaf in self.model.index.leaves[unit]}
        return sum(self.model.index.leaf_bytes[leaf] for leaf in leaves)

    def _find_groups(self, carried: Mapping[str, int]) -> list[tuple[int, ...]]:
        """The units that read or make one tensor of the state; groups that share a unit are one."""
        index, graph = self.model.index, self.model.graph
        unit_of = {node: unit for unit, members in enumerate(index.members) for node in members}
        related: dict[str, list[int]] = {name: [unit_of[node]] for name, node in carried.items()}
        names = {node: graph.nodes[node].attrs["name"] for node in graph.params}
        for unit, leaves in enumerate(index.leaves):
            for leaf in leaves:
                if names.get(leaf) in related:
                    related[names[leaf]].append(unit)
        root = list(range(len(index.units)))

        def find(unit: int) -> int:
            while root[unit] != unit:
                root[unit] = unit = root[root[unit]]
            return unit

        for units in related.values():
            for unit in units[1:]:
                root[find(unit)] = find(units[0])
        groups: dict[int, list[int]] = {}
        for unit in sorted(set(itertools.chain(*related.values()))):
            groups.setdefault(find(unit), []).append(unit)
        return [tuple(group) for group in groups.values()]

    def _able_of(self, group: Iterable[int]) -> list[int]:
        """The workers one device of which computes all of it."""
        able = []
        for worker, site_of in enumerate(self.model.site):
            sites = {site_of[unit] for unit in group}
            if len(sites) == 1 and -1 not in sites:
                able.append(worker)
        return able

    def _proposals(self, strategy: str) -> Iterator[list[int]]:
        """Groups in the order of the graph, shared out over some workers."""
        model = self.model
        count = len(model.profiles.workers)
        most = min(count, len(self.groups))
        counts = {"single": [1], "pipeline": [most]}.get(strategy, list(range(1, max(most, 1) + 1)))
        weight = [min(sum(model.seconds[w][unit] for unit in group) for w in range(count)) for group in self.groups]
        for several in counts:
            for order in itertools.islice(self._orders(max(several, 1)), ORDERS_MAX):
                yield from self._placed([order[place] for place in _even(weight, several)])

    def _orders(self, count: int) -> Iterator[tuple[int, ...]]:
        """Orders of so many of the fastest workers; of one, those of all that differ from each other."""
        if count > 1:
            return itertools.permutations(self.model.by_speed[:count])
        workers, twins = self.model.profiles.workers, self.model.profiles.twins
        differing = [worker for worker in self.model.by_speed if twins[worker] < 0]
        roomy = sorted(differing, key=lambda worker: -workers[worker].memory_bytes)
        return ((worker,) for worker in dict.fromkeys((*differing[: ORDERS_MAX // 2], *roomy)))

    def _placed(self, chosen: Sequence[int], loose: Mapping[int, int] = NO_UNITS) -> Iterator[list[int]]:
        """The groups on these workers, or on others where they cannot be; nothing if they can be nowhere.  What is in
        no group goes where it has a home, by `loose`."""
        model, index = self.model, self.model.index
        assignment = [-1] * len(index.units)
        for group, worker in zip(self.groups, chosen, strict=True):
            able = self._able[group]
            if not able:
                return
            for unit in group:
                assignment[unit] = worker if worker in able else able[0]
        for unit, worker in loose.items():
            assignment[unit] = worker
        for unit in range(len(assignment)):  # after their operands, and what has none before its readers
            if assignment[unit] < 0:
                assignment[unit] = self._near(unit, [assignment[operand] for operand in index.operands[unit]])
        for unit in reversed(range(len(assignment))):
            if assignment[unit] < 0:
                assignment[unit] = self._near(unit, [assignment[consumer] for consumer in index.consumers[unit]])
        yield [worker if worker >= 0 else model.able[unit][0] for unit, worker in enumerate(assignment)]

    def _near(self, unit: int, neighbours: Sequence[int]) -> int:
        """The worker of most neighbours that can compute a unit, another one if none can, -1 without neighbours."""
        placed = [worker for worker in neighbours if worker >= 0]
        fit = [worker for worker in placed if self.model.device[worker][unit] >= 0]
        if not placed:
            return -1
        return max(fit, key=fit.count) if fit else self.model.able[unit][0]

    def _refined(self, prediction: Prediction, assignment: list[int]) -> tuple[Prediction, list[int]]:
        """Move groups, and single units of none, while that helps."""
        model, index, moves = self.model, self.model.index, 0
        loose = [(unit,) for unit in range(len(assignment)) if unit not in self._group_of]
        for group in (*self.groups, *loose):
            able = self._able.get(group, model.able[group[0]])
            neighbours = (other for unit in group for other in (*index.operands[unit], *index.consumers[unit]))
            near = {assignment[other] for other in neighbours}
            for worker in sorted(near & set(able) - {assignment[group[0]]}):
                moved = list(assignment)
                for unit in group:
                    moved[unit] = worker
                candidate = model.predict(moved)
                moves += 1
                if candidate.objective < prediction.objective:
                    prediction, assignment = candidate, moved
            if moves >= MOVES_MAX:
                break
        return prediction, assignment


def _even(weights: Sequence[float], count: int) -> list[int]:
    """The slice of each weight: `count` slices about equally heavy, and none empty."""
    total, before = sum(weights) or 1.0, 0.0
    slices: list[int] = []
    for place, weight in enumerate(weights):
        wanted = min(int((before + weight / 2) / total * count), count - 1)
        least = count - (len(weights) - place)  # what is left has to fill what is left
        following = slices[-1] + 1 if slices else 0
        slices.append(max(min(wanted, following), least))
        before += weight
    return slices
