"""Direct calls: which plans of this process are called past the coordinator, and the connections for that.

A plan that answers one short call after another gets a direct path (`direct_path.py`), if all its workers are on this
machine and their engines compute on its processors.  Such a call passes none of the loops that it passes otherwise.
The path ends with the plan.  A worker that is lost, paused or taken over by another coordinator, a plan that it drops,
and an engine host that dies each end its connections, and the next call goes through the coordinator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from wire import deadlines
from wire.errors import LocalError, MeshError, NodeLost, ProtocolError
from wire.protocol.engine_names import ON_CPU
from wire.protocol.messages import Done, OpenDirect, PartRun, Ran
from wire.system import local_sockets
from wire.system.bounded_wait import within

from ..lifecycle.plan_context import PlanContext
from ..planning.model.plan import Part, Plan
from ..planning.model.program import Program
from ..workers.call_report import CallReport, worker_report
from ..workers.records import Call, Deployment
from .direct_path import Answered, DirectPath, Hop, bytes_of, order, sources

CALLS_MIN = 32  # more short ones than others: what is called a few times needs no path
CALLS_MAX = 1 << 14  # where none could be opened, or one broke, so often: each time twice as many must come before
LASTING_S = 10.0  # a path that broke after so long counts as none that broke
SHORT_S = 0.002  # that all parts of a call take: more is worth the coordinator's care


@dataclass(slots=True)
class _Seen:
    """A plan that calls were answered by."""

    program: Program
    short: int = 0  # calls, less those that were not
    needed: int = CALLS_MIN
    opening: bool = False
    path: DirectPath | None = None


class DirectCalls:
    """`watched` says whether the coordinator is to see every call."""

    def __init__(self, plans: PlanContext, watched: Callable[[], bool]) -> None:
        self._plans = plans
        self._watched = watched
        self._seen: dict[int, _Seen] = {}  # by generation
        self._paths: dict[Program, DirectPath] = {}

    def path(self, program: Program) -> DirectPath | None:
        """The path of a program, if it has one now."""
        found = self._paths.get(program) if self._paths else None
        return None if found is None or found.over else found

    def called_within(self, seconds: float) -> bool:
        """Whether there was a direct call in the last `seconds`."""
        return any(path.called_within(seconds) for path in self._paths.values())

    def answered(self, generation: int, deployment: Deployment, call: Call) -> None:
        """A call was answered by a plan."""
        if self._plans.shared is None or not local_sockets.POSSIBLE or deployment.plan is None or deployment.trial:
            return
        seen = self._seen.setdefault(generation, _Seen(deployment.program))
        if seen.opening or (seen.path is not None and not seen.path.over):
            return
        if seen.path is not None:
            seen.needed = CALLS_MIN if seen.path.lasted_s > LASTING_S else seen.needed
            seen.path = None
        took_s = sum(
            part.compute_s for (ran, _), answer in call.ran.items() if ran == generation for part in answer.parts
        )
        seen.short = seen.short + 1 if took_s <= SHORT_S else max(seen.short - 1, 0)  # a busy machine delays some
        if seen.short >= seen.needed:
            seen.short, seen.needed, seen.opening = 0, min(2 * seen.needed, CALLS_MAX), True
            opening = self._open(generation, deployment.plan, seen)
            self._plans.tasks.run("opening a direct path", opening, partial(self._failed, seen))

    def forgotten(self, generation: int) -> None:
        """A plan is over."""
        seen = self._seen.pop(generation, None)
        if seen is not None and seen.path is not None:
            seen.path.close()
            if self._paths.get(seen.program) is seen.path:
                del self._paths[seen.program]

    def close(self) -> None:
        """End all paths."""
        for generation in [*self._seen]:
            self.forgotten(generation)

    def _failed(self, seen: _Seen, error: MeshError) -> None:
        """Go on without: calls are answered as before."""
        seen.opening = False

    async def _open(self, generation: int, plan: Plan, seen: _Seen) -> None:
        parts = order(plan)
        if parts is None or not all(part.engine in ON_CPU for part in parts):
            seen.needed = CALLS_MAX
            seen.opening = False
            return
        kinds = plan.graph.output_types.values()
        outputs = [(source, kind) for source, kind in zip(plan.arrivals.values(), kinds, strict=True)]
        with contextlib.ExitStack() as opened:
            hops: list[Hop] = []
            for part in parts:
                hops.append(await self._hop(generation, part))
                opened.callback(hops[-1].connection.close)
            if self._seen.get(generation) is not seen:
                return
            seen.path = self._paths[seen.program] = DirectPath(
                hops, outputs, self._watched, partial(self._report, generation, plan)
            )
            seen.opening = False
            opened.pop_all()

    async def _hop(self, generation: int, part: Part) -> Hop:
        """The connection to the engine host of a part; NodeLost if there can be none."""
        member, shared = self._plans.members.get(part.node), self._plans.shared
        if member is None or shared is None or not member.link.same_host or member.link.minor < 1:
            raise NodeLost("the worker is not on this machine")
        try:
            with local_sockets.listening(shared) as (name, listener):
                opening = OpenDirect(self._plans.key(generation), part.index, name)
                answer = await within(deadlines.DIRECT_OPENING, member.link.request(opening), member.profile.name)
                if not isinstance(answer, Done):
                    raise ProtocolError(f"expected Done, got {type(answer).__name__}", node=member.profile.name)
                connection, _ = listener.accept()
        except OSError as error:
            raise LocalError(f"no direct calls: {error}") from None
        return Hop(part.index, connection, sources(part), len(part.graph.outputs))

    def _report(self, generation: int, plan: Plan, answered: Answered) -> Mapping[str, Any]:
        """The report of a call, as the coordinator makes it of others."""
        report = CallReport(answered.seconds, generation, [generation], plan.reasons)
        for node in dict.fromkeys(part.node for part in plan.parts):
            mine = [part for part in plan.parts if part.node == node]
            runs = tuple(PartRun(part.index, answered.compute_s[part.index], 0.0) for part in mine)
            taken, given = (sum(sizes) for sizes in zip(*map(bytes_of, mine), strict=True))
            known = self._plans.known.get(node)
            if known is not None:
                report.workers[known.name] = worker_report(plan, known, Ran((), runs, taken, given), ())
        return asdict(report)
