"""The cost model: what an assignment of a graph's nodes to workers is predicted to take.

`CostModel(graph, profiles)` derives once what every assignment shares; `predict(assignment)` is then the one cost
function: the partitioner minimises it, the plan states it, tests compare it against brute force.

`assignment[unit]` is the index of a worker (`graph_index.py` says what a unit is).  A unit runs on its worker's first
device that supports it.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from wire.cached_property import cached_property
from wire.errors import PlacementError
from wire.ir.device_names import DeviceName
from wire.ir.graph import WireGraph
from wire.protocol.engine_names import CPU
from wire.units import need_text, room_text

from .device_constraints import allows, check_devices, pins
from .graph_index import GraphIndex, GraphNode, Unit
from .profiles import CLIENT, Link, Profiles, WorkerProfile
from .unit_work import Kind, Needs, kinds_of, needs, tensor_bytes

T = TypeVar("T")

REPLAN_S = 0.05  # what going over to another plan takes in any case: planning, and messages
Assignment = Sequence[int]  # by unit a worker index
Site = tuple[int, int]  # worker index, device index
SiteIndex = int  # a position in `CostModel.sites`
PartKey = int  # a part: its stage times the number of sites, plus the index of its site
LIMITS_NAMED = 4  # of devices, in an error


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
    """What crosses the borders of parts, for one assignment."""

    bytes_in: list[int]  # per worker: inputs and other workers' results
    held: list[int]  # per site: bytes of leaves and of results of other parts
    input_bytes: dict[int, int] = field(default_factory=dict)  # worker -> bytes of inputs
    with_inputs: set[PartKey] = field(default_factory=set)  # parts that read inputs
    sends: dict[PartKey, dict[int, int]] = field(default_factory=dict)  # part -> worker -> bytes
    waits: dict[PartKey, set[PartKey]] = field(default_factory=dict)  # part -> the parts that it waits for
    returned: dict[PartKey, int] = field(default_factory=dict)  # part -> bytes for the client
    leaving: set[Unit] = field(default_factory=set)  # units whose result outlives their part
    last_reader: list[Unit] = field(default_factory=list)  # by unit its last consumer in the same part, -1 if none


class CostModel:
    """A graph on a set of machines.  PlacementError if some unit can run nowhere.

    `device`, `site` and `seconds` are by worker and unit: the first device that can compute the unit, its site, and how
    long it takes there; -1, -1 and infinity where the worker cannot.  `able` are by unit the workers that can, and
    `sent_bytes` what others may be sent of its results.
    """

    def __init__(
        self,
        graph: WireGraph,
        profiles: Profiles,
        index: GraphIndex | None = None,
        pinned: Mapping[int, DeviceName] | None = None,
    ) -> None:
        self.graph = graph
        self.profiles = profiles
        self.pinned = {**(pinned or {}), **pins(graph)}  # by node: the device it is to be computed on
        self.index = index or GraphIndex.of(graph)
        names = [worker.node_id for worker in profiles.workers]
        self._links: dict[tuple[int, int], Link] = {}
        self.to_worker: list[Link] = [profiles.link(CLIENT, name) for name in names]
        self.to_client: list[Link] = [profiles.link(name, CLIENT) for name in names]
        self._near = frozenset(number for number, name in enumerate(names) if name in profiles.near)
        self.sites: list[Site] = [(w, d.index) for w, worker in enumerate(profiles.workers) for d in worker.devices]
        self._by_numpy = [device.engine == CPU for worker in profiles.workers for device in worker.devices]  # by site
        check_devices(self.pinned, profiles)
        self._kinds, self.kind_of = self._kinds_of_units()
        devices = [self._devices(worker) for worker in profiles.workers]
        number = {site: index for index, site in enumerate(self.sites)}
        sites = [[number.get((worker, device), -1) for device in row] for worker, row in enumerate(devices)]
        seconds = [self._seconds(*row) for row in zip(profiles.workers, devices, strict=True)]
        self.device: list[Sequence[int]] = self._by_unit(devices)
        self.site: list[Sequence[SiteIndex]] = self._by_unit(sites)
        self.seconds: list[Sequence[float]] = self._by_unit(seconds)
        able = [[w for w, row in enumerate(devices) if row[kind] >= 0] for kind in range(len(self._kinds))]
        self.able: Sequence[Sequence[int]] = [able[kind] for kind in self.kind_of]
        self._check_able()
        self._returned = self._find_returned()
        self.sent_bytes = self._bytes_of_units()
        self._readers = [(unit, leaves) for unit, leaves in enumerate(self.index.leaves) if leaves]

    def _kinds_of_units(self) -> tuple[list[tuple[Kind, DeviceName | None]], list[int]]:
        """The kinds of units with the devices that they are pinned to, and which of these each unit is."""
        of, each = kinds_of(self.graph)
        if not self.pinned:
            return [(kind, None) for kind in each], [*of]
        pairs = [(kind, self.pinned.get(node)) for kind, node in zip(of, self.index.units, strict=True)]
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        return [(each[kind], pin) for kind, pin in numbers], [numbers[pair] for pair in pairs]

    def _find_returned(self) -> list[tuple[Unit, GraphNode]]:
        """The results that the client is sent, each with the unit that makes it."""
        returned, units = self.index.returned, self.index.outputs
        return [(unit, node) for unit in sorted(units) for node in self.index.members[unit] if node in returned]

    def _bytes_of_units(self) -> list[int]:
        """The bytes of those results of each unit that others read, as they travel between most workers."""
        near = len(self._near) == len(self.profiles.workers)
        sizes = [0] * len(self.index.units)
        sent = self.index.read_bytes if near else {**self.index.read_bytes, **self.index.sent_bytes}
        for unit, node in {pair: None for reads in self.index.reads for pair in reads}:
            sizes[unit] += sent[node]
        return sizes

    def _by_unit(self, rows: Sequence[Sequence[T]]) -> list[Sequence[T]]:
        """Rows by kind as rows by unit; workers that are alike share one."""
        made: dict[tuple[T, ...], Sequence[T]] = {}
        for row in map(tuple, rows):
            if row not in made:
                made[row] = [row[kind] for kind in self.kind_of]
        return [made[tuple(row)] for row in rows]

    def _devices(self, worker: WorkerProfile) -> list[int]:
        """The device that a worker has for each kind, or -1.  Every demand is looked up once."""
        known: dict[tuple[Needs, DeviceName | None], int] = {}
        for kind, pin in self._kinds:
            if (kind.needs, pin) not in known:
                known[kind.needs, pin] = self._device_for(worker, kind.needs, pin)
        return [known[kind.needs, pin] for kind, pin in self._kinds]

    def _device_for(self, worker: WorkerProfile, wanted: Needs, pin: DeviceName | None) -> int:
        """The first device of a worker that supports this and that the pin allows, or -1."""
        if any(need.op not in worker.ops for need in wanted):
            return -1
        for device in worker.devices:
            supported = all(device.supports(*need) for need in wanted)
            if supported and (pin is None or allows(pin, worker, device, self.profiles)):
                return device.index
        return -1

    def _seconds(self, worker: WorkerProfile, devices: Sequence[int]) -> list[float]:
        """What a unit of each kind takes on these devices of a worker."""
        pairs = zip(self._kinds, devices, strict=True)
        return [kind.seconds(worker.devices[device]) if device >= 0 else float("inf") for (kind, _), device in pairs]

    def _check_able(self) -> None:
        for able, index in zip(self.able, self.index.units, strict=True):
            if not able:
                raise self._unable(index)

    def _unable(self, index: int) -> PlacementError:
        """The error for a node that no device computes.  It names the limits of those that lack nothing but size."""
        node, size = self.graph.nodes[index], tensor_bytes(self.graph, index)
        wanted = needs(self.graph, index)
        narrow = [
            f"{device.engine} of {worker.name} takes {room_text(device.tensor_bytes_max)}"
            for worker in self.profiles.workers
            for device in worker.devices
            if device.tensor_bytes_max < size and all(device.supports(need.op, need.dtypes) for need in wanted)
        ]
        large = f" with a tensor of {need_text(size)}: {', '.join(narrow[:LIMITS_NAMED])}" if narrow else ""
        return PlacementError(
            f"no worker can compute {node.op} on {self.graph.types[index]}{large}",
            op=f"{node.op} (node {index})",
            next_step="Cut the tensor, or add a worker that computes on its CPU"
            if narrow
            else "Add a worker that supports it, or rewrite without it",
        )

    @cached_property
    def by_speed(self) -> list[int]:
        """Workers, the one that would finish the whole graph first in front."""
        total = [_finite_sum(seconds) for seconds in self.seconds]
        return sorted(range(len(total)), key=lambda worker: (total[worker], worker))

    def link(self, source: int, target: int) -> Link:
        """The link from one worker to another, by their positions.  Of many workers, few pairs are ever asked for."""
        link = self._links.get((source, target))
        if link is None:
            workers = self.profiles.workers
            link = self.profiles.link(workers[source].node_id, workers[target].node_id)
            self._links[source, target] = link
        return link

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
        """The seconds that a part takes on its site, dispatch included."""
        worker, device = part.site
        busy_s = sum(self.seconds[worker][unit] for unit in part.units)
        return self.profiles.workers[worker].devices[device].dispatch_s + busy_s

    def parts(self, assignment: Assignment) -> tuple[PartSketch, ...]:
        """The parts that `predict` judges, in an order in which they can run."""
        return self._sketches(self._keys(assignment))

    def _sketches(self, keys: Sequence[PartKey]) -> tuple[PartSketch, ...]:
        units: dict[PartKey, list[Unit]] = {}
        for unit, key in enumerate(keys):
            units.setdefault(key, []).append(unit)
        count = len(self.sites)
        return tuple(PartSketch(self.sites[key % count], key // count, tuple(units[key])) for key in sorted(units))

    def _judge(self, assignment: Assignment, keys: Sequence[PartKey], traffic: _Traffic) -> Prediction:
        order = sorted(set(keys))
        seconds, busy_s = self._times(self._part_seconds(assignment, keys), order, traffic)
        memory, short = self._memory(keys, order, traffic)
        cut_bytes = sum(traffic.bytes_in) + sum(traffic.returned.values())
        return Prediction(tuple(short), seconds, cut_bytes, tuple(busy_s), tuple(memory), tuple(traffic.bytes_in))

    def _folded(self, assignment: Assignment, keys: list[PartKey], traffic: _Traffic) -> list[PartKey]:
        """Fold each small first part into the only part that reads it (see `arrange`)."""
        computing_s = dict.fromkeys(keys, 0.0)
        for unit, key in enumerate(keys):
            computing_s[key] += self.seconds[assignment[unit]][unit]
        readers: dict[PartKey, list[PartKey]] = {}
        for reader, sources in traffic.waits.items():
            for source in sources:
                readers.setdefault(source, []).append(reader)
        into: dict[PartKey, PartKey] = {}
        for key, (reader, *others) in readers.items():
            worker, device = self.sites[key % len(self.sites)]
            same_site = (reader - key) % len(self.sites) == 0 and not others
            alone = key not in traffic.waits and key not in traffic.returned
            if same_site and alone and computing_s[key] < self.profiles.workers[worker].devices[device].dispatch_s:
                into[key] = reader
        return [into.get(key, key) for key in keys]

    def _keys(self, assignment: Assignment) -> list[PartKey]:
        """The part of every unit."""
        count = len(self.sites)
        operands_of = self.index.operands
        keys: list[PartKey] = []
        for unit, worker in enumerate(assignment):
            key = site = self.site[worker][unit]
            for operand in operands_of[unit]:
                before = keys[operand]
                before_site = before % count
                reached = before if before_site == site else before - before_site + count + site
                if reached > key:
                    key = reached
            keys.append(key)
        return keys

    def _traffic(self, assignment: Assignment, keys: Sequence[PartKey]) -> _Traffic:
        traffic = _Traffic([0] * len(self.profiles.workers), [0] * len(self.sites))
        self._count_results(traffic, assignment, keys)
        self._count_leaves(traffic, assignment, keys)
        types = self.graph.types
        for unit, node in self._returned:
            if unit < len(keys):
                key = keys[unit]
                traffic.leaving.add(unit)
                traffic.returned[key] = traffic.returned.get(key, 0) + types[node].size_bytes
        return traffic

    def _count_results(self, traffic: _Traffic, assignment: Assignment, keys: Sequence[PartKey]) -> None:
        """Results that a part reads of another: held once per site, sent once per worker."""
        sites, reads_of, read_bytes, sent_bytes = (
            len(self.sites), self.index.reads, self.index.read_bytes, self.index.sent_bytes,
        )  # fmt: skip
        held: set[tuple[GraphNode, SiteIndex]] = set()
        sent: set[tuple[GraphNode, int]] = set()  # to a worker
        last_reader = traffic.last_reader = [-1] * len(keys)
        for unit, key in enumerate(keys):
            for operand, node in reads_of[unit]:
                source = keys[operand]
                if source == key:
                    last_reader[operand] = unit
                    continue
                worker = assignment[unit]
                traffic.leaving.add(operand)
                traffic.waits.setdefault(key, set()).add(source)
                site = key % sites
                if (node, site) not in held:
                    held.add((node, site))
                    traffic.held[site] += read_bytes[node]
                if (node, worker) not in sent:
                    sent.add((node, worker))
                    size = read_bytes[node]
                    if node in sent_bytes and self._leaves_zeros(assignment[operand], worker):
                        size = sent_bytes[node]
                    sends = traffic.sends.setdefault(source, {})
                    sends[worker] = sends.get(worker, 0) + size
                    if assignment[operand] != worker:
                        traffic.bytes_in[worker] += size

    def _leaves_zeros(self, source: int, target: int) -> bool:
        """Whether zeros at the end of a tensor do not go from one worker to another."""
        workers = self.profiles.workers
        return not self.profiles.sends_zeros(workers[source].node_id, workers[target].node_id)

    def _count_leaves(self, traffic: _Traffic, assignment: Assignment, keys: Sequence[PartKey]) -> None:
        """Leaves that a part reads: held once per site; the inputs among them are sent once per worker."""
        sites, leaf_bytes, inputs = len(self.sites), self.index.leaf_bytes, self.index.inputs
        held: list[set[GraphNode]] = [set() for _ in self.sites]
        sent: set[tuple[GraphNode, int]] = set()  # to a worker
        for unit, leaves in self._readers:
            if unit >= len(keys):
                break
            key = keys[unit]
            here = held[key % sites]
            for leaf in leaves:
                here.add(leaf)
                if leaf in inputs:
                    worker, size = assignment[unit], leaf_bytes[leaf]
                    traffic.with_inputs.add(key)
                    if (leaf, worker) not in sent:
                        sent.add((leaf, worker))
                        traffic.input_bytes[worker] = traffic.input_bytes.get(worker, 0) + size
                        traffic.bytes_in[worker] += size
        for site, read in enumerate(held):
            traffic.held[site] += sum(map(leaf_bytes.__getitem__, read))

    def _part_seconds(self, assignment: Assignment, keys: Sequence[PartKey]) -> dict[PartKey, float]:
        """What each part takes, dispatch included."""
        workers, sites = self.profiles.workers, len(self.sites)
        seconds: dict[PartKey, float] = {}
        for unit, key in enumerate(keys):
            if key not in seconds:
                worker, device = self.sites[key % sites]
                seconds[key] = workers[worker].devices[device].dispatch_s
            seconds[key] += self.seconds[assignment[unit]][unit]
        return seconds

    def _times(
        self, part_s: Mapping[PartKey, float], order: Sequence[PartKey], traffic: _Traffic
    ) -> tuple[float, list[float]]:
        """The time at which the last output is back, and how long each worker computes."""
        sites = len(self.sites)
        inputs_s = self._inputs_seconds(traffic.input_bytes)
        free_s = [0.0] * sites
        busy_s = [0.0] * len(self.profiles.workers)
        arrived_s: dict[tuple[PartKey, int], float] = {}  # (part, worker) -> when its results are there
        returned: list[tuple[float, int, int]] = []
        end_s = 0.0
        for key in order:
            site = key % sites
            worker = self.sites[site][0]
            start_s = max(free_s[site], inputs_s[worker]) if key in traffic.with_inputs else free_s[site]
            for source in traffic.waits.get(key, ()):
                start_s = max(start_s, arrived_s[source, worker])
            finish_s = free_s[site] = start_s + part_s[key]
            busy_s[worker] += part_s[key]
            for target, size in traffic.sends.get(key, {}).items():
                arrived_s[key, target] = finish_s + self.link(worker, target).seconds(size)
            end_s = max(end_s, finish_s)
            if key in traffic.returned:
                returned.append((finish_s, worker, traffic.returned[key]))
        return max(end_s, self._back_seconds(returned)), busy_s

    def _inputs_seconds(self, input_bytes: Mapping[int, int]) -> dict[int, float]:
        """The time at which each worker has its inputs.  The client copies those of the workers on its machine one
        after another."""
        near_bytes = sum(size for worker, size in input_bytes.items() if worker in self._near)
        return {
            worker: self.to_worker[worker].seconds(near_bytes if worker in self._near else size)
            for worker, size in input_bytes.items()
        }

    def _back_seconds(self, returned: Sequence[tuple[float, int, int]]) -> float:
        """The time at which the client has the last of what is returned: (when it is made, worker, bytes) each.  It
        copies what the workers of its machine return one after another."""
        end_s = free_s = 0.0
        for finish_s, worker, size in sorted(returned, key=itemgetter(0)):
            link, near = self.to_client[worker], worker in self._near
            back_s = (max(finish_s, free_s) if near else finish_s) + link.seconds(size)
            free_s = back_s - link.latency_s if near else free_s
            end_s = max(end_s, back_s)
        return end_s

    def _memory(
        self, keys: Sequence[PartKey], order: Sequence[PartKey], traffic: _Traffic
    ) -> tuple[list[int], list[int]]:
        """The bytes that each worker needs, and how many are missing: on its devices or within its own budget."""
        workers, sites = self.profiles.workers, len(self.sites)
        working = self._working_sets(keys, order, traffic)
        peak: dict[SiteIndex, int] = {}
        for key in order:
            peak[key % sites] = max(peak.get(key % sites, 0), working[key])
        totals, short = [0] * len(workers), [0] * len(workers)
        for site, size in peak.items():
            worker, device = self.sites[site]
            size += traffic.held[site]
            totals[worker] += size
            short[worker] += max(size - workers[worker].devices[device].memory_bytes, 0)
        budgets = (worker.memory_bytes for worker in workers)
        short = [max(few, need - budget) for few, need, budget in zip(short, totals, budgets, strict=True)]
        return totals, short

    def _working_sets(self, keys: Sequence[PartKey], order: Sequence[PartKey], traffic: _Traffic) -> dict[PartKey, int]:
        """The most bytes of results alive at once in each part; what leaves a part stays to its end."""
        index, sites = self.index, len(self.sites)
        out_bytes, operands_of = index.out_bytes, index.operands
        scratch = [index.numpy_scratch_bytes if numpy else index.scratch_bytes for numpy in self._by_numpy]
        last_reader, leaving = traffic.last_reader, traffic.leaving
        alive = dict.fromkeys(order, 0)
        most = dict.fromkeys(order, 0)
        for unit, key in enumerate(keys):
            now = alive[key] + out_bytes[unit]
            needed = now + scratch[key % sites][unit]
            if needed > most[key]:
                most[key] = needed
            for operand in operands_of[unit]:
                if last_reader[operand] == unit and operand not in leaving:
                    now -= out_bytes[operand]
            alive[key] = now
        return most


def _finite_sum(seconds: Sequence[float]) -> float:
    total = sum(seconds)
    return total if total != float("inf") else sum([each for each in seconds if each != float("inf")])
