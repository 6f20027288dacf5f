"""A plan on one worker, as a Deploy describes it: its parts, where their inputs come from and where outputs go.

Pure data.  When a plan is deployed and dropped is decided in `deployments.py`, and when its steps run in `steps.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.bounds import DROPPED_PLANS
from wire.errors import InputError, MeshError, StaleGeneration
from wire.protocol.messages import COORDINATOR_NODE, Deploy, Deployed, PartSpec, PlanKey, SourceKind

from .carried_state import CarriedState, Slot
from .events import Action, Prepare, Release, Unbind, UnpinBlobs, Unprepare
from .step import ClosedSteps, Step

DROPPED_PLANS_MAX = DROPPED_PLANS.most  # their late pushes are minutes old at most
SOURCES = ("socket", "shared", "disk", "resident", "client")  # of blobs; the last is part of the first two

TypeOf = tuple[str, tuple[int, ...]]  # dtype and shape of a tensor
Readers = dict[tuple[int, int], list[Slot]]  # (producing part, its output) -> slots of this worker


@dataclass(frozen=True, slots=True)
class Route:
    """The targets of an output: other workers, once each; positions of the graph's outputs; slots of this worker."""

    nodes: tuple[tuple[str, int, int], ...]
    positions: tuple[int, ...]
    near: tuple[Slot, ...]  # on the same device
    far: tuple[Slot, ...]  # on another device of this worker
    next: tuple[Slot, ...] = ()  # at the next step, on the same device

    @property
    def kept(self) -> bool:
        """Whether the output stays on its device."""
        return bool(self.near or self.next)

    @property
    def copies(self) -> int:
        """How many copies of the output leave the device."""
        return len(self.nodes) + len(self.positions) + len(self.far)


