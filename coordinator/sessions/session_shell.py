"""Session shell: it performs what `state.py` decides about a session, over the links to workers.

What the plans of sessions have in common with those of calls is in `PlanShell`, what there is to copies in
`copy_shell.py`, and plans come from `plan_maker.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, get_args

from numpy.typing import NDArray

from wire.bounds import COPIED_FEEDS, PROFILED_SPANS, SESSION_SPANS
from wire.errors import Cancelled, MeshError
from wire.policy.redundancy import copies_of
from wire.protocol.messages import Deployed, Ran, Working
from wire.system.tasks import as_error, unheard

from ..lifecycle.answers import Made
from ..lifecycle.plan_shell import Arrays, PlanShell
from ..planning import plan_messages
from ..planning.model.plan import FromParam, Plan
from ..planning.model.program import Program
from ..planning.session_planner import Stateful
from ..workers.records import Deployment, StateStart
from . import events as ev
from .callers import Callers
from .copy_shell import CopyShell
from .elastic import Elastic, arrays_of
from .held_feeds import HeldFeeds
from .manifest import SessionRecord
from .plan_maker import PlanMaker
from .plan_watch import PlanWatch
from .record_writer import RecordWriter, WriteRecord
from .session_context import SessionContext
from .spans import Span
from .state import Policy, SessionState


class SessionShell(PlanShell):
    """The shell of one session.  `forget` is called at its end, `write` writes down what outlasts this process."""

    def __init__(
        self,
        context: SessionContext,
        program: Program,
        state: Stateful,
        policy: Policy,
        forget: Callable[[], None],
        elastic: Elastic | None = None,
        write: WriteRecord | None = None,
    ) -> None:
        super().__init__(context.plans)
        self.spans: deque[Span] = deque(maxlen=SESSION_SPANS.most)
        self.working: dict[str, Working] = {}  # what each worker said last of what it computes
        self.frees = False  # whether weights are freed with its plans
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._context, self._program, self._stateful = context, program, state
        self._policy, self._forget = policy, forget
        self._left = False  # to another process
        self._error: MeshError | None = None
        self._nodes = context.usable()
        self._machine = SessionState(policy, self._nodes, context.generation, context.timeouts)
        self._feeds = HeldFeeds()
        state_bytes = sum(program.graph.param_types[name].size_bytes for name, _ in state.carries)
        # a copy moves all of the state, so that feeds of fewer bytes are kept rather than that one is made for them
        worth_bytes = 0 if policy.copies == "none" else min(state_bytes, COPIED_FEEDS.most)
        self._replay_bytes_max = max(policy.replay_bytes, worth_bytes)
        self._callers = Callers(self._unread, context.plans.tasks)
        self._timer: asyncio.TimerHandle | None = None
        self._maker = PlanMaker(context, program, state, policy, elastic, lambda: self._machine.committed)
        self._watch = PlanWatch(context, self._maker, lambda: self.plan, self._move)
        args = program, copies_of(policy.copies), self.deployments, self.feed, self._spawn, self._let_go
        self._copies = CopyShell(context, *args)
        self._writer: RecordWriter | None = None  # of a durable session
        if write is not None:
            record = lambda: self._record_of_now  # noqa: E731
            self._writer = RecordWriter(write, record, self._perform, self._spawn, self._loop.time)
            self._writer.begin(self._machine.recorded)  # of nothing but its program nothing need be written
        self._performers |= self._copies.performers
        self._performers |= {
            ev.ReportStuckStep: self._report_stuck,
            ev.ForgetFeeds: lambda action: self._feeds.forget_below(action.below),
            ev.Claimed: lambda action: self._callers.hand_over(action.steps),
            ev.DeliverState: self._give_state,
            ev.RejectState: lambda action: self._callers.refuse_state(action.request, action.error),
            ev.EndSession: self._end,
        }
        assert self._performers.keys() == set(get_args(ev.Action))

    @property
    def _lifecycle(self) -> SessionState:
        return self._machine

    def profile(self) -> None:
        """Keep the times of many more steps from now on, for a profiler that reads them at the end."""
        self.spans = deque(self.spans, PROFILED_SPANS.most)

    # -- what happens

    def feed(self, event: ev.Event) -> None:
        """Something happened."""
        if self._left:
            return
        self._do(self._machine.handle(event, self._loop.time()))

    def nodes_changed(self, error: MeshError | None, away: bool = False) -> None:
        """The usable workers changed (`Sessions.nodes_changed`)."""
        before, self._nodes = self._nodes, self._context.usable()
        self._maker.lost |= bool(before - self._nodes)
        self.feed(ev.NodesChanged(self._nodes, error, before - self._nodes if away else frozenset()))
        self._watch.look(bool(self._nodes - before))

    def _do(self, actions: Iterable[ev.Action]) -> None:
        if self._writer is None:
            for action in actions:
                self._perform(action)
        else:
            self._writer.perform(actions, None if self._machine.over else self._machine.recorded)
        self._tick_at(self._machine.next_deadline())

    def _perform(self, action: ev.Action) -> None:
        if not self._left:
            super()._perform(action)

    def _unanswered(self, error: MeshError) -> None:
        """End the session after a fault of this process, so that its caller does not wait."""
        if not self._machine.over:
            self.feed(ev.CloseRequested(error))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.run("a session", work, self._unanswered)

    @property
    def _record_of_now(self) -> SessionRecord:
        manifest = self._machine.manifest
        deployment = self.deployments.get(manifest.plan.generation) if manifest.plan is not None else None
        pieces = dict(deployment.state.pieces) if deployment is not None and deployment.state is not None else {}
        epochs = {generation: self._key(generation).epoch for generation in manifest.generations}
        return SessionRecord(manifest, pieces, epochs)

    def _tick_at(self, due: float | None) -> None:
        """Set a timer for a tick.  An earlier timer is left as it is: steps move the deadline all the time."""
        timer = self._timer
        if timer is not None and due is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _unread(self, request: int) -> None:
        """A read of the state was answered or cancelled."""
        if not self._machine.over:
            self.feed(ev.StateRequestWithdrawn(request))

    @property
    def plan(self) -> Plan | None:
        """The plan that the steps run by now."""
        deployments = [*self.deployments.values()]  # another thread may look
        return next((deployment.plan for deployment in reversed(deployments) if deployment.plan is not None), None)

    # -- plans

    def _move(self, other: Plan) -> None:
        """Go over to a plan that is worth the move."""
        self._publish("planned", "", "a session moves: " + "; ".join(other.reasons), 0)
        self._maker.lost = False
        self.feed(ev.BetterPlanFound())

    def _make_plan(self, action: ev.MakePlan) -> None:
        start = StateStart(action.job.contents, action.job.holders)
        self.deployments[action.generation] = Deployment(self._program, state=start)
        self._begin(action, self._plan(action, start))

    async def _plan(self, action: ev.MakePlan, start: StateStart) -> None:
        if action.generation not in self.deployments:  # the session ended before this began
            return
        try:
            planned = await self._maker.plan(action)
            plan = planned.plan
            nodes, outputs = plan_messages.nodes(plan), plan_messages.output_count(plan)
            wanted = {piece for node in nodes for piece in plan_messages.states_of(plan, node)}
            if start.contents is not None and not wanted <= start.contents.keys():
                await self._copies.gather(start)
        finally:
            deployment = self.deployments.get(action.generation)
            if deployment is None:
                self._copies.let_gathered_go(start)
        if deployment is None:
            return
        if self._maker.is_asked_soon(action.nodes):
            self._tasks.run("getting ready", self._context.plans.planning.get_ready(), unheard)  # while all wait
        deployment.portions, deployment.program = planned.portions, planned.program
        deployment.planned(plan)
        start.pieces = plan_messages.pieces_of(plan)
        self._publish("planned", "", "; ".join(plan.reasons), action.generation)
        # what depends on values may take any time, and is never stuck (docs/control-flow.md)
        step_s = math.inf if any(part.graph.work_varies for part in plan.parts) else plan.seconds
        prepare_s, roomless = plan_messages.prepare_seconds(plan), plan.unkept is not None
        self.feed(ev.PlanMade(action.generation, nodes, outputs, {}, prepare_s, step_s, plan.owners, roomless))

    async def _contents(
        self, deployment: Deployment, plan: Plan, node: str
    ) -> tuple[plan_messages.Bindings, plan_messages.State]:
        assert deployment.state is not None
        bindings = {**deployment.program.bindings, **deployment.state.gathered}
        return bindings, await self._copies.first_values(deployment.state, plan, node)

    def _deployed(self, action: ev.SendDeploy, deployment: Deployment, answer: Deployed) -> None:
        self._publish("deployed", action.node, "a session's parts", action.generation)
        if deployment.plan is not None and deployment.complete:
            self._maker.before = deployment.plan
            self._context.guarded(deployment.program, deployment.plan)
            self._watch.deployed()
        nodes = self._nodes
        self._watch.look_ahead(nodes, lambda: self._nodes == nodes and not self._machine.over)

    def _forgotten(self, deployment: Deployment) -> None:
        if deployment.state is not None:
            self._copies.let_gathered_go(deployment.state)

    def _let_go(self, node: str, generation: int, free: bool = False) -> None:
        super()._let_go(node, generation, free or self.frees)

    # -- steps

    def _inputs_of(self, action: ev.SendRun, deployment: Deployment) -> Arrays | None:
        feed = self._feeds.get(action.number)
        return None if feed is None else arrays_of(feed, deployment.portions)

    def _ran(self, action: ev.SendRun, deployment: Deployment, answer: Ran, began_s: float) -> None:
        now = self._loop.time()
        name = self._members[action.node].profile.name if action.node in self._members else action.node
        self.spans.append(Span.of(name, action.number, began_s, now, answer))
        if deployment.plan is not None:
            self._watch.ran(action, deployment.plan, answer, now - began_s)

    def _resolve(self, action: ev.Resolve) -> None:
        self._callers.resolve(action.number, lambda: self._outputs_of(action))

    def _outputs_of(self, action: ev.Resolve) -> Made[list[NDArray[Any]]]:
        deployment = self.deployments[action.generation]
        plan, bindings = deployment.plan, deployment.program.bindings
        assert plan is not None
        inputs = arrays_of(self._feeds[action.number], deployment.portions)
        passed = [bindings[output.name] for output in plan.outputs if isinstance(output, FromParam)]
        params = {name: self._held.of(*content) for name, content in bindings.items() if content in passed}
        make = partial(plan_messages.outputs, plan, action.outputs, inputs, params)
        return plan_messages.copied_bytes(plan), make

    def _tick(self) -> None:
        self._timer, working = None, {}
        for node, run in self.working.items():
            deployment = self.deployments.get(run.plan.generation)
            plan = None if deployment is None else deployment.plan
            if plan is not None and not run.preparing and run.part not in plan.ranks:
                working[node] = run.plan.generation, run.step, run.seconds
        try:
            self.feed(ev.Tick(working))
        except Exception as fault:  # no other tick would come
            self._unanswered(as_error("a session failed as time passed", fault))

    def _report_stuck(self, action: ev.ReportStuckStep) -> None:
        for node in sorted(action.nodes):
            self._publish("stuck", node, "a part of a session's step takes far too long", action.generation)

    def _reject(self, action: ev.Reject) -> None:
        self._feeds.drop(action.number)
        self._callers.reject(action.number, action.error)

    # -- the state, and the end

    def _give_state(self, action: ev.DeliverState) -> None:
        names = [name for name, _ in self._stateful.carries]
        self._callers.give_state(action.request, lambda: self._copies.value_of(action.contents, names))

    def _end(self, action: ev.EndSession) -> None:
        self._error = action.error
        self._feeds.clear()
        self._callers.end(action.error or Cancelled("the session was closed"))
        if action.error is not None:
            self._publish("session", "", f"a session ended: {action.error}", 0)
        self._forget()
        self.ended.set_result(None)
