"""The lifecycle of a plan, which calls and sessions share: events in, actions out.  Pure.

    PLANNING --PlanMade--> DEPLOYING --DeployDone of each node--> RUNNING --stop--> STOPPED
        '-------------------------'------ drop: SendDrop, ForgetPlan ----'--------------'

A step is one run of the whole plan: every node gets SendRun, and the step is done once every node answered NodeRan and
all outputs arrived.  Whatever comes for a plan or a step that is not known any more is stale and changes nothing; a
worker that deployed such a plan gets SendDrop.

`CoordinatorState` (`coordinator/calls/state.py`) and `SessionState` (`coordinator/sessions/state.py`) derive from it.
They decide which plans are wanted, what a step is for, and what follows a failure: the `_when_` methods.  A call is one
step of a plan without state; a session's steps follow each other, and each leaves a state on the workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from . import events as ev

Actions = list[Any]  # `events.PlanAction`, and what calls or sessions have besides


class Phase(Enum):
    """What a plan is at."""

    PLANNING = "planning"  # it is being made
    DEPLOYING = "deploying"  # its workers load and compile their parts
    RUNNING = "running"  # steps run by it
    STOPPED = "stopped"  # no step runs by it any more; workers have what the last one left, until that is copied


@dataclass(slots=True)
class StepRun:
    """A step in flight."""

    number: int  # of the call that it is, or of the session's step
    seen_s: float  # when there was a sign of it last
    input_bytes: int = 0  # that it holds in memory until it is over
    began: set[str] = field(default_factory=set)  # nodes that compute or did
    ran: set[str] = field(default_factory=set)  # nodes that are done
    outputs: dict[int, Any] = field(default_factory=dict)  # those that came, by slot


@dataclass(slots=True)
class LivePlan:
    """A plan from the question to its end."""

    generation: int
    candidates: frozenset[str] = frozenset()  # the nodes that it is made for
    nodes: frozenset[str] = frozenset()  # those that it uses
    phase: Phase = Phase.PLANNING
    outputs: int = 0  # of a step
    prepare_s: Mapping[int, float] = field(default_factory=dict)  # what each part should take to compile
    step_s: float = 0.0  # what a step should take
    deployed: set[str] = field(default_factory=set)
    steps: dict[int, StepRun] = field(default_factory=dict)  # those in flight, counted from the plan's first
    issued: int = 0  # steps that were begun

    @property
    def running(self) -> bool:
        """Whether steps run by it."""
        return self.phase is Phase.RUNNING

    def is_done(self, step: StepRun) -> bool:
        """Whether all nodes have done a step, and all its outputs have come."""
        return self.nodes <= step.ran and len(step.outputs) >= self.outputs


P = TypeVar("P", bound=LivePlan)


class PlanLifecycle(ABC, Generic[P]):
    """The plans of one owner.  `_nodes` are the workers that may get work."""

    _nodes: Set[str]

    def __init__(self) -> None:
        self._plans: dict[int, P] = {}
        self._handlers: dict[type, Callable[[Any, float], Actions]] = {
            ev.PlanMade: self._plan_made,
            ev.PlanFailed: self._plan_failed,
            ev.DeployDone: self._deploy_done,
            ev.DeployFailed: self._deploy_failed,
            ev.NodeBegan: self._node_began,
            ev.NodeRan: self._node_ran,
            ev.RunFailed: self._run_failed,
            ev.OutputArrived: self._output_arrived,
        }

    # -- what an owner does with its plans

    def _make(self, plan: P, job: Any) -> Actions:
        """Ask for a plan of `job`."""
        self._plans[plan.generation] = plan
        return [ev.MakePlan(plan.generation, job, plan.candidates)]

    def _run(self, plan: P, number: int, now: float, committed: int = 0, input_bytes: int = 0) -> Actions:
        """Begin the next step of a plan, for the call or the session's step of this number."""
        step = plan.issued
        plan.issued += 1
        plan.steps[step] = StepRun(number, now, input_bytes)
        return [ev.SendRun(plan.generation, step, node, number, committed) for node in sorted(plan.nodes)]

    def _drop(self, plan: P, free: bool = False) -> Actions:
        """Forget a plan, and have the nodes that are there drop it."""
        del self._plans[plan.generation]
        nodes = sorted(plan.nodes & self._nodes) if plan.phase is not Phase.PLANNING else ()
        return [*(ev.SendDrop(plan.generation, node, free) for node in nodes), ev.ForgetPlan(plan.generation)]

    # -- what follows, as the owner decides

    @abstractmethod
    def _when_made(self, plan: P, event: ev.PlanMade, now: float) -> Actions:
        """The plan is there: `_deploy` it, if it can still be used."""

    @abstractmethod
    def _when_ready(self, plan: P, now: float) -> Actions:
        """All nodes have deployed it."""

    @abstractmethod
    def _when_not_made(self, plan: P, event: ev.PlanFailed, now: float) -> Actions:
        """The planner found no plan."""

    @abstractmethod
    def _when_not_deployed(self, plan: P, event: ev.DeployFailed, now: float) -> Actions:
        """A node could not deploy its parts."""

    def _when_node_ran(self, plan: P, event: ev.NodeRan) -> None:
        """A node has done its parts of a step, which need not be done yet."""

    @abstractmethod
    def _when_done(self, plan: P, step: int, now: float) -> Actions:
        """A step is done."""

    @abstractmethod
    def _when_not_run(self, plan: P, event: ev.RunFailed, now: float) -> Actions:
        """A node could not do its parts of a step that is in flight."""

    # -- events

    def _plan_made(self, event: ev.PlanMade, now: float) -> Actions:
        plan = self._plans.get(event.generation)
        if plan is None:
            return []
        plan.nodes, plan.outputs = event.nodes, event.outputs
        plan.prepare_s, plan.step_s = event.prepare_s, event.step_s
        return self._when_made(plan, event, now)

    def _deploy(self, plan: P, now: float) -> Actions:
        """Have the nodes of a plan load and compile it.  What computes nothing needs no node."""
        plan.phase = Phase.DEPLOYING
        return [ev.SendDeploy(plan.generation, node) for node in sorted(plan.nodes)] or self._ready(plan, now)

    def _plan_failed(self, event: ev.PlanFailed, now: float) -> Actions:
        plan = self._plans.get(event.generation)
        return [] if plan is None else self._when_not_made(plan, event, now)

    def _deploy_done(self, event: ev.DeployDone, now: float) -> Actions:
        plan = self._plans.get(event.generation)
        if plan is None:
            return [ev.SendDrop(event.generation, event.node)] if event.node in self._nodes else []
        plan.deployed.add(event.node)
        return self._ready(plan, now) if plan.phase is Phase.DEPLOYING and plan.nodes <= plan.deployed else []

    def _ready(self, plan: P, now: float) -> Actions:
        plan.phase = Phase.RUNNING
        return self._when_ready(plan, now)

    def _deploy_failed(self, event: ev.DeployFailed, now: float) -> Actions:
        plan = self._plans.get(event.generation)
        return [] if plan is None else self._when_not_deployed(plan, event, now)

    def _step(self, generation: int, step: int) -> StepRun | None:
        plan = self._plans.get(generation)
        return None if plan is None else plan.steps.get(step)

    def _node_began(self, event: ev.NodeBegan, now: float) -> Actions:
        step = self._step(event.generation, event.step)
        if step is not None:
            step.began.add(event.node)
            step.seen_s = now
        return []

    def _node_ran(self, event: ev.NodeRan, now: float) -> Actions:
        step = self._step(event.generation, event.step)
        if step is None:
            return []
        step.ran.add(event.node)
        step.outputs.update(event.outputs)
        self._when_node_ran(self._plans[event.generation], event)
        return self._look_if_done(event.generation, event.step, step, now)

    def lacks(self, generation: int, step: int, slot: int) -> bool | None:
        """Whether a step still waits for an output; None where it is over, or there is no such step."""
        in_flight = self._step(generation, step)
        return None if in_flight is None else slot not in in_flight.outputs

    def _output_arrived(self, event: ev.OutputArrived, now: float) -> Actions:
        """The first value of an output counts."""
        step = self._step(event.generation, event.step)
        if step is None or event.slot in step.outputs:
            return []
        step.outputs[event.slot] = event.value
        return self._look_if_done(event.generation, event.step, step, now)

    def _look_if_done(self, generation: int, number: int, step: StepRun, now: float) -> Actions:
        plan, step.seen_s = self._plans[generation], now
        return self._when_done(plan, number, now) if plan.is_done(step) else []

    def _run_failed(self, event: ev.RunFailed, now: float) -> Actions:
        if self._step(event.generation, event.step) is None:
            return []
        return self._when_not_run(self._plans[event.generation], event, now)
