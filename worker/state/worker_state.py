"""The worker's decisions: events in, actions out.

Pure: no clock, no socket, no process, no file.  `WorkerState.handle(event, now)` returns what the shell
(`worker/daemon/daemon.py`) must do, in order.  It does not look inside graphs or tensors; it knows who owns this
worker, which plans it was given, what their parts wait for, and which device is busy.

    owner    free --Join--> owned by one coordinator --silent for minutes, or another's Join--> free (plans dropped)
    plan     Deploy: fetch blobs, link to peers -> prepare parts -> Deployed ... Drop
    step     Run (pushes may come before it) -> a part is ready when its last input is there -> it runs, one at a time
             per device, in the order of becoming ready -> outputs go to their targets -> all done, all sent -> Ran
             (of an ordered plan, in the order of its parts and of its Runs, so that no two gangs wait for each other)

Fencing: a plan is known by (epoch, generation).  What carries another epoch than the owner's, a dropped plan or a
closed step is stale; its tensors are released and nothing else happens.  A tensor travels once per worker: its Push
names the first target there, and every slot with the same source gets it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from wire.byte_sizes import counted
from wire.errors import Cancelled, DeviceLost, GraphError, MeshError, NodeLost, StaleGeneration
from wire.protocol.messages import Began, Deploy, Done, MissingGraphs, PartRun, PlanKey, Working
from wire.timeouts import SILENT

from . import events as ev
from .availability import COORDINATOR, Duty
from .blob_requests import Fetches
from .carried_state import Output, Slot
from .deployments import Dropped, Plan, Plans, Route, Step, label, not_deployed, order, plan_of, release_all, wrong_in
from .device_queue import Entry, Lane
from .early_tensors import Bounds, EarlyTensors, KnownGraphs
from .event_log import STORY_LINES_MAX, Told
from .invariants import validate_lanes, validate_plans
from .lease import Owner, Ownership
from .lost_links import LostLinks
from .memory_admission import kept_bytes, no_room, shortage
from .snapshot_requests import Snapshots

EXIT_DRAINED = 0
EXIT_ENGINE_LOST = 3  # the last device was given up


class WorkerState:
    """One worker with `devices` devices.  `incarnation` begins as in its hello and grows with every refutation."""

    def __init__(self, node: str, devices: int, incarnation: int = 1, bounds: Bounds | None = None) -> None:
        self.node = node
        self.incarnation = incarnation
        self.story: deque[Told] = deque(maxlen=STORY_LINES_MAX)
        self.told = 0  # how many entries the story had so far, those that fell out of it included
        self._bounds = bounds or Bounds()
        self._ownership = Ownership(self._bounds.keep_orphans_s)
        self._duty = Duty()
        self._devices = [Lane() for _ in range(devices)]
        self._plans = Plans()
        self._dropped = Dropped()
        self._early = EarlyTensors(self._bounds.early_bytes_max, self._bounds.early_tensors_max)
        self._graphs = KnownGraphs(self._bounds.graphs_bytes_max)
        self._fetches = Fetches(node, self._bounds.fetches_max)
        self._lost_links = LostLinks()
        self._snapshots = Snapshots()
        self._prepared: dict[int, tuple[PlanKey, int]] = {}
        self._runs: dict[int, tuple[PlanKey, int, int]] = {}
        self._pushes: dict[int, tuple[PlanKey, int]] = {}
        self._requests: dict[int, tuple[PlanKey, int | None]] = {}  # -> plan, and step if it is a Run
        self._number = itertools.count(1).__next__
        self._handlers: dict[type, Any] = {
            ev.JoinAsked: self._join_asked,
            ev.Heard: self._heard,
            ev.SuspectedBy: self._suspected_by,
            ev.NodeLinked: self._node_linked,
            ev.NodeUnlinked: self._node_unlinked,
            ev.LinkFailed: self._link_failed,
            ev.DeployAsked: self._deploy_asked,
            ev.BlobFound: self._blob_found,
            ev.BlobNotFound: self._blob_not_found,
            ev.PartPrepared: self._part_prepared,
            ev.PrepareFailed: self._prepare_failed,
            ev.RunAsked: self._run_asked,
            ev.TensorArrived: self._tensor_arrived,
            ev.TensorLost: lambda event, now: self._give_up_step(event.plan, event.step, event.error, now),
            ev.PartExecuted: self._part_executed,
            ev.ExecuteFailed: self._execute_failed,
            ev.PushSent: self._push_sent,
            ev.PushFailed: self._push_failed,
            ev.CancelAsked: self._cancel_asked,
            ev.DropAsked: self._drop_asked,
            ev.SnapshotAsked: self._snapshot_asked,
            ev.BlobMade: self._snapshots.made,
            ev.BlobNotMade: self._snapshots.failed,
            ev.RequestGone: self._request_gone,
            ev.HostLost: self._host_lost,
            ev.HostReady: self._host_ready,
            ev.DrainAsked: lambda event, now: self._leave(event.reason, EXIT_DRAINED, now),
            ev.MemoryLeft: self._memory_left,
            ev.PauseWished: lambda event, now: self._set_pause(event.by, now),
            ev.PauseAsked: self._pause_asked,
            ev.SleepAsked: self._sleep_asked,
            ev.Woke: self._woke,
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """The actions that follow from `event`, to be performed in order.  `now` is in monotonic seconds."""
        actions: list[ev.Action] = self._handlers[type(event)](event, now)
        return [*actions, *self._dispatch(now)]

    def next_deadline(self) -> float | None:
        """When a Tick is due, or None."""
        due = [at_s for each in self._devices if (at_s := each.repair.restart_at_s) is not None and not self.leaving]
        due += [at_s for at_s in (self._ownership.next_deadline(), self._duty.awake_at_s) if at_s is not None]
        return min([*due, *self._lost_links.deadlines()], default=None)

    @property
    def leaving(self) -> bool:
        return self._duty.leaving

    @property
    def paused(self) -> str:
        """Who paused it, "" for nobody."""
        return self._duty.paused

    @property
    def owner(self) -> Owner | None:
        """The coordinator that this worker serves."""
        return self._ownership.owner

    @property
    def served(self) -> bool:
        """Whether its coordinator is heard.  One that is silent hears no beats either: it may be that it is well."""
        return self.owner is not None and not self._ownership.lapsed

    @property
    def queue_depth(self) -> int:
        """Parts that are ready or running."""
        return sum(len(device.queue) + len(device.told) for device in self._devices)

    def working(self, now: float) -> tuple[Working, ...]:
        """What is being computed or compiled now, and for how long."""
        found = (device.working(self._runs, now) for device in self._devices)
        return tuple(each for each in found if each is not None)

    @property
    def running(self) -> Collection[tuple[PlanKey, int, int]]:
        """What is being computed now: plan, step, part."""
        return self._runs.values()

    def needed(self) -> Collection[str]:
        """The coordinator, and the workers that plans here send to or get from."""
        return sorted(self._plans.neighbours() | ({self.owner.node} if self.owner else set()))

    def used(self) -> Collection[str]:
        """Those of them that take part in a step now."""
        return self._plans.neighbours(busy=True)

    def validate(self) -> None:
        """AssertionError if the state contradicts itself; tests call it after every event."""
        self._fetches.validate()
        self._early.validate()
        self._graphs.validate()
        validate_plans(self._plans, self._dropped, self.owner.epoch if self.owner else None, self._devices)
        validate_lanes(self._plans, self._devices, self._runs, self._requests)

    # -- ownership

    def _join_asked(self, event: ev.JoinAsked, now: float) -> list[ev.Action]:
        refusal = self._duty.away() or self._ownership.refusal(event)
        if refusal is not None:
            return [ev.Refuse(event.request, refusal)]
        if self._ownership.is_back(event):
            kept = {PlanKey(event.epoch, generation) for generation in event.kept}
            actions = self._hand_back("the coordinator joined anew", kept)
        else:
            reason, other = f"coordinator {event.name} takes over", not self._ownership.by(event.node)
            actions = self._lose_owner(now, reason, other) if self.owner is not None else []
        self._ownership.joined(event, now)
        held = tuple(sorted(plan.key.generation for plan in self._plans.values() if plan.deployed))
        self._tell(now, f"joined {event.name} epoch {event.epoch}" + (f" with {len(held)} plans" if held else ""))
        answer = ev.ReplyJoined(event.request, event.blobs, self.paused, held)
        return [*actions, answer, ev.StartBeats(event.node, event.beat_s)]

    def _heard(self, event: ev.Heard | ev.SuspectedBy, now: float) -> list[ev.Action]:
        if not (silent_s := self._ownership.heard(event.node, now)):
            return []
        self._tell(now, f"the coordinator is back after {silent_s:.1f} s")
        return [ev.SendBeat()]

    def _suspected_by(self, event: ev.SuspectedBy, now: float) -> list[ev.Action]:
        if not self._ownership.by(event.node):
            return []
        self._heard(event, now)
        self.incarnation = max(self.incarnation, event.incarnation + 1)
        self._tell(now, f"refuted a suspicion, incarnation {self.incarnation}")
        return [ev.SendBeat()]

    def _node_linked(self, event: ev.NodeLinked, now: float) -> list[ev.Action]:
        self._lost_links.linked(event.node, self._plans.steps_with(event.node), now)
        return self._await_link_no_more(event.node, now)

    def _node_unlinked(self, event: ev.NodeUnlinked, now: float) -> list[ev.Action]:
        if self._ownership.by(event.node) and not self._ownership.closed_here():  # it may come back for what is here
            if event.goodbye or not self._plans or not self._bounds.keep_orphans_s:
                return self._lose_owner(now, "its link ended")
            self._ownership.unlinked()
            self._tell(now, f"the link to the coordinator ended, {len(self._plans)} plans are kept for it")
            return []
        steps = self._plans.steps_with(event.node)
        self._lost_links.ended(event.node, steps, now, event.silent)
        if not event.silent:
            return []
        error = NodeLost("nothing is heard of a worker of the plan", node=event.node, cause=SILENT)
        return [action for key, step in steps for action in self._close_step(self._plans[key], step, error.copy())]

    def _fail_steps_of_lost_links(self, now: float) -> list[ev.Action]:
        actions: list[ev.Action] = []
        for node, key, number in self._lost_links.due(now):
            if self._plans.step(key, number) is not None:
                error = NodeLost("the link to a worker of the plan ended", node=node)
                actions += self._close_step(self._plans[key], number, error)
        return [*actions, *self._dispatch(now)] if actions else []

    def _link_failed(self, event: ev.LinkFailed, now: float) -> list[ev.Action]:
        """What is meant for that node goes through the coordinator, who knows whether it is there at all."""
        self._tell(now, f"no link to {event.node[:16]}, so through the coordinator: {event.error}")
        for plan in self._plans.values():
            plan.unreached |= {event.node} & plan.waiting_links
        return self._await_link_no_more(event.node, now)

    def _await_link_no_more(self, node: str, now: float) -> list[ev.Action]:
        actions: list[ev.Action] = []
        for plan in [plan for plan in self._plans.values() if node in plan.waiting_links]:
            plan.waiting_links.discard(node)
            actions += self._finish_deploy(plan, now)
        return actions

    def _tick(self, event: ev.Tick, now: float) -> list[ev.Action]:
        lanes = enumerate(() if self.leaving else self._devices)
        due: list[ev.Action] = [ev.StartHost(index) for index, device in lanes if device.repair.due(now)]
        if self._duty.overslept(now):
            due += self._woke(ev.Woke(), now)
        return [*due, *self._fail_steps_of_lost_links(now), *self._watch_owner(event, now)]

    def _watch_owner(self, event: ev.Tick, now: float) -> list[ev.Action]:
        owner = self.owner
        if owner is None:
            return []
        self._ownership.excuse(event.late_s, now)
        if self._ownership.ask_due(now):
            return [ev.AskOwner(owner.node)]
        actions: list[ev.Action] = []
        if silent_s := self._ownership.lapse(now):
            self._tell(now, f"coordinator {owner.name} is silent for {silent_s:.1f} s, another may have this worker")
            actions.append(ev.LookForOwner())
        expired_s = self._ownership.expired_s(now)
        return [*actions, *self._lose_owner(now, f"silent for {expired_s:.1f} s", True)] if expired_s else actions

    def _lose_owner(self, now: float, reason: str, close: bool = False) -> list[ev.Action]:
        """This worker serves nobody, and no plan of that epoch lives on; whether a link that stands is to end."""
        owner, reason = self._ownership.ended(), f"the coordinator is gone: {reason}"
        self._tell(now, f"{owner.name}: {reason}")
        actions = [ev.StopBeats(), *self._hand_back(reason)]
        self._dropped.clear()
        return [*actions, ev.CloseLink(owner.node, reason)] if close else actions

    def _memory_left(self, event: ev.MemoryLeft, now: float) -> list[ev.Action]:
        """Where the machine runs short, the oldest plan of a coordinator that is silent goes; it joins for the rest."""
        owner, short = self.owner, shortage(event)
        if owner is None or not self._ownership.lapsed or not self._plans or not short:
            return []
        oldest = self._plans[min(self._plans, key=order)]
        self._tell(now, why := f"plan {label(oldest.key)}, kept for coordinator {owner.name}, gives way: {short}")
        self._dropped.add(oldest.key)
        self._ownership.close()
        gone = [*self._drop(oldest, NodeLost(why), True), *self._early.release_all(lambda key: key == oldest.key)]
        gone += [] if self._plans else self._lose_owner(now, short)
        return [*gone, ev.FreeCache(why), ev.CloseLink(owner.node, short)]

    def _hand_back(self, reason: str, kept: Collection[PlanKey] = ()) -> list[ev.Action]:
        """Of plans that are not `kept` nothing is under way any more but what a device does not let go of at once."""
        actions: list[ev.Action] = []
        for plan in [plan for plan in self._plans.values() if plan.key not in kept]:
            self._dropped.add(plan.key)
            actions += self._drop(plan, NodeLost(reason))
        return [*actions, *self._early.release_all(lambda key: key not in kept)]

    def _not_owned_by(self, node: str, plan: PlanKey) -> MeshError | None:
        refusal = self._duty.refusal()
        if refusal is not None:
            return refusal
        if self.owner is None or self.owner.node != node:
            return StaleGeneration("this worker does not belong to you", next_step="Join it first")
        if plan.epoch != self.owner.epoch or plan in self._dropped:
            return StaleGeneration(f"plan {plan.epoch}.{plan.generation} is over")
        return None

    # -- deploy

    def _deploy_asked(self, event: ev.DeployAsked, now: float) -> list[ev.Action]:
        deploy = event.deploy
        error = self._not_owned_by(event.node, deploy.plan)
        if deploy.plan in self._plans:
            error = error or StaleGeneration(f"plan {label(deploy.plan)} is already here")
        error = error or wrong_in(deploy, self.node, len(self._devices)) or self._away(deploy)
        error = error or no_room(deploy, self.node, self._plans.values(), self._bounds.memory_bytes)
        if error is not None:
            return [ev.Refuse(event.request, error)]
        missing = self._graphs.learn(deploy)
        if missing:
            return [ev.Reply(event.request, MissingGraphs(missing))]
        plan = plan_of(deploy, event.request, self.node)
        plan.graphs = {part.graph: self._graphs[part.graph] for part in deploy.parts}
        self._plans[plan.key] = plan
        self._requests[event.request] = (plan.key, None)
        self._tell(now, f"deploy {label(plan.key)}: {counted(len(plan.parts), 'part')}, blobs: {len(plan.blobs)}")
        actions: list[ev.Action] = [ev.LinkTo(node, deploy.peers[node]) for node in sorted(plan.waiting_links)]
        cut = [node for node in sorted(plan.neighbours) if deploy.peers.get(node) == ()]  # a link there leads nowhere
        actions += [ev.CloseLink(node, "it is out of reach") for node in cut]
        for spec in deploy.blobs:
            actions += self._fetches.want(spec, plan.key, deploy.peers)
        return actions + self._prepare_if_fetched(plan, now)

    def _blob_found(self, event: ev.BlobFound, now: float) -> list[ev.Action]:
        blob, size_bytes, waiting, actions = self._fetches.found(event.attempt)
        for plan in [self._plans[key] for key in sorted(waiting, key=order) if key in self._plans]:
            plan.waiting_blobs.discard(blob)
            plan.bytes_by_source[event.source] += size_bytes
            plan.bytes_by_source["client"] += size_bytes if event.from_owner else 0
            actions += [ev.PinBlobs(frozenset((blob,)))] if not self._plans.pinned_beside(blob, plan) else []
            actions += self._prepare_if_fetched(plan, now)
        return actions

    def _blob_not_found(self, event: ev.BlobNotFound, now: float) -> list[ev.Action]:
        waiting, error, actions = self._fetches.failed(event.attempt, event.error)
        for plan in [self._plans[key] for key in sorted(waiting, key=order) if key in self._plans]:
            actions += self._fail_deploy(plan, error, now)
        return actions

    def _away(self, deploy: Deploy) -> MeshError | None:
        away = [part.device for part in deploy.parts if self._devices[part.device].repair.away]
        return DeviceLost(f"device {away[0]} was lost and is not there again") if away else None

    def _prepare_if_fetched(self, plan: Plan, now: float) -> list[ev.Action]:
        """Prepare what is not yet, on every device that is there."""
        if plan.waiting_blobs:
            return []
        actions: list[ev.Action] = []
        for part in plan.parts.values():
            if part.part in plan.prepared or not self._devices[part.device].repair.up:
                continue
            number = plan.prepared[part.part] = self._number()
            self._prepared[number] = (plan.key, part.part)
            self._devices[part.device].ask(number, plan.key, part.part, now)
            actions.append(plan.prepare(part, number, kept_bytes(self._plans.values())))
        return actions or self._finish_deploy(plan, now)

    def _part_prepared(self, event: ev.PartPrepared, now: float) -> list[ev.Action]:
        plan, part = self._preparing(event.prepared, now)
        if plan is None:
            return []
        plan.waiting_parts.discard(part)
        if plan.deployed:  # a new engine host has it again
            self._devices[plan.parts[part].device].preparing.discard(event.prepared)
            return []
        plan.working_bytes = max(plan.working_bytes, event.working_bytes)
        plan.compile_s += event.compile_s
        plan.compiled += 1
        plan.from_cache += event.from_cache
        return self._finish_deploy(plan, now)

    def _prepare_failed(self, event: ev.PrepareFailed, now: float) -> list[ev.Action]:
        plan, part = self._preparing(event.prepared, now)
        if plan is None:
            return []
        if isinstance(event.error, GraphError):
            self._graphs.forget(plan.parts[part].graph)
        event.error.part = str(part)
        lost = self._expect_loss(plan.parts[part].device, event.error, now)
        return [*lost, *self._fail_deploy(plan, event.error, now)]

    def _preparing(self, prepared: int, now: float) -> tuple[Plan | None, int]:
        for device in self._devices:
            device.answered(prepared, now)
        key, part = self._prepared.get(prepared, (None, 0))
        return (self._plans.get(key), part) if key is not None else (None, 0)

    def _finish_deploy(self, plan: Plan, now: float) -> list[ev.Action]:
        if plan.request is None or plan.waiting_blobs or plan.waiting_links or plan.waiting_parts:
            return []
        request, plan.request, plan.deployed_s = plan.request, None, now
        del self._requests[request]
        self._tell(now, f"deployed {label(plan.key)}")
        return [ev.Reply(request, plan.answer)]

    def _fail_deploy(self, plan: Plan, error: MeshError, now: float) -> list[ev.Action]:
        self._tell(now, f"deploy {label(plan.key)} failed: {error}")
        return self._drop(plan, error)

    def _drop_asked(self, event: ev.DropAsked, now: float) -> list[ev.Action]:
        if not self._ownership.by(event.node):
            return [ev.Refuse(event.request, StaleGeneration("this worker does not belong to you"))]
        self._dropped.add(event.plan)
        actions: list[ev.Action] = []
        if event.plan in self._plans:
            self._tell(now, f"drop {label(event.plan)}")
            error = StaleGeneration(f"plan {label(event.plan)} was dropped")
            actions = self._drop(self._plans[event.plan], error, event.free)
        early = self._early.release_all(lambda key: key == event.plan)
        return [*actions, *early, ev.Reply(event.request, Done())]

    def _drop(self, plan: Plan, error: MeshError, free: bool = False) -> list[ev.Action]:
        """Forget a plan, its weights too if they are to be freed; who waits for its deploy or steps gets `error`."""
        actions = [action for number in list(plan.steps) for action in self._close_step(plan, number, error)]
        del self._plans[plan.key]
        actions += [ev.Release(tensor) for tensor in plan.carries.end()]
        actions += [ev.DiscardBlobs(frozenset(plan.carries.blobs))] if plan.carries.blobs else []
        self._fetches.forget(plan.key)
        if plan.request is not None and self._requests.pop(plan.request, None) is not None:
            actions.append(ev.Refuse(plan.request, error))
        for part, number in plan.prepared.items():
            del self._prepared[number]
            self._devices[plan.parts[part].device].preparing.discard(number)
            actions += plan.unbound(part, number) if free else []
            actions.append(ev.Unprepare(plan.parts[part].device, number))
        return [*actions, *plan.orphans, *self._plans.unpin(plan.blobs - plan.waiting_blobs, plan)]

    def _snapshot_asked(self, event: ev.SnapshotAsked, now: float) -> list[ev.Action]:
        plan = self._plans.get(event.plan) if self._ownership.by(event.node) else None
        return self._snapshots.begin(event.request, event.step, plan.carries if plan else None)

    # -- run

    def _run_asked(self, event: ev.RunAsked, now: float) -> list[ev.Action]:
        plan = self._plans.get(event.plan)
        error = self._not_owned_by(event.node, event.plan)
        if error is None:
            error = not_deployed(event.plan) if plan is None else plan.refusal(event.step)
        if error is None and plan is not None:
            error = self._early.refusal(event.plan, event.step) or self._lost_links.refusal(plan.neighbours, now)
        if error is not None or plan is None:
            assert error is not None
            released = [ev.Release(tensor) for _, _, tensor in event.feeds]
            return [*released, *self._early.release(event.plan, event.step), ev.Refuse(event.request, error)]
        waiting = plan.waits(event.step)
        plan.steps[event.step] = Step(event.request, now, waiting)
        self._lost_links.began(plan.neighbours, plan.key, event.step, now, plan.deployed_s)
        self._requests[event.request] = (plan.key, event.step)
        self._tell(now, f"run {label(plan.key)} step {event.step}", routine=True)
        for spec in plan.parts.values() if plan.ordered else ():
            self._devices[spec.device].ordered.append((plan.key, event.step, spec.part))
        for part in sorted(part for part, slots in waiting.items() if not slots):
            self._ready(plan, event.step, part, now)
        actions: list[ev.Action] = []
        for part, slot, tensor in (*event.feeds, *self._early.take(event.plan, event.step)):
            actions += self._arrive(plan, event.step, part, slot, tensor, now)
        for output, kept in plan.carries.before(event.step):
            self._lend(plan, event.step, plan.carries.targets[output], kept, now)
        committed, outgrown = plan.commit(event.committed)
        return [*actions, *committed, *self._plans.unpin(outgrown, plan), *self._finish_if_done(plan, event.step, now)]

    def _tensor_arrived(self, event: ev.TensorArrived, now: float) -> list[ev.Action]:
        plan = self._plans.get(event.plan)
        if plan is not None and event.step in plan.steps:
            return self._arrive(plan, event.step, event.part, event.slot, event.tensor, now)
        owned = self.owner is not None and event.plan.epoch == self.owner.epoch and event.plan not in self._dropped
        if not owned or self.paused or (plan is not None and event.step in plan.closed):
            self._tell(now, f"stale tensor for {label(event.plan)} step {event.step} part {event.part}", routine=True)
            return [ev.Release(event.tensor)]
        held = self._early.add(event.plan, event.step, event.part, event.slot, event.tensor)
        return [] if held else [ev.Release(event.tensor)]

    def _arrive(self, plan: Plan, number: int, part: int, slot: int, tensor: ev.Tensor, now: float) -> list[ev.Action]:
        """A tensor from another node: every slot with the same source gets it."""
        slots = plan.same_source.get((part, slot), ((part, slot),))
        plan.steps[number].bytes_in += ev.size_bytes_of(tensor)
        return self._fill(plan, number, slots, tensor, now)

    def _fill(self, plan: Plan, number: int, slots: Iterable[Slot], tensor: ev.Tensor, now: float) -> list[ev.Action]:
        ready = plan.steps[number].fill(slots, tensor)
        for part in ready or ():
            self._ready(plan, number, part, now)
        return [ev.Release(tensor)] if ready is None else []

    def _lend(self, plan: Plan, number: int, slots: Iterable[Slot], tensor: ev.Tensor, now: float) -> None:
        """As `_fill`, of a tensor that others need later, if that step is under way."""
        step = plan.steps.get(number) if slots else None
        for part in (step.fill(slots, tensor, borrowed=True) or ()) if step is not None else ():
            self._ready(plan, number, part, now)

    def _ready(self, plan: Plan, number: int, part: int, now: float) -> None:
        step = plan.steps[number]
        step.wait_s[part] = max(0.0, now - step.started_s)
        self._devices[plan.parts[part].device].queue.append((plan.key, number, part))

    def _dispatch(self, now: float) -> list[ev.Action]:
        """Give every idle device its next part, and one that does a step of a session what follows it."""
        actions: list[ev.Action] = []
        for index, device in enumerate(self._devices):
            while (entry := device.take() or self._following(device)) is not None:
                actions += self._start(index, device, *entry, now)
            if device.running is not None and device.just_begun():
                actions += self._begun(index, device.running, now)
        return actions

    def _following(self, device: Lane) -> Entry | None:
        plan = self._plans.get(self._runs[device.running][0]) if device.running is not None else None
        return device.follow(plan.key) if plan is not None and plan.carries else None

    def _begun(self, index: int, run: int, now: float) -> list[ev.Action]:
        """A device begins with a run, for which all is there now; its step may have ended since the host was told."""
        key, number, part = self._runs[run]
        step = self._plans.step(key, number)
        if step is None or self.owner is None:
            return [ev.StopRun(index, run)]
        step.wait_s.setdefault(part, max(0.0, now - step.started_s))
        began, step.began = step.began, True
        return [] if began else [ev.SendBegan(self.owner.node, Began(key, number, part))]

    def _start(self, index: int, device: Lane, key: PlanKey, number: int, part: int, now: float) -> list[ev.Action]:
        plan = self._plans[key]
        step = plan.steps[number]
        run = self._number()
        self._runs[run] = (key, number, part)
        inputs = step.take(part, plan.fed_at(part, number))
        wishes = tuple(ev.Wish(self._number() if route.kept else 0, route.copies) for route in plan.routes[part])
        if plan.carries.owes(number, (use.tensor for use in inputs)):  # it waits until what runs now is done
            del step.wait_s[part]
        device.start(run, inputs, now)
        for output, (route, wish) in enumerate(zip(plan.routes[part], wishes, strict=True)):
            if route.next and (kept := plan.carries.promise(number, (part, output), index, wish.keep)) is not None:
                self._lend(plan, number + 1, route.next, kept, now)
        return [ev.Execute(index, run, plan.prepared[part], inputs, wishes, number)]

    def _part_executed(self, event: ev.PartExecuted, now: float) -> list[ev.Action]:
        plan, number, part = self._end_run(event.run, now)
        if plan is None:
            return release_all(event.outputs)
        step = plan.steps[number]
        costs = event.exchange_s, event.readback_s, event.encode_s, event.sent_bytes
        step.done.append(PartRun(part, event.compute_s, step.wait_s[part], *costs))
        actions: list[ev.Action] = []
        for output, (route, made) in enumerate(zip(plan.routes[part], event.outputs, strict=True)):
            actions += self._route(plan, number, route, made, now)
            if route.next and made.kept is not None:
                self._carry(plan, number, (part, output), made.kept, now)
        return [*actions, *self._finish_if_done(plan, number, now)]

    def _route(self, plan: Plan, number: int, route: Route, made: ev.Made, now: float) -> list[ev.Action]:
        step = plan.steps[number]
        files = iter(made.files)
        actions: list[ev.Action] = []
        for node, part, slot in route.nodes:
            push, tensor = self._number(), made.inline or next(files)
            self._pushes[push] = (plan.key, number)
            step.pushes.add(push)
            step.bytes_out += ev.size_bytes_of(tensor)
            actions.append(ev.SendPush(push, node, plan.key, number, part, slot, tensor))
        for position in route.positions:
            tensor = made.inline or next(files)
            step.bytes_out += ev.size_bytes_of(tensor)
            step.outputs.append((position, tensor))
        for slot_here in route.far:
            actions += self._fill(plan, number, (slot_here,), made.inline or next(files), now)
        if route.near and made.kept is not None and not route.next:
            actions += self._fill(plan, number, route.near, made.kept, now)
        return actions

    def _carry(self, plan: Plan, number: int, output: Output, kept: ev.Kept, now: float) -> None:
        """It stays: for parts of this step, for the next one, and for whoever may have to go back to it."""
        self._lend(plan, number, plan.routes[output[0]][output[1]].near, kept, now)
        if not plan.carries.add(number, output, kept):
            self._lend(plan, number + 1, plan.carries.targets[output], kept, now)

    def _execute_failed(self, event: ev.ExecuteFailed, now: float) -> list[ev.Action]:
        on = next((index for index, device in enumerate(self._devices) if device.running == event.run), None)
        plan, number, part = self._end_run(event.run, now)
        actions: list[ev.Action] = []
        if plan is not None:
            error = event.error.copy()
            error.part = str(part)
            self._tell(now, f"part {part} of {label(plan.key)} step {number} failed: {error}")
            actions += self._close_step(plan, number, error)
        return actions if on is None else [*actions, *self._expect_loss(on, event.error, now)]

    def _end_run(self, run: int, now: float) -> tuple[Plan | None, int, int]:
        """The device is free; the plan is None if nobody waits for this run any more."""
        for device in self._devices:
            device.end(run, now)
        found = self._runs.pop(run, None)
        plan = self._plans.get(found[0]) if found else None
        if found is None or plan is None or found[1] not in plan.steps:
            return None, 0, 0
        return plan, found[1], found[2]

    def _push_sent(self, event: ev.PushSent, now: float) -> list[ev.Action]:
        plan, number = self._end_push(event.push)
        return [] if plan is None else self._finish_if_done(plan, number, now)

    def _push_failed(self, event: ev.PushFailed, now: float) -> list[ev.Action]:
        plan, number = self._end_push(event.push)
        if plan is None:
            return []
        self._tell(now, f"a push of {label(plan.key)} step {number} failed: {event.error}")
        return self._close_step(plan, number, event.error)

    def _end_push(self, push: int) -> tuple[Plan | None, int]:
        """The plan and step of a push that is over; the plan is None if nobody waits for it any more."""
        key, number = self._pushes.pop(push, (None, 0))
        plan = self._plans.get(key) if key is not None else None
        if plan is None or number not in plan.steps:
            return None, 0
        plan.steps[number].pushes.discard(push)
        return plan, number

    def _finish_if_done(self, plan: Plan, number: int, now: float) -> list[ev.Action]:
        step = plan.steps.get(number)
        if step is None or step.pushes or len(step.done) < len(plan.parts) or self.owner is None:
            return []
        del plan.steps[number]
        del self._requests[step.request]
        plan.closed.add(number)
        self._tell(now, f"ran {label(plan.key)} step {number}", routine=True)
        return [step.answer(self.owner.node, plan.key, number)]

    def _cancel_asked(self, event: ev.CancelAsked, now: float) -> list[ev.Action]:
        if not self._ownership.by(event.node):
            return []
        return self._give_up_step(event.plan, event.step, Cancelled("the step was cancelled"), now)

    def _give_up_step(self, key: PlanKey, number: int, error: MeshError, now: float) -> list[ev.Action]:
        """End a step early, also one whose Run is still on its way."""
        plan, actions = self._plans.get(key), self._early.release(key, number)
        if plan is None or number in plan.closed:
            return actions
        self._tell(now, f"cancel {label(key)} step {number}: {error}", routine=True)
        if number in plan.steps:
            return actions + self._close_step(plan, number, error)
        plan.closed.add(number)
        return actions

    def _close_step(self, plan: Plan, number: int, error: MeshError) -> list[ev.Action]:
        """End a step early: nothing more is dispatched, its tensors are freed, its Run is refused with `error`."""
        step = plan.steps.pop(number, None)
        if step is None:  # it went with one before it
            return []
        plan.closed.add(number)
        for device in self._devices:
            device.forget(plan.key, number)
        actions: list[ev.Action] = [ev.StopPush(push) for push in sorted(step.pushes)]
        for index, device in enumerate(self._devices):
            if device.running is not None and self._runs[device.running][:2] == (plan.key, number):
                actions.append(ev.StopRun(index, device.running))
        for push in step.pushes:
            self._pushes.pop(push, None)
        actions += [ev.Release(tensor) for tensor in step.unread()]
        if self._requests.pop(step.request, None) is not None:
            actions.append(ev.Refuse(step.request, error))
        if plan.carries:
            actions += [ev.Release(tensor) for tensor in plan.carries.give_up(number)]
            for later in sorted(each for each in plan.steps if each > number)[:1]:
                actions += self._close_step(plan, later, error.copy())
        return actions

    def _request_gone(self, event: ev.RequestGone, now: float) -> list[ev.Action]:
        self._snapshots.forget(event.request)
        found = self._requests.pop(event.request, None)
        if found is None:
            return []
        plan, number = self._plans[found[0]], found[1]
        if number is None:
            plan.request = None
            return self._drop(plan, Cancelled("the deploy was cancelled"))
        return self._close_step(plan, number, Cancelled("the step was cancelled"))

    # -- devices that are lost

    def _expect_loss(self, index: int, error: MeshError, now: float) -> list[ev.Action]:
        """An engine host that lost its device ends after saying so: it gets nothing more, and does nothing more."""
        if not isinstance(error, DeviceLost):
            return []
        self._devices[index].repair.failing()
        return self._fail_told(self._devices[index], error, now)

    def _host_lost(self, event: ev.HostLost, now: float) -> list[ev.Action]:
        """What it held is gone: its run fails, and what waits for tensors it kept.  What else is queued waits for the
        new host, if that begins at once; else its plans are dropped, so that others are made without it."""
        device = self._devices[event.device]
        last = all(each.repair.given_up for each in self._devices if each is not device)
        device.repair.lost(now, last, device.busy_since_s)
        self._tell(now, f"device {event.device} lost, the {device.repair.losses}. time: {event.error}")
        device.preparing.clear()
        device.asked.clear()
        actions = self._fail_told(device, event.error, now, device.running)
        for plan in list(self._plans.values()):
            for number in [number for number, step in plan.steps.items() if step.needs(event.device)]:
                actions += self._close_step(plan, number, event.error.copy())
            lost = [part for part in plan.prepared if plan.parts[part].device == event.device]
            unanswered = [part for part in lost if part in plan.waiting_parts]
            if unanswered and not plan.deployed:  # compiling the first of them may be what did it
                error = event.error.copy()
                error.part = str(unanswered[0])
                actions += self._fail_deploy(plan, error, now)
                continue
            for part in lost:
                del self._prepared[number := plan.prepared.pop(part)]
                plan.orphans.append(ev.Unprepare(event.device, number))
                plan.waiting_parts.add(part)
            away = device.repair.away and any(part.device == event.device for part in plan.parts.values())
            if away or plan.carries.on(event.device):
                actions += self._drop(plan, event.error.copy())
        if device.repair.given_up:
            return [*actions, *self._give_up(event, now)]
        return actions if device.repair.away or self.leaving else [*actions, ev.StartHost(event.device)]

    def _fail_told(self, device: Lane, error: MeshError, now: float, culprit: int | None = None) -> list[ev.Action]:
        """The part that ran may be what did it, so it is named, and not tried again here; others had not begun."""
        told = tuple(device.told)
        actions: list[ev.Action] = [ev.Release(use.tensor) for _, inputs in told for use in inputs if use.last]
        for run, plan, number, part in [(run, *self._end_run(run, now)) for run, _ in told]:
            if plan is not None:
                own = error.copy()
                own.part = str(part) if run == culprit else ""
                actions += self._close_step(plan, number, own)
        return actions

    def _give_up(self, event: ev.HostLost, now: float) -> list[ev.Action]:
        if all(device.repair.given_up for device in self._devices):
            return self._leave(f"the engine host of its last device is gone: {event.error}", EXIT_ENGINE_LOST, now)
        reason = f"given up after {self._devices[event.device].repair.losses} losses, the last: {event.error}"
        self._tell(now, f"device {event.device} {reason}")
        return [ev.GiveUpDevice(event.device, self.owner.node if self.owner else "", reason)]

    def _host_ready(self, event: ev.HostReady, now: float) -> list[ev.Action]:
        """Give a new host every part that it should have; parts run there once it has them all."""
        device = self._devices[event.device]
        device.repair.back()
        self._tell(now, f"device {event.device} is back")
        actions: list[ev.Action] = []
        for plan in list(self._plans.values()):
            before = set(plan.prepared.values())
            actions += self._prepare_if_fetched(plan, now)
            if plan.deployed:
                device.preparing |= set(plan.prepared.values()) - before
        return actions

    # -- pauses and sleep

    def _pause_asked(self, event: ev.PauseAsked, now: float) -> list[ev.Action]:
        error = None if event.on else self._duty.cannot_resume()
        if not self._ownership.by(event.node):
            error = StaleGeneration("this worker does not belong to you")
        if error is not None:
            return [ev.Refuse(event.request, error)]
        by = (self.paused or COORDINATOR) if event.on else ""
        kept: list[ev.Action] = [ev.KeepPause(by)] if by != self.paused else []
        return [*kept, *self._set_pause(by, now), ev.Reply(event.request, Done())]

    def _set_pause(self, by: str, now: float) -> list[ev.Action]:
        """The coordinator hears of it before its work comes back, so that it is not tried here again."""
        was, self._duty.paused = self._duty.paused, by
        if by == was:
            return []
        self._tell(now, f"paused by its {by}" if by else "takes work again")
        told: list[ev.Action] = [ev.SendPaused(self.owner.node, by)] if self.owner else []
        return [*told, *self._hand_back("this worker was paused")] if by and not was else told

    def _sleep_asked(self, event: ev.SleepAsked, now: float) -> list[ev.Action]:
        self._duty.sleeps(now)
        return self._part("its machine goes to sleep", now)

    def _woke(self, event: ev.Woke, now: float) -> list[ev.Action]:
        if self._duty.awake_at_s is not None and not (event.announced or self._duty.overslept(now)):
            return []
        self._duty.awake_at_s = None
        return [ev.LookForOwner()] if (self.owner is None or self._ownership.lapsed) and not self.leaving else []

    # -- the end

    def _leave(self, reason: str, code: int, now: float) -> list[ev.Action]:
        if self.leaving:
            return []
        self._duty.leaving = True
        self._tell(now, f"leaving: {reason}")
        return [*self._part(reason, now, failed=code != EXIT_DRAINED), ev.Stop(code, reason)]

    def _part(self, reason: str, now: float, failed: bool = False) -> list[ev.Action]:
        """Leave the coordinator in good order."""
        if self.owner is None:
            return []
        return [ev.SendLeaving(self.owner.node, reason, failed), *self._lose_owner(now, reason)]

    # -- helpers

    def _tell(self, now: float, text: str, routine: bool = False) -> None:
        self.story.append(Told(now, text, routine))
        self.told += 1
