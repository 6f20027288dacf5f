"""The coordinator's decisions: events in, actions out.

Pure: no clock, no socket, no thread.  `CoordinatorState.handle(event, now)` returns what the shell
(`coordinator/runtime/call_runner.py`) must do, in order.  It does not look inside graphs, plans or tensors; it knows
which nodes a plan uses, which calls wait for what, and what a death means for them.

The life of a call:

    CallSubmitted -> plan known? --no--> MakePlan -> PlanMade -> SendDeploy to every node -> DeployDone from each
                        |yes                                                                     |
                        '-----------------------> SendRun to every node of the plan <------------'
                                                       |  RanPart from each, outputs complete -> Resolve
                        a node of the plan dies  ------'-> SendDrop to the others, start over from the graph

A worker that is alive but takes far longer for a part than expected is *stuck*: until it moves on, calls that wait for
it are also tried on a plan without it, the first answer wins, and later calls do without it.  A part that was running
on three workers when they died, or their engine hosts did, is poison and ends its call.  A call that lost a worker that
way, or ran out of memory there, avoids it.  Times come with the events; nothing here reads a clock.

A plan is identified by its generation, which only grows; whatever arrives for another generation, step or node than the
ones waited for is stale and changes nothing (fencing).  Plans are made for a set of nodes; when the set changes, later
calls get a new plan, and the old one is dropped when its last step is done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from wire import deadlines
from wire.bounds import CALL_INPUTS, CALL_STORY, IDLE_PLANS
from wire.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    EngineError,
    MeshError,
    NodeLost,
    OutOfMemory,
    PoisonTask,
    QueueFull,
)
from wire.timeouts import DEFAULT_TIMEOUTS
from wire.units import counted

from ..lifecycle.error_context import no_worker_left, stalled
from ..lifecycle.plan_lifecycle import LivePlan, PlanLifecycle, StepRun
from ..lifecycle.retry import Retry
from ..lifecycle.step_timeout import Wait, compile_s_max
from ..planning.plan_messages import PREPARING, work_text
from .events import (
    Action,
    CallCancelled,
    CallSubmitted,
    DeployFailed,
    Event,
    JobForgotten,
    NodeGone,
    NodeJoined,
    NodePaused,
    NodeRan,
    PlanFailed,
    PlanMade,
    PlanOutdated,
    ProfilesChanged,
    Reject,
    ReportStalled,
    Resolve,
    RunFailed,
    SendCancel,
    Tick,
    WorkReported,
)

STORY_EVENTS_MAX = CALL_STORY.most
STUCK_S_MIN = deadlines.STUCK.seconds  # a part is never stuck before; a busy machine or a cold cache may cost as much
STUCK_OBSERVED = 2.0  # times the longest that the part took of late: a straggler is worth a second try
TOOK_DECAY = 0.8  # of what a part took, with every run after it
STUCK_PREDICTED = 20.0  # times what it should take: the first time, predictions are rough
STALLED_S_MIN = deadlines.STALLED.seconds  # without a sign of work: inputs, outputs and tensors may be on their way
STALLED_PREDICTED = 20.0  # times what a call should take, where that is more: links may be slower than assumed
STALLED_DOUBLED_MAX = 6  # the next time a call waits for twice as long
STALLED_LOOK_S = 5.0  # how often it is looked for
STOPPED_S = deadlines.STOPPED.seconds  # a part that goes on for nobody should have noticed by then
POISON_NODES = 3
NO_MEMORY_MAX = 2  # how often a call that ran out of memory is tried elsewhere
INPUTS_BYTES_MAX = CALL_INPUTS.most  # hides the way of inputs, and is little beside what a worker computes with
IDLE_PLANS_MAX = IDLE_PLANS.most


# -- the machine ------------------------------------------------------------------------------------------


_Key = tuple[Hashable, frozenset[str]]  # a job, and the nodes to avoid


@dataclass(slots=True, kw_only=True)
class _Plan(LivePlan):
    """A plan that calls share; each of its steps is one of them."""

    job: Hashable
    avoided: frozenset[str]  # the nodes that it was made to do without
    free: bool = False  # whether its weights go with it
    expected_s: dict[int, float] = field(default_factory=dict)  # how long a part may take at most
    took_s: dict[int, float] = field(default_factory=dict)  # the longest it took of late
    waiting: deque[int] = field(default_factory=deque)  # calls that start when it is deployed and there is room

    @property
    def key(self) -> _Key:
        return self.job, self.avoided

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.steps


@dataclass(slots=True)
class _Call:
    call: int
    job: Hashable
    patient: bool = False
    input_bytes: int = 0
    tries: dict[int, int | None] = field(default_factory=dict)  # generation -> step, None until it is deployed
    retry: Retry = field(default_factory=Retry)
    avoid: set[str] = field(default_factory=set)  # nodes that died of it, or had no memory for it
    no_memory: int = 0
    stalled: int = 0  # how often nobody worked on it any more
    suspects: frozenset[str] = frozenset()  # what was being computed in every crash
    crashes: dict[str, int] = field(default_factory=dict)  # by node
    alone: Wait = field(default_factory=Wait)  # for a node to run it on
    last_error: MeshError | None = None
    seen_done: int = 0  # calls that were done when it found no room on a worker last


class CoordinatorState(PlanLifecycle[_Plan]):
    """The machine.  `wait_s` is how long a call waits for a node when all are gone before it fails with NodeLost.

    Steps in flight hold their inputs in memory, of this machine or a worker.  With more than `inputs_bytes_max` of
    them, calls wait for their turn; a call that needs more than that runs alone.
    """

    def __init__(
        self, wait_s: float = DEFAULT_TIMEOUTS.worker_wait_s, inputs_bytes_max: int = INPUTS_BYTES_MAX
    ) -> None:
        super().__init__()
        self._wait_s = wait_s
        self._inputs_bytes_max = inputs_bytes_max
        self._inputs_bytes = 0  # of the steps in flight
        self._no_room: dict[int, None] = {}  # plans that are ready, with calls that wait for room, by generation
        self._nodes: set[str] = set()
        self._paused: set[str] = set()
        self._current: dict[_Key, int] = {}  # the generation new calls use
        self._stuck: dict[str, tuple[int, int, int]] = {}  # with the run that it is stuck in
        self._worked_s: dict[str, float] = {}  # when nodes computed or compiled last, for whomever
        self._looked_s = -math.inf  # when it was seen last whether calls get on
        self._awake_s = -math.inf  # what was not seen before then may have happened while this process slept
        self._calls: dict[int, _Call] = {}
        self._done = 0  # calls so far
        self._next_generation = 1
        self.story: deque[tuple[float, str]] = deque(maxlen=STORY_EVENTS_MAX)
        self._handlers |= {
            NodeJoined: self._node_joined,
            NodeGone: self._node_gone,
            NodePaused: self._node_paused,
            ProfilesChanged: self._profiles_changed,
            PlanOutdated: self._outdated,
            WorkReported: self._working,
            CallSubmitted: self._call_submitted,
            CallCancelled: self._call_cancelled,
            JobForgotten: self._job_forgotten,
            Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from `event`, to be performed in order."""
        actions: list[Action] = self._handlers[type(event)](event, now)
        return actions + self._use_room(now) if self._no_room else actions

    def next_deadline(self) -> float | None:
        """The time at which a Tick is due, or None."""
        waits = (due for call in self._calls.values() for due in (call.alone.until_s, call.retry.parked_until_s))
        look = [self._looked_s + STALLED_LOOK_S] if any(plan.steps for plan in self._plans.values()) else []
        due_s = min((*(due for due in waits if due is not None), *look), default=math.inf)
        return None if due_s == math.inf else due_s

    @property
    def idle(self) -> bool:
        """No call is in progress."""
        return not self._calls

    def spare_generation(self) -> int:
        """A number that no plan of this machine has or will have."""
        self._next_generation += 1
        return self._next_generation - 1

    def begin_above(self, generation: int) -> None:
        """Give no plan a number up to this one: workers may have plans of an earlier process under those."""
        self._next_generation = max(self._next_generation, generation + 1)

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that may get work: they are there, and nobody paused them or took them out."""
        return frozenset(self._nodes)

    def is_stuck(self, node: str) -> bool:
        """Whether a node is alive and does not get on."""
        return node in self._stuck

    @property
    def stuck(self) -> frozenset[str]:
        """Nodes that are alive and do not get on."""
        return frozenset(self._stuck)

    def validate(self) -> None:
        """Assert that the state does not contradict itself; tests call it after every event."""
        for call in self._calls.values():
            if not call.tries:
                assert bool(call.alone) != (call.retry.parked_until_s is not None), (
                    f"call {call.call} waits for nothing"
                )
            for generation, step in call.tries.items():
                plan = self._plans[generation]
                if step is None:
                    assert call.call in plan.waiting, f"call {call.call} is not queued on its plan"
                else:
                    assert plan.steps[step].number == call.call, f"step {step} belongs to another call"
                    assert plan.running, "a step runs on a plan that is not deployed"
        for generation, plan in self._plans.items():
            assert plan.generation == generation
            assert plan.nodes <= self._nodes, "a plan uses a node that is gone"
            assert not (plan.running and plan.waiting) or generation in self._no_room, "calls wait for nothing"
        for key, generation in self._current.items():
            assert self._plans[generation].key == key
        steps = [step for plan in self._plans.values() for step in plan.steps.values()]
        assert self._inputs_bytes == sum(step.input_bytes for step in steps)
        needs = {step.number: step.input_bytes for step in steps if step.input_bytes}
        assert sum(needs.values()) <= self._inputs_bytes_max or len(needs) == 1, "more inputs than there is room for"
        waiting = (self._plans[generation] for generation in self._no_room if generation in self._plans)
        assert self._inputs_bytes or not any(plan.waiting for plan in waiting), "a call waits, and there is room"
        assert self._stuck.keys() <= self._nodes, "a node that is gone counts as stuck"
        assert not self._paused & self._nodes, "a paused node counts as one that works"

    # -- nodes

    def _node_joined(self, event: NodeJoined, now: float) -> list[Action]:
        self._nodes.add(event.node)
        self._paused.discard(event.node)
        self._tell(now, f"{event.node} joined")
        actions = self._retire_outdated()
        for call in self._without_plan():
            actions += self._place(call, now)
        return [*actions, *(self._try_without_stuck(now) if self._stuck else ())]

    def _node_paused(self, event: NodePaused, now: float) -> list[Action]:
        self._paused.add(event.node)
        if event.node not in self._nodes:
            return []
        self._tell(now, f"{event.node} is paused")
        error, actions = NodeLost("a worker of the plan was paused"), list[Action]()
        for call in self._take_out(event.node, error, actions):
            actions += self._place(call, now)
        return actions

    def _node_gone(self, event: NodeGone, now: float) -> list[Action]:
        if event.node in self._paused:
            self._paused.discard(event.node)
            for call in self._without_plan():
                call.alone.renew(now)
        if event.node not in self._nodes:
            return []
        self._tell(now, f"{event.node} gone: {event.error}")
        for plan in self._plans_with(event.node):
            for step in [step for step in plan.steps.values() if event.node in step.began - step.ran]:
                self._blame(self._calls[step.number], event.node, event.work.get(plan.generation, frozenset()))
        actions: list[Action] = []
        for call in self._take_out(event.node, event.error, actions):
            actions += self._retry(call, event.error, now, died=True)
        for call in self._without_plan():
            actions += self._place(call, now)
        return actions

    def _plans_with(self, node: str) -> list[_Plan]:
        return [plan for plan in self._plans.values() if node in (plan.nodes or plan.candidates)]

    def _take_out(self, node: str, error: MeshError, actions: list[Action]) -> list[_Call]:
        """Plans do without the node from now on; returns the calls that this leaves without any."""
        self._nodes.discard(node)
        self._stuck.pop(node, None)
        self._worked_s.pop(node, None)
        homeless: list[_Call] = []
        for plan in self._plans_with(node):
            homeless += self._void(plan, error, actions)
        actions += self._retire_outdated()
        return homeless

    def _profiles_changed(self, event: ProfilesChanged, now: float) -> list[Action]:
        replaced = [self._plans[generation] for generation in self._current.values()]
        self._current.clear()
        return [action for plan in replaced for action in self._retire_if_outdated(plan)]

    def _outdated(self, event: PlanOutdated, now: float) -> list[Action]:
        plan = self._plans.get(event.generation)
        if plan is None or self._current.get(plan.key) != plan.generation:
            return []
        del self._current[plan.key]
        return self._retire_if_outdated(plan)

    def _working(self, event: WorkReported, now: float) -> list[Action]:
        """Whether a node is stuck: what it computes takes far longer than expected, or goes on for nobody."""
        if event.node not in self._nodes:
            return []
        if event.runs:
            self._worked_s[event.node] = now
        late = [(run, took_s) for *run, took_s in event.runs if took_s > self._allowed_s(*run)]
        if not late:
            return self._unstick(event.node, now)
        ((generation, step, part), took_s), known = late[0], event.node in self._stuck
        self._stuck[event.node] = (generation, step, part)
        if known:
            return []
        self._tell(now, f"{event.node} is stuck: part {part} of generation {generation} has run for {took_s:.1f} s")
        return self._try_without_stuck(now)

    def _try_without_stuck(self, now: float) -> list[Action]:
        """Try the calls on a plan without nodes that are stuck, too, that would wait for such a node in any case."""
        actions: list[Action] = []
        for call in list(self._calls.values()):
            if call.tries and all(self._waits_for_stuck(*each) for each in call.tries.items()):
                actions += self._place(call, now)
        return actions

    def _waits_for_stuck(self, generation: int, step: int | None) -> bool:
        return any(self._waits_for(generation, step, node) for node in self._stuck)

    def _allowed_s(self, generation: int, step: int, part: int) -> float:
        plan = self._plans.get(generation)
        if step == PREPARING:
            return compile_s_max(plan.prepare_s.get(part, 0.0) if plan else 0.0)
        return STOPPED_S if plan is None or step not in plan.steps else max(STUCK_S_MIN, plan.expected_s.get(part, 0.0))

    def _waits_for(self, generation: int, step: int | None, node: str) -> bool:
        plan = self._plans[generation]
        done = plan.deployed if step is None else plan.steps[step].ran
        return node in (plan.nodes or plan.candidates) and node not in done

    def _unstick(self, node: str, now: float) -> list[Action]:
        if self._stuck.pop(node, None) is None:
            return []
        self._tell(now, f"{node} goes on")
        return [action for plan in list(self._plans.values()) for action in self._retire_if_outdated(plan)]

    def _avoided(self, call: _Call) -> frozenset[str]:
        """The nodes that a call should do without, as long as others are left."""
        for unwanted in (call.avoid | self._stuck.keys(), call.avoid, set(self._stuck)):
            avoided = frozenset(unwanted & self._nodes)
            if avoided != self._nodes:
                return avoided
        return frozenset()

    def _without_plan(self) -> list[_Call]:
        return [call for call in self._calls.values() if not call.tries]

    # -- calls

    def _call_submitted(self, event: CallSubmitted, now: float) -> list[Action]:
        wanted = event.call, event.job, event.patient, event.input_bytes
        call = self._calls[event.call] = _Call(*wanted, avoid=set(event.avoid))
        return self._place(call, now)

    def _call_cancelled(self, event: CallCancelled, now: float) -> list[Action]:
        call = self._calls.pop(event.call, None)
        if call is None:
            return []
        return [Reject(call.call, Cancelled("the call was cancelled")), *self._abandon(call)]

    def _abandon(self, call: _Call) -> list[Action]:
        """Stop every try of a call that is over."""
        actions: list[Action] = []
        for generation, step in call.tries.items():
            plan = self._plans[generation]
            if step is None:
                plan.waiting.remove(call.call)
            else:
                ran = self._end(plan, step).ran
                actions += [SendCancel(generation, step, node) for node in sorted(plan.nodes - ran)]
            actions += self._retire_if_outdated(plan)
        call.tries.clear()
        return actions

    def _place(self, call: _Call, now: float) -> list[Action]:
        """Try a call on a plan: the job's current one, or a new one over the nodes there are."""
        call.retry.unpark()
        if not self._nodes:
            call.alone.begin(now, math.inf if call.patient else self._wait_s)
            return []
        call.alone.end()
        key = call.job, self._avoided(call)
        generation = self._current.get(key)
        if generation is None:
            return self._new_plan(call, key, now)
        if generation in call.tries:
            return []
        plan = self._plans[generation]
        self._current[key] = self._current.pop(key)  # most recently used stands last
        if plan.running and self._may_start(call):
            return self._start(plan, call, now)
        call.tries[generation] = None
        plan.waiting.append(call.call)
        if plan.running:
            self._no_room[generation] = None
        return []

    def _new_plan(self, call: _Call, key: _Key, now: float) -> list[Action]:
        generation = self._next_generation
        self._next_generation += 1
        job, avoided = key
        plan = _Plan(generation, frozenset(self._nodes - avoided), job=job, avoided=avoided)
        plan.waiting.append(call.call)
        call.tries[generation] = None
        making = self._make(plan, job)
        self._current[key] = generation
        self._tell(now, f"generation {generation} planned for {counted(len(plan.candidates), 'node')}")
        return [*self._evict_idle(), *making]

    def _retry(self, call: _Call, error: MeshError, now: float, died: bool = False) -> list[Action]:
        """The call lost its plan.  A death is acted on at once, as is a device's failure where others are left; another
        failure gets time to become a death."""
        given_up, call.last_error = call.retry.failed(), error
        if len(call.crashes) >= POISON_NODES or sum(call.crashes.values()) > POISON_NODES:
            return self._reject(call, _poison(call, error))
        if given_up:
            return self._reject(call, error)
        if died or call.retry.attempts == 1 or (isinstance(error, EngineError) and self._avoided(call)):
            return self._place(call, now)
        call.retry.park(now)
        return []

    def _reject(self, call: _Call, error: MeshError) -> list[Action]:
        del self._calls[call.call]
        return [Reject(call.call, error), *self._abandon(call)]

    def _blame(self, call: _Call, node: str, work: frozenset[str]) -> None:
        """An engine or a worker died while it computed this for the call: what was there each time may have done it."""
        if not work:
            return
        common = call.suspects & work
        if not common:
            call.crashes.clear()
        call.suspects = common or work
        call.crashes[node] = call.crashes.get(node, 0) + 1
        call.avoid.add(node)

    # -- plans

    def _when_made(self, plan: _Plan, event: PlanMade, now: float) -> list[Action]:
        plan.expected_s = {part: STUCK_PREDICTED * seconds for part, seconds in event.seconds.items()}
        return self._deploy(plan, now)

    def _when_not_made(self, plan: _Plan, event: PlanFailed, now: float) -> list[Action]:
        return self._fail(plan, event.error)

    def _when_not_deployed(self, plan: _Plan, event: DeployFailed, now: float) -> list[Action]:
        self._tell(now, f"generation {event.generation} failed to deploy on {event.node}: {event.error}")
        calls = [self._calls[number] for number in plan.waiting]
        for call in calls:
            self._blame(call, event.node, event.work)
            if isinstance(event.error, DeviceLost | DeadlineExceeded):
                call.avoid.add(event.node)
        return self._fail_or_retry(plan, event.error, now, self._short_of_memory(calls, event.node, event.error))

    def _when_ready(self, plan: _Plan, now: float) -> list[Action]:
        """Start the calls that wait for it, as far as there is room."""
        actions: list[Action] = []
        while plan.waiting and self._may_start(self._calls[plan.waiting[0]]):
            actions += self._start(plan, self._calls[plan.waiting.popleft()], now)
        if plan.waiting:
            self._no_room[plan.generation] = None
        return actions

    def _use_room(self, now: float) -> list[Action]:
        """Start calls that waited for room, by turns of their plans."""
        actions: list[Action] = []
        while self._no_room:
            generation = next(iter(self._no_room))
            plan = self._plans.get(generation)
            if plan is not None and plan.waiting and not self._has_room(self._calls[plan.waiting[0]]):
                break
            del self._no_room[generation]
            if plan is not None and plan.waiting:
                actions += self._start(plan, self._calls[plan.waiting.popleft()], now)
                self._no_room[generation] = None
        return actions

    def _may_start(self, call: _Call) -> bool:
        """Whether there is room for a call's inputs, and no other call waits for it.  A second try elsewhere of a call
        that is in flight waits for nobody."""
        in_flight = any(step is not None for step in call.tries.values())
        return not call.input_bytes or in_flight or (not self._no_room and self._has_room(call))

    def _has_room(self, call: _Call) -> bool:
        return not self._inputs_bytes or self._inputs_bytes + call.input_bytes <= self._inputs_bytes_max

    def _start(self, plan: _Plan, call: _Call, now: float) -> list[Action]:
        step = call.tries[plan.generation] = plan.issued
        self._inputs_bytes += call.input_bytes
        runs = self._run(plan, call.call, now, input_bytes=call.input_bytes)
        return runs or self._when_done(plan, step, now)  # of what computes nothing

    def _fail(self, plan: _Plan, error: MeshError) -> list[Action]:
        """The plan cannot work at all: its calls get the error, but for those that are also tried elsewhere."""
        actions: list[Action] = []
        for call in self._void(plan, error, actions):
            actions += self._reject(call, error)
        return actions

    def _short_of_memory(self, calls: list[_Call], node: str, error: MeshError) -> bool:
        """Whether calls that had too little memory on a node may go on elsewhere."""
        if not isinstance(error, OutOfMemory) or not calls:
            return False
        for call in calls:
            call.no_memory += 1
            call.avoid.add(node)
        return all(call.no_memory <= NO_MEMORY_MAX and not self._nodes <= call.avoid for call in calls)

    def _fail_or_retry(self, plan: _Plan, error: MeshError, now: float, elsewhere: bool = False) -> list[Action]:
        if not (error.retry or elsewhere):
            return self._fail(plan, error)
        actions: list[Action] = []
        for call in self._void(plan, error, actions):
            actions += self._retry(call, error, now)
        return actions

    def _job_forgotten(self, event: JobForgotten, now: float) -> list[Action]:
        """The call's plans go now, or once the calls in flight are over."""
        actions: list[Action] = []
        for plan in [plan for plan in self._plans.values() if plan.job == event.job]:
            plan.free = True
            self._current.pop(plan.key, None)
            actions += self._retire_if_outdated(plan)
        return actions

    def _void(self, plan: _Plan, error: MeshError, actions: list[Action]) -> list[_Call]:
        """Forget a plan and have its surviving nodes drop it; returns the calls that it leaves without any."""
        actions += self._drop(plan, plan.free)
        if self._current.get(plan.key) == plan.generation:
            del self._current[plan.key]
        calls = [self._calls[call] for call in (*(step.number for step in plan.steps.values()), *plan.waiting)]
        self._inputs_bytes -= sum(step.input_bytes for step in plan.steps.values())
        for call in calls:
            del call.tries[plan.generation]
        return [call for call in calls if not call.tries]

    def _retire_outdated(self) -> list[Action]:
        """Retire plans made for another set of nodes, after a change of nodes: new calls must not use them."""
        actions: list[Action] = []
        for plan in list(self._plans.values()):
            if plan.candidates != self._nodes - plan.avoided:
                if self._current.get(plan.key) == plan.generation:
                    del self._current[plan.key]
                actions += self._retire_if_outdated(plan)
        return actions

    def _evict_idle(self) -> list[Action]:
        """Keep the number of deployed plans that nobody uses bounded."""
        idle = [generation for generation in self._current.values() if self._plans[generation].idle]
        actions: list[Action] = []
        for generation in idle[: max(len(idle) - IDLE_PLANS_MAX, 0)]:
            self._void(self._plans[generation], NodeLost("the plan made room for others"), actions)
        return actions

    def _retire_if_outdated(self, plan: _Plan) -> list[Action]:
        wanted = self._current.get(plan.key) == plan.generation and plan.avoided <= self._stuck.keys()
        if not plan.idle or wanted:
            return []
        actions: list[Action] = []
        self._void(plan, NodeLost("the plan was replaced"), actions)
        return actions

    # -- steps

    def _when_node_ran(self, plan: _Plan, event: NodeRan) -> None:
        for part, took_s in event.seconds.items():
            plan.took_s[part] = max(took_s, TOOK_DECAY * plan.took_s.get(part, 0.0))
            if plan.expected_s.get(part) != math.inf:
                plan.expected_s[part] = STUCK_OBSERVED * plan.took_s[part]

    def _when_not_run(self, plan: _Plan, event: RunFailed, now: float) -> list[Action]:
        self._tell(now, f"generation {event.generation} step {event.step} failed on {event.node}: {event.error}")
        call = self._calls[plan.steps[event.step].number]
        if isinstance(event.error, QueueFull):
            return self._without_room(plan, call, event, now)
        self._blame(call, event.node, event.work)
        elsewhere = self._short_of_memory([call], event.culprit or event.node, event.error)
        if event.error.retry or elsewhere:
            return self._fail_or_retry(plan, event.error, now, elsewhere)
        plan.steps[event.step].ran.add(event.node)  # it needs no CancelStep
        return self._reject(call, event.error)

    def _without_room(self, plan: _Plan, call: _Call, event: RunFailed, now: float) -> list[Action]:
        """A worker had no room yet for what others sent it for a step.  The plan is good and its other steps go on, so
        the call is tried again by it, for as long as calls get done meanwhile."""
        rest = sorted(plan.nodes - self._end(plan, event.step).ran - {event.node})
        del call.tries[plan.generation]
        actions: list[Action] = [SendCancel(plan.generation, event.step, node) for node in rest]
        if not call.tries:
            if self._done > call.seen_done:
                call.retry.excuse()
            call.seen_done = self._done
            actions += self._retry(call, event.error, now)
        return [*actions, *self._retire_if_outdated(plan)]

    def _when_done(self, plan: _Plan, step: int, now: float) -> list[Action]:
        done = self._end(plan, step)
        self._done += 1
        call = self._calls.pop(done.number)
        del call.tries[plan.generation]
        resolved = Resolve(call.call, plan.generation, done.outputs)
        return [resolved, *self._abandon(call), *self._retire_if_outdated(plan)]

    def _end(self, plan: _Plan, number: int) -> StepRun:
        """Forget a step, whose inputs take no memory any more."""
        step = plan.steps.pop(number)
        self._inputs_bytes -= step.input_bytes
        return step

    # -- time

    def _tick(self, event: Tick, now: float) -> list[Action]:
        actions = self._renew_stalled(now) if now >= self._looked_s + STALLED_LOOK_S else []
        for call in self._without_plan():
            if call.alone.is_over(now):
                actions += self._reject(call, no_worker_left(self._wait_s, len(self._paused), call.last_error))
            elif call.retry.is_due(now):
                actions += self._place(call, now)
        return actions

    def _renew_stalled(self, now: float) -> list[Action]:
        """Make plans anew that nobody works on: a message was lost, and nobody may know of it."""
        if now - self._looked_s > 2 * STALLED_LOOK_S:
            self._awake_s = now
        self._looked_s = now
        actions: list[Action] = []
        for plan in list(self._plans.values()):
            silent_s = max((self._over_s(plan, step, now) for step in plan.steps.values()), default=0.0)
            if not silent_s:
                continue
            error = stalled(silent_s)
            self._tell(now, f"generation {plan.generation} is void: {error}")
            actions.append(ReportStalled(plan.generation, error))
            for call in self._void(plan, error, actions):
                call.stalled += 1
                actions += self._retry(call, error.copy(), now)
        return actions

    def _over_s(self, plan: _Plan, step: StepRun, now: float) -> float:
        """The seconds for which nobody has worked on a step, if that is too long; else 0."""
        worked_s = max((self._worked_s.get(node, -math.inf) for node in plan.nodes), default=-math.inf)
        silent_s = now - max(step.seen_s, worked_s, self._awake_s)
        predicted_s = STALLED_PREDICTED * plan.step_s if math.isfinite(plan.step_s) else 0.0
        most_s = max(STALLED_S_MIN, predicted_s) * (1 << min(self._calls[step.number].stalled, STALLED_DOUBLED_MAX))
        return silent_s if silent_s > most_s else 0.0

    def _tell(self, now: float, text: str) -> None:
        self.story.append((now, text))


def _poison(call: _Call, error: MeshError) -> PoisonTask:
    poison = PoisonTask(
        f"engines or workers died {sum(call.crashes.values())} times while they computed this",
        op=work_text(call.suspects),
        node=error.node,
        cause=str(error),
        next_step="Run the graph without these ops, or on another engine, to see which one does it",
    )
    poison.log_lines = error.log_lines
    return poison
