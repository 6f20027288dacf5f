"""Report: what one call did where, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wire.protocol.reports import Event, PartReport, RelayReport, WorkerReport

from ..util.units import counted, size_text, time_text


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What one call did, and where; `Mesh.report` and `Job.report` return it.

    Parameters
    ----------
    seconds : float
        Seconds from its beginning to its end.
    generation : int
        The number of the plan that it ended with.
    generations : tuple of int
        The plans that it went through.  More than one means that something failed on the way.
    reasons : tuple of str
        Why it was planned so.
    workers : mapping of str to WorkerReport
        What each worker did, by its name.
    events : tuple of Event
        What happened, in order.  Of many events the first 64 and the latest 192 are kept.
    relayed : tuple of RelayReport, optional
        What workers that cannot connect sent each other through the coordinator.
    omitted : mapping of str to int, optional
        How many events are not in `events`, by their kind.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(1).build() as m:
    ...     y = m.run(lambda x: x + 1, np.zeros(2))
    ...     report = m.report()
    >>> sorted(report.as_dict())[:3], report.weight_bytes_moved
    (['events', 'generation', 'generations'], 0)
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
        """Return the report as plain data.

        Returns
        -------
        dict
            The fields by name, with dicts in place of reports and events.
        """
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Report:
        """Make a report of the coordinator's plain data.

        Parameters
        ----------
        data : mapping
            The fields by name.

        Returns
        -------
        Report
            The report.

        Examples
        --------
        >>> from mesh.client.report import Report
        >>> Report.of({"seconds": 0.25, "reasons": ["computed in this process"]})
        <Report: 250 ms on computed in this process, 0 B of weights moved>
        """
        workers = {name: _worker(worker) for name, worker in data.get("workers", {}).items()}
        return Report(
            float(data.get("seconds", 0.0)),
            int(data.get("generation", 0)),
            tuple(data.get("generations", ())),
            tuple(data.get("reasons", ())),
            workers,
            tuple(Event(**event) for event in data.get("events", ())),
            tuple(RelayReport(**relay) for relay in data.get("relayed", ())),
            dict(data.get("omitted", {})),
        )


def _worker(data: Mapping[str, Any]) -> WorkerReport:
    return WorkerReport(**{**data, "parts": tuple(PartReport(**part) for part in data["parts"])})
