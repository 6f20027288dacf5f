"""Steps: one run of a plan, from its Run and its first tensor to the reply.  Pure.

    Run (tensors may come before it) -> a part is ready when its last input is there -> it runs, one at a time per
    device, in the order of becoming ready, by time slices (`time_slices.py`) -> its outputs go to their targets
    -> all parts done, all sent -> Ran

The parts of an ordered plan run in the order of its parts and of its Runs, so that no two gangs wait for each other.
A tensor travels once per worker: its Push names the first target there, and every slot with the same source gets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wire.errors import Cancelled, MeshError, NodeLost
from wire.protocol.messages import Began, PartRun, PlanKey
from wire.timeouts import SILENT

from . import events as ev
from .bounds import EARLY_SHARE
from .carried_state import Output, Slot
from .device_queue import DeviceQueue, Entry
from .early_tensors import EarlyTensors
from .lost_links import LostLinks
from .plan import Plan, Route, TypeOf, label, not_deployed, refusal_of_direct_calls, refusal_to_explain
from .shared_state import SharedState
from .step import Step
from .time_slices import TimeSlices


@dataclass(frozen=True, slots=True)
class Arriving:
    """A tensor that comes from another node, of which the bytes need not be here yet."""

    node: str
    plan: PlanKey
    step: int
    slot: Slot
    type: TypeOf

    @property
    def text(self) -> str:
        """What it is, for people."""
        part, slot = self.slot
        return f"a tensor for input {slot} of part {part} of step {self.step} of plan {label(self.plan)}"


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Why a tensor is not taken, and whether to blame its sender: a stale one may come from any node."""

    why: str
    blame: bool = False


