"""What the planner knows of the machines: devices as measured, memory, ops in common, links.

Plain frozen data; `worker_profile` makes it of what a worker reported when it joined.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from wire.cached_property import cached_property
from wire.errors import ProtocolError
from wire.protocol.engine_names import ON_CPU
from wire.protocol.messages import COORDINATOR_NODE, DeviceReport, Joined

TENSOR_LIMITS = ("binding_bytes", "buffer_bytes")  # of a device whose engine does not name its `tensor_bytes`
FIGURE_MAX = 1e12  # of a device: what is larger is no measurement, and sums of it may be endless
CLIENT = COORDINATOR_NODE  # the node id that stands for the process that holds inputs and needs outputs


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """`gflops` and `gbytes_per_s` were measured; `dispatch_s` is the fixed cost of running one part."""

    index: int
    engine: str
    adapter: str
    gflops: float
    gbytes_per_s: float
    dispatch_s: float
    memory_bytes: int
    dtypes_by_op: Mapping[str, tuple[str, ...]] = field(hash=False, default_factory=dict)
    slower: float = 1.0  # than measured; the figures say so already
    arithmetic: str = ""  # what rounds there: devices of one engine for which this is the same have the same bits
    tensor_bytes_max: float = math.inf  # of one tensor that a kernel reads or writes

    def supports(self, op: str, dtypes: Sequence[str], tensor_bytes: int = 0) -> bool:
        """Whether it computes `op` where result and operands have these dtypes, and take so much memory at most."""
        known = self.dtypes_by_op.get(op, ())
        return tensor_bytes <= self.tensor_bytes_max and all(dtype in known for dtype in dtypes)

    def slowed(self, times: float) -> DeviceProfile:
        """A copy of the device on which everything takes `times` times as long."""
        if times == 1.0:
            return self
        return replace(
            self,
            gflops=self.gflops / times,
            gbytes_per_s=self.gbytes_per_s / times,
            dispatch_s=self.dispatch_s * times,
            slower=self.slower * times,
        )


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """A worker: its devices in the order its owner prefers them, the cpu last; `ops` mean the same here and there."""

    node_id: str
    name: str
    devices: tuple[DeviceProfile, ...]
    memory_bytes: int
    ops: frozenset[str]
    trusted: bool = True  # False: it is on another person's machine, as its token says

    def __hash__(self) -> int:
        return hash(self.node_id)  # plans are found by the profiles of a thousand: their figures are left to ==


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two nodes: seconds until the first byte, and bytes per second after it.

    With `relayed` it leads through the coordinator, because neither end can dial the other.
    """

    latency_s: float
    bytes_per_s: float
    relayed: bool = False

    def seconds(self, size_bytes: int) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s


# What a hop costs with all its messages (bench/overhead.py), not what the medium could do.
INSIDE = Link(2e-4, 4e9)  # between two devices of one worker: one copy through memory
SAME_HOST = Link(5e-4, 1.5e9)  # shared memory: two copies
LAN = Link(1e-3, 1e8)  # gigabit Ethernet


