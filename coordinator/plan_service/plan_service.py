"""Plan service: plans of the workers that are there, made when they are asked for or ahead, and remembered.

A plan follows from its Question and from nothing else, so that is what it is remembered by: whatever changes about the
machines makes another question.  What is asked for is planned in a thread; what `coordinator/planning/contingency.py`
expects, by an Answerer, while nothing changes.  It does not know what a plan is wanted for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from wire.deadlines import PLAN
from wire.errors import InputError, MeshError, PlacementError
from wire.ir.graph import NODE_BYTES, WireGraph
from wire.lru_cache import Latest
from wire.policy.redundancy import OF_CALLS, copies_of
from wire.system.bounded_wait import within
from wire.system.steady_log import steady_logger
from wire.system.tasks import as_error

from ..planning import plan_messages
from ..planning.audit.result_audit import audited
from ..planning.auto_strategy import Measured
from ..planning.contingency import ContingencyPlans, ProgramInUse
from ..planning.model import timeline
from ..planning.model.plan import Plan
from ..planning.model.profiles import Profiles
from ..planning.model.program import Program, Sampled, Trial, program_of
from ..planning.placement.sticky_placement import Homes, sticky_plan
from ..planning.plan_codec import AnyQuestion, plan_from, seconds_in
from ..planning.planner import Question
from ..planning.redundancy import what_if
from ..planning.redundancy.redundancy_cost import kept_elsewhere, redundancy_cost
from ..planning.redundancy.redundancy_memory import refused
from ..workers.call_times import CallTimes
from ..workers.collective_calibration import CollectiveCalibration
from ..workers.link_prober import LinkProber
from ..workers.records import Member
from ..workers.straggler_detector import StragglerDetector
from .planner_client import PlannerClient
from .straggler_mitigation import trial_plan
from .warm_up import first_of

log = steady_logger("graph_mesh.coordinator")
T = TypeVar("T")

PLANS_REMEMBERED, PLANS_BYTES = 64, 32 << 20
LOOK_S = 5.0
SETTLE_S = 0.5  # changes come in bursts, and a death has its recovery to be carried out first
_PLANNING = ThreadPoolExecutor(4, "plan")
MADE_AHEAD = "this plan was made ahead, before it was needed"


async def planned_in_thread(work: Callable[..., T], *args: Any) -> T:
    """Plan in a thread; DeadlineExceeded where that takes far too long.  The thread cannot be ended: what it finds then
    is for nobody.  It is none of those of `asyncio.to_thread`, which others need meanwhile."""
    return await within(PLAN, asyncio.get_running_loop().run_in_executor(_PLANNING, _planned, work, *args))


def _planned(work: Callable[..., T], *args: Any) -> T:
    """What `work` returns.  The graphs of a plan are encoded here, too: in the event loop, the encoding would block
    it."""
    found = work(*args)
    if isinstance(found, Plan):
        for part in found.parts:
            part.graph.hash  # noqa: B018
    return found


class PlanService:
    """Plans for some of `members`, by what is known of them, their pace and their links.

    Those of them that may get work are the `usable`; `answered` is called when another plan was made ahead.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        stragglers: StragglerDetector,
        prober: LinkProber,
        usable: Callable[[], Iterable[str]],
        ahead: ContingencyPlans,
        answerer: PlannerClient,
        answered: Callable[[], None],
    ) -> None:
        self._members = members
        self._stragglers = stragglers
        self.calibration = CollectiveCalibration()
        self.times = CallTimes()
        self._prober = prober
        self._usable = usable
        self._ahead = ahead
        self._answerer = answerer
        self._answered = answered
        self.kept_by_others: Callable[[WireGraph, str, str], Mapping[str, int]] = lambda *_: {}  # than this program
        self._plans = Latest[Question, Plan](PLANS_REMEMBERED, PLANS_BYTES)
        self._news = asyncio.Event()

    # -- plans that are asked for

    def found(self, graph: WireGraph, strategy: str, nodes: Iterable[str], copies: str = "checkpoint") -> Plan | None:
        """The plan for these workers, if it is remembered."""
        return self._plans.get(self._question(graph, strategy, nodes, copies))

    async def plan(
        self, graph: WireGraph, strategy: str, nodes: Iterable[str], copies: str = "checkpoint", firm: bool = False
    ) -> Plan:
        """The plan for these workers; PlacementError if there is none, or, if that is `firm`, none that has room for
        these copies of the weights."""
        question = self._question(graph, strategy, nodes, copies)
        plan = self._plans.get(question)
        if plan is None:
            ahead = self._ahead.find(question)
            known = [other.graph for asked, other in self._plans.items() if asked.graph == graph][-1:]
            work = question.answer if ahead is None else partial(_unpacked, ahead, question, known)
            plan = await planned_in_thread(work)
            made = (plan.graph, *(part.graph for part in plan.parts))
            self._plans.keep(question, plan, sum(graph.total_nodes for graph in made) * NODE_BYTES)
        refusal = refused(plan) if firm else None
        if refusal is not None:
            raise refusal
        return plan

    def profiles(self, nodes: Iterable[str]) -> Profiles:
        """What is known of these workers, as far as they are there; by name: ids change with every start."""
        there = [self._members[node] for node in nodes if node in self._members]
        members = sorted(there, key=lambda member: member.profile.name)
        workers = tuple(self._stragglers.at_present_speed(member.profile) for member in members)
        near = frozenset(member.profile.node_id for member in members if member.link.same_host)
        ids = dict.fromkeys(worker.node_id for worker in workers)
        factors = {node: factor for node, factor in self.calibration.factors.items() if node in ids}
        return Profiles(workers, near, self._prober.known(ids), factors)

    def took(self, program: Program, plan: Plan, generation: int, seconds: float) -> None:
        """A call that was alone took so long.  Work that depends on values says nothing of later calls."""
        if plan.candidate and plan.audit is None and not any(part.graph.work_varies for part in plan.parts):
            place = _place(program.graph, program.strategy, self._usable())
            self.times.took(place, plan.candidate, generation, seconds, asyncio.get_running_loop().time())

    def experience(self, graph: WireGraph, strategy: str, nodes: Iterable[str] | None = None) -> Measured:
        """What calls took on these workers, or on all that may get work, by candidates of `auto`."""
        nodes = self._usable() if nodes is None else nodes
        return self.times.known(_place(graph, strategy, nodes), asyncio.get_running_loop().time())

    async def plan_for(self, job: object, nodes: Iterable[str], homes: tuple[Homes, Homes], firm: bool) -> Plan:
        """The plan of what the machine has to do: one that leaves weights where their homes are, if there is one.  If
        it is `firm` that copies are kept, one that has room for them."""
        program, nodes = program_of(job), frozenset(nodes)
        if isinstance(job, Trial):
            return await planned_in_thread(trial_plan, job, self.profiles(nodes))
        graph, strategy = program.graph, program.strategy
        profiles = self._question(graph, strategy, nodes, program.copies).profiles
        stays = await planned_in_thread(sticky_plan, graph, profiles, strategy, *homes) if homes[0] else None
        plan = await self.plan(graph, strategy, nodes, program.copies, firm) if stays is None else stays
        if not isinstance(job, Sampled) or program.by_hand:  # an audit gives what a part reads to other workers
            return plan
        return await planned_in_thread(audited, plan, job.variant, profiles, job.untrusted)

    # -- plans made ahead

    def use(self, program: Program, nodes: frozenset[str]) -> None:
        """Whether calls go by a plan that runs on these workers."""
        self._ahead.use(ProgramInUse(program, nodes))
        self._news.set()

    def changed(self) -> None:
        """Something about the workers is other than it was."""
        self._news.set()

    async def run(self) -> None:
        """Answer what is expected; never returns."""
        try:
            while True:
                await self._any_news()
                await asyncio.sleep(SETTLE_S)
                self._news.clear()
                self._ahead.expect(self.profiles(self._usable()))
                await first_of(self._news.wait(), self._answer_all())
        finally:
            await self._answerer.close()

    def outlook(self, graph: WireGraph, strategy: str, copies: str = "checkpoint") -> list[dict[str, Any]]:
        """A row for every worker whose death is planned for: its name, the predicted seconds per call without it, and
        whether that plan was rehearsed."""
        profiles = self.profiles(self._usable())
        left = ((worker.name, profiles.without(worker.node_id)) for worker in profiles.workers)
        rows = [(name, Question(graph, strategy, others, copies)) for name, others in left]
        return [
            {"worker": name, "seconds": seconds_in(data), "rehearsed": self._ahead.was_rehearsed(question)}
            for name, question in rows
            if (data := self._ahead.find(question)) is not None
        ]

    async def _any_news(self) -> None:
        """Wait until something changed, or may have without a word: verdicts on the pace of devices do."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S if self._ahead.busy else None):
                await self._news.wait()

    async def _answer_all(self) -> None:
        while (question := self._ahead.next([asked for asked, _ in self._plans.items()])) is not None:
            data = None
            try:
                data = await self.answer_ahead(question)
            except Exception as fault:  # it is planned for when it is needed, and others are still to be answered
                log.debug("not planned ahead: %s", as_error("planning ahead failed", fault))
            if self._ahead.answered(question, data):
                self._answered()

    async def answer_ahead(self, question: AnyQuestion) -> bytes | None:
        """The plan as `coordinator/planning/plan_codec.py` writes it, without haste; None if there is none, MeshError
        if nobody can tell."""
        try:
            return await self._answerer.answer(question)
        except (OSError, EOFError) as error:
            log.warning("the process that plans ahead ended: %s", error)
            raise MeshError("the process that plans ahead ended", cause=str(error)) from None

    @property
    def plans_ahead(self) -> bool:
        """Whether anything is planned before it is needed."""
        return self._ahead.wanted

    async def get_ready(self) -> None:
        """Questions of what is to come are about to be asked."""
        try:
            await self._answerer.get_ready()
        except Exception as error:  # the next question raises it again, and nothing depends on it before
            log.warning("the process that plans ahead did not start: %s", error)

    async def described(
        self, plan: Plan, graph: WireGraph, strategy: str, copies: str = "checkpoint", dies: str = ""
    ) -> dict[str, Any]:
        """A plan as plain data, with when what runs, the deaths that are planned for, what these copies of its params
        cost and what each death does then, and what follows if the worker of that name `dies`."""
        nodes, standby = frozenset(self._usable()), dict[str, Plan]()
        for node in plan_messages.nodes(plan) if copies_of(copies, OF_CALLS).on_devices else ():
            with contextlib.suppress(PlacementError):
                standby[node] = await self.plan(graph, strategy, nodes - {node})
        room = self._question(graph, strategy, nodes, copies).profiles
        deaths, profiles = self.outlook(graph, strategy, copies), self.profiles(nodes)

        def describe() -> dict[str, Any]:
            redundancy = redundancy_cost(plan, room, copies, standby or None).describe()
            when = timeline.describe(plan, profiles)
            return {**plan.describe(), "deaths": deaths, "redundancy": redundancy, "timeline": when}

        description = await asyncio.to_thread(describe)
        return (
            {**description, "what_if_dies": await self._without(plan, graph, strategy, dies, copies)}
            if dies
            else description
        )

    async def _without(self, plan: Plan, graph: WireGraph, strategy: str, name: str, copies: str) -> dict[str, Any]:
        """What follows if a worker dies; InputError for one there is not, PlacementError if nobody can go on."""
        nodes = frozenset(self._usable())
        dead = next((node for node in nodes if self._members[node].profile.name == name), None)
        if dead is None:
            names = ", ".join(sorted(self._members[node].profile.name for node in nodes))
            raise InputError(f"no worker that takes work now is called {name!r}", next_step=f"There are {names}")
        if len(nodes) == 1:
            raise PlacementError(f"no worker is left if {name} dies", next_step="Start another mesh-worker")
        profiles = self._question(graph, strategy, nodes, copies).profiles
        ahead = self._ahead.find(Question(graph, strategy, profiles.without(dead), copies)) is not None
        kept = copies_of(copies).on_workers
        whole, made = kept_elsewhere(plan, profiles, copies, dead) if kept else ({}, {})
        homes = {place.name: set(place.homes) - {dead} for place in plan.params} if kept else {}
        stays = await planned_in_thread(sticky_plan, graph, profiles.without(dead), strategy, homes, whole)
        standby = copies_of(copies).on_devices  # the plan after it is deployed beside this one, without copies
        asked = "checkpoint" if standby else copies
        after = await self.plan(graph, strategy, nodes - {dead}, asked) if stays is None else stays
        for place in after.params if standby else ():
            whole.setdefault(place.name, set()).update(place.homes)

        def holds(node: str) -> set[str]:
            return self._on_disk(node, graph) | {param for param, having in whole.items() if node in having}

        return what_if.described(plan, after, profiles, dead, holds, ahead and stays is None, made)

    def _on_disk(self, node: str, graph: WireGraph) -> set[str]:
        """The params of a program that a worker is known to have, if the program was called."""
        programs = self._ahead.programs(graph)
        return {name for program in programs for name in self._members[node].holds(program)}

    # -- helpers

    def _question(self, graph: WireGraph, strategy: str, nodes: Iterable[str], copies: str) -> Question:
        nodes = frozenset(nodes)
        profiles, kept = self.profiles(nodes), self.kept_by_others(graph, strategy, copies)
        if kept:
            profiles = profiles.with_memory(w.memory_bytes - kept.get(w.node_id, 0) for w in profiles.workers)
        return Question(graph, strategy, profiles, copies, self.experience(graph, strategy, nodes))


def _place(graph: WireGraph, strategy: str, nodes: Iterable[str]) -> tuple[bytes, str, frozenset[str]]:
    """What tells programs apart whose calls are timed: what is called, and on which workers."""
    return graph.hash, strategy, frozenset(nodes)


def _unpacked(data: bytes, question: Question, known: Iterable[WireGraph]) -> Plan:
    plan = plan_from(data, question.graph, known)
    return replace(plan, reasons=(*plan.reasons, MADE_AHEAD))
