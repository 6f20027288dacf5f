"""Event feed: events for subscribers, and the reports of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from wire.bounds import EVENTS
from wire.protocol.messages import NodeReport
from wire.protocol.reports import Event, RelayReport
from wire.system.steady_log import steady_logger

from ..planning.model.program import Program
from .call_report import worker_report
from .records import Call, Deployment
from .worker_names import name_of

log = steady_logger("graph_mesh.coordinator")

EVENTS_MAX = EVENTS.most
Watcher = Callable[[Event], None]
PROGRESS_KINDS = frozenset({"began", "ran"})  # of every call: not kept, as they would crowd out all others


class EventFeed:
    """Publishes events to the reports of calls in progress and to `watchers`.  Made on the event loop.

    Watchers are programs of users.  They are called after the work that published an event, so that it does not wait
    for them.  What they raise is logged, once per kind of error, and reaches nobody else.
    """

    def __init__(self, known: Mapping[str, NodeReport], calls: Mapping[int, Call]) -> None:
        self.events: list[Event] = []
        self.watchers: list[Watcher] = []
        self._known = known
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._raised: set[tuple[Watcher, type[Exception]]] = set()

    def publish(self, kind: str, node: str, text: str, generation: int = 0) -> None:
        """Publish an event; `kind` is one of those of `Event`."""
        known = self._known.get(node)
        event = Event(self._now(), kind, known.name if known else node, text, generation)
        if kind not in PROGRESS_KINDS:
            self.events.append(event)
            del self.events[:-EVENTS_MAX]
        for call in self._calls.values():
            call.report.add_event(event)
        for watcher in self.watchers:
            self._loop.call_soon(self._notify, watcher, event)

    def _notify(self, watcher: Watcher, event: Event) -> None:
        try:
            watcher(event)
        except Exception as error:
            if (watcher, type(error)) not in self._raised:
                self._raised.add((watcher, type(error)))
                log.exception("what watches the mesh failed at an event %r; it hears of the next", event.kind)

    @property
    def watched(self) -> bool:
        """Whether the events of every ordinary step are worth publishing: there is a subscriber, or a call failed
        before."""
        return bool(self.watchers) or any(len(call.report.generations) > 1 for call in self._calls.values())

    def note_plan(self, program: Program, generation: int) -> None:
        """Add a plan to the reports of a program's calls."""
        for call in self._calls.values():
            if call.program == program:
                call.report.add_generation(generation)

    def note_forgotten(self, deployment: Deployment) -> None:
        """A plan is given up: what its deployment moved goes to the report of the program's oldest call."""
        call = next((call for call in self._calls.values() if call.program == deployment.program), None)
        if call is not None and not deployment.reported:
            call.given_up.append(deployment)

    def complete_report(
        self, call: Call, generation: int, deployment: Deployment, deployments: Mapping[int, Deployment]
    ) -> None:
        """Complete the report of a call that this plan answered, which may have been given up since.  It counts what
        all plans that it went through moved to the workers that answered."""
        report = call.report
        before = [deployments[each] for each in report.generations if each in deployments and each != generation]
        unreported = [each for each in (*call.given_up, *before, deployment) if not each.reported]
        report.seconds = self._now() - call.began_s
        report.generation = generation
        assert deployment.plan is not None
        report.reasons = deployment.plan.reasons
        for node, ran in [(node, ran) for (planned, node), ran in call.ran.items() if planned == generation]:
            deployed = [each.results[node] for each in unreported if node in each.results]
            known = self._known.get(node)
            if known is None:
                continue  # it is gone for so long that nobody knows it
            report.workers[known.name] = worker_report(deployment.plan, known, ran, deployed)
        for each in unreported:
            each.reported = True
        for (planned, source, target), counts in sorted(call.relayed.items()):
            if planned == generation:
                report.relayed.append(RelayReport(name_of(self._known, source), name_of(self._known, target), *counts))
