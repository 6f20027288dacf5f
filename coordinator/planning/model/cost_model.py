"""The cost model: what an assignment of a graph's nodes to workers is predicted to take.

`CostModel(graph, profiles)` derives once what every assignment shares; `predict(assignment)` is then the one cost
function: the partitioner minimises it, the plan states it, tests compare it against brute force.

A *unit* is a graph node that computes something, or siblings, which are results of one computation;
`assignment[unit]` is the index of a worker.  Leaves (input, param,
const, iota) belong to nobody: whoever uses one holds it.  A unit runs on its worker's first device that supports it.

Parts.  The units of one site (worker, device) at one stage are one part, where a unit's stage is the largest among its
operands', plus one for an operand of another site.  Edges between parts then only go to later stages, so the parts form
a DAG for every assignment.

Time.  A part starts when its site is free and all its tensors have arrived, takes the site's dispatch cost and the
sum of its units' seconds (the roofline max of flops and bytes, Williams et al. 2009; every turn of a loop is dispatched
on its own), and then sends each consumer worker what it needs in one transfer.  The call's seconds are when the last
output reaches the client.

Memory of a site: its params and constants, what comes in from outside, and the largest working set of its parts.

Every figure of a graph's first units is a lower bound of the whole graph's, in whatever way the rest is assigned: that
is what the exact search prunes by.  docs/planning.md says how good the model is and what it leaves out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from wire.errors import PlacementError
from wire.ir.device_names import DeviceName
from wire.ir.graph import Node, WireGraph
from wire.ir.ops import CONTROL, LEAVES, VIEWS, WHILE_TRIPS, inner_graphs

from .device_constraints import allows, check, pins
from .liveness import DUPLICATED, inside
from .profiles import CLIENT, DeviceProfile, Link, Profiles, WorkerProfile

COPIED = frozenset({"pad", "concat"})  # the views that engines do not fold into whoever reads them
REPLAN_S = 0.05  # what going over to another plan takes in any case: planning, and messages
PICKED = frozenset({"gather", "dynamic_slice"})  # they read as much of their first operand as they write
Assignment = Sequence[int]
Site = tuple[int, int]  # worker index, device index
Work = tuple[int, int, int]  # flops, bytes moved, turns of a loop
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

    short_bytes: tuple[int, ...]  # how much memory is missing on its devices or in all; 0 where it fits
    seconds: float
    cut_bytes: int
    busy_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    bytes_in: tuple[int, ...]

    @property
    def fits(self) -> bool:
        return not any(self.short_bytes)

    @property
    def objective(self) -> tuple[int, float, int]:
        """Smaller is better: what fits (or lacks least memory) first, then seconds, then bytes."""
        return (sum(self.short_bytes), self.seconds, self.cut_bytes)


@dataclass(slots=True)
class _Traffic:
    """What crosses the borders of parts.  Parts are keys, workers and sites indices."""

    bytes_in: list[int]  # per worker: inputs and other workers' results
    fed: dict[int, int] = field(default_factory=dict)  # worker -> bytes of inputs
    fed_parts: set[int] = field(default_factory=set)
    sends: dict[int, dict[int, int]] = field(default_factory=dict)  # part -> worker -> bytes
    waits: dict[int, set[int]] = field(default_factory=dict)  # part -> the parts that it waits for
    returned: dict[int, int] = field(default_factory=dict)  # part -> bytes for the client
    held: list[int] = field(default_factory=list)  # per site: bytes of leaves and of results of other parts
    leaving: set[int] = field(default_factory=set)  # units whose result outlives their part
    last: dict[int, int] = field(default_factory=dict)  # unit -> its last consumer in the same part


class CostModel:
    """A graph on a set of machines.  PlacementError if some unit can run nowhere."""

    def __init__(self, graph: WireGraph, profiles: Profiles) -> None:
        self.graph = graph
        self.profiles = profiles
        nodes = graph.nodes
        first = {index: group[0] for group in graph.siblings.values() for index in group}
        self.units: list[int] = [
            index for index, node in enumerate(nodes) if node.op not in DUPLICATED and first.get(index, index) == index
        ]
        place = {index: unit for unit, index in enumerate(self.units)}
        place |= {index: place[of] for index, of in first.items()}
        self.members = [graph.siblings.get(index, (index,)) for index in self.units]  # their nodes
        self.operands = [tuple({place[i] for i in nodes[n].inputs if i in place}) for n in self.units]
        self.leaves = [tuple({i for i in nodes[n].inputs if i not in place}) for n in self.units]
        self.out_bytes = [sum(graph.types[index].size_bytes for index in members) for members in self.members]
        self.inside = [inside(graph, index) for index in self.units]
        self.consumers: list[list[int]] = [[] for _ in self.units]
        for unit, operands in enumerate(self.operands):
            for operand in operands:
                self.consumers[operand].append(unit)
        self.readers: dict[int, set[int]] = {index: set() for index in first}  # sibling -> units that read this one
        for index, node in enumerate(nodes) if first else ():
            for source in node.inputs:
                if source in first:
                    self.readers[source].add(place[index])
        self.outputs = {place[index] for index in graph.outputs if index in place}
        self._given_back = frozenset(graph.outputs)
        self.leaf_bytes = {i: graph.types[i].size_bytes for i, node in enumerate(nodes) if node.op in DUPLICATED}
        self._inputs = frozenset(graph.inputs)
        self._find_links()
        self._find_devices()

    def _find_links(self) -> None:
        names = [worker.node_id for worker in self.profiles.workers]
        self.links: list[list[Link]] = [[self.profiles.link(a, b) for b in names] for a in names]
        self.feeding: list[Link] = [self.profiles.link(CLIENT, name) for name in names]
        self.returning: list[Link] = [self.profiles.link(name, CLIENT) for name in names]

    def _find_devices(self) -> None:
        """Which device of each worker runs which unit, and in how many seconds; -1 where none can."""
        self.device: list[list[int]] = []
        self.seconds: list[list[float]] = []
        self.sites: list[Site] = [(w, d.index) for w, each in enumerate(self.profiles.workers) for d in each.devices]
        self.site: list[list[int]] = []  # per worker and unit, an index of `sites`
        number = {site: index for index, site in enumerate(self.sites)}
        pinned = pins(self.graph)
        check(pinned, self.profiles)
        wishes: dict[tuple[Needs, DeviceName | None], int] = {}  # what units ask of a device, each once
        asked = [wishes.setdefault((needs(self.graph, i), pinned.get(i)), len(wishes)) for i in self.units]
        work = [self._work(index) for index in self.units]
        for index, worker in enumerate(self.profiles.workers):
            able = [self._device_for(worker, *wish) for wish in wishes]
            devices = [able[wish] for wish in asked]
            self.device.append(devices)
            self.seconds.append([
                _roofline(worker.devices[device], *each) if device >= 0 else float("inf")
                for device, each in zip(devices, work, strict=True)
            ])  # fmt: skip
            self.site.append([number.get((index, device), -1) for device in devices])
        self.able: list[list[int]] = [
            [worker for worker, devices in enumerate(self.device) if devices[unit] >= 0]
            for unit in range(len(self.units))
        ]
        for choices, index in zip(self.able, self.units, strict=True):
            if not choices:
                node = self.graph.nodes[index]
                raise PlacementError(
                    f"no worker can compute {node.op} on {self.graph.types[index]}", op=f"{node.op} (node {index})",
                    next_step="Add a worker that supports it, or rewrite without it",
                )  # fmt: skip

    def _device_for(self, worker: WorkerProfile, wanted: Needs, pin: DeviceName | None) -> int:
        """The first device of a worker that supports this and is meant, or -1."""
        if any(op not in worker.ops for op, _ in wanted):
            return -1
        fit = (each for each in worker.devices if all(each.supports(*need) for need in wanted))
        return next((d.index for d in fit if pin is None or allows(pin, worker, d, self.profiles)), -1)

    @cached_property
    def by_speed(self) -> list[int]:
        """Workers, the one that would finish the whole graph first in front."""
        total = [sum(s for s in seconds if s != float("inf")) for seconds in self.seconds]
        return sorted(range(len(total)), key=lambda worker: (total[worker], worker))

    def predict(self, assignment: Assignment) -> Prediction:
        """The cost of an assignment: a worker index per unit, each able to compute it.

        An assignment of the first units only is judged as the graph so far, and its figures bound from below those of
        every assignment that continues it: another unit adds work, transfers and memory, and takes none away.
        """
        keys = self._keys(assignment)
        return self._judge(assignment, keys, self._traffic(assignment, keys))

    def arrange(self, assignment: Assignment) -> tuple[Prediction, tuple[PartSketch, ...]]:
        """The parts of an assignment in an order in which they can run, and what they cost.

        A part that needs no other, takes less than its own dispatch and feeds one part only, of its own site, becomes
        the beginning of that one, if memory allows: a mask computed early would else be a part of its own.
        """
        keys = self._keys(assignment)
        traffic = self._traffic(assignment, keys)
        prediction = self._judge(assignment, keys, traffic)
        folded = self._folded(assignment, keys, traffic)
        if folded != keys:
            other = self._judge(assignment, folded, self._traffic(assignment, folded))
            if sum(other.short_bytes) <= sum(prediction.short_bytes):
                prediction, keys = other, folded
        return prediction, self._sketches(keys)

    def part_seconds(self, part: PartSketch) -> float:
        """What the site of a part needs for it, dispatch included."""
        worker, device = part.site
        busy_s = sum(self.seconds[worker][unit] for unit in part.units)
        return self.profiles.workers[worker].devices[device].dispatch_s + busy_s

    def parts(self, assignment: Assignment) -> tuple[PartSketch, ...]:
        """The parts that `predict` judges, in an order in which they can run."""
        return self._sketches(self._keys(assignment))

    def _sketches(self, keys: Sequence[int]) -> tuple[PartSketch, ...]:
        units: dict[int, list[int]] = {}
        for unit, key in enumerate(keys):
            units.setdefault(key, []).append(unit)
        count = len(self.sites)
        return tuple(PartSketch(self.sites[key % count], key // count, tuple(units[key])) for key in sorted(units))

    def _judge(self, assignment: Assignment, keys: Sequence[int], traffic: _Traffic) -> Prediction:
        order = sorted(set(keys))
        seconds, busy_s = self._times(assignment, keys, order, traffic)
        memory, short = self._memory(keys, order, traffic)
        cut_bytes = sum(traffic.bytes_in) + sum(traffic.returned.values())
        return Prediction(tuple(short), seconds, cut_bytes, tuple(busy_s), tuple(memory), tuple(traffic.bytes_in))

    def _folded(self, assignment: Assignment, keys: list[int], traffic: _Traffic) -> list[int]:
        took = dict.fromkeys(keys, 0.0)
        for unit, key in enumerate(keys):
            took[key] += self.seconds[assignment[unit]][unit]
        readers: dict[int, list[int]] = {}
        for reader, sources in traffic.waits.items():
            for source in sources:
                readers.setdefault(source, []).append(reader)
        into: dict[int, int] = {}
        for key, (reader, *others) in readers.items():
            worker, device = self.sites[key % len(self.sites)]
            same_site = (reader - key) % len(self.sites) == 0 and not others
            alone = key not in traffic.waits and key not in traffic.returned
            if same_site and alone and took[key] < self.profiles.workers[worker].devices[device].dispatch_s:
                into[key] = reader
        return [into.get(key, key) for key in keys]

    def _keys(self, assignment: Assignment) -> list[int]:
        """The part of every unit as a number: stage * how many sites there are + site."""
        count = len(self.sites)
        keys: list[int] = []
        for unit, worker in enumerate(assignment):
            key = site = self.site[worker][unit]
            for operand in self.operands[unit]:
                before = keys[operand]
                there = before % count
                reached = before if there == site else before - there + count + site
                if reached > key:
                    key = reached
            keys.append(key)
        return keys

    def _traffic(self, assignment: Assignment, keys: Sequence[int]) -> _Traffic:
        workers, sites = len(self.profiles.workers), len(self.sites)
        traffic = _Traffic([0] * workers, held=[0] * sites)
        here: set[tuple[int, int]] = set()  # (tensor, site) already there; leaves are -1 - node
        sent: set[tuple[int, int]] = set()  # (tensor, worker) likewise
        for unit, worker in enumerate(assignment):
            key = keys[unit]
            site = key % sites
            for operand in self.operands[unit]:
                source = keys[operand]
                if source == key:
                    traffic.last[operand] = unit
                    continue
                traffic.leaving.add(operand)
                traffic.waits.setdefault(key, set()).add(source)
                size = self.out_bytes[operand]
                if (operand, site) not in here:
                    here.add((operand, site))
                    traffic.held[site] += size
                if (operand, worker) not in sent:
                    sent.add((operand, worker))
                    sends = traffic.sends.setdefault(source, {})
                    sends[worker] = sends.get(worker, 0) + size
                    if assignment[operand] != worker:
                        traffic.bytes_in[worker] += size
            for leaf in self.leaves[unit]:
                size = self.leaf_bytes[leaf]
                if (-1 - leaf, site) not in here:
                    here.add((-1 - leaf, site))
                    traffic.held[site] += size
                if leaf in self._inputs:
                    traffic.fed_parts.add(key)
                    if (-1 - leaf, worker) not in sent:
                        sent.add((-1 - leaf, worker))
                        traffic.fed[worker] = traffic.fed.get(worker, 0) + size
                        traffic.bytes_in[worker] += size
            if unit in self.outputs:
                traffic.leaving.add(unit)
                traffic.returned[key] = traffic.returned.get(key, 0) + self.out_bytes[unit]
        return traffic

    def _times(
        self, assignment: Assignment, keys: Sequence[int], order: Sequence[int], traffic: _Traffic
    ) -> tuple[float, list[float]]:
        """When the last output is back, and how long each worker computes."""
        workers, sites = self.profiles.workers, len(self.sites)
        took = {}
        for key in order:
            worker, device = self.sites[key % sites]
            took[key] = workers[worker].devices[device].dispatch_s
        for unit, key in enumerate(keys):
            took[key] += self.seconds[assignment[unit]][unit]
        fed = {worker: self.feeding[worker].seconds(size) for worker, size in traffic.fed.items()}
        free = [0.0] * sites
        busy_s = [0.0] * len(workers)
        sent: dict[tuple[int, int], float] = {}  # (part, worker) -> when its results are there
        end = 0.0
        for key in order:
            site = key % sites
            worker = self.sites[site][0]
            start = max(free[site], fed[worker]) if key in traffic.fed_parts else free[site]
            for source in traffic.waits.get(key, ()):
                start = max(start, sent[source, worker])
            finish = free[site] = start + took[key]
            busy_s[worker] += took[key]
            for target, size in traffic.sends.get(key, {}).items():
                sent[key, target] = finish + self.links[worker][target].seconds(size)
            back = traffic.returned.get(key)
            end = max(end, finish if back is None else finish + self.returning[worker].seconds(back))
        return end, busy_s

    def _memory(self, keys: Sequence[int], order: Sequence[int], traffic: _Traffic) -> tuple[list[int], list[int]]:
        """Per worker the bytes needed, and how many are missing: on its devices or within its own budget.

        The working set of a part is the most bytes of results alive at once; what leaves the part stays to its end.
        """
        workers, sites = self.profiles.workers, len(self.sites)
        alive = dict.fromkeys(order, 0)
        most = dict.fromkeys(order, 0)
        for unit, key in enumerate(keys):
            alive[key] += self.out_bytes[unit]
            if alive[key] + self.inside[unit] > most[key]:
                most[key] = alive[key] + self.inside[unit]
            for operand in self.operands[unit]:
                if traffic.last.get(operand) == unit and operand not in traffic.leaving:
                    alive[key] -= self.out_bytes[operand]
        peak: dict[int, int] = {}
        for key in order:
            peak[key % sites] = max(peak.get(key % sites, 0), most[key])
        totals, short = [0] * len(workers), [0] * len(workers)
        for site, size in peak.items():
            worker, device = self.sites[site]
            size += traffic.held[site]
            totals[worker] += size
            short[worker] += max(size - workers[worker].devices[device].memory_bytes, 0)
        short = [max(few, need - each.memory_bytes) for few, need, each in zip(short, totals, workers, strict=True)]
        return totals, short

    def leaving(self, unit: int, staying: Collection[int]) -> list[int]:
        """The nodes of a unit that the client needs, or a unit that is not among `staying`."""
        members = self.members[unit]
        if len(members) == 1:
            outside = unit in self.outputs or any(consumer not in staying for consumer in self.consumers[unit])
            return [members[0]] if outside else []
        return [index for index in members if index in self._given_back or not self.readers[index] <= set(staying)]

    def _work(self, index: int) -> Work:
        flops = self.graph.flops_of(index)
        return flops, _moved(self.graph, index), turns(self.graph.nodes[index])


def _moved(graph: WireGraph, index: int) -> int:
    """Bytes read and written; a view moves nothing, because engines fold it into whoever reads it."""
    node, types = graph.nodes[index], graph.types
    if node.op in VIEWS and node.op not in COPIED:
        return 0
    moved = [types[i].size_bytes for i in (*node.inputs, *graph.siblings.get(index, (index,)))]
    if node.op in PICKED:
        moved[0] = types[index].size_bytes
    if node.op in CONTROL:
        each = max(map(_moved_inside, inner_graphs(node.op, node.attrs)))
        moved.append(max(turns(node), 1) * each)
    return sum(moved)


@lru_cache(maxsize=1024)
def _moved_inside(graph: WireGraph) -> int:
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    return sum(_moved(graph, i) for i, n in enumerate(graph.nodes) if n.op not in DUPLICATED and i not in again)


def turns(node: Node) -> int:
    """How often a loop turns, each time with a dispatch of its own."""
    if node.op == "scan":
        length: int = node.attrs["length"]
        return length
    return WHILE_TRIPS if node.op == "while" else 0


def needs(graph: WireGraph, index: int) -> Needs:
    """What a device must support to compute a node: ops with their dtypes, also those of the graphs inside it.

    A composite itself is nothing to support.
    """
    node = graph.nodes[index]
    names = {graph.types[i].dtype.name for i in (*node.inputs, index)}
    own: Needs = frozenset({(node.op, tuple(sorted(names)))}) if node.op != "composite" else frozenset()
    return own.union(*map(_body_needs, inner_graphs(node.op, node.attrs)))


@lru_cache(maxsize=1024)
def _body_needs(body: WireGraph) -> Needs:
    inner = (index for index, node in enumerate(body.nodes) if node.op not in LEAVES)
    return frozenset().union(*(needs(body, index) for index in inner))


def graph_seconds(graph: WireGraph, device: DeviceProfile) -> float:
    """What a device needs for all of a graph, without its own dispatch."""
    flops, moved, dispatches = _all_work(graph)
    computing = np.maximum(flops / (device.gflops * 1e9 or 1.0), moved / (device.gbytes_per_s * 1e9 or 1.0))
    return float(computing.sum()) + dispatches * device.dispatch_s


@lru_cache(maxsize=64)
def _all_work(graph: WireGraph) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """By unit the flops and the bytes moved; and how often a loop turns in all of them."""
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    units = [i for i, node in enumerate(graph.nodes) if node.op not in DUPLICATED and i not in again]
    flops = np.array([graph.flops_of(i) for i in units], np.float64)
    moved = np.array([_moved(graph, i) for i in units], np.float64)
    return flops, moved, sum(turns(graph.nodes[i]) for i in units)


def _roofline(device: DeviceProfile, flops: int, moved: int, turns: int) -> float:
    return turns * device.dispatch_s + max(
        flops / (device.gflops * 1e9 or 1.0), moved / (device.gbytes_per_s * 1e9 or 1.0)
    )
