"""The state machine of a session: events in, actions out.  Pure.

A session's state stays on its workers, step after step (`worker/state/carried_state.py`).  Steps are issued ahead,
`ahead` of them at once, and committed in order, once every worker has done its part; only then does the caller get its
answer.  The feeds of a step are held until a copy of the state makes sure that it is never done again.

If a plan cannot continue, because a worker died or a link broke, or if there is a better one, the workers export the
state of the last committed step as blobs, and a new plan begins with them.  If some of it died with a worker, the
session restores the newest *copy* and runs the steps since then again from their feeds.  Their answers are known and
not sent again.  So no committed step is ever lost, as long as one copy is left:

    buddy         after every `every` steps each worker keeps its pieces as blobs, and another one has them, too; where
                  several workers make every piece, as ranks do, each of them is a copy already, and of every step
    coded         the same, where others have checks of what several have: any k shares of n give all back
    checkpoint    after every `every` steps this process has them
    none          what the client gave is the only copy, for as long as it and all feeds are little

Workers may be gone for a moment only: this process was stopped, or the network was.  They keep what they hold for a
while, and say so when they are back (`NodeReturned`).  So where without them nothing whole is left, a session waits for
them, and goes on with what it finds: the value its plan had come to, else the newest copy.

A *durable* session outlasts this process.  Its `manifest` says where its state is, and is written down before what an
earlier one names is dropped; a machine that is `restored` from it waits for the workers as for any that were away.
Only the answers that the client has confirmed count as received by then.  So of these steps alone nothing is kept: the
workers have the value after them, or a copy from before, with all feeds since.

What is done while no program drives a session that has a name is in `unattended.py`.

A better plan is gone over to once the step in flight is done, and the next one if it may have begun.  A copy is a
snapshot on the workers that have the pieces (for a new plan on all of them, so that each finds there what it goes on
with), then a plan without parts on every node that is to hold some (`StoreCopy`), which pins them there.  It does not
know what a piece is, nor which worker computes what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from wire.errors import (
    BlobError,
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    MeshError,
    OutOfMemory,
    QueueFull,
    StaleGeneration,
)
from wire.policy.redundancy import OF_SESSIONS, copies_of
from wire.timeouts import Timeouts

from ..lifecycle.error_context import (
    cannot_continue,
    no_worker_left,
    state_lost,
    stuck_at_first,
    stuck_step,
)
from ..lifecycle.plan_lifecycle import Phase, PlanLifecycle
from ..lifecycle.retry import Retry
from ..lifecycle.step_timeout import AvoidedWorkers, StepTimeout, Wait
from ..planning.model.profiles import CLIENT
from . import events as ev
from . import reading, unattended
from .copies import Copy, PendingCopy
from .manifest import Manifest
from .steps import Attendance, CurrentPlan, Policy, Read, validate

COPY_TRIES, READS_MAX = 3, 5  # how often pieces of a copy are asked for, and a value, that nobody could give
LATE_PLANS_MAX = 2  # each has taken a deadline that is far above what planning takes
COMPILES_LOST_MAX = 3  # each may take the ten minutes after which a worker ends a device that hangs
UNKNOWN = 1 << 62  # more than any number of steps


class SessionState(PlanLifecycle[CurrentPlan]):
    """The machine: a session has one plan at a time.  `generation` gives numbers for plans and copies that nobody else
    uses; `times` are how long a session waits for workers."""

    def __init__(self, policy: Policy, nodes: Iterable[str], generation: Callable[[], int], times: Timeouts) -> None:
        super().__init__()
        self.policy = policy
        self._kind = copies_of(policy.copies, OF_SESSIONS)
        self._generation = generation
        self._wait_s = times.worker_wait_s
        self._return_s, self._settle_s = times.session_return_s, times.session_settle_s
        self._nodes: frozenset[str] = frozenset(nodes)
        self._copies = [Copy(0, 0, None, {CLIENT: {CLIENT}})]  # the oldest first
        self._pending: dict[int, PendingCopy] = {}
        self._reads: dict[int, Read] = {}
        self._asked, self._delivered = 0, 0  # steps that were asked for, and those whose outputs were delivered
        self._acknowledged = 0  # steps whose outputs the client is known to have, of a durable session
        self._done = 0  # the value that the present plan has come to, or the next one will begin with
        self._held_from = 0  # the first step whose feeds are held
        self._copied = 0  # the value of the last copy that was begun
        self._roomless = False  # by the present plan, workers have no room for each other's copies
        self._through_here = False  # some worker cannot fetch from another: copies pass through this process
        self._unchecked = 0  # copies in a row that could not be checked
        self._retry, self._gone = (
            Retry(),
            dict[str, None](),
        )  # since a step was done: failures, and the workers that died, by name
        self._compiles_lost, self._late_plans = 0, 0  # devices lost while they compiled, and plans not made in time
        self._ahead = policy.ahead  # steps in flight, or as many as workers had room for
        self._timeout, self._avoided = StepTimeout(), AvoidedWorkers()
        self._away = False  # the worker that left last may return with its state
        self._alone, self._return = Wait(), Wait()  # for any worker, and for those that have what is left
        self._last_error: MeshError | None = None
        self._over: MeshError | None = None
        self._attendance = Attendance()
        self._handlers |= {
            ev.NodesChanged: self._nodes_changed,
            ev.NodeReturned: self._node_back,
            ev.BetterPlanFound: self._better_plan,
            ev.StepRequested: self._step_asked,
            ev.AnswersHeard: self._answers_heard,
            ev.ClientWent: partial(unattended.client_went, self),
            ev.ClaimRequested: partial(unattended.claim_asked, self),
            ev.StateRequested: partial(reading.asked, self),
            ev.StateRequestWithdrawn: partial(reading.withdrawn, self),
            ev.CloseRequested: self._close_asked,
            ev.ReplayLimitExceeded: self._forget_feeds,
            ev.CompilationReported: self._preparing,
            ev.NodeStuck: self._preparing,
            ev.SnapshotTaken: self._snapshot_done,
            ev.CopyStored: self._keep_done,
            ev.CopyFailed: self._copy_failed,
            ev.ChecksMade: self._checks_made,
            ev.ChecksFailed: self._checks_failed,
            ev.Tick: self._tick,
        }

    @staticmethod
    def restored(
        manifest: Manifest,
        delivered: int | None,
        policy: Policy,
        nodes: Iterable[str],
        generation: Callable[[], int],
        times: Timeouts,
        since: int = 0,
        back: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    ) -> SessionState:
        """The machine of a session that another process ran: its client has the answers of `delivered` steps, or is
        away, too (None), and has feeds `since` some step.  These workers are `back` already, with what each has kept,
        and how many steps of each plan it has done."""
        machine = SessionState(policy, nodes, generation, times)
        usable = manifest if delivered is None else manifest.before(delivered, since)
        machine._copies = [Copy.recorded(copy) for copy in usable.copies]
        if usable.plan is not None:
            machine._plans = {usable.plan.generation: CurrentPlan.recorded(usable.plan)}
        machine._count_from(usable.least if delivered is None else delivered)
        machine._held_from = min([machine._done, *(copy.value for copy in usable.copies)])
        machine._attendance = Attendance(away=delivered is None, unsure=delivered is None, unknown=delivered is None)
        machine._copied = max((copy.value for copy in usable.copies if copy.regular), default=0)
        machine._away = True
        for node, kept in back.items():
            machine._take_back(node, frozenset(kept), kept)
        return machine

    def _count_from(self, value: int) -> None:
        """Begin with so many steps that are done, and none that was asked for besides."""
        self._asked = self._delivered = self._acknowledged = self._done = self._copied = value

    def begin(self, now: float) -> list[ev.Action]:
        """The first plan, or the wait for the workers that a restored session needs."""
        if self._plan is None and self._whole_copies == self._copies:
            return self._go_on(now)
        self._return.begin(now, self._return_s)
        return self._look_what_is_back(now)

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """The actions that follow from `event`, to be performed in order."""
        actions: list[ev.Action] = self._handlers[type(event)](event, now)
        return [*actions, *unattended.attend(self, now)] if self._attendance else actions

    def next_deadline(self) -> float | None:
        """The time at which a Tick is due, or None."""
        stuck = None if self._plan is None else self._timeout.due_s(self._plan.ending)
        waits = (self._alone, self._return, self._attendance.again)
        dues = (*(wait.until_s for wait in waits), self._retry.parked_until_s, stuck)
        return min((due for due in dues if due is not None), default=None)

    @property
    def _plan(self) -> CurrentPlan | None:
        return next(iter(self._plans.values()), None)

    @property
    def kept(self) -> frozenset[int]:
        """The plans and copies that workers are to keep, by generation."""
        copies = (*self._copies, *(pending.copy for pending in self._pending.values()))
        return frozenset({copy.number for copy in copies} | ({self._plan.generation} if self._plan else set()))

    @property
    def manifest(self) -> Manifest:
        """What another process needs to go on with the session after this one."""
        copies = tuple(record for copy in self._copies if (record := copy.record) is not None)
        return Manifest(copies, self._plan.record if self._plan is not None else None)

    @property
    def recorded(self) -> tuple[int, ...]:
        """What the manifest is about: where this changes, the manifest does."""
        plan = (self._plan.generation,) if self._plan is not None and self._plan.begun else ()
        return (*plan, *(-copy.number for copy in self._copies))

    @property
    def next_number(self) -> int:
        """The number of the step that is asked for next."""
        return self._asked

    @property
    def committed(self) -> int:
        """How many steps are committed and delivered."""
        return self._delivered

    @property
    def held_from(self) -> int:
        """The first step that may be done again."""
        return self._held_from

    @property
    def over(self) -> bool:
        return self._over is not None

    @property
    def idle(self) -> bool:
        """Whether no step and no read is in flight."""
        return self._delivered == self._asked and not self._reads

    def validate(self) -> None:
        """Assert that the state does not contradict itself; tests call it after every event."""
        assert self._delivered <= self._asked
        if self._over is not None:
            assert self._plan is None and not self._copies and not self._pending and not self._reads
            return
        assert self._done <= self._asked
        waited_for = bool(self._return) or self._attendance.unsure
        validate(self._plan, self._copies, self._nodes, self._done, self._held_from, waited_for)
        assert self._held_from <= self._safe
        if self._plan is not None and self._plan.running:
            assert self._done <= self._plan.next_number <= min(self._asked, self._done + self.policy.ahead)
        for pending in self._pending.values():
            assert pending.nodes <= self._nodes
        waits = self._alone.until_s, self._retry.parked_until_s, self._return.until_s, self._plan
        rescuing = any(pending.purpose == "rescue" for pending in self._pending.values())
        assert rescuing or any(wait is not None for wait in waits), "a session waits for nothing"

    # -- what the caller wants

    def _step_asked(self, event: ev.StepRequested, now: float) -> list[ev.Action]:
        if self._over is not None:
            return [ev.Reject(self._asked, self._over)]
        self._asked += 1
        return self._issue(now)

    def _answers_heard(self, event: ev.AnswersHeard, now: float) -> list[ev.Action]:
        self._acknowledged = max(self._acknowledged, min(event.steps, self._delivered))
        if self._over is not None:
            return []
        return [*self._trim_outdated(), *unattended.move(self, now), *self._issue(now)]

    def _close_asked(self, event: ev.CloseRequested, now: float) -> list[ev.Action]:
        return self._end(event.error)

    def _forget_feeds(self, event: ev.ReplayLimitExceeded, now: float) -> list[ev.Action]:
        plan = self._plan
        if self.policy.copies != "none":
            if self._copying:  # which lets them go
                return []
            self._copied = min(self._copied, self._done - self.policy.every)
            return self._copy_if_due() if plan is not None and plan.running and not plan.ending else []
        if plan is None or self._safe <= plan.start:
            return []  # nobody has a value that was made of the first state
        return self._trim(lambda copy: copy.contents is None)

    # -- nodes

    def _nodes_changed(self, event: ev.NodesChanged, now: float) -> list[ev.Action]:
        gone, self._nodes = self._nodes - event.nodes, event.nodes
        if self._over is not None:
            return []
        self._last_error = event.error or self._last_error
        self._away = bool(event.away) if gone else self._away
        self._gone |= {event.error.node: None} if event.error and event.error.node else {}
        actions: list[ev.Action] = []
        for copy in [*self._copies, *(pending.copy for pending in self._pending.values())]:
            if copy.lose(gone, event.away):  # it has to make up for what was there twice, and is not now
                self._copied = self._done - self.policy.every
        actions += self._trim_lost()
        if self._return and not self._nodes:  # nobody is left who came back
            self._return.end()
            self._return.begin(now, self._return_s)
        plan = self._plan
        hit = plan is not None and plan.lose(gone, event.away) and not self._attendance.unknown
        for pending in [copying for copying in self._pending.values() if gone & set(copying.sources.values())]:
            hit |= pending.purpose == "rescue"
            actions += self._abandon(pending.purpose)
        for pending in list(self._pending.values()):  # one who has the same as others, or a buddy, need not answer
            if pending.snapping & gone:
                pending.snapping -= gone
                actions += self._snapped(pending, now)
            if pending.keeping & gone:
                pending.keeping -= gone
                actions += self._kept_by_all(pending, now)
        if hit:
            if plan is not None and plan is self._plan and plan.running and all(plan.owners.values()) and plan.nodes:
                actions += self._counted(now)  # the others have all of what a step made that they have done
            return [*actions, *self._restart(None, now)]
        if self._return:
            return [*actions, *self._look_what_is_back(now)]
        if self._alone and self._nodes:
            return [*actions, *self._go_on(now)]
        return [*actions, *reading.read(self, now)]  # the worker that had a value may be gone

    def _node_back(self, event: ev.NodeReturned, now: float) -> list[ev.Action]:
        """A worker is back: what it still holds counts again, and the rest is lost."""
        if self._over is not None:
            return []
        self._take_back(event.node, event.deployed, event.steps_done)
        actions = self._trim_lost()
        return [*actions, *self._look_what_is_back(now)] if self._return else actions

    def _take_back(self, node: str, deployed: frozenset[int], steps_done: Mapping[int, int]) -> None:
        here, plan = node in self._nodes, self._plan
        for copy in self._copies:
            copy.back(node, here and copy.number in deployed)
        if plan is not None:
            plan.back(node, here and plan.generation in deployed, steps_done.get(plan.generation, 0))

    def _look_what_is_back(self, now: float, late: bool = False) -> list[ev.Action]:
        """Go on with the best there is: with what the plan had come to as long as that may come back whole, for a while
        also where a copy is whole; then with a copy.  `late`: nobody is waited for any more."""
        plan, actions = self._plan, list[ev.Action]()
        if late:
            if plan is not None:
                plan.away.clear()
            actions += self._trim(lambda copy: not copy.whole)
        newest = max((copy.value for copy in self._whole_copies), default=-1)
        hoped_for = [copy.value for copy in self._copies if not copy.whole]
        come_to = UNKNOWN if self._attendance.unknown else self._done
        hoped_for += [come_to] if plan is not None and plan.recoverable and not plan.whole else []
        if max(hoped_for, default=-1) > newest and not (plan is not None and plan.whole):
            if self._nodes and self._whole_copies and not self._attendance.unsure:
                self._return.shorten(now + self._settle_s)
            return actions
        self._return.end()
        actions += self._trim_lost()
        if late and not self._nodes and self._copies:
            return [*actions, *self._end(no_worker_left(self._return_s, 0, self._last_error))]
        if self._attendance.unknown:
            self._attendance.unknown = False
            self._count_from(max(newest, plan.found() if plan is not None and plan.whole else 0))
        return [*actions, *self._restart(None, now)]

    @property
    def _whole_copies(self) -> list[Copy]:
        return [copy for copy in self._copies if copy.whole]

    @property
    def _safe(self) -> int:
        """The value that the session may begin anew with, as its client has the answers of all steps before."""
        if not self.policy.durable:
            return self._done
        return min(self._done, self._delivered if self._attendance.claimed else self._acknowledged)

    def _trim_lost(self) -> list[ev.Action]:
        """Release copies that cannot become whole again.  Once a copy is whole and no worker is waited for, incomplete
        ones go, too."""
        whole = bool(self._whole_copies) and not self._return and not self._attendance.unsure
        return self._trim(lambda copy: not copy.whole and (whole or not copy.recoverable))

    def _trim_outdated(self) -> list[ev.Action]:
        """Release the copies before the newest one that was made in its turn, as far as the client has the answers."""
        regular = (copy.value for copy in self._whole_copies if copy.regular and copy.value <= self._safe)
        newest = max(regular, default=0)
        return self._trim(lambda copy: copy.value < newest)

    def _better_plan(self, event: ev.BetterPlanFound, now: float) -> list[ev.Action]:
        plan = self._plan
        if plan is None or not plan.running:
            return []
        plan.ending = True
        if not plan.steps:
            return unattended.move(self, now)
        return self._stop(plan, self._done + 1 + self._timeout.half_done(now))

    def _stop(self, plan: CurrentPlan, number: int) -> list[ev.Action]:
        """Have the workers stop from this step on: some may be further than is known."""
        stopped = range(number - plan.start, plan.issued)
        plan.issued = min(plan.issued, number - plan.start)
        plan.steps = {step: run for step, run in plan.steps.items() if step < plan.issued}
        return [ev.SendCancel(plan.generation, step, node) for node in sorted(plan.nodes) for step in stopped]

    # -- plans

    def _restart(self, error: MeshError | None, now: float) -> list[ev.Action]:
        """End the plan, and save the value that it has come to, if all of that is left."""
        plan, actions = self._plan, list[ev.Action]()
        if plan is not None:
            if self.policy.durable:  # what comes later goes with the plan, and the client may lack its answers
                self._done = max(plan.start, self._safe)
            if plan.running:
                actions += self._stop(plan, self._done)
                plan.phase = Phase.STOPPED
            self._timeout.stopped()
            if self._done > plan.start and not any(copy.value == self._done for copy in self._whole_copies):
                if plan.whole:
                    return [*actions, *self._abandon_all(), *self._take("rescue")]
                else_lost = self._attendance.unsure or not (self._whole_copies and self._nodes)
                if plan.recoverable and else_lost:
                    self._return.begin(now, self._return_s)
                    return [*actions, *self._abandon_all()]
        return [*actions, *self._abandon_all(), *self._drop_plan(), *self._go_on(now)]

    def _go_on(self, now: float) -> list[ev.Action]:
        """Make a new plan from the newest copy."""
        copies = self._whole_copies
        newest, wanted = (max((copy.value for copy in some), default=-1) for some in (copies, self._copies))
        if self._copies and (not copies or (self._attendance.unsure and newest < wanted)):
            self._return.begin(now, self._return_s)
            return []
        if not copies:
            return self._end(state_lost(self._last_error, self.policy.copies, self._gone))
        self._return.end()
        if self.policy.durable:  # another process goes on with a plan only where the client has the answers before it
            copies = [copy for copy in copies if copy.value <= self._acknowledged] or copies
        copy = max(copies, key=lambda copy: (copy.value, copy.here))
        self._done = copy.value
        if self._attendance.unsure:
            self._attendance.unknown = False
            self._count_from(copy.value)
        if not self._nodes:
            self._alone.begin(now, self._return_s if self._away else self._wait_s)
            return []
        self._alone.end()
        if self._retry.parked_until_s is not None:
            return []
        if self._through_here and not copy.here:
            return self._keep(self._again("rescue", copy))
        generation = self._generation()
        candidates = self._avoided.others(self._nodes, now) or self._nodes
        plan = CurrentPlan(generation, candidates, start=copy.value)
        return self._make(plan, ev.Start(copy.contents, copy.where))

    def _fail(self, error: MeshError, now: float) -> list[ev.Action]:
        """Try again by another plan: at once after a first failure, later after more."""
        self._last_error = error
        if self._retry.failed():
            return self._end(error)
        self._retry.park(now)
        return self._restart(error, now)

    def _drop_plan(self) -> list[ev.Action]:
        plan = self._plan
        self._timeout.stopped()
        return [] if plan is None else self._drop(plan)

    def _give_up(self, plan: CurrentPlan, working: Mapping[str, tuple[int, int, float]], now: float) -> list[ev.Action]:
        """Give up a step that does not end, and do it again without the workers that are stuck, if they are known."""
        in_flight, least_s = (plan.generation, self._done - plan.start), self._timeout.waited_s(now) / 2
        stuck = frozenset(node for node, (*at, took_s) in working.items() if (*at,) == in_flight and took_s >= least_s)
        self._avoided.add(stuck, now)
        report = ev.ReportStuckStep(plan.generation, stuck)
        if plan.ending:
            return [report, *self._restart(None, now)]
        return [report, *self._fail(stuck_step(self._timeout.took_s), now)]

    def _when_made(self, plan: CurrentPlan, event: ev.PlanMade, now: float) -> list[ev.Action]:
        if not event.nodes <= self._nodes:
            return [*self._drop_plan(), *self._go_on(now)]
        self._roomless = event.roomless
        self._timeout.planned(event.step_s)
        plan.owners = {piece: set(owners) for piece, owners in event.owners.items()}
        return self._deploy(plan, now)

    def _when_not_made(self, plan: CurrentPlan, event: ev.PlanFailed, now: float) -> list[ev.Action]:
        if not plan.candidates <= self._nodes:  # a worker that is gone may be why
            return [*self._drop_plan(), *self._go_on(now)]
        self._late_plans += isinstance(event.error, DeadlineExceeded)
        # It may be that it takes those that are avoided after all.
        again = self._late_plans < LATE_PLANS_MAX and (event.error.retry or bool(self._avoided))
        if not event.error.retry:
            self._avoided.clear()
        if again:
            return self._fail(event.error, now)
        return self._end(cannot_continue(event.error, self._gone, self._done))

    def _when_ready(self, plan: CurrentPlan, now: float) -> list[ev.Action]:
        return [*reading.read(self, now), *self._issue(now)]

    def _when_not_deployed(self, plan: CurrentPlan, event: ev.DeployFailed, now: float) -> list[ev.Action]:
        if isinstance(event.error, BlobError):  # what it was to begin with is not to be had
            self._through_here = True
            return [*self._blame_copy(plan.start), *self._fail(event.error, now)]
        if isinstance(event.error, DeviceLost | DeadlineExceeded):
            self._avoided.add((event.node,), now)
            self._compiles_lost += bool(event.error.part)  # that is named where compiling it may have been why
        hopeless = not event.error.retry or self._compiles_lost >= COMPILES_LOST_MAX
        return self._end(event.error) if hopeless else self._fail(event.error, now)

    def _preparing(self, event: ev.CompilationReported | ev.NodeStuck, now: float) -> list[ev.Action]:
        """Plan without a worker that is stuck while others wait; if there are no others, the worker itself ends it."""
        plan = self._plan
        if plan is None or event.node not in plan.nodes - plan.deployed:
            return []
        if not self._avoided.others(self._nodes - {event.node}, now):
            return []
        if isinstance(event, ev.CompilationReported):
            expected_s = plan.prepare_s.get(event.part, 0.0)
            if event.generation != plan.generation or not self._timeout.compiles_too_long(event.seconds, expected_s):
                return []
        self._avoided.add((event.node,), now)
        return [
            ev.ReportStuckStep(plan.generation, frozenset({event.node})),
            *self._fail(stuck_at_first(event.node), now),
        ]

    # -- steps

    def _issue(self, now: float) -> list[ev.Action]:
        """Begin as many steps as may be in flight; those after a value that is asked for wait for it."""
        plan = self._plan
        if plan is None or not plan.running or plan.ending:
            return []
        wanted = min((read.value for read in self._reads.values()), default=self._asked)
        actions: list[ev.Action] = []
        while (number := plan.next_number) < min(self._asked, wanted, self._safe + self._ahead):
            self._timeout.began(now)
            actions += self._run(plan, number, now, committed=max(self._safe - plan.start, 0))
        return actions

    def _when_done(self, plan: CurrentPlan, step: int, now: float) -> list[ev.Action]:
        """Commit the steps that are done."""
        actions = self._counted(now)
        if self._safe > plan.start and self.policy.copies == "none":
            actions += self._trim(lambda copy: copy.contents is not None)
        if plan.ending and not plan.steps:
            return [*actions, *reading.read(self, now), *unattended.move(self, now)]
        return [*actions, *self._copy_if_due(), *reading.read(self, now), *self._issue(now)]

    def _counted(self, now: float) -> list[ev.Action]:
        """Commit steps in order, once all connected workers have done them.  A replayed step is not answered again."""
        plan, actions = self._plan, list[ev.Action]()
        assert plan is not None
        while (step := plan.steps.get(self._done - plan.start)) is not None and plan.is_done(step):
            del plan.steps[self._done - plan.start]
            self._timeout.done(now, bool(plan.steps))
            if self._done == self._delivered:
                actions.append(ev.Resolve(self._done, plan.generation, step.outputs))
                self._delivered += 1
            self._done += 1
            self._retry.succeeded()
            self._compiles_lost, self._gone = 0, {}
        return actions

    def _when_not_run(self, plan: CurrentPlan, event: ev.RunFailed, now: float) -> list[ev.Action]:
        if isinstance(event.error, QueueFull):  # a worker had no room for what came for so many steps at once
            self._ahead = max(min(self._ahead, len(plan.steps)) // 2, 1)
        if event.error.retry:
            return self._fail(event.error, now)
        number = plan.start + event.step
        if number < self._delivered:  # it was done before, and answered
            return self._end(event.error)
        after = Cancelled("a step before it failed", cause=str(event.error))
        actions: list[ev.Action] = [ev.Reject(number, event.error)]
        actions += [ev.Reject(later, after.copy()) for later in range(number + 1, self._asked)]
        self._asked = number
        for read in self._reads.values():
            read.value = min(read.value, number)
        return [*actions, *self._restart(event.error, now)]

    # -- copies

    def _copy_if_due(self) -> list[ev.Action]:
        assert self._plan is not None
        due = self._done - self._copied >= self.policy.every and self._done > self._plan.start
        if not due or self._copying or self.policy.copies == "none":
            return []
        if self._replicated:
            if self._safe <= self._plan.start:
                return []
            self._copied = self._done
            return self._trim(lambda copy: copy.value < self._safe)
        return self._take("copy")

    @property
    def _copying(self) -> bool:
        return any(pending.purpose == "copy" for pending in self._pending.values())

    @property
    def _replicated(self) -> bool:
        """Whether every piece is made by several workers, so that each of them is a copy."""
        owners = self._plan.owners.values() if self._plan is not None else ()
        return self.policy.copies == "buddy" and bool(owners) and all(len(nodes) > 1 for nodes in owners)

    def _take(self, purpose: str | int) -> list[ev.Action]:
        """Copy the value that the plan has come to."""
        plan = self._plan
        assert plan is not None and self._done > plan.start
        if purpose == "copy":
            self._copied = self._done
        pending = self._begin_copy(purpose, plan.owners)
        copy, pending.snapping = pending.copy, set(pending.sources.values())
        if purpose == "rescue":
            pending.snapping = set().union(*plan.owners.values())
        step = self._done - 1 - plan.start
        return [ev.TakeSnapshot(copy.number, plan.generation, step, node) for node in sorted(pending.snapping)]

    def _begin_copy(self, purpose: str | int, owners: Mapping[ev.Piece, Iterable[str]]) -> PendingCopy:
        copy = Copy(self._generation(), self._done, None)
        sources = {piece: min(nodes, default=CLIENT) for piece, nodes in owners.items()}  # it makes what is lost
        pending = PendingCopy(copy, purpose, sources)
        self._pending[copy.number] = pending
        return pending

    def _again(self, purpose: str | int, copy: Copy) -> PendingCopy:
        """Begin to store an existing copy in other places."""
        assert copy.contents is not None
        owners = copy.where
        if purpose == "copy":  # what only this process has, or makes of checks, it gives to a worker
            owners = {piece: nodes - {CLIENT} or nodes for piece, nodes in owners.items()}
        pending = self._begin_copy(purpose, owners)
        pending.pieces = dict(copy.contents)
        return pending

    def _snapshot_done(self, event: ev.SnapshotTaken, now: float) -> list[ev.Action]:
        pending = self._pending.get(event.copy)
        if pending is None:
            return []
        pending.snapping.discard(event.node)
        for piece, address in event.contents.items():
            if pending.sources.get(piece) == event.node:
                pending.pieces[piece] = address
            else:
                pending.also.setdefault(piece, {})[event.node] = address
        return self._snapped(pending, now)

    def _snapped(self, pending: PendingCopy, now: float) -> list[ev.Action]:
        if pending.snapping:
            return []
        silent = [node for piece, node in pending.sources.items() if piece not in pending.pieces]
        if silent:
            error = BlobError("a worker left out a piece of the state")
            return self._copy_failed(ev.CopyFailed(pending.copy.number, min(silent), error), now)
        if pending.purpose == "copy" and self._is_checked(pending) and self._keeps_on_workers:
            return [ev.MakeChecks(pending.copy.number, pending.pieces, dict(pending.sources), self._nodes)]
        return self._keep(pending)

    def _is_checked(self, pending: PendingCopy) -> bool:
        """Whether there are checks of a copy; not of one that is stored again, some of which this process makes."""
        return self._kind.members != 1 and CLIENT not in pending.sources.values()

    @property
    def _keeps_on_workers(self) -> bool:
        enough = self._kind.on_workers and len(self._nodes) > self._kind.extra
        return enough and not (self._through_here or self._roomless)

    def _checks_made(self, event: ev.ChecksMade, now: float) -> list[ev.Action]:
        pending = self._pending.get(event.copy)
        if pending is None:
            return []
        copy = pending.copy
        copy.checked, copy.keepers = event.checked, {node for group in event.checked for node, _ in group.checks}
        if not copy.keepers <= self._nodes:
            return self._abandon(pending.purpose)  # the next one is due soon
        self._unchecked = 0
        return self._keep(pending)

    def _checks_failed(self, event: ev.ChecksFailed, now: float) -> list[ev.Action]:
        """A worker may have died.  If it happens again and again, copies pass through this process instead."""
        pending = self._pending.get(event.copy)
        if pending is None:
            return []
        self._unchecked += 1
        self._through_here |= self._unchecked >= COPY_TRIES
        return self._abandon(pending.purpose)

    def _keep(self, pending: PendingCopy) -> list[ev.Action]:
        """Store the pieces of a copy in their places."""
        by_node, owners = pending.spread({piece: self._others(pending, piece) for piece in pending.sources})
        return [ev.StoreCopy(pending.copy.number, node, pieces, owners) for node, pieces in sorted(by_node.items())]

    def _others(self, pending: PendingCopy, piece: ev.Piece) -> set[str]:
        """The nodes that hold a piece besides its owner: others that made it, the buddy, or this process."""
        owner, also = pending.sources[piece], pending.also.get(piece, {})
        if pending.purpose == "rescue" and not self._through_here:
            return {node for node, address in also.items() if address == pending.pieces[piece]} & self._nodes
        if pending.purpose == "copy" and self._keeps_on_workers:
            if self._is_checked(pending):
                return set()
            ring = sorted(self._nodes)
            return {ring[(ring.index(owner) + 1) % len(ring) if owner in ring else 0]}
        return {CLIENT}

    def _keep_done(self, event: ev.CopyStored, now: float) -> list[ev.Action]:
        pending = self._pending.get(event.copy)
        if pending is None:
            return []
        pending.keeping.discard(event.node)
        return self._kept_by_all(pending, now)

    def _kept_by_all(self, pending: PendingCopy, now: float) -> list[ev.Action]:
        copy = pending.copy
        if pending.keeping or copy.contents is None:
            return []
        if not copy.whole:
            return self._copy_failed(ev.CopyFailed(copy.number, "", BlobError("its holders are gone")), now)
        del self._pending[copy.number]
        if isinstance(pending.purpose, int):
            self._reads.pop(pending.purpose, None)
            delivery = ev.DeliverState(pending.purpose, copy.contents, copy.where)
            return [delivery, *(ev.ReleaseCopy(copy.number, node) for node in sorted(copy.asked)), *self._issue(now)]
        self._copies.append(copy)
        actions = self._trim_lost()
        if pending.purpose == "copy":
            copy.regular = True
            return [*actions, *self._trim_outdated()]
        return [*actions, *self._drop_plan(), *self._go_on(now)]

    def _copy_failed(self, event: ev.CopyFailed, now: float) -> list[ev.Action]:
        pending = self._pending.get(event.copy)
        if pending is None:
            return []
        if event.node in pending.snapping - set(pending.sources.values()):  # others have what it has not
            pending.snapping.discard(event.node)
            return self._snapped(pending, now)
        actions = self._abandon(pending.purpose)
        self._through_here |= not pending.snapping and isinstance(event.error, BlobError | OutOfMemory)
        gone = event.node in pending.snapping and isinstance(event.error, DeviceLost | StaleGeneration)
        if pending.purpose == "rescue" or gone:
            if self._plan is None:  # it was to be brought here
                return [*actions, *self._blame_copy(pending.copy.value), *self._fail(event.error, now)]
            for owners in self._plan.owners.values():
                owners.discard(event.node)
            return [*actions, *self._fail(event.error, now)]
        if pending.purpose == "copy":
            return actions  # the next one is due soon
        assert isinstance(pending.purpose, int)
        read = self._reads[pending.purpose]
        read.begun, read.attempts = False, read.attempts + 1
        if read.attempts < READS_MAX:
            return [*actions, *reading.read(self, now)]
        del self._reads[pending.purpose]
        return [*actions, ev.RejectState(pending.purpose, event.error), *self._issue(now)]

    def _blame_copy(self, value: int) -> list[ev.Action]:
        """Count a failure to fetch a copy; after COPY_TRIES failures it counts as lost."""
        for copy in self._copies:
            copy.failures += copy.value == value
        return self._trim(lambda copy: copy.failures >= COPY_TRIES and copy.contents is not None)

    def _abandon(self, purpose: str | int) -> list[ev.Action]:
        """Give up the pending copies of this purpose, and release what was stored of them."""
        actions: list[ev.Action] = []
        for pending in [copying for copying in self._pending.values() if copying.purpose == purpose]:
            del self._pending[pending.copy.number]
            actions += [ev.ReleaseCopy(pending.copy.number, node) for node in sorted(pending.copy.asked)]
            if isinstance(purpose, int) and purpose in self._reads:
                self._reads[purpose].begun = False
        return actions

    def _abandon_all(self) -> list[ev.Action]:
        return [action for pending in list(self._pending.values()) for action in self._abandon(pending.purpose)]

    def _trim(self, unwanted: Callable[[Copy], bool]) -> list[ev.Action]:
        """Release the unwanted copies, and the feeds that no other copy needs."""
        gone = [copy for copy in self._copies if unwanted(copy)]
        self._copies = [copy for copy in self._copies if copy not in gone]
        actions: list[ev.Action] = [ev.ReleaseCopy(copy.number, node) for copy in gone for node in sorted(copy.asked)]
        copies = [*self._copies, *(pending.copy for pending in self._pending.values())]
        needed = min((self._safe, *(copy.value for copy in copies)))
        if needed > self._held_from:
            self._held_from = needed
            actions.append(ev.ForgetFeeds(needed))
        return actions

    # -- the end

    def _end(self, error: MeshError | None) -> list[ev.Action]:
        if self._over is not None:
            return []
        self._over = error or Cancelled("the session was closed")
        actions = self._abandon_all()
        actions += [ev.Reject(number, self._over.copy()) for number in range(self._delivered, self._asked)]
        actions += [ev.RejectState(request, self._over.copy()) for request in self._reads]
        self._reads.clear()
        actions += self._drop_plan()
        self._delivered = self._asked
        actions += self._trim(lambda copy: True)
        self._retry.unpark()
        self._alone.end()
        self._return.end()
        self._attendance.over()
        return [*actions, ev.EndSession(error)]

    def _tick(self, event: ev.Tick, now: float) -> list[ev.Action]:
        if self._alone.is_over(now):
            return self._end(no_worker_left(self._alone.seconds, 0, self._last_error))
        if self._return.is_over(now):
            return self._look_what_is_back(now, late=True)
        if self._plan is not None and self._timeout.is_over(now, self._plan.ending):
            return self._give_up(self._plan, event.working, now)
        if not self._retry.is_due(now):
            return []
        self._retry.unpark()
        rescuing = any(pending.purpose == "rescue" for pending in self._pending.values())
        return [] if rescuing or self._plan is not None or self._alone else self._go_on(now)


__all__ = ["Policy", "SessionState"]