class Steps:
    """The steps of all plans of a worker.  Owns the numbers of runs and pushes, the early tensors, and the links that
    were lost under steps."""

    def __init__(self, shared: SharedState) -> None:
        self._plans = shared.plans
        self._devices = shared.devices
        self._dropped = shared.dropped
        self._lease = shared.lease
        self._log = shared.log
        self._next_number = shared.next_number
        bounds = shared.bounds
        self._report_begun_after_s = bounds.report_begun_after_s
        self.early = EarlyTensors(
            max(bounds.early_bytes_max, bounds.memory_bytes // EARLY_SHARE),
            bounds.early_tensors_max,
            max(bounds.early_bytes_of_one_max, bounds.memory_bytes // (2 * EARLY_SHARE)),
        )
        self.lost_links = LostLinks(shared.bounds.lost_link_grace_s)
        self.runs: dict[int, Entry] = {}
        self.requests: dict[int, tuple[PlanKey, int]] = {}  # of Runs that are not answered yet
        self._pushes: dict[int, tuple[PlanKey, int]] = {}

    # -- inputs

    def run(self, event: ev.RunRequested, refusal: MeshError | None, now: float) -> list[ev.Action]:
        """Begin a step, or refuse it: with `refusal`, or for a reason of its own."""
        plan = self._plans.get(event.plan)
        error = refusal
        if error is None:
            error = not_deployed(event.plan) if plan is None else plan.refusal(event.step)
        if error is None and plan is not None:
            error = self.early.refusal(event.plan, event.step) or self.lost_links.refusal(plan.neighbours, now)
        if error is not None or plan is None:
            assert error is not None
            released = [ev.Release(tensor) for _, _, tensor in event.feeds]
            return [*released, *self.early.release(event.plan, event.step), ev.Refuse(event.request, error)]
        waiting = plan.waiting(event.step)
        plan.steps[event.step] = Step(event.request, now, waiting)
        self.lost_links.began(plan.neighbours, plan.key, event.step, now, plan.deployed_s)
        self.requests[event.request] = (plan.key, event.step)
        self._log.add(now, f"run {label(plan.key)} step {event.step}", routine=True)
        for spec in plan.parts.values() if plan.ordered else ():
            self._devices[spec.device].ordered.append((plan.key, event.step, spec.part))
        for part in sorted(part for part, slots in waiting.items() if not slots):
            self._ready(plan, event.step, part, now)
        actions: list[ev.Action] = []
        early = [(part, slot, tensor) for (part, slot), tensor in self.early.take(event.plan, event.step)]
        for part, slot, tensor in (*event.feeds, *early):
            actions += self._arrive(plan, event.step, part, slot, tensor, now)
        if plan.carried:
            actions += self._carry_on(plan, event.step, event.committed, now)
        return [*actions, *self._finish(plan, event.step, now)]

    def _carry_on(self, plan: Plan, number: int, committed: int, now: float) -> list[ev.Action]:
        """Fill the carried inputs of a step that begins, as far as they are there, and free what is outgrown."""
        for output, kept in plan.carried.inputs_of(number):
            self._lend(plan, number, plan.carried.targets[output], kept, now)
        actions, outgrown = plan.commit(committed)
        return [*actions, *self._plans.unpin(outgrown, plan)]

    def explain(self, event: ev.ExplainRequested, refusal: MeshError | None, now: float) -> list[ev.Action]:
        """Have a part explained in place of a step, or refuse it: with `refusal`, or for a reason of its own."""
        question = event.question
        plan = self._plans.get(question.plan)
        error = refusal
        if error is None:
            error = not_deployed(question.plan) if plan is None else plan.refusal(question.step)
        if error is None and plan is not None:
            error = refusal_to_explain(plan, question.part)
        if error is not None or plan is None:
            assert error is not None
            return [ev.Refuse(event.request, error)]
        plan.steps[question.step] = Step(event.request, now, {question.part: set()}, question=question)
        self.requests[event.request] = (plan.key, question.step)
        self._log.add(now, f"explain {label(plan.key)} part {question.part}")
        self._ready(plan, question.step, question.part, now)
        return []

    def open_direct(self, event: ev.DirectRequested, refusal: MeshError | None) -> list[ev.Action]:
        """Have a part called directly, or refuse it: with `refusal`, or for a reason of its own."""
        plan = self._plans.get(event.plan)
        error = refusal
        if error is None:
            error = not_deployed(event.plan) if plan is None else refusal_of_direct_calls(plan, event.part)
        if error is not None or plan is None:
            assert error is not None
            return [ev.Refuse(event.request, error)]
        device, prepared = plan.parts[event.part].device, plan.prepared[event.part]
        return [ev.OpenDirect(event.request, device, prepared, event.directory, event.name)]

    def explained(self, event: ev.PartExplained, now: float) -> list[ev.Action]:
        plan, number, _ = self._end_run(event.run, now)
        if plan is None:
            return []
        step = plan.steps.pop(number)
        del self.requests[step.request]
        plan.closed.add(number)
        return [ev.Reply(step.request, event.answer)]

    def unwanted(self, tensor: Arriving) -> Unwanted | None:
        """Why a tensor is not taken: it is stale, or not what the plan says, or its like came already."""
        plan, (part, slot) = self._plans.get(tensor.plan), tensor.slot
        if plan is None or tensor.step in plan.closed:
            return Unwanted(f"stale tensor for {label(tensor.plan)} step {tensor.step} part {part}")
        owner = self._lease.owner
        if plan.sender_of(part, slot, owner.node if owner else "") != tensor.node:
            return Unwanted(f"{tensor.text}, which it does not make", True)
        expected = plan.types.get(tensor.slot, tensor.type)
        if expected != tensor.type:
            return Unwanted(f"{tensor.text} as {_type_text(tensor.type)} in place of {_type_text(expected)}", True)
        step = plan.steps.get(tensor.step)
        came = step.has(part, slot) if step is not None else self.early.has(tensor.plan, tensor.step, tensor.slot)
        return Unwanted(f"{tensor.text} again", True) if came else None

    def tensor_arrived(self, event: ev.TensorArrived, now: float) -> list[ev.Action]:
        """Give a tensor to its step.  If the step has not begun, hold it; if it is unwanted, free it."""
        slot, kind = (event.part, event.slot), (event.tensor.dtype, event.tensor.shape)
        unwanted = self.unwanted(Arriving(event.node, event.plan, event.step, slot, kind))
        if unwanted is not None:
            self._log.add(now, unwanted.why, routine=True)
            blame: list[ev.Action] = [ev.Blame(event.node, unwanted.why)] if unwanted.blame else []
            return [ev.Release(event.tensor), *blame]
        plan = self._plans[event.plan]
        if event.step in plan.steps:
            return self._arrive(plan, event.step, event.part, event.slot, event.tensor, now)
        return self.early.add(event.plan, event.step, slot, event.node, event.tensor)

    def _arrive(self, plan: Plan, number: int, part: int, slot: int, tensor: ev.Tensor, now: float) -> list[ev.Action]:
        """A tensor came from another node: every slot with the same source gets it."""
        slots = plan.same_source.get((part, slot), ((part, slot),))
        plan.steps[number].bytes_in += ev.size_bytes_of(tensor)
        return self._fill(plan, number, slots, tensor, now)

    def _fill(self, plan: Plan, number: int, slots: Iterable[Slot], tensor: ev.Tensor, now: float) -> list[ev.Action]:
        ready = plan.steps[number].fill(slots, tensor)
        for part in ready or ():
            self._ready(plan, number, part, now)
        return [ev.Release(tensor)] if ready is None else []

    def _lend(self, plan: Plan, number: int, slots: Iterable[Slot], tensor: ev.Tensor, now: float) -> None:
        """Fill slots of a step, if it is in flight, with a tensor that must stay after the step has read it."""
        step = plan.steps.get(number) if slots else None
        for part in (step.fill(slots, tensor, borrowed=True) or ()) if step is not None else ():
            self._ready(plan, number, part, now)

    def _ready(self, plan: Plan, number: int, part: int, now: float) -> None:
        step = plan.steps[number]
        step.wait_s[part] = max(0.0, now - step.started_s)
        self._devices[plan.parts[part].device].ready.append((plan.key, number, part))

    # -- runs

    def dispatch(self, now: float) -> list[ev.Action]:
        """Give every idle device its next part.  The host of a session's step gets the part that follows as well."""
        actions: list[ev.Action] = []
        for index, device in enumerate(self._devices):
            while device.ready and (entry := device.take(self._working_bytes) or self._following(device)) is not None:
                actions += self._start(index, device, entry, now)
            if (resumed := device.resume(now)) is not None:
                actions.append(ev.ResumeRun(index, resumed.number, resumed.stopped))
            if device.running is not None and device.just_begun():
                actions += self._begun(index, device.running, now)
            if (over := device.slice_over(now, self._working_bytes)) is not None:
                actions.append(ev.SuspendRun(index, over))
        return actions

    def _working_bytes(self, entry: Entry) -> int:
        return self._plans[entry[0]].working_bytes

    def suspended(self, event: ev.RunSuspended, now: float) -> list[ev.Action]:
        """A host has suspended a run.  Its step may have ended meanwhile."""
        for device in self._devices:
            device.suspended(event.run, event.room_bytes, now)
        key, number, _ = self.runs.get(event.run, (None, 0, 0))
        if key is not None and self._plans.step(key, number) is None:
            for device in self._devices:
                device.stop(event.run)
        return []

    def _following(self, device: DeviceQueue) -> Entry | None:
        plan = self._plans.get(self.runs[device.running][0]) if device.running is not None else None
        return device.take_following(plan.key) if plan is not None and plan.carried else None

    def _begun(self, index: int, run: int, now: float) -> list[ev.Action]:
        """A host begins with a run whose inputs are all there.  Its step may have ended since the host was given it."""
        key, number, part = self.runs[run]
        step, owner = self._plans.step(key, number), self._lease.owner
        if step is None or owner is None:
            self._devices[index].stop(run)
            return [ev.StopRun(index, run)]
        step.wait_s.setdefault(part, max(0.0, now - step.started_s))
        self._devices[index].unreported = not step.began and step.question is None
        return []

    def tell_begun(self, now: float) -> list[ev.Action]:
        """Tell the coordinator of steps that have begun.  Only steps that take a while are
        reported: of others the answer says it, and a message less makes a short step much shorter."""
        actions: list[ev.Action] = []
        owner = self._lease.owner
        for device in self._devices:
            if device.unreported and device.running is not None and now >= device.since_s + self._report_begun_after_s:
                device.unreported = False
                key, number, part = self.runs[device.running]
                step = self._plans.step(key, number)
                if step is not None and owner is not None and not step.began:
                    step.began = True
                    actions.append(ev.SendBegan(owner.node, Began(key, number, part)))
        return actions

    def deadlines(self) -> list[float]:
        """The times at which `tell_begun` may have something to tell, or a run's time slice is over."""
        begun = [
            device.since_s + self._report_begun_after_s
            for device in self._devices
            if device.unreported and device.running is not None
        ]
        ends = (device.slice_ends_s(self._working_bytes) for device in self._devices)
        return [*begun, *(at_s for at_s in ends if at_s is not None)]

    def _start(self, index: int, device: DeviceQueue, entry: Entry, now: float) -> list[ev.Action]:
        key, number, part = entry
        plan = self._plans[key]
        step = plan.steps[number]
        run = self._next_number()
        self.runs[run] = entry
        if (question := step.question) is not None:
            device.start(run, (), now)
            return [ev.ExplainPart(index, run, plan.prepared[part], question.texts, question.kernel)]
        inputs = step.take(part, plan.inputs_at(part, number))
        wishes = tuple(
            ev.OutputRequest(self._next_number() if route.kept else 0, route.copies) for route in plan.routes[part]
        )
        carries = bool(plan.carried)
        if carries and plan.carried.any_promised(number, (use.tensor for use in inputs)):  # it waits for what runs now
            del step.wait_s[part]
        suspendable = not (carries or plan.ordered)
        device.start(run, inputs, now, (key, number), suspendable)
        for output, (route, wish) in enumerate(zip(plan.routes[part], wishes, strict=True)) if carries else ():
            if route.next and (kept := plan.carried.promise(number, (part, output), index, wish.keep)) is not None:
                self._lend(plan, number + 1, route.next, kept, now)
        return [ev.Execute(index, run, plan.prepared[part], inputs, wishes, number, suspendable)]

    def executed(self, event: ev.PartExecuted, now: float) -> list[ev.Action]:
        """A part is done: send its outputs, or free them if the step is over."""
        plan, number, part = self._end_run(event.run, now)
        if plan is None:
            return _release_all(event.outputs)
        step = plan.steps[number]
        costs = event.exchange_s, event.readback_s, event.encode_s
        sizes = event.sent_bytes, event.uploaded_bytes, event.readback_bytes
        step.done.append(PartRun(part, event.compute_s, step.wait_s[part], *costs, *sizes))
        actions: list[ev.Action] = []
        for output, (route, made) in enumerate(zip(plan.routes[part], event.outputs, strict=True)):
            actions += self._route(plan, number, route, made, now)
            if route.next and made.kept is not None:
                self._carry(plan, number, (part, output), made.kept, now)
        return [*actions, *self._finish(plan, number, now)]

    def _route(self, plan: Plan, number: int, route: Route, made: ev.PartOutput, now: float) -> list[ev.Action]:
        step = plan.steps[number]
        files = iter(made.files)
        actions: list[ev.Action] = []
        for node, part, slot in route.nodes:
            push, tensor = self._next_number(), made.inline or next(files)
            self._pushes[push] = (plan.key, number)
            step.pushes.add(push)
            step.bytes_out += ev.size_bytes_of(tensor)
            actions.append(ev.SendPush(push, node, plan.key, number, part, slot, tensor))
        for position in route.positions:
            tensor = made.inline or next(files)
            step.bytes_out += ev.size_bytes_of(tensor)
            step.outputs.append((position, tensor))
        for local_slot in route.far:
            actions += self._fill(plan, number, (local_slot,), made.inline or next(files), now)
        if route.near and made.kept is not None and not route.next:
            actions += self._fill(plan, number, route.near, made.kept, now)
        return actions

    def _carry(self, plan: Plan, number: int, output: Output, kept: ev.DeviceTensor, now: float) -> None:
        """Keep a carried output: for parts of this step, for the next step, and in case the coordinator goes back."""
        self._lend(plan, number, plan.routes[output[0]][output[1]].near, kept, now)
        if not plan.carried.add(number, output, kept):
            self._lend(plan, number + 1, plan.carried.targets[output], kept, now)

    def device_of(self, run: int) -> int | None:
        """The device whose host does this run now."""
        return next((index for index, device in enumerate(self._devices) if device.running == run), None)

    def execute_failed(self, event: ev.ExecuteFailed, now: float) -> list[ev.Action]:
        plan, number, part = self._end_run(event.run, now)
        if plan is None:
            return []
        error = event.error.copy()
        error.part = str(part)
        self._log.add(now, f"part {part} of {label(plan.key)} step {number} failed: {error}")
        return self.close(plan, number, error)

    def fail_runs(
        self, device: DeviceQueue, error: MeshError, now: float, culprit: int | None = None
    ) -> list[ev.Action]:
        """Fail the runs of a host that is lost.  The run `culprit` may be what caused it: the error names its part, so
        that it is not tried again here.  The others had not begun."""
        given = device.given
        actions: list[ev.Action] = [ev.Release(use.tensor) for run in given for use in run.inputs if use.last]
        for run, plan, number, part in [(run.number, *self._end_run(run.number, now)) for run in given]:
            if plan is not None:
                step_error = error.copy()
                step_error.part = str(part) if run == culprit else ""
                actions += self.close(plan, number, step_error)
        device.slices = TimeSlices()
        return actions

    def _end_run(self, run: int, now: float) -> tuple[Plan | None, int, int]:
        """The plan, step and part of a run that is over; the plan is None if nobody waits for the run any more."""
        for device in self._devices:
            device.end(run, now)
        key, number, part = self.runs.pop(run, (None, 0, 0))
        plan = self._plans.get(key) if key is not None else None
        if plan is None or number not in plan.steps:
            return None, 0, 0
        return plan, number, part

    # -- pushes

    def push_sent(self, event: ev.PushSent, now: float) -> list[ev.Action]:
        plan, number = self._end_push(event.push)
        return [] if plan is None else self._finish(plan, number, now)

    def push_failed(self, event: ev.PushFailed, now: float) -> list[ev.Action]:
        plan, number = self._end_push(event.push)
        if plan is None:
            return []
        self._log.add(now, f"a push of {label(plan.key)} step {number} failed: {event.error}")
        return self.close(plan, number, event.error)

    def _end_push(self, push: int) -> tuple[Plan | None, int]:
        """The plan and step of a push that is over; the plan is None if nobody waits for it any more."""
        key, number = self._pushes.pop(push, (None, 0))
        plan = self._plans.get(key) if key is not None else None
        if plan is None or number not in plan.steps:
            return None, 0
        plan.steps[number].pushes.discard(push)
        return plan, number

    # -- links

    def linked(self, node: str, now: float) -> None:
        """A link to a node was made, or was there already."""
        self.lost_links.linked(node, self._plans.steps_with(node), now)

    def unlinked(self, node: str, silent: bool, now: float) -> list[ev.Action]:
        """The link to a node ended.  Its steps fail at once if the node was silent, and a moment later if not.  What it
        sent for steps that have not begun goes with it."""
        steps = self._plans.steps_with(node)
        self.lost_links.ended(node, steps, now, silent)
        actions = self.early.release_of(node)
        if not silent:
            return actions
        error = NodeLost("nothing is heard of a worker of the plan", node=node, cause=SILENT)
        closing = (self.close(self._plans[key], step, error.copy()) for key, step in steps)
        return [*actions, *(action for closed in closing for action in closed)]

    def fail_steps_of_lost_links(self, now: float) -> list[ev.Action]:
        """Fail the steps that may have lost a tensor with a link."""
        actions: list[ev.Action] = []
        for node, key, number in self.lost_links.due(now):
            if self._plans.step(key, number) is not None:
                error = NodeLost("the link to a worker of the plan ended", node=node)
                actions += self.close(self._plans[key], number, error)
        return [*actions, *self.dispatch(now)] if actions else []

    # -- the end of a step

    def _finish(self, plan: Plan, number: int, now: float) -> list[ev.Action]:
        """Answer the Run if every part is done and every push was sent."""
        step, owner = plan.steps.get(number), self._lease.owner
        if step is None or step.pushes or len(step.done) < len(plan.parts) or owner is None:
            return []
        del plan.steps[number]
        del self.requests[step.request]
        plan.closed.add(number)
        self._log.add(now, f"ran {label(plan.key)} step {number}", routine=True)
        return [step.answer(owner.node, plan.key, number)]

    def give_up(self, key: PlanKey, number: int, error: MeshError, now: float) -> list[ev.Action]:
        """End a step early, also one whose Run has not come yet."""
        plan, actions = self._plans.get(key), self.early.release(key, number)
        if plan is None or number in plan.closed:
            return actions
        self._log.add(now, f"cancel {label(key)} step {number}: {error}", routine=True)
        if number in plan.steps:
            return actions + self.close(plan, number, error)
        plan.closed.add(number)
        return actions

    def cancel(self, request: int) -> list[ev.Action]:
        """End the step of a Run whose answer nobody waits for any more."""
        key, number = self.requests.pop(request, (None, 0))
        if key is None:
            return []
        return self.close(self._plans[key], number, Cancelled("the step was cancelled"))

    def close(self, plan: Plan, number: int, error: MeshError) -> list[ev.Action]:
        """End a step early: nothing more is dispatched, its tensors are freed, its Run is refused with `error`."""
        step = plan.steps.pop(number, None)
        if step is None:  # it was closed together with an earlier one
            return []
        plan.closed.add(number)
        for device in self._devices:
            device.remove_step(plan.key, number)
        actions: list[ev.Action] = [ev.StopPush(push) for push in sorted(step.pushes)]
        for index, device in enumerate(self._devices):
            for run in [run.number for run in device.given if self.runs[run.number][:2] == (plan.key, number)]:
                actions += [ev.StopRun(index, run)] if device.stop(run) else []
        for push in step.pushes:
            self._pushes.pop(push, None)
        actions += [ev.Release(tensor) for tensor in step.unread()]
        if self.requests.pop(step.request, None) is not None:
            actions.append(ev.Refuse(step.request, error))
        if plan.carried:
            actions += [ev.Release(tensor) for tensor in plan.carried.give_up(number)]
            following = min((later for later in plan.steps if later > number), default=None)
            actions += [] if following is None else self.close(plan, following, error.copy())
        return actions


def _type_text(kind: TypeOf) -> str:
    dtype, shape = kind
    return f"{dtype}{list(shape)}"


def _release_all(outputs: tuple[ev.PartOutput, ...]) -> list[ev.Action]:
    """Free the outputs of a part."""
    tensors: list[ev.Tensor] = []
    for made in outputs:
        tensors += made.files
        tensors += [made.kept] if made.kept is not None else []
    return [ev.Release(tensor) for tensor in tensors]
