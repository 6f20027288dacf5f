"""Report: what one call did where, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wire.protocol.reports import Event, PartReport, RelayReport, WorkerReport

from ..util.units import counted, size_text, time_text


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """One call.  `generations` are the plans it went through; more than one means that something failed on the way.

    `relayed` is what workers that cannot connect sent each other through the coordinator.  Of many events the first 64
    and the latest 192 are kept, and `omitted` counts those between by their kind.
    """

    seconds: float
    generation: int
    generations: tuple[int, ...]
    reasons: tuple[str, ...]
    workers: Mapping[str, WorkerReport]
    events: tuple[Event, ...]
    relayed: tuple[RelayReport, ...] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        who = ", ".join(self.workers) or (self.reasons[0] if self.reasons else "nobody yet")
        plans = f", by {counted(len(self.generations), 'plan')}" if len(self.generations) > 1 else ""
        moved = size_text(self.weight_bytes_moved)
        return f"<Report: {time_text(self.seconds)} on {who}{plans}, {moved} of weights moved>"

    @property
    def weight_bytes_moved(self) -> int:
        """Bytes of weights that went from one process to another for this call."""
        return sum(worker.weight_bytes_moved for worker in self.workers.values())

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
            tuple(Event(**event) for event in data.get("events", ())),
            tuple(RelayReport(**each) for each in data.get("relayed", ())),
            dict(data.get("omitted", {})),
        )


def _worker(data: Mapping[str, Any]) -> WorkerReport:
    return WorkerReport(**{**data, "parts": tuple(PartReport(**part) for part in data["parts"])})
