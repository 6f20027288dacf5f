"""The runner of calls: the shell of `coordinator/calls/state.py`.

It holds the calls in progress, and what `PlanShell` holds of their plans.  It decides nothing about plans and calls.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from numpy.typing import NDArray

from wire.errors import Cancelled, MeshError
from wire.protocol.messages import INLINE_BYTES_MAX, Deployed, Ran
from wire.system.outcome import PromptFuture
from wire.system.steady_log import steady_logger
from wire.system.tasks import as_error, isolated, unheard
from wire.units import counted

from ..calls import events as ev
from ..calls.state import CoordinatorState
from ..config import CoordinatorConfig
from ..delivery.deployer import NO_STATE
from ..lifecycle.answers import Made, give
from ..lifecycle.error_context import disagreement, in_quarantine
from ..lifecycle.plan_context import PlanContext
from ..lifecycle.plan_shell import Arrays, PlanShell
from ..plan_service.straggler_mitigation import StragglerMitigation
from ..plan_service.warm_up import WarmUp
from ..plan_service.weight_redundancy import WeightRedundancy
from ..planning import plan_messages
from ..planning.audit.result_audit import TRUSTED, Auditor
from ..planning.model.plan import Plan
from ..planning.model.program import Program, Sampled, Trial, program_of
from ..planning.placement.sticky_placement import Homes
from ..sessions.open_sessions import Sessions
from ..workers import worker_names
from ..workers.call_report import CallReport
from ..workers.records import Call, Deployment
from .deferred_updates import DeferredUpdates
from .direct_calls import DirectCalls

HELD_S = 1.0  # of the parts of others that a worker has begun, after which a call looks for another one
log = steady_logger("graph_mesh.coordinator")


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """What calls need of their coordinator."""

    config: CoordinatorConfig
    plans: PlanContext
    guards: WeightRedundancy
    rehearsing: WarmUp
    pacing: StragglerMitigation
    sessions: Sessions


class CallRunner(PlanShell):
    """`machine` decides.  `calls` are those in progress, by number."""

    def __init__(self, context: CallContext, machine: CoordinatorState, calls: dict[int, Call]) -> None:
        super().__init__(context.plans)
        self.quarantined: set[str] = set()  # node ids of workers that were wrong too often
        self._config = context.config
        self._planning, self._pacing, self._rehearsing = context.plans.planning, context.pacing, context.rehearsing
        self._guards, self._sessions = context.guards, context.sessions
        self.machine = machine
        self.calls = calls
        self._auditor = Auditor(context.config.audit, context.config.audit_untrusted)
        self._untrusted: frozenset[str] = frozenset()  # the connected workers that are on other people's machines
        self._numbers, self._last_overlapping = itertools.count(1), 0  # the last call that began while others ran
        self._closed = False
        self.direct = DirectCalls(context.plans, self._sees_every_call)
        self._rehearsing.unseen = self.direct.called_within
        self._deferred = DeferredUpdates()
        self._performers[ev.ReportStalled] = self._report_stalled
        assert self._performers.keys() == set(get_args(ev.Action))

    @property
    def _lifecycle(self) -> CoordinatorState:
        return self.machine

    # -- calls

    def submit(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        patient: bool = False,
        trial: Trial | None = None,
        owner: str = "",
        held: object = None,
    ) -> tuple[int, asyncio.Future[list[NDArray[Any]]], CallReport]:
        """Start a call: its number, a future of the outputs (C-contiguous arrays in graph order) and its report.

        `inputs` are C-contiguous arrays of exactly the graph's types, by name.  A patient call waits for a worker as
        long as it takes.  With an `owner` it is placed on workers that no other owner has held for long, if there are
        any.
        """
        number = next(self._numbers)
        now = self._loop.time()
        report = CallReport()
        future: PromptFuture[list[NDArray[Any]]] = PromptFuture(loop=self._loop)
        self._last_overlapping = number if self.calls else self._last_overlapping
        alone = not self.calls and trial is None
        input_bytes = sum(array.nbytes for array in inputs.values() if array.nbytes > INLINE_BYTES_MAX)
        self.calls[number] = Call(program, inputs, future, report, now, alone, patient, input_bytes, owner, held)
        job = trial or self._sampled(program)
        if trial:
            avoid = frozenset(self._members) - {trial.node}
        else:
            avoid = frozenset() if program.by_hand else self._held_by_others(owner)
        self.feed(ev.CallSubmitted(number, job, avoid, patient, input_bytes))
        self._deferred.flush()  # while the workers have the call
        return number, future, report

    def _held_by_others(self, owner: str) -> frozenset[str]:
        """The workers that have computed parts of other owners for so long that these may never end: whatever else is
        asked of them gets a part of their time."""
        if not owner or all(call.owner in ("", owner) for call in self.calls.values()):
            return frozenset()
        theirs = {
            (generation, step)
            for call in self.calls.values()
            if call.owner not in ("", owner)
            for generation, step in call.steps.items()
        }
        seconds = {
            node: sum(run.seconds for run in member.working if (run.plan.generation, run.step) in theirs)
            for node, member in self._members.items()
        }
        return frozenset(node for node, taken_s in seconds.items() if taken_s >= HELD_S)

    def close(self) -> None:
        """Cancel the calls in progress, and do nothing more."""
        for call in list(self.calls):
            self.feed(ev.CallCancelled(call))
        self.direct.close()
        self._closed = True

    # -- the machine

    def feed(self, event: ev.Event) -> None:
        """Handle an event and perform what follows."""
        if self._closed:
            return
        for action in self.machine.handle(event, self._loop.time()):
            self._perform(action)
        self._rehearsing.calls(not self.machine.idle)
        if type(event) in ev.NODE_EVENTS:
            members = self._members.items()
            self._untrusted = frozenset(node for node, member in members if not member.profile.trusted)
            self._planning.changed()
            gone = (event.error, event.away) if isinstance(event, ev.NodeGone) else (None, False)
            self._sessions.nodes_changed(*gone)
            self._guards.nodes_changed()

    def _unanswered(self, error: MeshError) -> None:
        log.warning("%s", error)

    def _report_stalled(self, action: ev.ReportStalled) -> None:
        self._publish("stalled", "", str(action.error), action.generation)

    # -- plans

    def _make_plan(self, action: ev.MakePlan) -> None:
        program = program_of(action.job)
        self.deployments[action.generation] = Deployment(program, trial=isinstance(action.job, Trial))
        homes, planning = self._guards.homes(program, action.nodes), self._planning
        cached = self._guards.standby(program, action.nodes)
        if cached is None and not homes[0]:
            cached = planning.found(program.graph, program.strategy, action.nodes, program.copies)
        if cached is not None and cached.unkept is None and action.job is program:
            self._begin(action, self._tell_soon(action.generation, cached))
        else:
            self._begin(action, self._plan_then_tell(action, homes))

    async def _tell_soon(self, generation: int, plan: Plan) -> None:
        self._plan_made(generation, plan)

    async def _plan_then_tell(self, action: ev.MakePlan, homes: tuple[Homes, Homes]) -> None:
        firm = self._guards.is_new(*program_of(action.job).likeness)
        self._plan_made(action.generation, await self._planning.plan_for(action.job, action.nodes, homes, firm))

    def _plan_made(self, generation: int, plan: Plan) -> None:
        deployment = self.deployments.get(generation)
        if deployment is None:
            return
        deployment.planned(plan)
        self._guards.admit(deployment.program, plan)
        deployment.settled = self._pacing.evidence(deployment.program)
        nodes, outputs = plan_messages.nodes(plan), plan_messages.output_count(plan)
        self._events.note_plan(deployment.program, generation)
        if not deployment.trial:
            self._publish("planned", "", "; ".join(plan.reasons), generation)
            self._planning.use(deployment.program, nodes)
        timed = plan_messages.part_seconds(plan), plan_messages.prepare_seconds(plan), plan.seconds
        self.feed(ev.PlanMade(generation, nodes, outputs, *timed))

    def _forget_plan(self, action: ev.ForgetPlan) -> None:
        self.direct.forgotten(action.generation)
        super()._forget_plan(action)

    def _forgotten(self, deployment: Deployment) -> None:
        if not deployment.trial:
            self._events.note_forgotten(deployment)

    async def _contents(
        self, deployment: Deployment, plan: Plan, node: str
    ) -> tuple[plan_messages.Bindings, plan_messages.State]:
        return deployment.program.bindings, NO_STATE

    def _deployed(self, action: ev.SendDeploy, deployment: Deployment, answer: Deployed) -> None:
        if deployment.plan is not None and deployment.complete and not deployment.trial:
            self._guards.deployed(deployment.program, deployment.plan)
        text = f"{counted(answer.compiled, 'kernel')} compiled, {answer.from_cache} from cache"
        self._publish("deployed", action.node, text, action.generation)

    # -- runs

    def _inputs_of(self, action: ev.SendRun, deployment: Deployment) -> Arrays | None:
        call = self.calls.get(action.number)
        if call is None:
            return None
        call.report.add_generation(action.generation)
        call.steps[action.generation] = action.step
        return call.inputs

    def _ran(self, action: ev.SendRun, deployment: Deployment, answer: Ran, began_s: float) -> None:
        took_s = self._loop.time() - began_s
        call = self.calls.get(action.number)
        if call is not None:
            call.ran[action.generation, action.node] = answer
        if self._events.watched:
            self._publish("ran", action.node, f"its parts of step {action.step}", action.generation)
        step, load = (action.generation, action.step), self._pacing.load(len(self.calls))
        measured = step, action.node, deployment, answer.parts, took_s, load, len(self.calls) <= 1
        self._deferred.add(partial(self._pacing.ran, *measured))

    # -- answers

    def _resolve(self, action: ev.Resolve) -> None:
        call = self.calls.pop(action.number)
        try:
            self._answer(action, call)
        except Exception as fault:
            if not call.future.done():
                call.future.set_exception(as_error("putting the outputs together failed", fault))

    def _answer(self, action: ev.Resolve, call: Call) -> None:
        deployment = self.deployments[action.generation]
        assert deployment.plan is not None
        if not self._audit(deployment.plan, action.outputs):
            self._ask_again(action.number, call)
            return
        with isolated("recording what a worker did"):  # the outputs are right without that
            self._events.complete_report(call, action.generation, deployment, self.deployments)
        if (
            self._config.follow_pace
            and call.alone
            and action.number > self._last_overlapping
            and call.report.generations == [action.generation]
        ):
            took = call.program, deployment.plan, action.generation, call.report.seconds
            self._deferred.add(partial(self._planning.took, *took))
        self._deferred.add(partial(self._look_back, action.generation, deployment, call))
        give(self._tasks, call.future, "putting the outputs together", lambda: self._made(action, call, deployment))

    def _made(self, action: ev.Resolve, call: Call, deployment: Deployment) -> Made[list[NDArray[Any]]]:
        plan, bindings = deployment.plan, call.program.bindings
        assert plan is not None
        if deployment.whole:  # of most plans: nothing has to be put together
            return 0, lambda: [action.outputs[place] for place in range(len(plan.graph.outputs))]
        params = {name: self._held.of(blob, kind) for name, (blob, kind) in bindings.items() if blob in self._held}
        make = partial(plan_messages.outputs, plan, action.outputs, call.inputs, params)
        return plan_messages.copied_bytes(plan), make

    def _sees_every_call(self) -> bool:
        """Whether no call may be a direct one; asked in any thread."""
        return bool(self._events.watchers or self._untrusted or self._config.audit)

    def _look_back(self, generation: int, deployment: Deployment, call: Call) -> None:
        """A call ran by a plan: another one may be better by now, or the next call may be a direct one."""
        if self._config.direct_calls and generation in self.deployments:
            self.direct.answered(generation, deployment, call)
        if not self.machine.stuck and not self._pacing.is_settled(deployment):
            self._tasks.run("following the pace", self._pacing.finished(generation, deployment), unheard)

    def _reject(self, action: ev.Reject) -> None:
        call = self.calls.pop(action.number)
        call.report.seconds = self._loop.time() - call.began_s
        if call.future.done():
            return
        if isinstance(action.error, Cancelled):
            call.future.cancel()
        else:
            call.future.set_exception(action.error)

    # -- audits

    def _sampled(self, program: Program) -> Program | Sampled:
        """The program, with an audit if one is due."""
        if program.by_hand or not (self._config.audit or self._untrusted):
            return program
        picked = self._auditor.pick(*self._parts_of(program))
        return program if picked is None else Sampled(program, *picked)

    def _parts_of(self, program: Program) -> tuple[int, int]:
        """The parts of a program, and those of them on workers that are not trusted.  One that was not planned yet
        counts as one of either."""
        deployments = self.deployments.values()
        plans = [d.plan for d in deployments if d.plan is not None and d.program == program and d.plan.audit is None]
        if not plans:
            return 1, bool(self._untrusted)
        plan = max(plans, key=lambda plan: len(plan.parts))
        return len(plan.parts), sum(part.node in self._untrusted for part in plan.parts)

    def _audit(self, plan: Plan, outputs: Mapping[int, NDArray[Any]]) -> bool:
        """Whether the answer can be trusted.  A worker that was wrong is reported, and quarantined the second time."""
        verdict = self._auditor.judge(plan.audit, plan_messages.counts(plan, outputs)) if plan.audit else TRUSTED
        if verdict.event:
            self._publish(verdict.event, verdict.node, f"about {plan_messages.audited_text(plan)}: {verdict.text}")
        if verdict.quarantined and verdict.node not in self.quarantined:
            self._quarantine(verdict.node)
        return verdict.trusted

    def _quarantine(self, node: str) -> None:
        self.quarantined.add(node)
        self._publish("quarantined", node, "it was wrong twice, and gets no work any more")
        for generation in self._sessions.kept_plans.union(self._guards.pinning_plans, self.deployments):
            self._let_go(node, generation)
        self.feed(ev.NodeGone(node, in_quarantine(worker_names.name_of(self._known, node))))

    def _ask_again(self, number: int, call: Call) -> None:
        """Compute a call again whose answer is doubted."""
        call.doubts += 1
        variant = self._auditor.next_variant(call.doubts)
        self.calls[number] = call
        if variant is None:
            self._reject(ev.Reject(number, disagreement(call.doubts)))
        else:
            sampled = Sampled(call.program, variant, not self._config.audit)
            self.feed(ev.CallSubmitted(number, sampled, patient=call.patient, input_bytes=call.input_bytes))
