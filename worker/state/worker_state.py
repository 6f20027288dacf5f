"""The worker's decisions: events in, actions out.

Pure: no clock, no socket, no process, no file.  `WorkerState.handle(event, now)` returns what the shell
(`worker/daemon/daemon.py`) must do, in order.  It does not look inside graphs or tensors; it knows who owns this
worker, which plans it was given, what their parts wait for, and which device is busy.

    owner    `lease.py`           which coordinator this worker serves
    plan     `deployments.py`     from its Deploy to its drop
    step     `steps.py`           from its Run to its reply
    device   `device_losses.py`   what becomes of it when its engine host is lost

Fencing: a plan is known by (epoch, generation).  What carries another epoch than the owner's, a dropped plan or a
closed step is stale; its tensors are released and nothing else happens.  A coordinator that is started anew may name
plans of its earlier epochs: their state can be copied and they can be dropped, but no step of theirs is run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from wire.errors import Busy, Cancelled, MeshError, NodeLost, StaleGeneration
from wire.protocol.messages import WORKING_MAX, Done, PlanKey, Working

from . import events as ev
from .availability import COORDINATOR, Availability
from .bounds import Bounds
from .deployments import Deployments, shortage
from .device_losses import DeviceLosses
from .device_queue import DeviceQueue, Entry
from .invariants import validate_devices, validate_plans
from .lease import Lease, Owner
from .plan import label, order
from .shared_state import SharedState
from .snapshot_requests import SnapshotRequests
from .steps import Arriving, Steps, Unwanted

EXIT_DRAINED = 0

Handler = Callable[[Any, float], list[ev.Action]]


class WorkerState:
    """One worker with `devices` devices.  `incarnation` begins as in its hello and grows with every refutation."""

    def __init__(self, node: str, devices: int, incarnation: int = 1, bounds: Bounds | None = None) -> None:
        self.node = node
        self.incarnation = incarnation
        self._bounds = bounds or Bounds()
        self._lease = Lease(self._bounds.keep_orphans_s, self._bounds.served_epoch)
        self._kept_epoch = self._bounds.served_epoch  # that the disk has
        self._joining: list[ev.JoinRequested] = []  # coordinators that wait until it has theirs
        self._availability = Availability()
        self._earlier = frozenset[PlanKey]()  # plans of its earlier epochs that the owner goes on with
        self._devices = tuple(DeviceQueue() for _ in range(devices))
        self._shared = SharedState(node, self._devices, self._bounds, self._lease, self._availability)
        self._plans = self._shared.plans
        self._dropped = self._shared.dropped
        self.log = self._shared.log
        self._steps = Steps(self._shared)
        self._deployments = Deployments(self._shared, self._steps)
        self._losses = DeviceLosses(self._shared, self._steps, self._deployments, self._leave)
        self._snapshots = SnapshotRequests()
        steps, deployments = self._steps, self._deployments
        self._handlers: dict[type, Handler] = {
            ev.JoinRequested: self._join_asked,
            ev.Heard: self._heard,
            ev.SuspectedBy: self._suspected_by,
            ev.NodeLinked: self._node_linked,
            ev.NodeUnlinked: self._node_unlinked,
            ev.LinkFailed: deployments.link_failed,
            ev.DeployRequested: self._deploy_asked,
            ev.BlobFound: deployments.blob_found,
            ev.BlobNotFound: deployments.blob_not_found,
            ev.PartPrepared: deployments.part_prepared,
            ev.PrepareFailed: self._prepare_failed,
            ev.RunRequested: self._run_asked,
            ev.ExplainRequested: self._explain_asked,
            ev.DirectRequested: self._direct_asked,
            ev.PartExplained: steps.explained,
            ev.TensorArrived: self._tensor_arrived,
            ev.TensorLost: lambda event, now: steps.give_up(event.plan, event.step, event.error, now),
            ev.PartExecuted: steps.executed,
            ev.ExecuteFailed: self._execute_failed,
            ev.RunSuspended: steps.suspended,
            ev.PushSent: steps.push_sent,
            ev.PushFailed: steps.push_failed,
            ev.CancelRequested: self._cancel_asked,
            ev.DropRequested: self._drop_asked,
            ev.SnapshotRequested: self._snapshot_asked,
            ev.BlobMade: self._blob_made,
            ev.BlobNotMade: self._blob_made,
            ev.RequestGone: self._request_gone,
            ev.ServedKept: self._served_kept,
            ev.ServedNotKept: self._served_not_kept,
            ev.HostLost: self._losses.lost,
            ev.HostReady: self._losses.ready,
            ev.DrainRequested: lambda event, now: self._leave(event.reason, EXIT_DRAINED, now),
            ev.MemoryLeft: self._memory_left,
            ev.PauseFileChanged: lambda event, now: self._set_pause(event.by, now),
            ev.PauseRequested: self._pause_asked,
            ev.SleepRequested: self._sleep_asked,
            ev.Woke: self._woke,
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """The actions that follow from `event`, to be performed in order.  `now` is in monotonic seconds."""
        actions = self._handlers[type(event)](event, now)
        return [*actions, *self._deployments.prepare_postponed(now), *self._steps.dispatch(now)]

    def next_deadline(self) -> float | None:
        """The time at which a Tick is due, or None."""
        due = [at_s for at_s in (self._lease.next_deadline(), self._availability.awake_at_s) if at_s is not None]
        steps = self._steps
        return min([*due, *self._losses.deadlines(), *steps.lost_links.deadlines(), *steps.deadlines()], default=None)

    @property
    def leaving(self) -> bool:
        return self._availability.leaving

    @property
    def paused(self) -> str:
        """The person or program that paused the worker, "" for nobody."""
        return self._availability.paused

    @property
    def owner(self) -> Owner | None:
        """The coordinator that this worker serves."""
        return self._lease.owner

    @property
    def served(self) -> bool:
        """Whether the coordinator is heard.  One that is silent hears no beats either, and may be well."""
        return self.owner is not None and not self._lease.lapsed

    @property
    def queue_depth(self) -> int:
        """The number of parts that are ready, running or suspended."""
        return sum(len(device.ready) + len(device.given) for device in self._devices)

    def working(self, now: float) -> tuple[Working, ...]:
        """What is being computed or compiled now, or was begun and is suspended, and for how long."""
        working = (work for device in self._devices for work in device.working(self._steps.runs, now))
        return tuple(islice(working, WORKING_MAX))

    @property
    def running(self) -> Collection[Entry]:
        """What is being computed now: plan, step, part."""
        return self._steps.runs.values()

    def may_send(self, node: str, key: PlanKey, part: int, slot: int) -> bool:
        """Whether a node is the one that the plan has send input `slot` of a part.  What is of no plan here is stale,
        and may come from every node that may send tensors at all."""
        plan = self._plans.get(key)
        return plan is None or plan.sender_of(part, slot, self.owner.node if self.owner else "") == node

    def unwanted(self, tensor: Arriving) -> Unwanted | None:
        """Why a tensor whose bytes are to come is not taken."""
        return self._steps.unwanted(tensor)

    def is_early(self, tensor: Arriving) -> bool:
        """Whether its step has not begun here."""
        return self._plans.step(tensor.plan, tensor.step) is None

    def early_room(self, tensor: Arriving, coming: Mapping[tuple[PlanKey, int], int]) -> int | None:
        """How many bytes more its sender may have here for a step that has not begun, beside those that are coming, by
        step; None for as many as it takes."""
        return self._steps.early.room(tensor.node, (tensor.plan, tensor.step), coming)

    def needed(self) -> Collection[str]:
        """The nodes to stay linked to: the coordinator, and the workers that plans here send to or receive from."""
        return sorted(self._plans.neighbours() | ({self.owner.node} if self.owner else set()))

    def used(self) -> Collection[str]:
        """The workers that take part in a step now."""
        return self._plans.neighbours(busy=True)

    def validate(self) -> None:
        """Assert that the state does not contradict itself; tests call it after every event."""
        self._deployments.validate()
        self._steps.early.validate()
        epoch = self.owner.epoch if self.owner else None
        validate_plans(self._plans, self._dropped, epoch, self._earlier, self._devices)
        validate_devices(self._plans, self._devices, self._steps.runs, self._steps.requests)

    # -- the owner

    def _join_asked(self, event: ev.JoinRequested, now: float) -> list[ev.Action]:
        refusal = self._availability.unavailable() or self._lease.refusal(event)
        if refusal is not None:
            return [ev.Refuse(event.request, refusal)]
        mine, before = self._lease.is_held_by(event.node), self.owner
        if self._lease.is_back(event) or self._lease.continues(event):
            self._earlier = frozenset(event.earlier)
            kept = {PlanKey(event.epoch, generation) for generation in event.continued} | self._earlier
            actions = self._drop_plans("the coordinator joined anew", kept)
            actions += self._end_steps_of_earlier_plans(now)
            if before is not None and not mine:
                actions.append(ev.CloseLink(before.node, f"coordinator {event.name} took over"))
        else:
            reason = f"coordinator {event.name} takes over"
            actions = self._lose_owner(now, reason, not mine) if self.owner is not None else []
        self._lease.joined(event, now)
        if event.epochs and self._lease.served_epoch != self._kept_epoch:
            self._joining.append(event)
            return [*actions, ev.KeepServed(self._lease.served_epoch)]
        return [*actions, *self._joined(event, now)]

    def _joined(self, event: ev.JoinRequested, now: float) -> list[ev.Action]:
        made = {plan.key.generation: plan.carried.made for plan in self._plans.values() if plan.deployed}
        held = tuple(sorted(made))
        self.log.add(now, f"joined {event.name} epoch {event.epoch}" + (f" with {len(held)} plans" if held else ""))
        steps = tuple(made[generation] for generation in held)
        answer = ev.ReplyJoined(event.request, event.blobs, self.paused, held, steps)
        return [answer, ev.StartBeats(event.node, event.beat_s)]

    def _served_kept(self, event: ev.ServedKept, now: float) -> list[ev.Action]:
        self._kept_epoch = event.epoch
        actions = list[ev.Action]()
        for join in self._end_joins(event.epoch):
            if self._lease.is_back(join):
                actions += self._joined(join, now)
            else:
                actions.append(ev.Refuse(join.request, Busy("this worker went to another coordinator meanwhile")))
        return actions

    def _served_not_kept(self, event: ev.ServedNotKept, now: float) -> list[ev.Action]:
        """No coordinator learns that it has this worker, which could forget that: one that asks again is heard
        again."""
        self.log.add(now, f"epoch {event.epoch} does not have this worker: {event.error}")
        return [ev.Refuse(join.request, event.error) for join in self._end_joins(event.epoch)]

    def _end_joins(self, epoch: int) -> list[ev.JoinRequested]:
        """The coordinators of this epoch that waited for the disk; they do no more."""
        ended = [join for join in self._joining if join.epoch == epoch]
        self._joining = [join for join in self._joining if join.epoch != epoch]
        return ended

    def _heard(
        self, event: ev.Heard | ev.SuspectedBy | ev.RunRequested | ev.TensorArrived, now: float
    ) -> list[ev.Action]:
        if not (silent_s := self._lease.heard(event.node, now)):
            return []
        self.log.add(now, f"the coordinator is back after {silent_s:.1f} s")
        return [ev.SendBeat()]

    def _suspected_by(self, event: ev.SuspectedBy, now: float) -> list[ev.Action]:
        if not self._lease.is_held_by(event.node):
            return []
        self._heard(event, now)
        self.incarnation = max(self.incarnation, event.incarnation + 1)
        self.log.add(now, f"refuted a suspicion, incarnation {self.incarnation}")
        return [ev.SendBeat()]

    def _node_linked(self, event: ev.NodeLinked, now: float) -> list[ev.Action]:
        self._steps.linked(event.node, now)
        return self._deployments.link_settled(event.node, now)

    def _node_unlinked(self, event: ev.NodeUnlinked, now: float) -> list[ev.Action]:
        """The owner may come back for what is here.  Any other node's steps may have lost something with the link."""
        if not self._lease.is_held_by(event.node) or self._lease.closed_here():
            return self._steps.unlinked(event.node, event.silent, now)
        if event.goodbye or not self._plans or not self._bounds.keep_orphans_s:
            return self._lose_owner(now, "its link ended")
        self._lease.unlinked()
        self.log.add(now, f"the link to the coordinator ended, {len(self._plans)} plans are kept for it")
        return []

    def _tick(self, event: ev.Tick, now: float) -> list[ev.Action]:
        due = self._losses.tick(now)
        if self._availability.overslept(now):
            due += self._woke(ev.Woke(), now)
        due += self._steps.tell_begun(now)
        return [*due, *self._steps.fail_steps_of_lost_links(now), *self._watch_owner(event, now)]

    def _watch_owner(self, event: ev.Tick, now: float) -> list[ev.Action]:
        owner = self.owner
        if owner is None:
            return []
        self._lease.excuse(event.late_s, now)
        if self._lease.ask_due(now):
            return [ev.AskOwner(owner.node)]
        actions: list[ev.Action] = []
        if silent_s := self._lease.lapse(now):
            text = f"coordinator {owner.name} is silent for {silent_s:.1f} s, another may have this worker"
            self.log.add(now, text)
            actions.append(ev.LookForOwner())
        expired_s = self._lease.expired_s(now)
        return [*actions, *self._lose_owner(now, f"silent for {expired_s:.1f} s", True)] if expired_s else actions

    def _lose_owner(self, now: float, reason: str, close: bool = False) -> list[ev.Action]:
        """End the lease and drop all plans of its epoch.  `close` also ends a link to the owner that still stands."""
        owner, reason = self._lease.ended(), f"the coordinator is gone: {reason}"
        self._earlier = frozenset()
        self.log.add(now, f"{owner.name}: {reason}")
        actions = [ev.StopBeats(), *self._drop_plans(reason)]
        self._dropped.clear()
        return [*actions, ev.CloseLink(owner.node, reason)] if close else actions

    def _memory_left(self, event: ev.MemoryLeft, now: float) -> list[ev.Action]:
        """Drop the oldest plan of a silent coordinator if the machine runs short of memory.  The coordinator learns
        which plans are left when it joins again."""
        owner, short = self.owner, shortage(event)
        if owner is None or not self._lease.lapsed or not self._plans or not short:
            return []
        oldest = self._plans[min(self._plans, key=order)]
        self.log.add(now, why := f"plan {label(oldest.key)}, kept for coordinator {owner.name}, gives way: {short}")
        self._dropped.add(oldest.key)
        self._lease.close()
        actions = self._deployments.drop(oldest, NodeLost(why), free=True)
        actions += [] if self._plans else self._lose_owner(now, short)
        return [*actions, ev.FreeCache(why), ev.CloseLink(owner.node, short)]

    def _drop_plans(self, reason: str, kept: Collection[PlanKey] = ()) -> list[ev.Action]:
        """Drop all plans but those `kept`.  Devices may still be busy with their last runs."""
        actions: list[ev.Action] = []
        for plan in [plan for plan in self._plans.values() if plan.key not in kept]:
            self._dropped.add(plan.key)
            actions += self._deployments.drop(plan, NodeLost(reason))
        return actions

    def _end_steps_of_earlier_plans(self, now: float) -> list[ev.Action]:
        """End what is in flight for a process that is gone; what its steps before that left stays."""
        error = StaleGeneration("the coordinator was started anew")
        in_flight = [
            (key, step) for key in self._earlier if key in self._plans for step in list(self._plans[key].steps)
        ]
        return [action for key, step in in_flight for action in self._steps.give_up(key, step, error, now)]

    def _refusal(self, node: str, plan: PlanKey) -> MeshError | None:
        """Why a Deploy or a Run of this plan by `node` is refused."""
        refusal = self._availability.refusal()
        if refusal is not None:
            return refusal
        if self.owner is None or self.owner.node != node:
            return StaleGeneration("this worker does not belong to you", next_step="Join it first")
        if plan.epoch != self.owner.epoch or plan in self._dropped:
            return StaleGeneration(f"plan {plan.epoch}.{plan.generation} is over")
        return None

    # -- plans and steps

    def _deploy_asked(self, event: ev.DeployRequested, now: float) -> list[ev.Action]:
        return self._deployments.deploy(event, self._refusal(event.node, event.deploy.plan), now)

    def _run_asked(self, event: ev.RunRequested, now: float) -> list[ev.Action]:
        return [*self._heard(event, now), *self._steps.run(event, self._refusal(event.node, event.plan), now)]

    def _tensor_arrived(self, event: ev.TensorArrived, now: float) -> list[ev.Action]:
        return [*self._heard(event, now), *self._steps.tensor_arrived(event, now)]

    def _explain_asked(self, event: ev.ExplainRequested, now: float) -> list[ev.Action]:
        return self._steps.explain(event, self._refusal(event.node, event.question.plan), now)

    def _direct_asked(self, event: ev.DirectRequested, now: float) -> list[ev.Action]:
        return self._steps.open_direct(event, self._refusal(event.node, event.plan))

    def _drop_asked(self, event: ev.DropRequested, now: float) -> list[ev.Action]:
        if not self._lease.is_held_by(event.node):
            return [ev.Refuse(event.request, StaleGeneration("this worker does not belong to you"))]
        return self._deployments.drop_asked(event, now)

    def _cancel_asked(self, event: ev.CancelRequested, now: float) -> list[ev.Action]:
        if not self._lease.is_held_by(event.node):
            return []
        return self._steps.give_up(event.plan, event.step, Cancelled("the step was cancelled"), now)

    def _snapshot_asked(self, event: ev.SnapshotRequested, now: float) -> list[ev.Action]:
        plan = self._plans.get(event.plan) if self._lease.is_held_by(event.node) else None
        actions = self._snapshots.begin(event.request, event.step, plan.carried if plan else None)
        for made in actions:
            if isinstance(made, ev.MakeBlob):
                self._devices[made.tensor.device].exporting.add(made.number)
        return actions

    def _blob_made(self, event: ev.BlobMade | ev.BlobNotMade, now: float) -> list[ev.Action]:
        for device in self._devices:
            device.exporting.discard(event.number)
        if isinstance(event, ev.BlobMade):
            return self._snapshots.blob_made(event, now)
        return self._snapshots.blob_failed(event, now)

    def _request_gone(self, event: ev.RequestGone, now: float) -> list[ev.Action]:
        self._snapshots.forget(event.request)
        self._joining = [join for join in self._joining if join.request != event.request]
        return [*self._deployments.cancel(event.request), *self._steps.cancel(event.request)]

    def _prepare_failed(self, event: ev.PrepareFailed, now: float) -> list[ev.Action]:
        device = self._deployments.device_of(event.prepared)
        lost = [] if device is None else self._losses.reported(device, event.error, now)
        return [*lost, *self._deployments.prepare_failed(event, now)]

    def _execute_failed(self, event: ev.ExecuteFailed, now: float) -> list[ev.Action]:
        device = self._steps.device_of(event.run)
        actions = self._steps.execute_failed(event, now)
        return actions if device is None else [*actions, *self._losses.reported(device, event.error, now)]

    # -- pauses and sleep

    def _pause_asked(self, event: ev.PauseRequested, now: float) -> list[ev.Action]:
        error = None if event.on else self._availability.cannot_resume()
        if not self._lease.is_held_by(event.node):
            error = StaleGeneration("this worker does not belong to you")
        if error is not None:
            return [ev.Refuse(event.request, error)]
        by = (self.paused or COORDINATOR) if event.on else ""
        kept: list[ev.Action] = [ev.KeepPause(by)] if by != self.paused else []
        return [*kept, *self._set_pause(by, now), ev.Reply(event.request, Done())]

    def _set_pause(self, by: str, now: float) -> list[ev.Action]:
        """Pause or resume.  The coordinator learns of it before its work is refused, so that it does not try again
        here."""
        before, self._availability.paused = self._availability.paused, by
        if by == before:
            return []
        self.log.add(now, f"paused by its {by}" if by else "takes work again")
        notice: list[ev.Action] = [ev.SendPaused(self.owner.node, by)] if self.owner else []
        return [*notice, *self._drop_plans("this worker was paused")] if by and not before else notice

    def _sleep_asked(self, event: ev.SleepRequested, now: float) -> list[ev.Action]:
        self._availability.sleep(now)
        return self._take_leave("its machine goes to sleep", now)

    def _woke(self, event: ev.Woke, now: float) -> list[ev.Action]:
        availability = self._availability
        if availability.awake_at_s is not None and not (event.announced or availability.overslept(now)):
            return []
        availability.awake_at_s = None
        return [ev.LookForOwner()] if (self.owner is None or self._lease.lapsed) and not self.leaving else []

    # -- the end

    def _leave(self, reason: str, code: int, now: float) -> list[ev.Action]:
        if self.leaving:
            return []
        self._availability.leaving = True
        self.log.add(now, f"leaving: {reason}")
        return [*self._take_leave(reason, now, failed=code != EXIT_DRAINED), ev.Stop(code, reason)]

    def _take_leave(self, reason: str, now: float, failed: bool = False) -> list[ev.Action]:
        """Tell the coordinator that this worker leaves, and hand its work back."""
        if self.owner is None:
            return []
        return [ev.SendLeaving(self.owner.node, reason, failed), *self._lose_owner(now, reason)]
