"""What a plan and its steps are on one worker.

Data, and how a Deploy becomes it: which inputs come with every step, who reads which output here, and where each output
goes.  When anything happens is decided in `worker_state.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wire.errors import InputError, MeshError, StaleGeneration
from wire.protocol.messages import Deploy, Deployed, PartRun, PartSpec, PlanKey

from .carried_state import Carries, Slot, wrong_with
from .events import Action, Kept, Made, Prepare, Release, ReplyRan, Tensor, Unbind, UnpinBlobs, Unprepare, Use
from .gang_checks import others_in, wrong_in_gang

DROPPED_PLANS_MAX = 4096  # how many dropped plans are remembered; their late pushes are minutes old at most
CLOSED_STEPS_MAX = 4096  # closed steps remembered out of order, per plan
SOURCES = ("socket", "shared", "disk", "resident", "client")  # of blobs; the last is part of the first two

Readers = dict[tuple[int, int], list[Slot]]  # (producing part, its output) -> slots of this worker


@dataclass(frozen=True, slots=True)
class Route:
    """Where an output goes: once to each other worker, to positions of the graph's outputs, to slots here."""

    nodes: tuple[tuple[str, int, int], ...]
    positions: tuple[int, ...]
    near: tuple[Slot, ...]  # on the same device
    far: tuple[Slot, ...]  # on another device of this worker
    next: tuple[Slot, ...] = ()  # at the next step, on the same device

    @property
    def kept(self) -> bool:
        """Whether it stays on its device."""
        return bool(self.near or self.next)

    @property
    def copies(self) -> int:
        """How many leave the device."""
        return len(self.nodes) + len(self.positions) + len(self.far)


@dataclass(slots=True)
class Held:
    """A tensor and how many inputs still have to read it; one that is borrowed is not freed by the last of them."""

    tensor: Tensor
    uses: int
    borrowed: bool = False


@dataclass(slots=True)
class Step:
    request: int
    started_s: float
    waiting: dict[int, set[int]]  # part -> input positions that are not there yet
    inputs: dict[Slot, Held] = field(default_factory=dict)
    wait_s: dict[int, float] = field(default_factory=dict)
    began: bool = False
    done: list[PartRun] = field(default_factory=list)
    outputs: list[tuple[int, Tensor]] = field(default_factory=list)
    pushes: set[int] = field(default_factory=set)
    bytes_in: int = 0
    bytes_out: int = 0

    def fill(self, slots: Iterable[Slot], tensor: Tensor, borrowed: bool = False) -> list[int] | None:
        """Give a tensor to those slots that wait for one: the parts that now wait for none; None if no slot did."""
        vacant = [(part, slot) for part, slot in slots if slot in self.waiting.get(part, ())]
        held = Held(tensor, len(vacant), borrowed)
        for part, slot in vacant:
            self.inputs[part, slot] = held
            self.waiting[part].discard(slot)
        filled = dict.fromkeys(part for part, _ in vacant)
        return [part for part in filled if not self.waiting[part]] if vacant else None

    def take(self, part: int, slots: Iterable[int]) -> tuple[Use, ...]:
        """The inputs of a part, which begins."""
        uses = []
        for slot in sorted(slots):
            held = self.inputs.pop((part, slot))
            held.uses -= 1
            uses.append(Use(slot, held.tensor, held.uses == 0 and not held.borrowed))
        return tuple(uses)

    def unread(self) -> list[Tensor]:
        """What nobody will have read if it ends now, outputs among it, and nothing that is borrowed."""
        held = {id(held): held.tensor for held in self.inputs.values() if not held.borrowed}
        return [*held.values(), *(tensor for _, tensor in self.outputs)]

    def needs(self, device: int) -> bool:
        """Whether it waits with a tensor that only that device's engine host has."""
        kept = (held.tensor for held in self.inputs.values() if isinstance(held.tensor, Kept))
        return any(tensor.device == device for tensor in kept)

    def answer(self, node: str, plan: PlanKey, number: int) -> ReplyRan:
        """What the coordinator, `node`, hears once all is done."""
        outputs, parts = tuple(self.outputs), tuple(self.done)
        return ReplyRan(self.request, node, plan, number, outputs, parts, self.bytes_in, self.bytes_out)

    def validate(self) -> None:
        """AssertionError if a tensor's uses are miscounted."""
        held = list(self.inputs.values())
        assert all(each.uses == sum(other is each for other in held) for each in held)


@dataclass(slots=True)
class Closed:
    """The step numbers that are over: all below `floor`, and those in `above`."""

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def __contains__(self, step: int) -> bool:
        return step < self.floor or step in self.above

    def add(self, step: int) -> None:
        if step < self.floor:
            return
        self.above.add(step)
        while self.floor in self.above or len(self.above) > CLOSED_STEPS_MAX:
            self.floor = min(self.above)
            self.above.discard(self.floor)
            self.floor += 1