@dataclass(slots=True)
class Plan:
    key: PlanKey
    parts: dict[int, PartSpec]
    blobs: frozenset[bytes]
    force: bool
    ordered: bool
    request: int | None  # of the Deploy, until it is answered
    step_inputs: dict[int, frozenset[int]]  # part -> input positions that come with every step
    same_source: dict[Slot, tuple[Slot, ...]]
    routes: dict[int, tuple[Route, ...]]
    waiting_blobs: set[bytes]
    neighbours: frozenset[str]  # the workers that it sends to or receives from
    waiting_links: set[str]
    waiting_parts: set[int]
    types: dict[Slot, TypeOf] = field(default_factory=dict)  # of inputs that come with every step
    sizes: dict[bytes, int] = field(default_factory=dict)  # of its blobs
    working_bytes: int = 0  # the most that a run of one of its parts needs besides params
    carried: CarriedState = field(default_factory=CarriedState)
    graphs: dict[bytes, bytes] = field(default_factory=dict)  # encodings, for an engine host that starts again
    prepared: dict[int, int] = field(default_factory=dict)  # part -> number
    orphans: list[Unprepare] = field(default_factory=list)  # for parts that were prepared in hosts that are gone
    bytes_by_source: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    unreached: set[str] = field(default_factory=set)  # workers that could not be dialled
    deployed_s: float = 0.0  # when its Deploy was answered
    compile_s: float = 0.0
    compiled: int = 0
    from_cache: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    closed: ClosedSteps = field(default_factory=ClosedSteps)

    @property
    def deployed(self) -> bool:
        return self.request is None

    def sender_of(self, part: int, slot: int, owner: str) -> str | None:
        """The node that sends input `slot` of a part: the worker of the part that it comes from, or for an input of a
        call the coordinator `owner`.  None where no tensor is sent for it."""
        spec = self.parts.get(part)
        if spec is None or slot >= len(spec.sources):
            return None
        source = spec.sources[slot]
        if source.kind is SourceKind.EDGE:
            return source.node
        return owner if source.kind is SourceKind.INPUT else None

    def prepare(self, part: PartSpec, number: int, kept_bytes: int = 0) -> Prepare:
        """The action that compiles a part, under this number."""
        params = ((i, source.blob) for i, source in enumerate(part.sources) if source.kind is SourceKind.PARAM)
        bound = tuple((position, blob) for position, blob in params if blob is not None)
        counts = len(part.sources), len(part.targets)
        encoded = self.graphs[part.graph]
        gang = (self.key, part.gang) if part.gang else None
        return Prepare(
            part.device, number, part.graph, encoded, *counts, bound, self.blobs, self.force, gang, kept_bytes
        )

    def unbind(self, part: int, number: int) -> list[Action]:
        """Free those params of a part that no other part uses."""
        spec = self.parts[part]
        return [Unbind(spec.device, number, frozenset(range(len(spec.sources))))]

    def refusal(self, step: int) -> MeshError | None:
        """Why a step cannot begin."""
        if not self.deployed:
            return not_deployed(self.key)
        if step in self.steps or step in self.closed:
            return StaleGeneration(f"step {step} of plan {label(self.key)} is over or in flight")
        return self.carried.refusal(step)

    def waiting(self, step: int) -> dict[int, set[int]]:
        """The input positions of every part that a new step has to wait for."""
        return {part: set(self.inputs_at(part, step)) for part in self.parts}

    def inputs_at(self, part: int, step: int) -> frozenset[int]:
        """The input positions that a part is given at this step; the others are bound to params."""
        given = self.step_inputs[part]
        return given | self.carried.filled(part, step) if self.carried else given

    def commit(self, steps: int) -> tuple[list[Action], frozenset[bytes]]:
        """Commit the first `steps` steps.  Returns what frees their values, and the blobs that this plan is done
        with."""
        outgrown, first = self.carried.commit(steps)
        actions: list[Action] = [Release(tensor) for tensor in outgrown]
        if not first:
            return actions, frozenset()
        slots = self.carried.slots
        actions += [Unbind(self.parts[part].device, self.prepared[part], inputs) for part, inputs in slots.items()]
        bound = [
            (source.blob, i in slots.get(part, ()))
            for part, spec in self.parts.items()
            for i, source in enumerate(spec.sources)
            if source.blob is not None
        ]
        done = frozenset(blob for blob, carried in bound if carried) - {blob for blob, carried in bound if not carried}
        self.blobs -= done
        return actions, done

    @property
    def answer(self) -> Deployed:
        """The reply to the coordinator once the plan is deployed."""
        by_source = {f"bytes_{source}": self.bytes_by_source[source] for source in SOURCES}
        return Deployed(
            **by_source,
            compile_s=self.compile_s,
            compiled=self.compiled,
            from_cache=self.from_cache,
            unreached=tuple(sorted(self.unreached)),
        )


class Plans(dict[PlanKey, Plan]):
    """The plans of one worker."""

    def step(self, key: PlanKey, number: int) -> Step | None:
        """The step, if it is in flight."""
        return self[key].steps.get(number) if key in self else None

    def steps_with(self, node: str) -> list[tuple[PlanKey, int]]:
        """The steps in flight in which a worker takes part."""
        return [(plan.key, step) for plan in self.values() if node in plan.neighbours for step in plan.steps]

    def neighbours(self, busy: bool = False) -> set[str]:
        """The workers that plans send to or receive from; with `busy`, only of plans that have steps in flight."""
        return set().union(*(plan.neighbours for plan in self.values() if plan.steps or not busy))

    def is_pinned_by_other(self, blob: bytes, plan: Plan) -> bool:
        """Whether a plan other than `plan` holds this blob in the store."""
        others = (other for other in self.values() if other is not plan)
        return any(blob in other.blobs and blob not in other.waiting_blobs for other in others)

    def unpin(self, blobs: frozenset[bytes], plan: Plan) -> list[Action]:
        """Unpin those of the blobs of `plan` that no other plan holds."""
        unpinned = frozenset(blob for blob in blobs if not self.is_pinned_by_other(blob, plan))
        return [UnpinBlobs(unpinned)] if unpinned else []


class DroppedPlans(dict[PlanKey, None]):
    """The plans that were dropped last."""

    def add(self, key: PlanKey) -> None:
        self[key] = None
        while len(self) > DROPPED_PLANS_MAX:
            del self[next(iter(self))]


