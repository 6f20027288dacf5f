"""The cost model: what an assignment of a graph's nodes to workers is predicted to take.

`CostModel(graph, profiles)` derives once what every assignment shares; `predict(assignment)` is then the one cost
function: the partitioner minimises it, the plan states it, tests compare it against brute force.

A *unit* is a graph node that computes something; `assignment[unit]` is the index of a worker.  Leaves (input, param,
const, iota) belong to nobody: whoever uses one holds it.  A unit runs on its worker's first device that supports it.

Parts.  The units of one site (worker, device) at one stage are one part, where a unit's stage is the largest among its
operands', plus one for an operand of another site.  Edges between parts then only go to later stages, so the parts form
a DAG for every assignment.

Time.  A part starts when its site is free and all its tensors have arrived, takes the site's dispatch cost and the
sum of its units' seconds (the roofline max of flops and bytes, Williams et al. 2009), and then sends each consumer
worker what it needs in one transfer.  The call's seconds are when the last output reaches the client.

Memory of a site: its params and constants, what comes in from outside, and the largest working set of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from wire.errors import PlacementError
from wire.graph import WireGraph
from wire.ops import LEAVES, VIEWS

from .profile import CLIENT, DeviceProfile, Profiles

DUPLICATED = frozenset({"input", "param", "const", "iota"})  # held or made anew by whoever uses them
Assignment = Sequence[int]
Site = tuple[int, int]  # worker index, device index
Needs = frozenset[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class PartSketch:
    """A part before its subgraph is made; `units` in topological order."""

    site: Site
    stage: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an assignment is predicted to cost.  Per-worker figures are in the order of the profiles."""

    fits: bool
    seconds: float
    cut_bytes: int
    parts: tuple[PartSketch, ...]
    busy_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    bytes_in: tuple[int, ...]

    @property
    def objective(self) -> tuple[bool, float, int]:
        """Smaller is better: fits first, then seconds, then bytes."""
        return (not self.fits, self.seconds, self.cut_bytes)