@dataclass(slots=True)
class Plan:
    key: PlanKey
    parts: dict[int, PartSpec]
    blobs: frozenset[bytes]
    force: bool
    ordered: bool
    request: int | None  # of the Deploy, until it is answered
    fed: dict[int, frozenset[int]]  # part -> positions that come with every step
    same_source: dict[Slot, tuple[Slot, ...]]
    routes: dict[int, tuple[Route, ...]]
    waiting_blobs: set[bytes]
    neighbours: frozenset[str]  # the workers it sends to or gets from
    waiting_links: set[str]
    waiting_parts: set[int]
    sizes: dict[bytes, int] = field(default_factory=dict)  # of its blobs
    working_bytes: int = 0  # the most that runs of one of its parts need besides params
    carries: Carries = field(default_factory=Carries)
    graphs: dict[bytes, bytes] = field(default_factory=dict)  # encodings, for an engine host that starts again
    prepared: dict[int, int] = field(default_factory=dict)  # part -> number
    orphans: list[Unprepare] = field(default_factory=list)  # what hosts had prepared that are gone
    bytes_by_source: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    unreached: set[str] = field(default_factory=set)  # workers that could not be dialled
    deployed_s: float = 0.0  # when its Deploy was answered
    compile_s: float = 0.0
    compiled: int = 0
    from_cache: int = 0
    steps: dict[int, Step] = field(default_factory=dict)
    closed: Closed = field(default_factory=Closed)

    @property
    def deployed(self) -> bool:
        return self.request is None

    def prepare(self, part: PartSpec, number: int, kept_bytes: int = 0) -> Prepare:
        """What has a part compiled, under this number."""
        params = ((i, source.blob) for i, source in enumerate(part.sources) if source.kind == "param")
        bound = tuple((position, blob) for position, blob in params if blob is not None)
        counts = len(part.sources), len(part.targets)
        encoded = self.graphs[part.graph]
        gang = (self.key, part.gang) if part.gang else None
        return Prepare(
            part.device, number, part.graph, encoded, *counts, bound, self.blobs, self.force, gang, kept_bytes
        )

    def unbound(self, part: int, number: int) -> list[Action]:
        """Have a part's params freed that no other part uses."""
        spec = self.parts[part]
        return [Unbind(spec.device, number, frozenset(range(len(spec.sources))))]

    def refusal(self, step: int) -> MeshError | None:
        """Why a step cannot begin."""
        if not self.deployed:
            return not_deployed(self.key)
        if step in self.steps or step in self.closed:
            return StaleGeneration(f"step {step} of plan {label(self.key)} is over or under way")
        return self.carries.refusal(step)

    def waits(self, step: int) -> dict[int, set[int]]:
        """The positions of every part that a step has to wait for."""
        return {part: set(self.fed_at(part, step)) for part in self.parts}

    def fed_at(self, part: int, step: int) -> frozenset[int]:
        """Those that the part is given at this step: the others are bound to params."""
        return self.fed[part] | self.carries.fed(part, step)

    def commit(self, steps: int) -> tuple[list[Action], frozenset[bytes]]:
        """So many steps will not be gone back to: what is freed, and the blobs that this plan is done with."""
        outgrown, first = self.carries.commit(steps)
        actions: list[Action] = [Release(tensor) for tensor in outgrown]
        if not first:
            return actions, frozenset()
        slots = self.carries.slots.items()
        actions += [Unbind(self.parts[part].device, self.prepared[part], each) for part, each in slots]
        bound = [
            (source.blob, i in self.carries.slots.get(part, ()))
            for part, spec in self.parts.items()
            for i, source in enumerate(spec.sources)
            if source.blob is not None
        ]
        done = frozenset(blob for blob, carried in bound if carried) - {blob for blob, carried in bound if not carried}
        self.blobs -= done
        return actions, done

    @property
    def answer(self) -> Deployed:
        """What the coordinator hears once the plan is deployed."""
        by_source = {f"bytes_{source}": self.bytes_by_source[source] for source in SOURCES}
        return Deployed(
            **by_source,
            compile_s=self.compile_s,
            compiled=self.compiled,
            from_cache=self.from_cache,
            unreached=tuple(sorted(self.unreached)),
        )


