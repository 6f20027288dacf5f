"""Deployments: a plan from its Deploy to its drop.  Pure.

    Deploy --checks--> fetch blobs, dial peers --all blobs are here--> prepare parts --all links and parts--> Deployed

Content that a worker keeps for other workers, such as copies of their weights, comes as a plan without parts.  It
counts against the memory budget beside what the worker computes with itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from wire.errors import Cancelled, DeviceLost, GraphError, InputError, MeshError, OutOfMemory, StaleGeneration
from wire.protocol.messages import COORDINATOR_NODE, Deploy, Done, Member, MissingGraphs, PartSpec, PlanKey, SourceKind
from wire.units import counted, size_text

from . import events as ev
from .blob_requests import BlobRequests
from .carried_state import Slot, refusal_of_carries
from .graph_cache import GraphCache
from .plan import Plan, gang_peers, label, order, plan_of
from .shared_state import SharedState
from .steps import Steps

SHORT_SHARE = 1 / 20  # of the machine's memory: with less left it begins to swap, or to kill


class Deployments:
    """The plans of a worker as they come and go.  Owns the fetches, the cached graphs and the numbers of prepared
    parts; ends steps through `steps`."""

    def __init__(self, shared: SharedState, steps: Steps) -> None:
        self._node = shared.node
        self._plans = shared.plans
        self._dropped = shared.dropped
        self._devices = shared.devices
        self._log = shared.log
        self._memory_bytes = shared.bounds.memory_bytes
        self._next_number = shared.next_number
        self._steps = steps
        self._graphs = GraphCache(shared.bounds.graphs_bytes_max)
        self._fetches = BlobRequests(shared.node, shared.bounds.fetches_max)
        self._prepared: dict[int, tuple[PlanKey, int]] = {}  # number -> plan and part
        self._requests: dict[int, PlanKey] = {}  # of Deploys that are not answered yet

    def validate(self) -> None:
        self._fetches.validate()
        self._graphs.validate()

    # -- from Deploy to Deployed

    def deploy(self, event: ev.DeployRequested, refusal: MeshError | None, now: float) -> list[ev.Action]:
        """Begin a deploy, or refuse it: with `refusal`, or for a reason of its own."""
        deploy = event.deploy
        if deploy.plan in self._plans:
            refusal = refusal or StaleGeneration(f"plan {label(deploy.plan)} is already here")
        refusal = refusal or refusal_of(deploy, self._node, len(self._devices)) or self._refusal_of_devices(deploy)
        refusal = refusal or refusal_of_memory(deploy, self._node, self._plans.values(), self._memory_bytes)
        if refusal is not None:
            return [ev.Refuse(event.request, refusal)]
        missing = self._graphs.add(deploy)
        if missing:
            return [ev.Reply(event.request, MissingGraphs(missing))]
        plan = plan_of(deploy, event.request, self._node)
        plan.graphs = {part.graph: self._graphs[part.graph] for part in deploy.parts}
        self._plans[plan.key] = plan
        self._requests[event.request] = plan.key
        self._log.add(now, f"deploy {label(plan.key)}: {counted(len(plan.parts), 'part')}, blobs: {len(plan.blobs)}")
        actions: list[ev.Action] = [ev.LinkTo(node, deploy.peers[node]) for node in sorted(plan.waiting_links)]
        unreachable = [node for node in sorted(plan.neighbours) if deploy.peers.get(node) == ()]
        actions += [ev.CloseLink(node, "it is out of reach") for node in unreachable]
        for spec in deploy.blobs:
            actions += self._fetches.request(spec, plan.key, deploy.peers)
        return actions + self.prepare_parts(plan, now)

    def _refusal_of_devices(self, deploy: Deploy) -> MeshError | None:
        away = [part.device for part in deploy.parts if self._devices[part.device].recovery.away]
        return DeviceLost(f"device {away[0]} was lost and is not there again") if away else None

    def blob_found(self, event: ev.BlobFound, now: float) -> list[ev.Action]:
        blob, size_bytes, waiting, actions = self._fetches.found(event.attempt)
        plans = [self._plans[key] for key in sorted(waiting, key=order) if key in self._plans]
        if blob and not plans:  # it came for nobody, and takes room unless it may be kept
            actions.append(ev.DiscardBlobs(frozenset((blob,))))
        for plan in plans:
            plan.waiting_blobs.discard(blob)
            plan.bytes_by_source[event.source] += size_bytes
            plan.bytes_by_source["client"] += size_bytes if event.from_owner else 0
            actions += [ev.PinBlobs(frozenset((blob,)))] if not self._plans.is_pinned_by_other(blob, plan) else []
            actions += self.prepare_parts(plan, now)
        return actions

    def blob_not_found(self, event: ev.BlobNotFound, now: float) -> list[ev.Action]:
        waiting, error, actions = self._fetches.failed(event.attempt, event.error)
        for plan in [self._plans[key] for key in sorted(waiting, key=order) if key in self._plans]:
            actions += self.fail(plan, error, now)
        return actions

    def link_failed(self, event: ev.LinkFailed, now: float) -> list[ev.Action]:
        """Go on without a link: tensors for that node go through the coordinator, which knows whether it is there."""
        self._log.add(now, f"no link to {event.node[:16]}, so through the coordinator: {event.error}")
        for plan in self._plans.values():
            plan.unreached |= {event.node} & plan.waiting_links
        return self.link_settled(event.node, now)

    def link_settled(self, node: str, now: float) -> list[ev.Action]:
        """Stop waiting for the link to a node: it stands, or could not be made."""
        actions: list[ev.Action] = []
        for plan in [plan for plan in self._plans.values() if node in plan.waiting_links]:
            plan.waiting_links.discard(node)
            actions += self._finish(plan, now)
        return actions

    def prepare_parts(self, plan: Plan, now: float) -> list[ev.Action]:
        """Once all blobs are here, prepare the parts that are not prepared, on every device that serves."""
        if plan.waiting_blobs:
            return []
        actions: list[ev.Action] = []
        for part in plan.parts.values():
            device = self._devices[part.device]
            if part.part in plan.prepared or not device.recovery.up:
                continue
            number = plan.prepared[part.part] = self._next_number()
            self._prepared[number] = (plan.key, part.part)
            device.prepare(number, plan.key, part.part, now)
            actions.append(plan.prepare(part, number, kept_bytes(self._plans.values())))
        return actions or self._finish(plan, now)

    def part_prepared(self, event: ev.PartPrepared, now: float) -> list[ev.Action]:
        plan, part = self._end_prepare(event.prepared, now)
        if plan is None:
            return []
        plan.waiting_parts.discard(part)
        if plan.deployed:  # a new engine host has it again
            self._devices[plan.parts[part].device].restoring.discard(event.prepared)
            return []
        plan.working_bytes = max(plan.working_bytes, event.working_bytes)
        plan.compile_s += event.compile_s
        plan.compiled += 1
        plan.from_cache += event.from_cache
        return self._finish(plan, now)

    def device_of(self, prepared: int) -> int | None:
        """The device that a part is prepared for under this number; None if nobody waits for it."""
        key, part = self._prepared.get(prepared, (None, 0))
        plan = self._plans.get(key) if key is not None else None
        return plan.parts[part].device if plan is not None else None

    def prepare_failed(self, event: ev.PrepareFailed, now: float) -> list[ev.Action]:
        plan, part = self._end_prepare(event.prepared, now)
        if plan is None:
            return []
        if event.postponed:
            self._devices[plan.parts[part].device].postponed.append((plan.key, part))
            return []
        if isinstance(event.error, GraphError):
            self._graphs.remove(plan.parts[part].graph)
        event.error.part = str(part)
        return self.fail(plan, event.error, now)

    def prepare_postponed(self, now: float) -> list[ev.Action]:
        """Prepare what had no room beside suspended runs, where these are over."""
        actions: list[ev.Action] = []
        for device in self._devices:
            if not device.postponed or device.slices.suspended or not device.recovery.up:
                continue
            if any(run.resumed for run in device.issued):
                continue
            for key, part in device.postponed:
                plan = self._plans.get(key)
                number = plan.prepared.get(part) if plan is not None else None
                if plan is not None and number is not None:
                    device.prepare(number, key, part, now)
                    actions.append(plan.prepare(plan.parts[part], number, kept_bytes(self._plans.values())))
            device.postponed.clear()
        return actions

    def _end_prepare(self, number: int, now: float) -> tuple[Plan | None, int]:
        """The plan and part of a prepare that is over; the plan is None if nobody waits for it."""
        for device in self._devices:
            device.prepare_ended(number, now)
        key, part = self._prepared.get(number, (None, 0))
        return (self._plans.get(key), part) if key is not None else (None, 0)

    def _finish(self, plan: Plan, now: float) -> list[ev.Action]:
        if plan.request is None or plan.waiting_blobs or plan.waiting_links or plan.waiting_parts:
            return []
        request, plan.request, plan.deployed_s = plan.request, None, now
        del self._requests[request]
        self._log.add(now, f"deployed {label(plan.key)}")
        return [ev.Reply(request, plan.answer)]

    # -- engine hosts that are lost

    def forget_part(self, plan: Plan, part: int) -> None:
        """A part of a plan was prepared in a host that is gone: it waits until a new host has prepared it."""
        number = plan.prepared.pop(part)
        del self._prepared[number]
        plan.orphans.append(ev.Unprepare(plan.parts[part].device, number))
        plan.waiting_parts.add(part)

    # -- the end of a plan

    def fail(self, plan: Plan, error: MeshError, now: float) -> list[ev.Action]:
        """End a deploy that cannot succeed."""
        self._log.add(now, f"deploy {label(plan.key)} failed: {error}")
        return self.drop(plan, error)

    def cancel(self, request: int) -> list[ev.Action]:
        """Drop the plan of a Deploy whose answer nobody waits for any more."""
        key = self._requests.pop(request, None)
        if key is None:
            return []
        plan = self._plans[key]
        plan.request = None
        return self.drop(plan, Cancelled("the deploy was cancelled"))

    def drop_asked(self, event: ev.DropRequested, now: float) -> list[ev.Action]:
        """Drop a plan for its coordinator, also one that has not come yet."""
        self._dropped.add(event.plan)
        actions: list[ev.Action] = []
        if event.plan in self._plans:
            self._log.add(now, f"drop {label(event.plan)}")
            error = StaleGeneration(f"plan {label(event.plan)} was dropped")
            actions = self.drop(self._plans[event.plan], error, event.free)
        return [*actions, ev.Reply(event.request, Done())]

    def drop(self, plan: Plan, error: MeshError, free: bool = False) -> list[ev.Action]:
        """Forget a plan, and with `free` its weights too.  Requests that wait for its deploy or its steps get
        `error`."""
        actions = [action for number in list(plan.steps) for action in self._steps.close(plan, number, error)]
        del self._plans[plan.key]
        actions += self._steps.early.release_all(lambda key: key == plan.key)
        actions += [ev.Release(tensor) for tensor in plan.carried.end()]
        actions += [ev.DiscardBlobs(frozenset(plan.carried.blobs))] if plan.carried.blobs else []
        self._fetches.forget(plan.key)
        if plan.request is not None and self._requests.pop(plan.request, None) is not None:
            actions.append(ev.Refuse(plan.request, error))
        for part, number in plan.prepared.items():
            del self._prepared[number]
            device = self._devices[plan.parts[part].device]
            device.restoring.discard(number)
            device.slices.room_bytes = None  # there may be more
            actions += plan.unbind(part, number) if free else []
            actions.append(ev.Unprepare(plan.parts[part].device, number))
        return [*actions, *plan.orphans, *self._plans.unpin(plan.blobs - plan.waiting_blobs, plan)]


# -- checks of a Deploy


def refusal_of(deploy: Deploy, node: str, devices: int) -> MeshError | None:
    """What makes a deploy impossible on worker `node` with that many devices, whatever happens later."""
    blobs = {spec.blob for spec in deploy.blobs}
    parts = {part.part: part for part in deploy.parts}
    taken: set[Slot] = set()
    if len(parts) != len(deploy.parts):
        return InputError("a deploy names a part twice")
    for part in deploy.parts:
        if part.device >= devices:
            return InputError(f"part {part.part} names device {part.device}, this worker has {devices}")
        for position, source in enumerate(part.sources):
            if source.kind is SourceKind.PARAM and source.blob not in blobs:
                return InputError(f"part {part.part} input {position} is a param whose blob is not listed")
        for target in (target for targets in part.targets for target in targets):
            if target.node not in (COORDINATOR_NODE, node) and target.node not in deploy.peers:
                return InputError(f"part {part.part} sends to node {target.node[:16]}, whose address is not listed")
        refusal = refusal_of_carries(part, parts, taken) or _refusal_of_gang(part, deploy, node)
        if refusal is not None:
            return refusal
    return None


def _refusal_of_gang(part: PartSpec, deploy: Deploy, node: str) -> MeshError | None:
    """What is impossible about the gang of a part, if it has one, on worker `node`.

    The ranks of a gang run at the same time and wait for each other.  So each needs a device of its own, and the plan
    must be ordered, or two gangs could wait for each other.
    """
    gang = part.gang
    if gang is None:
        return None
    members, ranks = gang.members, math.prod(gang.sizes)
    if len(gang.axes) != len(gang.sizes) or ranks != len(members):
        return InputError(f"part {part.part} is of a gang of {len(members)}, and its grid has {ranks} ranks")
    if gang.rank >= ranks or members[gang.rank] != Member(node, part.part, part.device):
        return InputError(f"part {part.part} is not rank {gang.rank} of its gang")
    if len({(member.node, member.device) for member in members}) < ranks:
        return InputError(f"two ranks of the gang of part {part.part} are on one device, and would wait for ever")
    if not deploy.ordered:
        return InputError(f"part {part.part} is of a gang, and its plan is not ordered")
    unlisted = sorted(gang_peers(part, node) - deploy.peers.keys())
    if unlisted:
        return InputError(f"the gang of part {part.part} is with {unlisted[0][:16]}, which is not listed")
    return None


# -- memory


def kept_bytes(plans: Collection[Plan]) -> int:
    """The bytes that this worker holds for other workers only."""
    own = _blob_sizes(plan for plan in plans if plan.parts)
    kept = _blob_sizes(plan for plan in plans if not plan.parts)
    return sum(size for blob, size in kept.items() if blob not in own)


def refusal_of_memory(deploy: Deploy, node: str, plans: Collection[Plan], memory_bytes: int) -> OutOfMemory | None:
    """Why the content of a deploy without parts cannot be kept.  Content that `node`, this worker, made is free."""
    if deploy.parts or not memory_bytes:
        return None
    own = _blob_sizes(plan for plan in plans if plan.parts)
    kept = _blob_sizes(plan for plan in plans if not plan.parts)
    kept |= (asked := {spec.blob: spec.size_bytes for spec in deploy.blobs if node not in spec.holders})
    others_bytes = sum(size for blob, size in kept.items() if blob not in own)
    own_bytes = sum(own.values()) + max((plan.working_bytes for plan in plans), default=0)
    if not asked or own_bytes + others_bytes <= memory_bytes:
        return None
    return OutOfMemory(
        f"{size_text(others_bytes)} are to be kept for other workers, beside {size_text(own_bytes)} to compute with; "
        f"the budget is {size_text(memory_bytes)}",
        next_step="Give the worker a larger --max-memory, or choose copies that take less",
    )


def shortage(left: ev.MemoryLeft) -> str:
    """The text for people if the machine runs short of memory, "" if it does not."""
    if left.free_bytes >= left.total_bytes * SHORT_SHARE:
        return ""
    return f"this machine has {size_text(left.free_bytes)} of {size_text(left.total_bytes)} of memory left"


def _blob_sizes(plans: Iterable[Plan]) -> dict[bytes, int]:
    return {blob: plan.sizes[blob] for plan in plans for blob in plan.blobs}
