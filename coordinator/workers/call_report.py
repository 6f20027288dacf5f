"""Call report: what happened during a call, and what each worker did of it.

Plain data, ready for a table or for JSON (`dataclasses.asdict`).  Bytes and seconds throughout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from wire.bounds import REPORT_EVENTS
from wire.limits import REPORT_CHARS_MAX
from wire.protocol.messages import Deployed, NodeReport, Ran
from wire.protocol.reports import Event, PartReport, RelayReport, WorkerReport

from ..planning.model.plan import Plan

T = TypeVar("T")
EVENTS_FIRST = 64
EVENTS_LAST = REPORT_EVENTS.most - EVENTS_FIRST
TEXT_CHARS_MAX = 1000  # of an event or a reason, where a report is too long


@dataclass(slots=True)
class CallReport:
    """What happened during one call; complete once the call has ended.

    `generations` are the plans it went through: more than one means that something failed on the way.  Of many of them,
    and of many events, the first and the latest are kept; `omitted` counts the events between by their kind.
    """

    seconds: float = 0.0
    generation: int = 0
    generations: list[int] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    relayed: list[RelayReport] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    omitted: dict[str, int] = field(default_factory=dict)

    def add_generation(self, generation: int) -> None:
        """Add a plan that the call goes through, made for it or not."""
        if generation not in self.generations:
            self.generations.append(generation)
            if len(self.generations) > EVENTS_FIRST + EVENTS_LAST:
                del self.generations[EVENTS_FIRST]

    def add_event(self, event: Event) -> None:
        """Add an event.  The first and the latest are kept, and of those between, their number by kind."""
        self.events.append(event)
        if len(self.events) > EVENTS_FIRST + EVENTS_LAST:
            kind = self.events.pop(EVENTS_FIRST).kind
            self.omitted[kind] = self.omitted.get(kind, 0) + 1


def report_json(report: CallReport) -> str:
    """The report as JSON for a message.  One that is too long loses the middle of its lists, and in the end all but its
    figures."""
    fields: dict[str, Any] = asdict(report)
    lists = ["events", "relayed", "reasons", "generations"]
    for keep in _KEPT:
        text = json.dumps(fields)
        if len(text) <= REPORT_CHARS_MAX:
            return text
        for name in lists:
            fields[name] = _ends(fields[name], keep)
        for event in fields["events"]:
            event["text"] = event["text"][:TEXT_CHARS_MAX]
        fields["reasons"] = [reason[:TEXT_CHARS_MAX] for reason in fields["reasons"]]
        for worker in fields["workers"].values():
            worker["parts"] = _ends(worker["parts"], keep)
    return json.dumps({name: fields[name] for name in ("seconds", "generation", "generations")})


_KEPT = (4096, 1024, 256, 64, 16, 4, 4)


def _ends(items: Sequence[T], keep: int) -> list[T]:
    """The first and the last of a list, half of `keep` each."""
    half = keep // 2
    return list(items) if len(items) <= keep else [*items[:half], *items[len(items) - half :]]


_SOURCES = tuple((source, f"bytes_{source}") for source in ("socket", "shared", "disk", "resident", "client"))


def worker_report(plan: Plan, node: NodeReport, ran: Ran, deployed: Sequence[Deployed]) -> WorkerReport:
    """The report on a worker's parts, from its own answers; `deployed` are those not reported before."""
    engines = {device.index: device.engine for device in node.devices}  # it may have given one up since
    parts = tuple(
        PartReport(run.part, engines.get(part.device, ""), len(part.graph), run.compute_s, run.wait_s)
        for run in ran.parts
        for part in plan.parts[run.part : run.part + 1]
    )
    return WorkerReport(
        node.name,
        node.node_id,
        parts,
        ran.bytes_in,
        ran.bytes_out,
        sum([part.compute_s for part in parts]),
        sum([part.wait_s for part in parts]),
        {source: sum(getattr(each, name) for each in deployed) if deployed else 0 for source, name in _SOURCES},
        sum(each.compile_s for each in deployed),
        sum(each.compiled for each in deployed),
        sum(each.from_cache for each in deployed),
    )
