"""Runtime: the shell of a session.  It performs what `state.py` decides, over the links to workers.

It owns a session's feeds and the futures that its caller waits for.  What its plans have in common with those of calls
is in `PlanShell`, what there is to copies in `copy_shell.py`, and plans come from `plan_maker.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, get_args

from numpy.typing import NDArray

from wire.errors import Cancelled, MeshError
from wire.limits import MIB
from wire.policy.batch_shares import Portions
from wire.policy.redundancy import copies_of
from wire.protocol.messages import Deployed, Ran, Working
from wire.system.tasks import as_error, unheard

from ..lifecycle.plan_shell import Arrays, PlanShell
from ..planning import plan_messages
from ..planning.model.plan import FromParam, Plan
from ..planning.model.program import Program
from ..planning.session_planner import Stateful
from ..workers.records import Deployment, StateStart
from . import events as ev
from .copy_shell import CopyShell
from .elastic import Elastic, StepInputs, arrays_of, bytes_of
from .manifest import SessionRecord
from .plan_maker import PlanMaker
from .plan_watch import PlanWatch
from .record_writer import RecordWriter, WriteRecord
from .session_context import SessionContext
from .spans import SPANS_MAX, Span
from .state import Policy, SessionState

AHEAD_MIN, AHEAD_MAX, AHEAD_BYTES = 2, 8, 64 * MIB
StepFeeds = Mapping[int, StepInputs]
T = TypeVar("T")


class Session(PlanShell):
    """One session.  All its methods run on the coordinator's loop."""

    def __init__(
        self,
        context: SessionContext,
        program: Program,
        state: Stateful,
        policy: Policy,
        forget: Callable[[Session], None],
        elastic: Elastic | None = None,
        write: WriteRecord | None = None,
    ) -> None:
        super().__init__(context.plans)
        self.spans: deque[Span] = deque(maxlen=SPANS_MAX)
        self.working: dict[str, Working] = {}  # what each worker said last of what it computes
        self.frees = False  # whether weights are freed with its plans
        self.feeds_from = 0  # the first step whose feed may be needed again
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._context, self._program, self._stateful = context, program, state
        self._policy, self._forget = policy, forget
        self._left = False  # to another process
        self._error: MeshError | None = None
        self._nodes = context.usable()
        self._machine = SessionState(policy, self._nodes, context.generation, context.timeouts)
        self._feeds: dict[int, StepInputs] = {}
        self._feeds_bytes = 0
        self._steps: dict[int, asyncio.Future[list[NDArray[Any]]]] = {}
        self._reads: dict[int, asyncio.Future[dict[str, NDArray[Any]]]] = {}
        self._next_read = 1
        self._claims: list[asyncio.Future[int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._maker = PlanMaker(context, program, state, policy, elastic, lambda: self.committed)
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
            ev.ForgetFeeds: self._forget_feeds,
            ev.Claimed: self._hand_over,
            ev.DeliverState: self._give_state,
            ev.RejectState: self._refuse_state,
            ev.EndSession: self._end,
        }
        assert self._performers.keys() == set(get_args(ev.Action))

    @property
    def _lifecycle(self) -> SessionState:
        return self._machine

    # -- what the caller uses

    def begin(self) -> None:
        self._do(self._machine.begin(self._loop.time()))

    def restore(
        self,
        record: SessionRecord,
        told: int | None,
        feeds: StepFeeds,
        since: int,
        back: Mapping[str, Mapping[int, int]],
    ) -> None:
        """Take over what another process had, before `begin`; `told` is None where its client is gone, too.  Some
        workers are `back`, with what they have kept and how many steps of each plan they have done."""
        args = self._policy, self._nodes, self._context.generation, self._context.timeouts
        self._machine = SessionState.restored(record.manifest, told, *args, since, back)
        self.feeds_from = self._machine.held_from
        if self._writer is not None:
            self._writer.begin(self._machine.recorded)
        for number, inputs in feeds.items():
            self._feeds[number] = inputs
            self._feeds_bytes += bytes_of(inputs)
        usable = record.manifest if told is None else record.manifest.before(told, since)
        self._copies.take_over(usable)
        if usable.plan is not None:
            state = StateStart(None, {}, record.pieces)
            self.deployments[usable.plan.generation] = Deployment(self._program, state=state)

    def heard(self, steps: int) -> None:
        """The client has the answers of the first `steps` steps."""
        if not self._machine.over:
            self.feed(ev.AnswersHeard(steps))

    def client_went(self, away: bool) -> None:
        """The client that drives the session is away, or back."""
        if not self._machine.over:
            self.feed(ev.ClientWent(away))

    def claim(self) -> asyncio.Future[int]:
        """Have another client drive it: a future of how many steps are done, once that is stored."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self._machine.over:
            future.set_exception(self._error or Cancelled("the session is closed"))
            return future
        self._claims.append(future)
        self.feed(ev.ClaimRequested())
        return future

    def step(self, inputs: StepInputs) -> asyncio.Future[list[NDArray[Any]]]:
        """Do one more step: a future of its outputs, in graph order.  `inputs` are as those of a call, and held."""
        future: asyncio.Future[list[NDArray[Any]]] = self._loop.create_future()
        if self._machine.over:
            future.set_exception(self._error or Cancelled("the session is closed"))
            return future
        number = self._machine.next_number
        self._steps[number], self._feeds[number] = future, inputs
        self._feeds_bytes += bytes_of(inputs)
        self.feed(ev.StepRequested())
        if self._policy.copies == "none" and self._feeds_bytes > self._policy.replay_bytes:
            self.feed(ev.ReplayLimitExceeded())
        return future

    def state(self) -> asyncio.Future[dict[str, NDArray[Any]]]:
        """A future of the state after all steps that were asked for before, by the params' names."""
        future: asyncio.Future[dict[str, NDArray[Any]]] = self._loop.create_future()
        if self._machine.over:
            future.set_exception(self._error or Cancelled("the session is closed"))
            return future
        request, self._next_read = self._next_read, self._next_read + 1
        self._reads[request] = future
        future.add_done_callback(lambda _: self._unread(request))
        self.feed(ev.StateRequested(request))
        return future

    async def close(self) -> None:
        """End it, and return once its workers have let everything go, as far as they are there."""
        self.feed(ev.CloseRequested())
        await asyncio.shield(self.ended)
        if self._drops:
            await asyncio.wait(self._drops)

    def leave(self) -> None:
        """Do nothing more: another process goes on with what the workers and the journal have by now."""
        self._left = True
        self._tick_at(None)

    @property
    def plan(self) -> Plan | None:
        """The plan that the steps run by now."""
        deployments = [*self.deployments.values()]  # another thread may look
        return next((deployment.plan for deployment in reversed(deployments) if deployment.plan is not None), None)

    def portions(self, plan: Plan) -> Portions:
        """The portions in which a current plan splits a batch among its ranks, in an elastic session; else 0."""
        return next((deployment.portions for deployment in [*self.deployments.values()] if deployment.plan is plan), 0)

    @property
    def copies_begin_after(self) -> int:
        """The value of the oldest copy there is: steps from there on may be done again."""
        return self._machine.held_from

    @property
    def committed(self) -> int:
        """How many steps are done for good."""
        return self._machine.committed

    @property
    def workers(self) -> frozenset[str]:
        """The workers that have some of its state."""
        return frozenset(node for _, node in self._machine.manifest.places)

    @property
    def next_number(self) -> int:
        """The number of the step that is asked for next."""
        return self._machine.next_number

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
        if self._reads.pop(request, None) is not None and not self._machine.over:
            self.feed(ev.StateRequestWithdrawn(request))

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
        feed = self._feeds.get(action.number)  # none of a step that was rejected
        return None if feed is None else arrays_of(feed, deployment.portions)

    def _ran(self, action: ev.SendRun, deployment: Deployment, answer: Ran, began_s: float) -> None:
        now = self._loop.time()
        name = self._members[action.node].profile.name if action.node in self._members else action.node
        self.spans.append(Span.of(name, action.number, began_s, now, answer))
        if deployment.plan is not None:
            self._watch.ran(action, deployment.plan, answer, now - began_s)

    def _resolve(self, action: ev.Resolve) -> None:
        _settle(self._steps.pop(action.number), "putting the outputs together", lambda: self._outputs_of(action))

    def _outputs_of(self, action: ev.Resolve) -> list[NDArray[Any]]:
        deployment = self.deployments[action.generation]
        plan, bindings = deployment.plan, deployment.program.bindings
        assert plan is not None
        inputs = arrays_of(self._feeds[action.number], deployment.portions)
        passed = [bindings[output.name] for output in plan.outputs if isinstance(output, FromParam)]
        params = {name: self._held.of(*content) for name, content in bindings.items() if content in passed}
        return plan_messages.outputs(plan, action.outputs, inputs, params)

    def _tick(self) -> None:
        self._timer, working = None, {}
        for node, run in self.working.items():
            deployment = self.deployments.get(run.plan.generation)
            plan = None if deployment is None else deployment.plan
            if plan is not None and not run.preparing and run.part not in plan.ranks:
                working[node] = run.plan.generation, run.step, run.seconds
        self.feed(ev.Tick(working))

    def _report_stuck(self, action: ev.ReportStuckStep) -> None:
        for node in sorted(action.nodes):
            self._publish("stuck", node, "a part of a session's step takes far too long", action.generation)

    def _reject(self, action: ev.Reject) -> None:
        self._feeds_bytes -= bytes_of(self._feeds.pop(action.number, {}))
        future = self._steps.pop(action.number, None)
        if future is not None and not future.done():
            future.set_exception(action.error)

    def _forget_feeds(self, action: ev.ForgetFeeds) -> None:
        self.feeds_from = action.below
        for number in [number for number in self._feeds if number < action.below]:
            self._feeds_bytes -= bytes_of(self._feeds.pop(number))

    # -- the state, and the end

    def _hand_over(self, action: ev.Claimed) -> None:
        claims, self._claims = self._claims, []
        for future in claims:
            if not future.done():
                future.set_result(action.steps)

    def _give_state(self, action: ev.DeliverState) -> None:
        names = [name for name, _ in self._stateful.carries]
        _settle(
            self._reads.pop(action.request, None),
            "putting the state together",
            lambda: self._copies.value_of(action.contents, names),
        )

    def _refuse_state(self, action: ev.RejectState) -> None:
        future = self._reads.pop(action.request, None)
        if future is not None and not future.done():
            future.set_exception(action.error)

    def _end(self, action: ev.EndSession) -> None:
        self._error = action.error
        self._feeds.clear()
        error = action.error or Cancelled("the session was closed")
        left: list[asyncio.Future[Any]] = [*self._steps.values(), *self._reads.values(), *self._claims]
        for future in left:  # nobody else answers them
            if not future.done():
                future.set_exception(error.copy())
        if action.error is not None:
            self._publish("session", "", f"a session ended: {action.error}", 0)
        self._forget(self)
        self.ended.set_result(None)


def _settle(future: asyncio.Future[T] | None, doing: str, make: Callable[[], T]) -> None:
    """Give whoever waits what this makes, or the error that becomes of it: the session itself may go on."""
    if future is None or future.done():
        return
    try:
        future.set_result(make())
    except Exception as fault:
        future.set_exception(as_error(f"{doing} failed", fault))


def ahead_for(state_bytes: int) -> int:
    """How many steps may be under way; fewer of a large state, as each needs a value of its own."""
    return max(AHEAD_MIN, min(AHEAD_MAX, AHEAD_BYTES // max(state_bytes, 1)))
