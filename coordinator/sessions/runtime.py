"""Runtime: the shell around sessions.  It performs what `state.py` decides, over the links to workers.

It owns a session's feeds, the futures that its caller waits for, and the values of the state that this process holds.
It decides nothing about plans, copies or deaths.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from wire.deadlines import SNAPSHOT
from wire.errors import BlobMissing, Cancelled, MeshError, NodeLost, PlacementError, ProtocolError
from wire.ir.codec import hash_array, tensor_from
from wire.ir.dtypes import U8
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.limits import MIB
from wire.policy.batch_shares import Portions
from wire.policy.redundancy import copies_of
from wire.policy.strategies import Pipeline, Split, strategy_of
from wire.protocol.messages import CancelStep, Ran, Run, Snapshot, Snapshotted, Working
from wire.system.tasks import as_error
from wire.transfer.content_exchange import off_loop

from ..delivery.input_sender import run_step
from ..delivery.output_receiver import tensor_of
from ..lifecycle.error_context import explain, is_lack_of_memory
from ..plan_service.plan_service import planned_in_thread
from ..planning import plan_messages
from ..planning.model.plan import FromParam, FromState, Plan, Window
from ..planning.model.profiles import CLIENT, Profiles
from ..planning.model.program import Program
from ..planning.model.timeline import as_it_runs
from ..planning.plan_codec import plan_from
from ..planning.redundancy.redundancy_cost import sentences
from ..planning.redundancy.redundancy_memory import refused
from ..planning.session_planner import SessionQuestion, Stateful, interim_plan, sticky_session_plan
from ..workers.records import Member
from . import events as ev
from .elastic import Arrays, Elastic, Planned, StepInputs, arrays_of, bytes_of
from .manifest import SessionRecord
from .parity import SessionParity
from .record_writer import RecordWriter, WriteRecord
from .session_context import SessionContext
from .spans import SPANS_MAX, Span
from .state import Policy, SessionState

log = logging.getLogger("graph_mesh.coordinator")

MOVE_RATIO = 0.8  # of the present plan's time per step: what is worth a move
MOVE_RATIO_IN_PLACE = 0.85  # where the state stays where it is
AHEAD_MIN, AHEAD_MAX, AHEAD_BYTES = 2, 8, 64 * MIB
SETTLE_S = 1.0  # after a worker came: its links are measured meanwhile
SETTLE_ELASTIC_S = 0.05  # where whoever comes is taken in: others may come with it
PACE_CHECKED_AFTER = frozenset({12, 48, 192, 768})  # steps of a plan after which its workers' pace is checked
AHEAD_PAUSE_S = 0.3  # before each plan that may never be needed: making its program slows this process down
AHEAD_AFTER = 10  # times as long as the present plan took to be made: a small share of the time of all steps till then
ASKED_SOON_S = 0.5  # one that takes more is asked for long after workers deployed: that process need not be ready
Contents = Mapping[FromState, bytes]
Holders = Mapping[FromState, frozenset[str]]
StepFeeds = Mapping[int, StepInputs]


@dataclass(slots=True)
class _Deployment:
    """A plan of a session, and where its first values are."""

    contents: Contents | None
    holders: Holders
    plan: Plan | None = None
    program: Program | None = None  # that the plan is of
    portions: Portions = 0  # that it is for, in an elastic session
    deployed: set[str] = field(default_factory=set)
    feeds: dict[str, tuple[plan_messages.Fed, ...]] = field(default_factory=dict)
    pieces: Mapping[tuple[int, int], FromState] = field(default_factory=dict)
    gathered: dict[str, plan_messages.Content] = field(default_factory=dict)  # of a state that was cut in another way


class Session:
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
        self._elastic = elastic
        self.plans: dict[int, _Deployment] = {}
        self.spans: deque[Span] = deque(maxlen=SPANS_MAX)
        self.working: dict[str, Working] = {}  # what each worker said last of what it computes
        self.frees = False  # whether weights are freed with its plans
        self._left = False  # to another process
        self._context = context
        self._program = program
        self._stateful = state
        self._policy = policy
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._nodes = context.usable()
        self._machine = SessionState(policy, self._nodes, context.generation, context.timeouts)
        self._feeds: dict[int, StepInputs] = {}
        self._feeds_bytes = 0
        self.feeds_from = 0  # the first step whose feed may be needed again
        self._steps: dict[int, asyncio.Future[list[NDArray[Any]]]] = {}
        self._reads: dict[int, asyncio.Future[dict[str, NDArray[Any]]]] = {}
        self._next_read = 1
        self._claims: list[asyncio.Future[int]] = []
        self._copies: dict[int, dict[FromState, bytes] | None] = {}  # what this process holds; None: not any more
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._parity = SessionParity(context.deployer, context.members)
        self._before: Plan | None = None  # the last plan that steps went by
        self._lost = False  # whether workers are gone since it was free to choose
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._verdicts = 0  # on the pace of devices, as of the last look
        self._looking: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._planning_s = 0.0  # what the last plan took
        self._graphs: tuple[WireGraph, ...] = ()  # of the last plan made elsewhere: the next one has many of them
        self._error: MeshError | None = None
        self._writer: RecordWriter | None = None  # of a durable session
        if write is not None:
            self._writer = RecordWriter(write, lambda: self._record_of_now, self._act, self._spawn, self._loop.time)
            self._writer.begin(self._machine.recorded)  # of nothing but its program nothing need be written
        self._perform: dict[type, Callable[[Any], object]] = {
            ev.MakePlan: self._make_plan,
            ev.SendDeploy: lambda action: self._spawn(self._deploy(action)),
            ev.SendRun: self._start_run,
            ev.SendCancel: self._send_cancel,
            ev.ReportStuckStep: self._tell_stuck,
            ev.SendDrop: lambda action: self._let_go(action.node, action.generation),
            ev.ForgetPlan: self._forget_plan,
            ev.TakeSnapshot: lambda action: self._spawn(self._snapshot(action)),
            ev.MakeChecks: lambda action: self._spawn(self._make_checks(action)),
            ev.StoreCopy: lambda action: self._spawn(self._keep(action)),
            ev.ReleaseCopy: self._release,
            ev.ForgetFeeds: self._forget_feeds,
            ev.Resolve: self._resolve,
            ev.Reject: self._reject,
            ev.Claimed: self._hand_over,
            ev.DeliverState: self._give_state,
            ev.RejectState: self._refuse_state,
            ev.EndSession: self._end,
        }

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
        for copy in usable.copies:
            sizes = {piece: self._kind(piece).size_bytes for piece in copy.contents or ()}
            self._parity.take_over(copy, sizes)
        if usable.plan is not None:
            self.plans[usable.plan.generation] = _Deployment(None, {}, pieces=record.pieces)

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
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    def leave(self) -> None:
        """Do nothing more: another process goes on with what the workers and the journal have by now."""
        self._left = True
        self._tick_at(None)

    @property
    def plan(self) -> Plan | None:
        """The plan that the steps run by now."""
        plans = [*self.plans.values()]  # another thread may look
        return next((deployment.plan for deployment in reversed(plans) if deployment.plan is not None), None)

    def portions(self, plan: Plan) -> Portions:
        """The portions in which a current plan splits a batch among its ranks, in an elastic session; else 0."""
        return next((deployment.portions for deployment in [*self.plans.values()] if deployment.plan is plan), 0)

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
        self._lost |= bool(before - self._nodes)
        self.feed(ev.NodesChanged(self._nodes, error, before - self._nodes if away else frozenset()))
        self._look(bool(self._nodes - before))

    def _do(self, actions: Iterable[ev.Action]) -> None:
        if self._writer is None:
            for action in actions:
                self._act(action)
        else:
            self._writer.perform(actions, None if self._machine.over else self._machine.recorded)
        self._tick_at(self._machine.next_deadline())

    def _act(self, action: ev.Action) -> None:
        if self._left:
            return
        try:
            self._perform[type(action)](action)
        except Exception as fault:
            self._loop.call_soon(self._broken, as_error(f"{type(action).__name__} failed", fault))

    @property
    def _record_of_now(self) -> SessionRecord:
        manifest = self._machine.manifest
        deployment = self.plans.get(manifest.plan.generation) if manifest.plan is not None else None
        epochs = {generation: self._context.key(generation).epoch for generation in manifest.generations}
        return SessionRecord(manifest, dict(deployment.pieces) if deployment is not None else {}, epochs)

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

    def _follow_pace(self, action: ev.SendRun, deployment: _Deployment, answer: Ran, took_s: float) -> None:
        """Look for a better plan where some device is known to be slower than it was, or well again."""
        if deployment.plan is None:
            return
        step = action.generation, action.step
        verdicts = self._context.ran(step, action.node, deployment.plan, answer, took_s)
        if verdicts != self._verdicts and self._looking is None:
            self._verdicts = verdicts
            self._look()
        self._look(self._by_speed and action.step in PACE_CHECKED_AFTER)

    @property
    def _by_speed(self) -> bool:
        """Whether faster workers may have more of a batch."""
        return self._elastic is not None and self._elastic.pieces > 0

    def _look(self, wanted: bool = True) -> None:
        if wanted and self._looking is None:
            self._looking = self._spawn(self._look_for_better())

    async def _look_for_better(self) -> None:
        """Look whether another plan would be faster, after workers came or their pace changed."""
        try:
            nodes = frozenset[str]()
            while self._context.usable() - nodes and not self._machine.over:
                await asyncio.sleep(SETTLE_S if self._elastic is None else SETTLE_ELASTIC_S)
                nodes = self._context.usable()
                await self._compare(nodes)
        except MeshError as error:
            log.debug("no better plan: %s", error)
        finally:
            self._looking = None

    async def _compare(self, nodes: Iterable[str]) -> None:
        """Move to a plan for these workers if that is worth it."""
        now = self.plan
        if now is None:
            return
        waiting = frozenset(nodes) - plan_messages.nodes(now)  # who could take part at once; a better pace has time
        other = (await self._planned(nodes, ahead=not waiting)).plan
        profiles = self._profiles(self._context.usable())
        now_s, then_s = as_it_runs(now, profiles), as_it_runs(other, profiles)
        named = strategy_of(self._program.strategy).plain.text != "auto"
        wider = (named or self._elastic is not None) and len(plan_messages.nodes(other)) > len(plan_messages.nodes(now))
        better = MOVE_RATIO if self._elastic is None else MOVE_RATIO_IN_PLACE
        if self.plan is now and (wider or then_s < better * now_s):
            self._context.publish("planned", "", "a session moves: " + "; ".join(other.reasons), 0)
            self._lost = False
            self.feed(ev.BetterPlanFound())

    # -- plans

    def _make_plan(self, action: ev.MakePlan) -> None:
        self.plans[action.generation] = _Deployment(action.job.contents, action.job.holders)
        self._spawn(self._plan(action))

    def _profiles(self, nodes: Iterable[str]) -> Profiles:
        """The profiles to plan with; for shares by speed, with the speeds that ranks showed."""
        profiles = self._context.profiles(nodes)
        return self._context.stragglers.as_found(profiles) if self._by_speed else profiles

    async def _planned(self, nodes: Iterable[str], soon: bool = False, ahead: bool = False) -> Planned:
        """Plan for these workers; a long planning `ahead` is done in another process."""
        profiles = self._profiles(nodes)
        plan = self._plan_ahead if ahead else self._session_plan
        if self._elastic is not None:
            planned = await self._elastic.planned(profiles, plan, soon)
            return planned if self._by_speed else await self._without_slow(profiles, planned, self._elastic)
        program = self._program
        try:
            return Planned(0, program, await plan(program, profiles))
        except PlacementError as error:
            strategy = strategy_of(program.strategy)
            if not (self.committed and isinstance(strategy, Split | Pipeline)):
                raise
            least = await planned_in_thread(interim_plan, program.graph, profiles, strategy, self._stateful, error)
            return Planned(0, program, least)

    async def _session_plan(self, program: Program, profiles: Profiles) -> Plan:
        began_s = self._loop.time()
        plan = await planned_in_thread(self._question(program, profiles).answer)
        self._planning_s = self._loop.time() - began_s
        return plan

    async def _plan_ahead(self, program: Program, profiles: Profiles) -> Plan:
        if not self._plans_elsewhere:
            return await self._session_plan(program, profiles)
        data = await self._context.planning.answer_ahead(self._question(program, profiles))
        if data is None:
            raise PlacementError("there is no plan for the workers that would be left")
        plan = await asyncio.to_thread(plan_from, data, program.graph, self._graphs)
        self._graphs = (plan.graph, *(part.graph for part in plan.parts))
        return plan

    @property
    def _plans_elsewhere(self) -> bool:
        """Whether what is planned ahead takes so long that another process should do it."""
        return self._planning_s >= self._context.timeouts.plan_here_s

    @property
    def _looks_ahead(self) -> bool:
        """Whether there are plans for the death of each worker before it dies."""
        return self._elastic is not None and self._context.planning.plans_ahead

    def _question(self, program: Program, profiles: Profiles) -> SessionQuestion:
        kept = self._policy.copies, program.copies
        return SessionQuestion(program.graph, program.strategy, profiles, self._stateful, *kept)

    async def _without_slow(self, profiles: Profiles, planned: Planned, elastic: Elastic) -> Planned:
        """The plan without the workers that became slow, where that is better than one for all."""
        slow = {node for (node, _), _ in self._context.stragglers.slow()}
        well = [worker.node_id for worker in profiles.workers if worker.node_id not in slow]
        if not well or len(well) == len(profiles.workers):
            return planned
        theirs = self._profiles(well)
        fewer = await elastic.planned(theirs, self._session_plan)
        return fewer if as_it_runs(fewer.plan, profiles) < MOVE_RATIO * as_it_runs(planned.plan, profiles) else planned

    async def _look_ahead(self, nodes: frozenset[str]) -> None:
        """Make plans for the death of each of these workers."""
        await asyncio.sleep(AHEAD_AFTER * self._planning_s)
        for node in sorted(nodes) if len(nodes) > 1 else ():
            await asyncio.sleep(AHEAD_PAUSE_S)
            if self._nodes != nodes or self._machine.over:
                return
            try:
                await self._planned(nodes - {node}, ahead=True)
            except MeshError as error:
                log.debug("no plan for the death of a worker: %s", error)

    async def _staying(self, action: ev.MakePlan) -> Planned | None:
        """The plan after a death that leaves all state of the other workers in place; None if there is none."""
        before, program = self._before, self._program
        cut = any(piece.window is not None for piece in action.job.holders if isinstance(piece, FromState))
        if before is None or action.job.contents is None or cut or self._elastic is not None or not self._lost:
            return None
        homes = {place.name: set(place.homes) & action.nodes for place in before.params}
        homes |= {piece.name: nodes & action.nodes for piece, nodes in action.job.holders.items()}
        args = program.graph, self._context.profiles(action.nodes), program.strategy, self._stateful, homes
        plan = await planned_in_thread(sticky_session_plan, *args)
        return None if plan is None else Planned(0, program, plan)

    async def _plan(self, action: ev.MakePlan) -> None:
        deployment = self.plans.get(action.generation)
        if deployment is None:  # the session ended before this began
            return
        try:
            planned = await self._staying(action) or await self._planned(action.nodes, self._before is not None)
            plan, mine = planned.plan, self._policy.asked and copies_of(self._policy.copies).on_workers
            required = mine or copies_of(self._program.copies).on_workers
            refusal = refused(plan) if required and self._before is None else None
            if refusal is not None:
                raise refusal
            wanted = {piece for node in plan_messages.nodes(plan) for piece in plan_messages.states_of(plan, node)}
            if deployment.contents is not None and not wanted <= deployment.contents.keys():
                await self._gather(deployment)
        except Exception as fault:  # also one of the planner must end the session, not leave it waiting
            self.feed(ev.PlanFailed(action.generation, as_error("planning failed", fault)))
            return
        if action.generation not in self.plans:
            self._let_gathered_go(deployment)
            return
        soon = self._context.timeouts.plan_here_s <= self._planning_s < ASKED_SOON_S
        if self._before is None and self._looks_ahead and soon and len(action.nodes) > 1:
            self._spawn(self._context.planning.get_ready())  # while all wait for the workers
        deployment.portions, deployment.program = planned.portions, planned.program
        plan = replace(
            plan, reasons=(*plan.reasons, *sentences(plan, self._context.profiles(action.nodes), self._policy.copies))
        )
        deployment.plan, deployment.feeds = plan, plan_messages.feeds(plan)
        deployment.pieces = plan_messages.pieces_of(plan)
        self._context.publish("planned", "", "; ".join(plan.reasons), action.generation)
        # what depends on values may take any time, and is never stuck (docs/control-flow.md)
        step_s = math.inf if any(part.graph.work_varies for part in plan.parts) else plan.seconds
        nodes, outputs = plan_messages.nodes(plan), plan_messages.output_count(plan)
        prepare_s, roomless = plan_messages.prepare_seconds(plan), plan.unkept is not None
        self.feed(ev.PlanMade(action.generation, nodes, outputs, {}, prepare_s, step_s, plan.owners, roomless))

    async def _gather(self, deployment: _Deployment) -> None:
        """Gather the whole state here, where the new plan splits it in another way than the old one."""
        assert deployment.contents is not None
        arrays = {}
        for piece, address in deployment.contents.items():
            arrays[piece] = await self._fetched(piece, address, deployment.holders[piece])
        for name, array in self._whole(arrays).items():
            address = await off_loop(array.nbytes, hash_array, array)
            self._context.held.hold(address, array)
            deployment.gathered[name] = address, self._program.bindings[name][1]

    def _let_gathered_go(self, deployment: _Deployment) -> None:
        for address, _ in deployment.gathered.values():
            self._context.held.release(address)
        deployment.gathered.clear()

    async def _deploy(self, action: ev.SendDeploy) -> None:
        deployment, member = self.plans.get(action.generation), self._context.members.get(action.node)
        if deployment is None or deployment.plan is None or deployment.program is None:
            return
        key = self._context.key(action.generation)
        bindings = {**deployment.program.bindings, **deployment.gathered}
        first = deployment.contents if deployment.contents and not deployment.gathered else {}
        state = {piece: ((at, self._kind(piece)), deployment.holders[piece]) for piece, at in first.items()}
        mine = [state[piece] for piece in plan_messages.states_of(deployment.plan, action.node) if piece in state]
        try:
            await self._parity.restore(action.node, [at for (at, _), nodes in mine if not nodes])
            await self._context.deployer.deploy(deployment.plan, action.node, key, bindings, state)
        except Exception as fault:
            error = as_error("deploying failed", fault)
            explain(error, member.profile.name if member else "", action.node, deployment.plan)
            self.feed(ev.DeployFailed(action.generation, action.node, error))
        else:
            self._context.publish("deployed", action.node, "a session's parts", action.generation)
            deployment.deployed.add(action.node)
            if deployment.deployed >= plan_messages.nodes(deployment.plan):
                self._before = deployment.plan
                self._context.guarded(deployment.program, deployment.plan)
                self._look(self._by_speed)  # what it goes by was wanted soon
            self.feed(ev.DeployDone(action.generation, action.node))
            if self._looks_ahead and self._ahead is None:
                self._ahead = self._spawn(self._look_ahead(self._nodes))
                self._ahead.add_done_callback(self._looked_ahead)

    def _looked_ahead(self, _: object) -> None:
        self._ahead = None

    def _forget_plan(self, action: ev.ForgetPlan) -> None:
        deployment = self.plans.pop(action.generation, None)
        if deployment is not None:
            self._let_gathered_go(deployment)

    # -- steps

    def _start_run(self, action: ev.SendRun) -> None:
        deployment = self.plans[action.generation]
        assert deployment.plan is not None
        member = self._context.members.get(action.node)
        if action.number not in self._feeds:
            return  # it was rejected
        self._spawn(self._run(action, deployment, member, self._inputs(action.number, deployment)))

    async def _run(self, action: ev.SendRun, deployment: _Deployment, member: Member | None, inputs: Arrays) -> None:
        run = Run(self._context.key(action.generation), action.step, committed=action.committed)
        began_s = self._loop.time()
        try:
            if member is None:
                raise NodeLost("the worker is gone")
            wanted = deployment.feeds.get(action.node, ())
            answer = await run_step(member.link, run, wanted, inputs, self._context.shared)
            self.spans.append(Span.of(member.profile.name, action.number, began_s, self._loop.time(), answer))
            self._follow_pace(action, deployment, answer, self._loop.time() - began_s)
            for output in answer.outputs:
                if output.value.data is not None or output.value.shared:
                    value = tensor_of(member.link, output.value)
                    self.feed(ev.OutputArrived(action.generation, action.step, output.slot, value))
        except Exception as fault:
            error = as_error("running failed", fault)
            explain(error, member.profile.name if member else "", action.node, deployment.plan)
            self.feed(ev.RunFailed(action.generation, action.step, action.node, error))
        else:
            self.feed(ev.NodeRan(action.generation, action.step, action.node))

    def _resolve(self, action: ev.Resolve) -> None:
        deployment = self.plans[action.generation]
        plan, program = deployment.plan, deployment.program
        assert plan is not None and program is not None
        inputs, future = self._inputs(action.number, deployment), self._steps.pop(action.number)
        bindings, held = program.bindings, self._context.held
        passed = [bindings[output.name] for output in plan.outputs if isinstance(output, FromParam)]
        params = {name: held.of(*content) for name, content in bindings.items() if content in passed}
        if future.done():
            return
        try:
            future.set_result(plan_messages.outputs(plan, action.outputs, inputs, params))
        except Exception as fault:
            future.set_exception(as_error("putting the outputs together failed", fault))

    def _send_cancel(self, action: ev.SendCancel) -> None:
        member = self._context.members.get(action.node)
        if member is not None and not member.link.closed:
            member.link.notify(CancelStep(self._context.key(action.generation), action.step))

    def _tick(self) -> None:
        self._timer, working = None, {}
        for node, run in self.working.items():
            plan = self.plans[run.plan.generation].plan if run.plan.generation in self.plans else None
            if plan is not None and not run.preparing and run.part not in plan.ranks:
                working[node] = run.plan.generation, run.step, run.seconds
        self.feed(ev.Tick(working))

    def _tell_stuck(self, action: ev.ReportStuckStep) -> None:
        for node in sorted(action.nodes):
            self._context.publish("stuck", node, "a part of a session's step takes far too long", action.generation)

    def _inputs(self, number: int, deployment: _Deployment) -> Arrays:
        return arrays_of(self._feeds[number], deployment.portions)

    def _reject(self, action: ev.Reject) -> None:
        self._feeds_bytes -= bytes_of(self._feeds.pop(action.number, {}))
        future = self._steps.pop(action.number, None)
        if future is not None and not future.done():
            future.set_exception(action.error)

    def _forget_feeds(self, action: ev.ForgetFeeds) -> None:
        self.feeds_from = action.below
        for number in [number for number in self._feeds if number < action.below]:
            self._feeds_bytes -= bytes_of(self._feeds.pop(number))

    # -- copies

    async def _snapshot(self, action: ev.TakeSnapshot) -> None:
        deployment, member = self.plans.get(action.generation), self._context.members.get(action.node)
        try:
            if member is None or deployment is None:
                raise NodeLost("the worker is gone")
            key = self._context.key(action.generation)
            size_bytes = sum(self._kind(piece).size_bytes for piece in deployment.pieces.values())
            answer = await member.answer(Snapshot(key, action.step), SNAPSHOT, size_bytes)
            if not isinstance(answer, Snapshotted):
                raise ProtocolError(f"expected Snapshotted, got {type(answer).__name__}", node=member.profile.name)
        except (MeshError, MemoryError, OSError) as fault:  # any other is a fault of ours, and ends the session
            self._not_kept(action, as_error("taking a snapshot failed", fault))
            return
        blobs = {(value.part, value.output): value.blob for value in answer.values}
        contents = {piece: blobs[at] for at, piece in deployment.pieces.items() if at in blobs}
        self.feed(ev.SnapshotTaken(action.copy, action.node, contents))

    async def _make_checks(self, action: ev.MakeChecks) -> None:
        sizes = {piece: self._kind(piece).size_bytes for piece in action.owners}
        try:
            checked = await self._parity.make(action, sizes, copies_of(self._policy.copies))
        except (MeshError, MemoryError, OSError) as fault:  # any other is a fault of ours, and ends the session
            self.feed(ev.ChecksFailed(action.copy, as_error("making checks failed", fault)))
        else:
            self.feed(ev.ChecksMade(action.copy, checked))

    async def _keep(self, action: ev.StoreCopy) -> None:
        contents, holders = action.contents, action.holders
        try:
            if action.node == CLIENT:
                await self._hold(action.copy, contents, holders)
            else:
                state = {piece: ((at, self._kind(piece)), holders[piece]) for piece, at in contents.items()}
                key = self._context.key(action.copy)
                await self._context.deployer.keep(action.node, key, state.values())
        except (MeshError, MemoryError, OSError) as fault:  # any other is a fault of ours, and ends the session
            self._not_kept(action, as_error("keeping a copy failed", fault))
        else:
            self.feed(ev.CopyStored(action.copy, action.node))

    def _not_kept(self, action: ev.TakeSnapshot | ev.StoreCopy, error: MeshError) -> None:
        if is_lack_of_memory(error):
            self._context.publish("unguarded", action.node, f"no room for a copy of a session's state: {error}", 0)
        self.feed(ev.CopyFailed(action.copy, action.node, error))

    async def _hold(self, copy: int, contents: Contents, holders: Holders) -> None:
        """Hold these pieces of a copy in this process."""
        mine = self._copies.setdefault(copy, {})
        for piece, address in contents.items():
            array = await self._fetched(piece, address, holders[piece])
            mine = self._copies.get(copy)
            if mine is None:
                raise Cancelled("this copy is not wanted any more")
            if piece not in mine:
                self._context.held.hold(address, array)
                mine[piece] = address

    async def _fetched(self, piece: FromState, address: bytes, holders: Iterable[str]) -> NDArray[Any]:
        """Fetch a piece from any worker that holds it."""
        kind, held = self._kind(piece), self._context.held
        if address in held:
            return held.of(address, kind)
        error: MeshError = BlobMissing("nobody holds a piece of the state")
        there = set(holders) - {CLIENT} or await self._parity.restored(address)
        for node in sorted(there):
            member = self._context.members.get(node)
            if member is None:
                continue
            try:
                return tensor_from(await self._context.blobs.fetch(member.link, address, kind.size_bytes), kind)
            except MeshError as failure:
                error = failure
        raise error

    def _release(self, action: ev.ReleaseCopy) -> None:
        self._parity.forget(action.copy)
        if action.node != CLIENT:
            self._let_go(action.node, action.copy)
            return
        for address in (self._copies.get(action.copy) or {}).values():
            self._context.held.release(address)
        self._copies[action.copy] = None

    def _let_go(self, node: str, generation: int) -> None:
        """Have a worker forget a plan."""
        task = self._spawn(self._context.deployer.drop(node, self._context.key(generation), self.frees))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    # -- the state, and the end

    def _hand_over(self, action: ev.Claimed) -> None:
        claims, self._claims = self._claims, []
        for future in claims:
            if not future.done():
                future.set_result(action.steps)

    def _give_state(self, action: ev.DeliverState) -> None:
        future = self._reads.pop(action.request, None)
        if future is None or future.done():
            return
        contents = action.contents
        if contents is None:
            pieces = {FromState(name): self._program.bindings[name] for name, _ in self._stateful.carries}
            arrays = {piece: self._context.held.of(*content).copy() for piece, content in pieces.items()}
        else:
            arrays = {piece: self._context.held.of(at, self._kind(piece)).copy() for piece, at in contents.items()}
        future.set_result(self._whole(arrays))

    def _refuse_state(self, action: ev.RejectState) -> None:
        future = self._reads.pop(action.request, None)
        if future is not None and not future.done():
            future.set_exception(action.error)

    def _end(self, action: ev.EndSession) -> None:
        self._error = action.error
        self._feeds.clear()
        for future in self._claims:
            if not future.done():
                future.set_exception((action.error or Cancelled("the session was closed")).copy())
        if action.error is not None:
            self._context.publish("session", "", f"a session ended: {action.error}", 0)
        self._forget(self)
        self.ended.set_result(None)

    # -- helpers

    def _kind(self, piece: FromState | ev.Check) -> TensorType:
        if isinstance(piece, ev.Check):
            return TensorType((piece.size_bytes,), U8)
        kind = self._program.bindings[piece.name][1]
        return kind if piece.window is None else TensorType(piece.window.sizes, kind.dtype)

    def _whole(self, arrays: Mapping[FromState, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The tensors of the state, put together where they were cut."""
        pieces: dict[str, list[tuple[Window, NDArray[Any]]]] = {}
        tensors = {}
        for piece, array in arrays.items():
            if piece.window is None:
                tensors[piece.name] = array
            else:
                pieces.setdefault(piece.name, []).append((piece.window, array))
        kinds = {name: self._program.bindings[name][1] for name in pieces}
        return tensors | {name: plan_messages.assembled(kinds[name], windows) for name, windows in pieces.items()}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._context.tasks.run("a session", work, self._broken)

    def _broken(self, error: MeshError) -> None:
        """End the session after a fault of this process, so that its caller does not wait."""
        if not self._machine.over:
            self.feed(ev.CloseRequested(error))


def ahead_for(state_bytes: int) -> int:
    """How many steps may be under way; fewer of a large state, as each needs a value of its own."""
    return max(AHEAD_MIN, min(AHEAD_MAX, AHEAD_BYTES // max(state_bytes, 1)))
