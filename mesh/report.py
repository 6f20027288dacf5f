"""Report: what one call did where, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PartReport:
    """One part of the graph on one device; `wait_s` is how long it waited for its last input."""

    part: int
    engine: str
    nodes: int
    compute_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's share.  `weight_bytes` is by source: "socket", "shared" (memory), "disk", "resident"; it and the
    kernel counts are those of deployments made for this call, so a repeated call shows zeros."""

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


@dataclass(frozen=True, slots=True)
class EventReport:
    """Something that happened during the call: joined, suspect, healthy, dead, leaving, planned, deployed, began."""

    at_s: float
    kind: str
    node: str
    text: str
    generation: int


@dataclass(frozen=True, slots=True)
class Report:
    """One call.  `generations` are the plans it went through; more than one means that something failed on the way."""

    seconds: float
    generation: int
    generations: tuple[int, ...]
    reasons: tuple[str, ...]
    workers: Mapping[str, WorkerReport]
    events: tuple[EventReport, ...]

    @property
    def weight_bytes_moved(self) -> int:
        """Bytes of weights that went from one process to another for this call."""
        moved = ("socket", "shared")
        return sum(worker.weight_bytes[source] for worker in self.workers.values() for source in moved)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Report:
        """A report from the coordinator's plain data."""
        workers = {name: _worker(worker) for name, worker in data.get("workers", {}).items()}
        return Report(
            float(data.get("seconds", 0.0)),
            int(data.get("generation", 0)),
            tuple(data.get("generations", ())),
            tuple(data.get("reasons", ())),
            workers,
            tuple(EventReport(**event) for event in data.get("events", ())),
        )


def _worker(data: Mapping[str, Any]) -> WorkerReport:
    return WorkerReport(**{**data, "parts": tuple(PartReport(**part) for part in data["parts"])})
