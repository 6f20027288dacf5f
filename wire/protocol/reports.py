"""Reports of calls: events, and each worker's share.  Travels as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..units import counted, size_text


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling; `at_s` is on the coordinator's monotonic clock.

    `kind` is joined, suspect, probed (a peer tried to reach it), healthy, dead, stuck (a part takes far too long),
    unstuck, paused (it takes no work), resumed, waiting (no worker takes work, and why), pace (it is slower than it
    was, or as fast again), moved (a program gets another plan for that), wrong, doubted (audits disagree),
    quarantined, leaving, devices (it gave one up), planned, deployed, guarded (workers keep weights for each other),
    restored (one made again what was lost), began (a worker's first part of a step started) or ran (all its parts did).
    """

    at_s: float
    kind: str
    node: str
    text: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class PartReport:
    """One part of the graph, with its number of nodes, on one device; `wait_s` is until its last input was there."""

    part: int
    engine: str
    nodes: int
    compute_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class RelayReport:
    """What one worker sent to another through the coordinator, because the two cannot connect."""

    source: str
    target: str
    tensors: int
    size_bytes: int

    def __str__(self) -> str:
        sent = f"{counted(self.tensors, 'tensor')}, {size_text(self.size_bytes)}"
        return f"{self.source} to {self.target}: {sent} through the coordinator"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's share.  `weight_bytes` is by source: "socket", "shared" (memory), "disk", "resident", and "client",
    which is what of the first two the client or coordinator sent; it and the kernel counts are those of the deployments
    made for this call, by plans that were given up, too.  A repeated call shows zeros."""

    name: str
    node_id: str
    parts: tuple[PartReport, ...]
    bytes_in: int
    bytes_out: int
    compute_s: float
    wait_s: float
    weight_bytes: Mapping[str, int]
    compile_s: float
    kernels_compiled: int
    kernels_cached: int

    @property
    def weight_bytes_moved(self) -> int:
        """Bytes of weights that went from one process to another for this call."""
        return self.weight_bytes["socket"] + self.weight_bytes["shared"]