@dataclass(frozen=True)
class Profiles:
    """The workers a plan may use and how far apart they are; `near` are those on the client's own machine.

    `exchanging` says of workers how many times as long as priced their collectives took of late
    (`coordinator/workers/collective_calibration.py`).
    """

    workers: tuple[WorkerProfile, ...]
    near: frozenset[str] = frozenset()
    links: Mapping[tuple[str, str], Link] = field(hash=False, default_factory=dict)
    exchanging: Mapping[str, float] = field(hash=False, default_factory=dict)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.workers, self.near))

    def link(self, source: str, target: str) -> Link:
        """The link from one node to another; a measured link wins over the defaults."""
        measured = self.links.get((source, target))
        if measured is not None:
            return measured
        if source == target:
            return INSIDE
        both_near = all(node == CLIENT or node in self.near for node in (source, target))
        return SAME_HOST if both_near else LAN

    def sends_zeros(self, source: str, target: str) -> bool:
        """Whether the zeros at the end of a tensor go from one worker to another, too: they stay behind only between
        machines."""
        return source == target or {source, target} <= self.near or self.link(source, target).relayed

    def arithmetic(self, node: str, device: int) -> str:
        """The arithmetic of a device, "" where that is not known."""
        workers = (worker for worker in self.workers if worker.node_id == node)
        return next((worker.devices[device].arithmetic for worker in workers if device < len(worker.devices)), "")

    def exchange_factor(self, nodes: Iterable[str]) -> float:
        """The factor by which collectives among these workers take longer than priced."""
        return max((self.exchanging.get(node, 1.0) for node in nodes), default=1.0)

    def best(self, count: int, named: Collection[str] = ()) -> Profiles:
        """`count` of the workers, three quarters of them the fastest, the others those with most memory, in order; and
        those that are `named`, by name or id."""
        order = range(len(self.workers))
        fastest = sorted(order, key=lambda i: -max(device.gflops for device in self.workers[i].devices))
        roomiest = sorted(order, key=lambda i: -self.workers[i].memory_bytes)
        chosen = dict.fromkeys(fastest[: count - count // 4])
        chosen.update(dict.fromkeys([i for i in roomiest if i not in chosen][: count // 4]))
        named_too = (i for i in order if named and {self.workers[i].node_id, self.workers[i].name} & set(named))
        chosen.update(dict.fromkeys(named_too))
        return replace(self, workers=tuple(self.workers[i] for i in sorted(chosen)))

    def with_memory(self, sizes: Iterable[int]) -> Profiles:
        """A copy in which workers have these budgets of memory, in bytes."""
        pairs = zip(self.workers, sizes, strict=True)
        return replace(self, workers=tuple(replace(worker, memory_bytes=size) for worker, size in pairs))

    def without(self, node: str) -> Profiles:
        """The profiles once this worker is gone."""
        links = {way: link for way, link in self.links.items() if node not in way}
        left = tuple(worker for worker in self.workers if worker.node_id != node)
        exchanging = {other: factor for other, factor in self.exchanging.items() if other != node}
        return Profiles(left, self.near - {node}, links, exchanging)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The position of every worker, by its id."""
        return {worker.node_id: place for place, worker in enumerate(self.workers)}

    @cached_property
    def accelerators(self) -> list[tuple[str, int]]:
        """All devices that are no cpu, by worker and index, in the order of workers' names."""
        workers = sorted(self.workers, key=lambda worker: worker.name)
        return [(worker.node_id, d.index) for worker in workers for d in worker.devices if d.engine not in ON_CPU]

    @cached_property
    def twins(self) -> list[int]:
        """The twin of every worker: the last before it that differs in name only, or -1.

        To swap the two changes no cost.
        """
        kinds: dict[tuple[object, ...], list[list[int]]] = {}  # workers alike but for measured links, by classes
        twins = []
        for index, worker in enumerate(self.workers):
            classes = kinds.setdefault(
                (worker.devices, worker.memory_bytes, worker.ops, worker.node_id in self.near), []
            )
            mine = next(
                (alike for alike in classes if self._swappable(self.workers[alike[0]].node_id, worker.node_id)), None
            )
            twins.append(mine[-1] if mine else -1)
            if mine:
                mine.append(index)
            else:
                classes.append([index])
        return twins

    def _swappable(self, one: str, two: str) -> bool:
        """Whether the measured links of two workers are the same, each seen from its own end."""
        swapped = {one: two, two: one}
        return all(
            self.link(source, target) == self.link(swapped.get(source, source), swapped.get(target, target))
            for node in swapped
            for source, target in self._measured.get(node, ())
        )

    @cached_property
    def _measured(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """The measured ways to and from a node."""
        measured: dict[str, list[tuple[str, str]]] = {}
        for way in self.links:
            for node in set(way):
                measured.setdefault(node, []).append(way)
        return measured


def worker_profile(node_id: str, name: str, joined: Joined, ops: frozenset[str]) -> WorkerProfile:
    """The profile of a worker from its own report; ProtocolError for a report that no plan can be made by."""
    if not joined.devices or [report.index for report in joined.devices] != [*range(len(joined.devices))]:
        raise ProtocolError("a worker has no devices, or does not number them 0, 1, 2, ...", node=name)
    if any(max(report.gflops, report.gbytes_per_s, report.dispatch_s) > FIGURE_MAX for report in joined.devices):
        raise ProtocolError("a worker has a device of endless speed", node=name)
    return WorkerProfile(node_id, name, tuple(_device(report) for report in joined.devices), joined.memory_bytes, ops)


def _device(report: DeviceReport) -> DeviceProfile:
    limits = [report.limits[name] for name in TENSOR_LIMITS if name in report.limits]
    return DeviceProfile(
        report.index,
        report.engine,
        report.adapter,
        report.gflops,
        report.gbytes_per_s,
        report.dispatch_s,
        report.memory_bytes,
        _shared(tuple(report.dtypes_by_op.items())),
        arithmetic=report.driver,
        tensor_bytes_max=report.limits.get("tensor_bytes", min(limits, default=math.inf)),
    )


@lru_cache(maxsize=256)
def _shared(dtypes_by_op: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[str, tuple[str, ...]]:
    """One table for all devices that report the same: with many workers, one each would take more memory than all
    else."""
    return dict(dtypes_by_op)