def plan_of(deploy: Deploy, request: int, node: str) -> Plan:
    """The plan that a Deploy describes, for the worker `node`."""
    parts = {part.part: part for part in deploy.parts}
    readers, carried = _readers(parts), CarriedState(deploy.parts)
    routes = {part.part: _routes(part, node, parts, readers, carried) for part in parts.values()}
    receivers = {receiver for outputs in routes.values() for route in outputs for receiver, _, _ in route.nodes}
    receivers = receivers.union(*(gang_peers(part, node) for part in parts.values()))
    reachable = {receiver for receiver in receivers if deploy.peers[receiver]}  # the rest needs the coordinator
    senders = {source.node for part in parts.values() for source in part.sources}
    blobs = frozenset(spec.blob for spec in deploy.blobs)
    return Plan(
        key=deploy.plan,
        parts=parts,
        blobs=blobs,
        force=deploy.force,
        ordered=deploy.ordered,
        request=request,
        step_inputs={
            part.part: frozenset(i for i, source in enumerate(part.sources) if source.kind is not SourceKind.PARAM)
            for part in parts.values()
        },
        same_source={slot: tuple(slots) for slots in readers.values() for slot in slots},
        routes=routes,
        waiting_blobs=set(blobs),
        neighbours=frozenset((receivers | senders) - {COORDINATOR_NODE, node}),
        waiting_links=reachable,
        waiting_parts=set(parts),
        types={(kind.part, kind.slot): (kind.dtype, kind.shape) for kind in deploy.types},
        sizes={spec.blob: spec.size_bytes for spec in deploy.blobs},
        carried=carried,
    )


def gang_peers(part: PartSpec, node: str) -> set[str]:
    """The other workers that have a rank of a part's gang."""
    return {member.node for member in part.gang.members} - {node} if part.gang else set()


def _readers(parts: dict[int, PartSpec]) -> Readers:
    readers: Readers = {}
    for part in parts.values():
        for position, source in enumerate(part.sources):
            if source.kind is SourceKind.EDGE:
                readers.setdefault((source.part, source.slot), []).append((part.part, position))
    return readers


def _routes(
    part: PartSpec, node: str, parts: dict[int, PartSpec], readers: Readers, carried: CarriedState
) -> tuple[Route, ...]:
    routes = []
    for output, targets in enumerate(part.targets):
        first: dict[str, tuple[str, int, int]] = {}
        for target in targets:
            if target.node not in (COORDINATOR_NODE, node):
                first.setdefault(target.node, (target.node, target.part, target.slot))
        here = readers.get((part.part, output), [])
        routes.append(
            Route(
                nodes=tuple(first.values()),
                positions=tuple(target.slot for target in targets if target.node == COORDINATOR_NODE),
                near=tuple(slot for slot in here if parts[slot[0]].device == part.device),
                far=tuple(slot for slot in here if parts[slot[0]].device != part.device),
                next=carried.targets.get((part.part, output), ()),
            )
        )
    return tuple(routes)


def refusal_to_explain(plan: Plan, part: int) -> MeshError | None:
    """Why a part of a plan cannot be explained."""
    if part not in plan.parts:
        return InputError(f"plan {label(plan.key)} has no part {part} here")
    if plan.parts[part].gang is not None:
        return InputError("a rank of several cannot be explained: it runs with the others only")
    return None


def refusal_of_direct_calls(plan: Plan, part: int) -> MeshError | None:
    """Why a part of a plan cannot be called directly."""
    if part not in plan.parts:
        return InputError(f"plan {label(plan.key)} has no part {part} here")
    if plan.ordered or plan.carried or plan.parts[part].gang is not None:
        return InputError("ranks, and parts of sessions, run in the order that their coordinator says")
    return None if plan.deployed else not_deployed(plan.key)


def not_deployed(key: PlanKey) -> MeshError:
    return StaleGeneration(f"plan {label(key)} is not deployed here")


def label(key: PlanKey) -> str:
    """The text of a plan's key, for people."""
    return f"{key.epoch}.{key.generation}"


def order(key: PlanKey) -> tuple[int, int]:
    """The sort key that puts later plans after earlier ones."""
    return key.epoch, key.generation