class CostModel:
    """A graph on a set of machines.  PlacementError if some unit can run nowhere."""

    def __init__(self, graph: WireGraph, profiles: Profiles) -> None:
        self.graph = graph
        self.profiles = profiles
        nodes = graph.nodes
        self.units: list[int] = [index for index, node in enumerate(nodes) if node.op not in DUPLICATED]
        place = {index: unit for unit, index in enumerate(self.units)}
        self.operands = [tuple({place[i] for i in nodes[n].inputs if i in place}) for n in self.units]
        self.leaves = [tuple({i for i in nodes[n].inputs if i not in place}) for n in self.units]
        self.out_bytes = [graph.types[index].size_bytes for index in self.units]
        self.consumers: list[list[int]] = [[] for _ in self.units]
        for unit, operands in enumerate(self.operands):
            for operand in operands:
                self.consumers[operand].append(unit)
        self.outputs = {place[index] for index in graph.outputs if index in place}
        self.leaf_bytes = {i: graph.types[i].size_bytes for i, node in enumerate(nodes) if node.op in DUPLICATED}
        self._find_devices()

    def _find_devices(self) -> None:
        """Which device of each worker runs which unit, and in how many seconds; -1 where none can."""
        self.device: list[list[int]] = []
        self.seconds: list[list[float]] = []
        kinds: dict[Needs, list[int]] = {}
        unit_kinds = [needs(self.graph, index) for index in self.units]
        work = [self._work(index) for index in self.units]
        for worker in self.profiles.workers:
            kinds.clear()
            devices, seconds = [], []
            for kind, (flops, moved) in zip(unit_kinds, work, strict=True):
                able = kinds.get(kind)
                if able is None:
                    known = all(op in worker.ops for op, _ in kind)
                    able = [d.index for d in worker.devices if known and all(d.supports(*need) for need in kind)][:1]
                    kinds[kind] = able
                devices.append(able[0] if able else -1)
                seconds.append(_roofline(worker.devices[able[0]], flops, moved) if able else float("inf"))
            self.device.append(devices)
            self.seconds.append(seconds)
        for unit, index in enumerate(self.units):
            if all(devices[unit] < 0 for devices in self.device):
                node = self.graph.nodes[index]
                raise PlacementError(
                    f"no worker can compute {node.op} on {self.graph.types[index]}", op=f"{node.op} (node {index})",
                    next_step="Add a worker that supports it, or rewrite without it",
                )  # fmt: skip

    def able(self, unit: int) -> list[int]:
        """The workers that can compute a unit."""
        return [worker for worker, devices in enumerate(self.device) if devices[unit] >= 0]

    def predict(self, assignment: Assignment) -> Prediction:
        """The cost of an assignment (a worker index per unit, each able to compute it)."""
        parts, part_of = self._parts(assignment)
        seconds, cut_bytes, busy_s, bytes_in = self._schedule(assignment, parts, part_of)
        memory, fits = self._memory(parts, part_of)
        return Prediction(fits, seconds, cut_bytes, tuple(parts), busy_s, memory, bytes_in)

    def _parts(self, assignment: Assignment) -> tuple[list[PartSketch], list[int]]:
        sites: list[Site] = [(worker, self.device[worker][unit]) for unit, worker in enumerate(assignment)]
        stages = [0] * len(sites)
        groups: dict[tuple[int, Site], list[int]] = {}
        for unit, operands in enumerate(self.operands):
            site = sites[unit]
            stage = 0
            for operand in operands:
                reached = stages[operand] + (sites[operand] != site)
                if reached > stage:
                    stage = reached
            stages[unit] = stage
            groups.setdefault((stage, site), []).append(unit)
        parts = [PartSketch(site, stage, tuple(units)) for (stage, site), units in sorted(groups.items())]
        part_of = [0] * len(sites)
        for number, part in enumerate(parts):
            for unit in part.units:
                part_of[unit] = number
        return parts, part_of

    def _schedule(
        self, assignment: Assignment, parts: list[PartSketch], part_of: list[int]
    ) -> tuple[float, int, tuple[float, ...], tuple[int, ...]]:
        workers = self.profiles.workers
        count = len(workers)
        free: dict[Site, float] = {}
        arrived: list[float] = [0.0] * len(parts)  # when the part's last tensor is there
        bytes_in, busy = [0] * count, [0.0] * count
        cut_bytes = 0
        fed = self._inputs_by_worker(assignment)
        for worker, size in enumerate(fed):
            if size:
                fed_s = self.profiles.link(CLIENT, workers[worker].node_id).seconds(size)
                bytes_in[worker] += size
                cut_bytes += size
                for number, part in enumerate(parts):
                    if part.site[0] == worker and self._takes_input(part):
                        arrived[number] = max(arrived[number], fed_s)
        end = 0.0
        for number, part in enumerate(parts):
            worker, device = part.site
            seconds = self.seconds[worker]
            took = workers[worker].devices[device].dispatch_s + sum([seconds[unit] for unit in part.units])
            finish = max(free.get(part.site, 0.0), arrived[number]) + took
            free[part.site] = finish
            busy[worker] += took
            end = max(end, finish)
            sends, returned = self._sends(part, part_of, parts)
            for target, (size, receivers) in sends.items():
                link = self.profiles.link(workers[worker].node_id, workers[target].node_id)
                reached = finish + link.seconds(size)
                if target != worker:
                    bytes_in[target] += size
                    cut_bytes += size
                for receiver in receivers:
                    arrived[receiver] = max(arrived[receiver], reached)
            if returned:
                cut_bytes += returned
                end = max(end, finish + self.profiles.link(workers[worker].node_id, CLIENT).seconds(returned))
        return end, cut_bytes, tuple(busy), tuple(bytes_in)

    def _sends(
        self, part: PartSketch, part_of: list[int], parts: list[PartSketch]
    ) -> tuple[dict[int, tuple[int, set[int]]], int]:
        """What leaves a part: per worker the bytes (each tensor once) and the parts that wait; bytes to the client."""
        number = part_of[part.units[0]]
        sends: dict[int, tuple[int, set[int]]] = {}
        returned = 0
        for unit in part.units:
            receivers = {part_of[consumer] for consumer in self.consumers[unit]}
            receivers.discard(number)
            for worker in {parts[receiver].site[0] for receiver in receivers}:
                size, waiting = sends.get(worker, (0, set()))
                waiting |= {receiver for receiver in receivers if parts[receiver].site[0] == worker}
                sends[worker] = (size + self.out_bytes[unit], waiting)
            if unit in self.outputs:
                returned += self.out_bytes[unit]
        return sends, returned

    def _inputs_by_worker(self, assignment: Assignment) -> list[int]:
        used: list[set[int]] = [set() for _ in self.profiles.workers]
        for unit in self._fed_units:
            used[assignment[unit]].update(leaf for leaf in self.leaves[unit] if leaf in self._input_leaves)
        return [sum(self.leaf_bytes[leaf] for leaf in leaves) for leaves in used]

    def _takes_input(self, part: PartSketch) -> bool:
        return not self._fed_units.isdisjoint(part.units)

    @cached_property
    def _input_leaves(self) -> frozenset[int]:
        return frozenset(self.graph.inputs)

    @cached_property
    def _fed_units(self) -> frozenset[int]:
        return frozenset(
            u for u, leaves in enumerate(self.leaves) if any(leaf in self._input_leaves for leaf in leaves)
        )

    def _memory(self, parts: list[PartSketch], part_of: list[int]) -> tuple[tuple[int, ...], bool]:
        workers = self.profiles.workers
        held: dict[Site, set[int]] = {}
        outside: dict[Site, set[int]] = {}
        peak: dict[Site, int] = {}
        for number, part in enumerate(parts):
            leaves, foreign = held.setdefault(part.site, set()), outside.setdefault(part.site, set())
            for unit in part.units:
                leaves.update(self.leaves[unit])
                foreign.update(operand for operand in self.operands[unit] if part_of[operand] != number)
            peak[part.site] = max(peak.get(part.site, 0), self._working_set(part, number, part_of))
        totals = [0] * len(workers)
        fits = True
        for site, leaves in held.items():
            size = sum(self.leaf_bytes[leaf] for leaf in leaves)
            size += sum(self.out_bytes[unit] for unit in outside[site]) + peak[site]
            totals[site[0]] += size
            fits = fits and size <= workers[site[0]].devices[site[1]].memory_bytes
        fits = fits and all(total <= worker.memory_bytes for total, worker in zip(totals, workers, strict=True))
        return tuple(totals), fits

    def _working_set(self, part: PartSketch, number: int, part_of: list[int]) -> int:
        """The most bytes of results alive at once while the part runs; what leaves the part stays to its end."""
        last: dict[int, int] = {}
        for unit in part.units:
            for operand in self.operands[unit]:
                if part_of[operand] == number:
                    last[operand] = unit
        alive = most = 0
        for unit in part.units:
            alive += self.out_bytes[unit]
            most = max(most, alive)
            for operand in self.operands[unit]:
                if last.get(operand) == unit and not self._leaves_part(operand, number, part_of):
                    alive -= self.out_bytes[operand]
        return most

    def _leaves_part(self, unit: int, number: int, part_of: list[int]) -> bool:
        return unit in self.outputs or any(part_of[consumer] != number for consumer in self.consumers[unit])

    def _work(self, index: int) -> tuple[int, int]:
        """Flops and bytes moved; a view moves nothing, because engines fold it into whoever reads it."""
        node = self.graph.nodes[index]
        if node.op in VIEWS and node.op not in ("pad", "concat"):
            return 0, 0
        return self.graph.flops_of(index), sum(self.graph.types[i].size_bytes for i in (*node.inputs, index))


def needs(graph: WireGraph, index: int) -> Needs:
    """What a device must support to compute a node: ops with their dtypes, for a composite those of its body."""
    node = graph.nodes[index]
    if node.op == "composite":
        return _body_needs(node.attrs["body"])
    names = {graph.types[i].dtype.name for i in (*node.inputs, index)}
    return frozenset({(node.op, tuple(sorted(names)))})


@lru_cache(maxsize=1024)
def _body_needs(body: WireGraph) -> Needs:
    inner = (index for index, node in enumerate(body.nodes) if node.op not in LEAVES)
    return frozenset().union(*(needs(body, index) for index in inner))


def _roofline(device: DeviceProfile, flops: int, moved: int) -> float:
    return max(flops / (device.gflops * 1e9 or 1.0), moved / (device.gbytes_per_s * 1e9 or 1.0))


__all__ = ["DUPLICATED", "Assignment", "CostModel", "PartSketch", "Prediction", "Site"]
