"""The plan shell: performs what the lifecycle of a plan decides (`plan_lifecycle.py`), over the links to workers.

`CallRunner` (`coordinator/runtime/call_runner.py`) and `SessionShell` (`coordinator/sessions/session_shell.py`) derive
from it.  They know what a plan is of, what its steps are fed with, and who waits for the answers.  An action that fails
becomes the event of its failure (`action_failures.py`).  Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from wire.errors import MeshError, NodeLost, RemoteError
from wire.ir.types import TensorType
from wire.link.link import Link
from wire.protocol.messages import CancelStep, Deployed, Ran, Run, Value
from wire.system.tasks import as_error, isolated, unheard

from ..delivery.input_sender import Sending, run_step
from ..delivery.output_receiver import check_type_of, let_go, tensor_of
from ..planning import plan_messages
from ..planning.model.plan import Plan
from ..workers.records import Deployment
from . import events as ev
from .action_failures import doing, failure_of
from .plan_context import PlanContext
from .plan_lifecycle import PlanLifecycle

Arrays = Mapping[str, NDArray[Any]]
_NOBODY: tuple[str, TensorType | None] = "", None


class PlanShell(ABC):
    """The plans of one owner: `deployments`, by generation."""

    def __init__(self, context: PlanContext) -> None:
        self.deployments: dict[int, Deployment] = {}
        self._key, self._members, self._known = context.key, context.members, context.known
        self._deployer, self._prober, self._held = context.deployer, context.prober, context.held
        self._events, self._publish = context.events, context.events.publish
        self._shared, self._tasks, self._refuse = context.shared, context.tasks, context.refuse
        self._loop = asyncio.get_running_loop()
        self._drops: set[asyncio.Task[None]] = set()
        self._performers: dict[type, Callable[[Any], object]] = {
            ev.MakePlan: self._make_plan,
            ev.SendDeploy: lambda action: self._begin(action, self._deploy(action)),
            ev.SendRun: self._run,
            ev.SendCancel: self._send_cancel,
            ev.SendDrop: lambda action: self._let_go(action.node, action.generation, action.free),
            ev.ForgetPlan: self._forget_plan,
            ev.Resolve: self._resolve,
            ev.Reject: self._reject,
        }

    # -- what the owner knows

    @property
    @abstractmethod
    def _lifecycle(self) -> PlanLifecycle[Any]:
        """The machine that decides."""

    @abstractmethod
    def feed(self, event: Any) -> None:
        """Give an event to the machine, and perform what follows."""

    @abstractmethod
    def _make_plan(self, action: ev.MakePlan) -> None:
        """Begin to plan, and note the deployment."""

    @abstractmethod
    async def _contents(
        self, deployment: Deployment, plan: Plan, node: str
    ) -> tuple[plan_messages.Bindings, plan_messages.State]:
        """What a node's params are bound to, and which nodes hold the first values of its state."""

    @abstractmethod
    def _deployed(self, action: ev.SendDeploy, deployment: Deployment, answer: Deployed) -> None:
        """A node has deployed its parts, as `deployment.results` says."""

    @abstractmethod
    def _inputs_of(self, action: ev.SendRun, deployment: Deployment) -> Arrays | None:
        """The inputs of a step; None if nobody waits for it any more."""

    @abstractmethod
    def _ran(self, action: ev.SendRun, deployment: Deployment, answer: Ran, began_s: float) -> None:
        """A node did its parts of a step that was sent to it at `began_s`."""

    @abstractmethod
    def _forgotten(self, deployment: Deployment) -> None:
        """A plan is given up."""

    @abstractmethod
    def _resolve(self, action: ev.Resolve) -> None:
        """Give the outputs of a call or a step to its caller."""

    @abstractmethod
    def _reject(self, action: ev.Reject) -> None:
        """Give the error of a call or a step to its caller."""

    @abstractmethod
    def _unanswered(self, error: MeshError) -> None:
        """An action failed that has no answer."""

    # -- actions

    def _perform(self, action: Any) -> None:
        try:
            self._performers[type(action)](action)
        except Exception as fault:
            self._loop.call_soon(self._failed, action, as_error(f"{doing(action)} failed", fault))

    def _begin(self, action: Any, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.run(doing(action), work, lambda error: self._failed(action, error))

    def _failed(self, action: Any, error: MeshError) -> None:
        """Report the failure of an action to the caller that waits for its result."""
        if isinstance(action, ev.SendRun):
            self._prober.lost_between(action.node, error)
        event = failure_of(action, error, self._known, self._members, self.deployments)
        if event is None:
            self._unanswered(error)
        else:
            self.feed(event)

    async def _deploy(self, action: ev.SendDeploy) -> None:
        deployment = self.deployments.get(action.generation)
        if deployment is None or deployment.plan is None:
            return
        plan, force = deployment.plan, deployment.program.forced > 0
        bindings, state = await self._contents(deployment, plan, action.node)
        key = self._key(action.generation)
        answer = await self._deployer.deploy(plan, action.node, key, bindings, state, force)
        deployment.results[action.node] = answer
        self._deployed(action, deployment, answer)
        self.feed(ev.DeployDone(action.generation, action.node))

    def _run(self, action: ev.SendRun) -> None:
        deployment = self.deployments.get(action.generation)
        inputs = None if deployment is None else self._inputs_of(action, deployment)
        if deployment is None or inputs is None:
            return
        member = self._members.get(action.node)
        if member is None:
            raise NodeLost("the worker is gone")
        run = Run(self._key(action.generation), action.step, committed=action.committed)
        sending: Sending = lambda what, work, failed: deployment.sends(self._tasks.run(what, work, failed))  # noqa: E731
        ran = run_step(member.link, run, deployment.feeds.get(action.node, ()), inputs, self._shared, sending)
        ran.then(partial(self._answered, action, deployment, member.link, self._loop.time()))

    def _answered(
        self, action: ev.SendRun, deployment: Deployment, link: Link, began_s: float, answer: Ran | None,
        error: MeshError | None,
    ) -> None:  # fmt: skip
        if answer is None:
            self._failed(action, error or RemoteError("a run has no answer"))
            return
        with isolated("recording what a worker did"):  # the step is right without that
            self._tell_begun(action, deployment, answer)
            self._ran(action, deployment, answer, began_s)
        try:
            outputs: dict[int, NDArray[Any]] = {}
            for came in answer.outputs:
                if came.value.data is not None or came.value.shared:
                    array = self._output(link, action.generation, action.step, came.slot, came.value)
                    if array is not None and outputs.setdefault(came.slot, array) is not array:
                        self._refuse(link, f"{link.peer.name} sent output {came.slot} twice with one answer")
            seconds = {part.part: part.compute_s for part in answer.parts}
            self.feed(ev.NodeRan(action.generation, action.step, action.node, seconds, outputs))
        except Exception as fault:
            self._failed(action, as_error(f"{doing(action)} failed", fault))

    def began(self, generation: int, step: int, node: str, part: int) -> None:
        """A worker has begun with a part of a step, and is not done with it at once."""
        deployment = self.deployments.get(generation)
        if deployment is None or self._lifecycle.lacks(generation, step, 0) is None:  # no step of ours is begun so
            return
        deployment.begun.add((step, node))
        self.feed(ev.NodeBegan(generation, step, node))
        if self._events.watched:
            self._publish("began", node, f"part {part} of step {step}", generation)

    def _tell_begun(self, action: ev.SendRun, deployment: Deployment, answer: Ran) -> None:
        """Publish that a worker began, if it was done too soon to say so itself."""
        began = action.step, action.node
        if began in deployment.begun:
            deployment.begun.discard(began)
        elif self._events.watched and answer.parts:
            self._publish("began", action.node, f"part {answer.parts[0].part} of step {action.step}", action.generation)

    # -- outputs

    def may_send(self, node: str, generation: int, slot: int) -> bool:
        """Whether a worker is the one that the plan has make an output.  What is of no plan here is stale."""
        deployment = self.deployments.get(generation)
        return deployment is None or deployment.transfers.outputs.get(slot, _NOBODY)[0] == node

    def output_type(self, link: Link, generation: int, step: int, slot: int) -> TensorType | None:
        """The type of an output that a step waits for from the worker at the other end of a link; None for one that
        nobody waits for.  One that came already, or that another worker makes, is counted against the sender."""
        lacks = self._lifecycle.lacks(generation, step, slot)
        if lacks is None:
            return None
        what = f"{link.peer.name} sent output {slot} of step {step} of plan {generation}"
        maker, kind = self.deployments[generation].transfers.outputs.get(slot, _NOBODY)
        if maker != link.peer.node_id:
            self._refuse(link, f"{what}, which another worker makes")
            return None
        if not lacks:
            self._refuse(link, f"{what} again")
            return None
        return kind

    def take_output(self, link: Link, generation: int, step: int, slot: int, value: Value) -> None:
        """Take an output, if a step waits for it.  ProtocolError where it is of another type, BlobError where its
        bytes are not as sent."""
        array = self._output(link, generation, step, slot, value)
        if array is not None:
            self.output(generation, step, slot, array)

    def _output(self, link: Link, generation: int, step: int, slot: int, value: Value) -> NDArray[Any] | None:
        """An output as `take_output` takes it; None if no step waits for it."""
        kind = self.output_type(link, generation, step, slot)
        if kind is None:
            let_go(link, value)
            return None
        check_type_of(value, kind)
        return tensor_of(link, value)

    def output(self, generation: int, step: int, slot: int, array: NDArray[Any]) -> None:
        """Take an output of the type that the plan says, from whom it says."""
        self.feed(ev.OutputArrived(generation, step, slot, array))

    def output_lost(self, generation: int, step: int, node: str, error: MeshError) -> None:
        """An output of a worker will not come."""
        self._failed(ev.SendRun(generation, step, node, 0), error)

    def _send_cancel(self, action: ev.SendCancel) -> None:
        member = self._members.get(action.node)
        if member is not None and not member.link.closed:
            member.link.notify(CancelStep(self._key(action.generation), action.step))

    def _let_go(self, node: str, generation: int, free: bool = False) -> None:
        """Have a worker forget a plan."""
        if node in self._members:
            drop = self._deployer.drop(node, self._key(generation), free)
            task = self._tasks.run("dropping a plan", drop, unheard)
            self._drops.add(task)
            task.add_done_callback(self._drops.discard)

    def _forget_plan(self, action: ev.ForgetPlan) -> None:
        deployment = self.deployments.pop(action.generation, None)
        if deployment is not None:
            deployment.stop_sending()
            self._forgotten(deployment)
