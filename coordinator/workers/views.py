"""What people are told: nodes, events, and what a call did where.

Plain data, ready for a table or for JSON (`dataclasses.asdict`).  Bytes and seconds throughout.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from wire.limits import REPORT_CHARS_MAX
from wire.protocol.messages import Deployed, DeviceReport, Ran
from wire.protocol.reports import Event, PartReport, RelayReport, WorkerReport

from ..planning.model.plan import Plan

EVENTS_FIRST, EVENTS_LAST = 64, 192  # of one call that are kept
TEXT_CHARS_MAX = 1000  # of an event or a reason, where a report is too long


@dataclass(frozen=True, slots=True)
class NodeView:
    """One worker as users see it; `state` is healthy, paused, stuck, quarantined, suspect or dead."""

    name: str
    node_id: str
    pid: int
    addresses: tuple[str, ...]  # where it may be dialled, best first
    state: str
    version: str
    devices: tuple[DeviceReport, ...]
    memory_bytes: int
    silent_s: float = 0.0  # since it was last heard
    system: str = ""  # its machine's, as platform.system() says
    without_gpu: str = ""  # why it has no GPU, as wire/protocol/missing_gpu.py has it

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


@dataclass(frozen=True, slots=True)
class PairView:
    """How one node reaches another, by their names; the fields are those of `wire.protocol.messages.PairReport`."""

    source: str
    target: str
    path: str
    rtt_s: float
    bytes_per_s: float
    address: str
    cause: str


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

    def begins(self, generation: int) -> None:
        """Note a plan that the call goes through, made for it or not."""
        if generation not in self.generations:
            self.generations.append(generation)
            if len(self.generations) > EVENTS_FIRST + EVENTS_LAST:
                del self.generations[EVENTS_FIRST]

    def tell(self, event: Event) -> None:
        """Note an event.  The first and the latest are kept, and of those between how many there were of each kind."""
        self.events.append(event)
        if len(self.events) > EVENTS_FIRST + EVENTS_LAST:
            kind = self.events.pop(EVENTS_FIRST).kind
            self.omitted[kind] = self.omitted.get(kind, 0) + 1

    @property
    def weight_bytes_moved(self) -> int:
        """Bytes of weights that crossed from one process to another for this call."""
        return sum(worker.weight_bytes["socket"] + worker.weight_bytes["shared"] for worker in self.workers.values())


def as_text(report: CallReport) -> str:
    """The report as JSON for a message, which takes so much: what is too long loses the middle of its lists, and in the
    end all but its figures."""
    told: dict[str, Any] = asdict(report)
    lists = ["events", "relayed", "reasons", "generations"]
    for keep in _KEPT:
        text = json.dumps(told)
        if len(text) <= REPORT_CHARS_MAX:
            return text
        for name in lists:
            told[name] = _ends(told[name], keep)
        for event in told["events"]:
            event["text"] = event["text"][:TEXT_CHARS_MAX]
        told["reasons"] = [reason[:TEXT_CHARS_MAX] for reason in told["reasons"]]
        for worker in told["workers"].values():
            worker["parts"] = _ends(worker["parts"], keep)
    return json.dumps({name: told[name] for name in ("seconds", "generation", "generations")})


_KEPT = (4096, 1024, 256, 64, 16, 4, 4)


def _ends(items: Sequence[Any], keep: int) -> list[Any]:
    """The first and the last of a list, half of `keep` each."""
    half = keep // 2
    return list(items) if len(items) <= keep else [*items[:half], *items[len(items) - half :]]


def worker_report(plan: Plan, view: NodeView, ran: Ran, deployed: Deployed | None) -> WorkerReport:
    """A worker's share, from its own answers."""
    engines = {device.index: device.engine for device in view.devices}
    parts = tuple(
        PartReport(
            run.part, engines[plan.parts[run.part].device], len(plan.parts[run.part].graph), run.compute_s, run.wait_s
        )
        for run in ran.parts
    )
    sources = ("socket", "shared", "disk", "resident", "client")
    return WorkerReport(
        view.name,
        view.node_id,
        parts,
        ran.bytes_in,
        ran.bytes_out,
        sum(part.compute_s for part in parts),
        sum(part.wait_s for part in parts),
        {source: getattr(deployed, f"bytes_{source}", 0) for source in sources},
        deployed.compile_s if deployed else 0.0,
        deployed.compiled if deployed else 0,
        deployed.from_cache if deployed else 0,
    )