class Plans(dict[PlanKey, Plan]):
    """Those of one worker."""

    def step(self, key: PlanKey, number: int) -> Step | None:
        """A step that is under way."""
        return self[key].steps.get(number) if key in self else None

    def steps_with(self, node: str) -> list[tuple[PlanKey, int]]:
        """Those under way in which a worker takes part."""
        return [(plan.key, step) for plan in self.values() if node in plan.neighbours for step in plan.steps]

    def neighbours(self, busy: bool = False) -> set[str]:
        """The workers that plans send to or get from; of those that have steps under way."""
        return set().union(*(plan.neighbours for plan in self.values() if plan.steps or not busy))

    def pinned_beside(self, blob: bytes, asking: Plan) -> bool:
        """Whether another plan already holds this blob in the store."""
        others = (plan for plan in self.values() if plan is not asking)
        return any(blob in plan.blobs and blob not in plan.waiting_blobs for plan in others)

    def unpin(self, blobs: frozenset[bytes], asking: Plan) -> list[Action]:
        """Let go of those that no other plan holds."""
        unpinned = frozenset(blob for blob in blobs if not self.pinned_beside(blob, asking))
        return [UnpinBlobs(unpinned)] if unpinned else []


class Dropped(dict[PlanKey, None]):
    """Plans that are over, those dropped last."""

    def add(self, key: PlanKey) -> None:
        self[key] = None
        while len(self) > DROPPED_PLANS_MAX:
            del self[next(iter(self))]


def plan_of(deploy: Deploy, request: int, node: str) -> Plan:
    """The plan that a Deploy describes, for the worker `node`."""
    parts = {part.part: part for part in deploy.parts}
    readers, carries = _readers(parts), Carries(deploy.parts)
    routes = {part.part: _routes(part, node, parts, readers, carries) for part in parts.values()}
    others = {other for outputs in routes.values() for route in outputs for other, _, _ in route.nodes}
    others = others.union(*(others_in(part, node) for part in parts.values()))
    reached = {other for other in others if deploy.peers[other]}  # the rest is known to need the coordinator
    blobs = frozenset(spec.blob for spec in deploy.blobs)
    return Plan(
        key=deploy.plan,
        parts=parts,
        blobs=blobs,
        force=deploy.force,
        ordered=deploy.ordered,
        request=request,
        fed={
            part.part: frozenset(i for i, source in enumerate(part.sources) if source.kind != "param")
            for part in parts.values()
        },
        same_source={slot: tuple(slots) for slots in readers.values() for slot in slots},
        routes=routes,
        waiting_blobs=set(blobs),
        neighbours=frozenset(
            (others | {source.node for part in parts.values() for source in part.sources}) - {"", node}
        ),
        waiting_links=reached,
        waiting_parts=set(parts),
        sizes={spec.blob: spec.size_bytes for spec in deploy.blobs},
        carries=carries,
    )


def wrong_in(deploy: Deploy, node: str, devices: int) -> MeshError | None:
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
            if source.kind not in ("input", "edge", "param"):
                return InputError(f"part {part.part} input {position} comes from {source.kind!r}, which is nothing")
            if source.kind == "param" and source.blob not in blobs:
                return InputError(f"part {part.part} input {position} is a param whose blob is not listed")
        for target in (target for targets in part.targets for target in targets):
            if target.node not in ("", node) and target.node not in deploy.peers:
                return InputError(f"part {part.part} sends to node {target.node[:16]}, whose address is not listed")
        wrong = wrong_with(part, parts, taken) or wrong_in_gang(part, deploy, node)
        if wrong is not None:
            return wrong
    return None


def _readers(parts: dict[int, PartSpec]) -> Readers:
    readers: Readers = {}
    for part in parts.values():
        for position, source in enumerate(part.sources):
            if source.kind == "edge":
                readers.setdefault((source.part, source.slot), []).append((part.part, position))
    return readers


def _routes(
    part: PartSpec, node: str, parts: dict[int, PartSpec], readers: Readers, carries: Carries
) -> tuple[Route, ...]:
    routes = []
    for output, targets in enumerate(part.targets):
        first: dict[str, tuple[str, int, int]] = {}
        for target in targets:
            if target.node not in ("", node):
                first.setdefault(target.node, (target.node, target.part, target.slot))
        here = readers.get((part.part, output), [])
        routes.append(
            Route(
                nodes=tuple(first.values()),
                positions=tuple(target.slot for target in targets if target.node == ""),
                near=tuple(slot for slot in here if parts[slot[0]].device == part.device),
                far=tuple(slot for slot in here if parts[slot[0]].device != part.device),
                next=carries.targets.get((part.part, output), ()),
            )
        )
    return tuple(routes)


def release_all(outputs: tuple[Made, ...]) -> list[Action]:
    """Nobody wants what a part made."""
    tensors: list[Tensor] = []
    for made in outputs:
        tensors += made.files
        tensors += [made.kept] if made.kept is not None else []
    return [Release(tensor) for tensor in tensors]


def not_deployed(key: PlanKey) -> MeshError:
    return StaleGeneration(f"plan {label(key)} is not deployed here")


def label(key: PlanKey) -> str:
    """A plan's key, for people."""
    return f"{key.epoch}.{key.generation}"


def order(key: PlanKey) -> tuple[int, int]:
    """Later plans come after earlier ones."""
    return key.epoch, key.generation
