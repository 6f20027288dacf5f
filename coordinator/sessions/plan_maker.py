"""Plan maker: makes the plans of one session: the next one, those for deaths that may come, and better ones.

It does not know when a plan is wanted: `runtime.py` does, for the machine of `state.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from wire.errors import MeshError, PlacementError
from wire.ir.graph import WireGraph
from wire.policy.redundancy import copies_of
from wire.policy.strategies import Pipeline, Split, strategy_of
from wire.system.steady_log import steady_logger

from ..plan_service.migration_cost import STATE_MOVES, STATE_STAYS, is_better
from ..plan_service.plan_service import planned_in_thread
from ..planning import plan_messages
from ..planning.model.plan import FromState, Plan
from ..planning.model.profiles import Profiles
from ..planning.model.program import Program
from ..planning.model.timeline import seconds_at_present_speed
from ..planning.plan_codec import plan_from
from ..planning.redundancy.redundancy_cost import sentences
from ..planning.redundancy.redundancy_memory import refused
from ..planning.session_planner import SessionQuestion, Stateful, interim_plan, sticky_session_plan
from . import events as ev
from .elastic import Elastic, Planned
from .session_context import SessionContext
from .steps import Policy

log = steady_logger("graph_mesh.coordinator")

SETTLE_S = 1.0  # after a worker came: its links are measured meanwhile
SETTLE_ELASTIC_S = 0.05  # where a worker that joins gets a share at once: others may join with it
AHEAD_PAUSE_S = 0.3  # before each plan that may never be needed: making its program slows this process down
AHEAD_AFTER = 10  # times as long as the present plan took to be made: a small share of the time of all steps till then
ASKED_SOON_S = 0.5  # one that takes more is asked for long after workers deployed: that process need not be ready


class PlanMaker:
    """The plan maker of a session of `program`; plans of an elastic one may be of other programs.  `committed` is how
    many steps are done for good."""

    def __init__(
        self,
        context: SessionContext,
        program: Program,
        state: Stateful,
        policy: Policy,
        elastic: Elastic | None,
        committed: Callable[[], int],
    ) -> None:
        self.before: Plan | None = None  # the last plan that steps went by
        self.lost = False  # whether workers are gone since it was free to choose
        self._planning, self._profiles_of = context.plans.planning, context.plans.planning.profiles
        self._here_s, self._stragglers, self._usable = context.timeouts.plan_here_s, context.stragglers, context.usable
        self._program, self._stateful, self._policy, self._elastic = program, state, policy, elastic
        self._committed = committed
        self._took_s = 0.0  # what the last plan took
        self._graphs: tuple[WireGraph, ...] = ()  # of the last plan made elsewhere: the next one has many of them

    @property
    def by_speed(self) -> bool:
        """Whether faster workers may have more of a batch."""
        return self._elastic is not None and self._elastic.pieces > 0

    @property
    def settle_s(self) -> float:
        """How long to wait after workers came, before a plan with them."""
        return SETTLE_S if self._elastic is None else SETTLE_ELASTIC_S

    @property
    def looks_ahead(self) -> bool:
        """Whether there are plans for the death of each worker before it dies."""
        return self._elastic is not None and self._planning.plans_ahead

    @property
    def _elsewhere(self) -> bool:
        """Whether what is planned ahead takes so long that another process should do it."""
        return self._took_s >= self._here_s

    # -- the next plan

    async def plan(self, action: ev.MakePlan) -> Planned:
        """The plan that a session begins with, or goes on by; MeshError."""
        planned = await self._sticky_plan(action) or await self._planned(action.nodes, soon=self.before is not None)
        plan, mine = planned.plan, self._policy.asked and copies_of(self._policy.copies).on_workers
        required = mine or copies_of(self._program.copies).on_workers
        refusal = refused(plan) if required and self.before is None else None
        if refusal is not None:
            raise refusal
        reasons = sentences(plan, self._profiles_of(action.nodes), self._policy.copies)
        return replace(planned, plan=replace(plan, reasons=(*plan.reasons, *reasons)))

    async def _sticky_plan(self, action: ev.MakePlan) -> Planned | None:
        """The plan after a death that leaves all state of the other workers in place; None if there is none."""
        before, program = self.before, self._program
        cut = any(piece.window is not None for piece in action.job.holders if isinstance(piece, FromState))
        if before is None or action.job.contents is None or cut or self._elastic is not None or not self.lost:
            return None
        homes = {place.name: set(place.homes) & action.nodes for place in before.params}
        homes |= {piece.name: nodes & action.nodes for piece, nodes in action.job.holders.items()}
        args = program.graph, self._profiles_of(action.nodes), program.strategy, self._stateful, homes
        plan = await planned_in_thread(sticky_session_plan, *args)
        return None if plan is None else Planned(0, program, plan)

    async def _planned(self, nodes: Iterable[str], soon: bool = False, ahead: bool = False) -> Planned:
        """Plan for these workers; a long planning `ahead` is done in another process."""
        profiles = self._profiles(nodes)
        plan = self._plan_ahead if ahead else self._plan_here
        if self._elastic is not None:
            planned = await self._elastic.planned(profiles, plan, soon)
            return planned if self.by_speed else await self._without_slow(profiles, planned, self._elastic)
        program = self._program
        try:
            return Planned(0, program, await plan(program, profiles))
        except PlacementError as error:
            strategy = strategy_of(program.strategy)
            if not (self._committed() and isinstance(strategy, Split | Pipeline)):
                raise
            least = await planned_in_thread(interim_plan, program.graph, profiles, strategy, self._stateful, error)
            return Planned(0, program, least)

    def _profiles(self, nodes: Iterable[str]) -> Profiles:
        """The profiles to plan with; for shares by speed, with the speeds that ranks showed."""
        profiles = self._profiles_of(nodes)
        return self._stragglers.with_rank_errors(profiles) if self.by_speed else profiles

    async def _without_slow(self, profiles: Profiles, planned: Planned, elastic: Elastic) -> Planned:
        """The plan without the workers that became slow, where that is better than one for all."""
        slow = {node for (node, _), _ in self._stragglers.slow()}
        well = [worker.node_id for worker in profiles.workers if worker.node_id not in slow]
        if not well or len(well) == len(profiles.workers):
            return planned
        fewer = await elastic.planned(self._profiles(well), self._plan_here)
        now_s, then_s = seconds_at_present_speed(planned.plan, profiles), seconds_at_present_speed(fewer.plan, profiles)
        return fewer if STATE_MOVES.pays(now_s, then_s) else planned

    async def _plan_here(self, program: Program, profiles: Profiles) -> Plan:
        began_s = asyncio.get_running_loop().time()
        plan = await planned_in_thread(self._question(program, profiles).answer)
        self._took_s = asyncio.get_running_loop().time() - began_s
        return plan

    async def _plan_ahead(self, program: Program, profiles: Profiles) -> Plan:
        if not self._elsewhere:
            return await self._plan_here(program, profiles)
        data = await self._planning.answer_ahead(self._question(program, profiles))
        if data is None:
            raise PlacementError("there is no plan for the workers that would be left")
        plan = await asyncio.to_thread(plan_from, data, program.graph, self._graphs)
        self._graphs = (plan.graph, *(part.graph for part in plan.parts))
        return plan

    def _question(self, program: Program, profiles: Profiles) -> SessionQuestion:
        kept = self._policy.copies, program.copies
        return SessionQuestion(program.graph, program.strategy, profiles, self._stateful, *kept)

    # -- other plans

    async def better_than(self, now: Plan, nodes: frozenset[str]) -> Plan | None:
        """A plan for these workers that is worth the move; None if there is none."""
        waiting = nodes - plan_messages.nodes(now)  # who could take part at once; a better pace has time
        other = (await self._planned(nodes, ahead=not waiting)).plan
        widens = self._elastic is not None or strategy_of(self._program.strategy).plain.text != "auto"
        move = STATE_MOVES if self._elastic is None else STATE_STAYS
        return other if is_better(other, now, self._profiles(self._usable()), move, widens) else None

    def is_asked_soon(self, nodes: frozenset[str]) -> bool:
        """Whether the process that plans ahead is to get ready while the first plan is deployed to these workers."""
        first = self.before is None and self.looks_ahead and len(nodes) > 1
        return first and self._here_s <= self._took_s < ASKED_SOON_S

    async def look_ahead(self, nodes: frozenset[str], wanted: Callable[[], bool]) -> None:
        """Make plans for the death of each of these workers, as long as they are `wanted`."""
        await asyncio.sleep(AHEAD_AFTER * self._took_s)
        for node in sorted(nodes) if len(nodes) > 1 else ():
            await asyncio.sleep(AHEAD_PAUSE_S)
            if not wanted():
                return
            try:
                await self._planned(nodes - {node}, ahead=True)
            except MeshError as error:
                log.debug("no plan for the death of a worker: %s", error)
