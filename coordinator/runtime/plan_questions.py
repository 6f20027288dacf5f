"""Plan questions: what a graph would be planned and compiled to; nothing is left on a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wire.errors import NodeLost
from wire.ir.graph import WireGraph
from wire.protocol.messages import Explained, ExplainGraph

from ..calls.state import CoordinatorState
from ..delivery.explainer import Explainer
from ..lifecycle.error_context import no_worker_left
from ..plan_service.plan_service import PlanService
from ..plan_service.weight_redundancy import WeightRedundancy
from ..planning.model.plan import Plan
from ..workers import worker_names
from ..workers.records import Member


class PlanQuestions:
    """Questions about plans with the workers of now, and their answers."""

    def __init__(
        self,
        members: Mapping[str, Member],
        machine: CoordinatorState,
        planning: PlanService,
        guards: WeightRedundancy,
        explainer: Explainer,
    ) -> None:
        self._members, self._machine = members, machine
        self._planning, self._guards, self._explainer = planning, guards, explainer

    async def plan(self, graph: WireGraph, strategy: str = "auto", copies: str = "checkpoint") -> Plan:
        """The plan that a call would use now; nothing is sent.  PlacementError if there is none."""
        if not self._members:
            raise NodeLost("no worker is connected, so there is nothing to plan for", next_step="Start mesh-worker")
        if worker_names.all_paused(self._members.values()):
            raise no_worker_left(0.0, len(self._members), None)
        firm = self._guards.is_new(graph, strategy, copies)
        return await self._planning.plan(graph, strategy, self._machine.nodes, copies, firm)

    async def preview(self, graph: WireGraph, strategy: str = "auto", *more: str) -> dict[str, Any]:
        """The plan as plain data (`Planning.described`); `more`: the copies of params, and the worker that dies."""
        return await self._planning.described(await self.plan(graph, strategy, *more[:1]), graph, strategy, *more)

    async def explain(self, graph: WireGraph, question: ExplainGraph) -> Explained:
        """Ask a worker for the kernels that it compiles a graph to, measured there with random inputs.

        InputError if there is no such worker or device, or a constant of the graph is not here.  Cancelling the task
        ends it on the worker.
        """
        if question.worker:
            member = worker_names.member_called(self._members, question.worker)
        else:
            parts = (await self.plan(graph, "single")).parts  # none where nothing is computed
            node = parts[0].node if parts else min(self._machine.nodes, default="")
            known = self._members.get(node)
            if known is None:
                raise NodeLost("the worker that would explain the graph was lost meanwhile", next_step="Ask again")
            member = known
        return await self._explainer.explain(member, graph, question)
