"""Weight redundancy: what workers keep of each other's weights, so that a death loses none, and how it is made again.

Once a plan is deployed, workers are given copies or checks of the weights that too few of them have, as the program's
policy says (`wire/policy/redundancy.py`, `coordinator/planning/redundancy/parity_groups.py`); a plan without parts pins
them there.  Where a death took weights along, whoever needs them next makes them of the other shares before its part of
the new plan is deployed, and that plan leaves the others where they are
(`coordinator/planning/placement/sticky_placement.py`).  All of it goes between workers.

Nobody keeps more than there is room for beside its parts and what it keeps for others already; it reports what has no
copy for lack of room.  After a death, checks go once all has been made of them that the new plan needs, where it needs
their room.

Where replicas are wanted, the plan without each one of its workers is deployed beside the plan, and stays so: whoever
takes over has weights and kernels on its device.

It does not know what calls wait for.  What nobody can make again comes from this process, as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from wire.errors import MeshError, OutOfMemory
from wire.ir.dtypes import U8
from wire.ir.graph import WireGraph
from wire.ir.types import TensorType
from wire.policy.redundancy import copies_of
from wire.protocol.messages import PlanKey
from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard
from wire.units import counted, size_text

from ..delivery.deployer import Deployer, Moved, Term, Wanted
from ..planning import plan_messages
from ..planning.model.memory_check import memory_by_worker
from ..planning.model.plan import FromParam, Plan
from ..planning.model.program import Program, ProgramKey
from ..planning.placement.sticky_placement import Homes
from ..planning.redundancy.parity_groups import Group, HeldContent, grouped, kept_bytes, unkept
from ..planning.redundancy.redundancy_memory import standing_by
from ..workers.records import Member
from .plan_service import PlanService

log = steady_logger("graph_mesh.coordinator")
GUARDS_MAX = 64  # programs that are guarded at once, those deployed last
ADMITTED_MAX = 256
STOOD_BY = "this plan stood by, deployed for this death"
AGAIN_S = (0.5, 2.0, 5.0)  # after which what a worker had no room for is tried again: an older plan may have had it


@dataclass(slots=True)
class _Guard:
    """What is kept for one program: its plan, the workers there were, and per group the addresses of all shares, checks
    last."""

    plan: Plan
    nodes: frozenset[str] = frozenset()
    groups: dict[Group, tuple[bytes, ...]] = field(default_factory=dict)
    keys: list[tuple[str, PlanKey]] = field(default_factory=list)  # of the plans that pin them, and their workers
    params: Mapping[str, bytes] = field(default_factory=dict)  # addresses of those that are whole, by name
    standing: Mapping[str, int] = field(default_factory=dict)  # bytes of replicas, by worker
    standby: Mapping[str, Plan] = field(default_factory=dict)  # what is deployed for the death of a worker
    failures: int = 0  # in a row, of workers that had no room
    work: asyncio.Task[None] | None = None
    next_turn: bool = False  # that work has not begun, and will see what changes until then


class WeightRedundancy:
    """`key` names a plan that no call uses, `usable` are the workers that may be given something to keep."""

    def __init__(
        self,
        members: Mapping[str, Member],
        deployer: Deployer,
        usable: Callable[[], frozenset[str]],
        key: Callable[[], PlanKey],
        tasks: Tasks,
        tell: Callable[[str, str, str, int], None],
        planning: PlanService,
    ) -> None:
        self._members = members
        self._deployer = deployer
        self._usable = usable
        self._key = key
        self._tasks = tasks
        self._tell = tell
        self._planned = planning.plan
        planning.kept_by_others = self.kept_by_others
        self._guards: dict[Program, _Guard] = {}
        self._admitted: dict[ProgramKey, None] = {}  # a program would hold its graph
        self._restoring: dict[int, asyncio.Task[dict[str, Moved]]] = {}  # by plan, while it goes on
        deployer.restore = self.restore

    def admit(self, program: Program, plan: Plan) -> None:
        """The plan's copies had room once: from now on a death may take that room, and the plan's calls go on."""
        if plan.unkept is None and plan.audit is None:
            self._admitted[program.key] = None
            while len(self._admitted) > ADMITTED_MAX:
                del self._admitted[next(iter(self._admitted))]

    def is_new(self, graph: WireGraph, strategy: str, copies: str) -> bool:
        """Whether no program like that has been called."""
        asked = graph.hash, strategy, copies
        return not any((hash, *how) == asked for hash, _, *how, _ in self._admitted)

    def kept_by_others(self, graph: WireGraph, strategy: str, copies: str) -> dict[str, int]:
        """What workers keep, by their ids, for programs that are not like that."""
        asked, kept = (graph.hash, strategy, copies), dict[str, int]()
        for program, guard in self._guards.items():
            if (program.graph.hash, program.strategy, program.copies) != asked:
                for node, size in {**kept_bytes(guard.groups), **guard.standing}.items():
                    kept[node] = kept.get(node, 0) + size
        return kept

    def deployed(self, program: Program, plan: Plan) -> None:
        """All workers of a plan have what it needs."""
        copies = copies_of(program.copies)
        if not (copies.on_workers or copies.on_devices) or plan.audit is not None:
            return
        guard = self._guards.pop(program, None) or _Guard(plan)
        guard.plan = plan
        self._guards[program] = guard
        self._begin(program, guard)
        while len(self._guards) > GUARDS_MAX:
            self._unguard(next(iter(self._guards)))

    def nodes_changed(self) -> None:
        """Other workers may be given work than before."""
        for program, guard in self._guards.items():
            if plan_messages.nodes(guard.plan) <= self._usable() != guard.nodes:
                self._begin(program, guard)

    @property
    def pinning_plans(self) -> frozenset[int]:
        """The plans that pin what workers keep, by generation."""
        return frozenset(key.generation for guard in self._guards.values() for _, key in guard.keys)

    def forget(self, program: Program) -> None:
        """No more calls of it will come."""
        self._admitted.pop(program.key, None)
        self._unguard(program)

    def _unguard(self, program: Program) -> None:
        guard = self._guards.pop(program, None)
        if guard is not None:
            if guard.work is not None:
                guard.work.cancel()
            self._let_go(guard, frozenset())

    def standby(self, program: Program, nodes: Collection[str]) -> Plan | None:
        """The plan that stands by, deployed, where one worker of a program's plan is gone."""
        guard = self._guards.get(program)
        gone = plan_messages.nodes(guard.plan) - set(nodes) if guard is not None else frozenset[str]()
        other = guard.standby.get(next(iter(gone))) if guard is not None and len(gone) == 1 else None
        if other is None or not plan_messages.nodes(other) <= set(nodes):
            return None
        return replace(other, reasons=(*other.reasons, STOOD_BY))

    def homes(self, program: Program, nodes: Collection[str]) -> tuple[Homes, Homes]:
        """The homes of a program's weights, by name, if some of the workers of its plan are gone; else nothing.

        Also the workers that have their bytes.
        """
        guard, there = self._guards.get(program), set(nodes)
        if guard is None or guard.plan.gangs or plan_messages.nodes(guard.plan) <= there:
            return {}, {}
        homes = {place.name: there & set(place.homes) for place in guard.plan.params}
        return homes, {name: there & set(self._deployer.holders(blob)) for name, blob in guard.params.items()}

    async def restore(self, plan: Plan, node: str, wanted: Wanted) -> Moved:
        """Have a worker make what no worker has, and it needs, of other shares; the bytes that moved for that.  After a
        death all workers of the plan do, before the first of them has its parts: what these need may take the room of
        checks."""
        if not any(guard.groups for guard in self._guards.values()):
            return 0, 0
        if all(plan_messages.nodes(guard.plan) <= self._members.keys() for guard in self._guards.values()):
            return await self._make_all(node, await wanted(node))
        task = self._restoring.get(id(plan))
        if task is None:
            task = self._restoring[id(plan)] = self._spawn_moved(plan, wanted)
        moved = await asyncio.shield(task)
        return moved.pop(node, (0, 0))

    def _spawn_moved(self, plan: Plan, wanted: Wanted) -> asyncio.Task[dict[str, Moved]]:
        task = self._tasks.run("restoring weights", self._restore_all(plan, wanted), unheard)
        task.add_done_callback(lambda _: self._restoring.pop(id(plan), None))
        return task

    async def _restore_all(self, plan: Plan, wanted: Wanted) -> dict[str, Moved]:
        nodes = sorted(plan_messages.nodes(plan) & self._members.keys())
        contents = [await wanted(node) for node in nodes]
        moved = await asyncio.gather(
            *(self._make_all(node, content) for node, content in zip(nodes, contents, strict=True))
        )
        await asyncio.gather(
            *(self._give_way(plan, node, content) for node, content in zip(nodes, contents, strict=True))
        )
        return dict(zip(nodes, moved, strict=True))

    async def _make_all(self, node: str, contents: Collection[bytes]) -> Moved:
        missing = [blob for blob in contents if not self._deployer.holders(blob)]
        made = await asyncio.gather(*(self._make(node, blob) for blob in missing))
        return sum(socket for socket, _ in made), sum(shared for _, shared in made)

    async def _give_way(self, plan: Plan, node: str, contents: Collection[bytes]) -> None:
        """What a worker keeps for others goes if it has no room for that and its parts."""
        member = self._members.get(node)
        kept = {blob: size for guard in self._guards.values() for blob, size in _kept_by(node, guard.groups).items()}
        beside = sum(size for blob, size in kept.items() if blob not in contents)
        guards = [guard for guard in self._guards.values() if any(key[0] == node for key in guard.keys)]
        if member is None or not guards or memory_by_worker(plan).get(node, 0) + beside <= member.profile.memory_bytes:
            return
        stay = {
            blob: TensorType((size,), U8) for blob, size in kept.items() if blob in contents and blob in member.blobs
        }
        kept_by = (node, self._key())
        guards[0].keys.append(kept_by)  # which goes with it, whatever becomes of this
        await self._deployer.keep(*kept_by, [(content, frozenset({node})) for content in stay.items()])
        for guard in guards:
            keys = [key for key in guard.keys if key[0] == node and key != kept_by]
            guard.keys = [key for key in guard.keys if key not in keys]
            await asyncio.gather(*(self._deployer.drop(*key) for key in keys))
        member.blobs.difference_update(blob for blob in kept if blob not in contents)
        self._tell(
            "unguarded", node, f"{size_text(beside)} that it kept for others give way to what it computes with", 0
        )

    # -- making checks

    def _begin(self, program: Program, guard: _Guard) -> None:
        if guard.next_turn:  # workers may come and go much faster than copies are made
            return
        before, guard.next_turn = guard.work, True
        guard.work = self._tasks.run("guarding weights", self._guard(program, guard, before), self._unguarded)

    async def _guard(self, program: Program, guard: _Guard, before: asyncio.Task[None] | None) -> None:
        """Have workers keep what they are to keep for each other, one change of workers after another."""
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
        finally:
            guard.next_turn = False
        try:
            await self._make_and_pin(program, guard)
        except OutOfMemory as error:
            await self._retry_later(program, guard, error)
        except MeshError as error:  # a worker that is gone changes the set of workers, which starts another turn
            log.debug("weights are not guarded yet: %s", error)

    async def _make_and_pin(self, program: Program, guard: _Guard) -> None:
        """Make checks and pin them.

        If it ends early, by cancellation too, nothing stays pinned of what it asked for.
        """
        plan, nodes, copies = guard.plan, self._usable(), copies_of(program.copies)
        keys: list[tuple[str, PlanKey]] = []  # of what pins, each before a worker is asked for it
        try:
            owned, params = await self._owned(program, plan)
            sizes = {blob: size for blobs in owned.values() for blob, size in blobs.items()}
            held = [HeldContent(blob, size, _owners(blob, owned)) for blob, size in sizes.items()]
            groups = grouped(held, nodes, copies, self._room(program, plan)) if copies.on_workers else ()
            shares = dict(zip(groups, await asyncio.gather(*map(self._checks, groups)), strict=True))
            await (self._stand_by(program, plan, nodes, keys) if copies.on_devices else self._pin(shares, keys))
            if self._guards.get(program) is not guard:
                return  # no more calls of it will come
            self._let_go(
                guard, {*_kept_checks(shares), *((node, blob) for node, blobs in owned.items() for blob in blobs)}
            )
            guard.nodes, guard.groups, guard.keys, guard.failures = nodes, shares, keys, 0
            keys = []
        finally:
            self._drop(keys)
        guard.params = {} if copies.on_devices else params
        text = ", ".join(map(counted, map(len, (held, groups, guard.keys)), ("tensor", "group", "keeper")))
        self._tell("guarded", "", f"copies {program.copies}: {text}", 0)
        bare = unkept(held, nodes, copies, groups) if copies.on_workers and len(nodes) > copies.extra else ()
        if bare:
            text = f"{size_text(sum(content.size_bytes for content in bare))} are not kept twice, for lack of room"
            self._tell("unguarded", "", f"copies {program.copies}: {text}; raise --max-memory, or add a worker", 0)

    def _unguarded(self, error: MeshError) -> None:
        self._tell("unguarded", "", f"weights are not kept twice: {error}", 0)

    async def _retry_later(self, program: Program, guard: _Guard, error: OutOfMemory) -> None:
        if guard.failures < len(AGAIN_S):
            await asyncio.sleep(AGAIN_S[guard.failures])
            guard.failures += 1
            self._begin(program, guard)
        else:
            self._tell("unguarded", "", f"copies {program.copies} are not kept: {error}", 0)

    def _room(self, program: Program, plan: Plan) -> dict[str, int]:
        """What workers have left beside their parts and what they keep for other programs."""
        own, others = memory_by_worker(plan), self.kept_by_others(*program.likeness)
        return {
            node: member.profile.memory_bytes - own.get(node, 0) - others.get(node, 0)
            for node, member in self._members.items()
        }

    async def _owned(self, program: Program, plan: Plan) -> tuple[dict[str, dict[bytes, int]], dict[str, bytes]]:
        """What every worker of a plan has for it, with sizes; and of params that are whole their addresses."""
        owned: dict[str, dict[bytes, int]] = {}
        names: dict[str, bytes] = {}
        for node in plan_messages.nodes(plan):
            params = await self._deployer.params(plan, node, program.bindings)
            names |= {
                param.name: blob
                for param, (blob, _) in params.items()
                if isinstance(param, FromParam) and param.window is None
            }
            states = {params[piece][0] for piece in plan_messages.states_of(plan, node)}  # these change with every step
            wanted = plan_messages.contents_of(plan, node, params).items()
            owned[node] = {blob: kind.size_bytes for blob, (kind, _) in wanted if blob not in states}
        return owned, names

    async def _checks(self, group: Group) -> tuple[bytes, ...]:
        """The addresses of a group's shares, once its checks are made."""
        members = [_address(member) for member in group.members]
        if len(members) == 1:  # a check of one content is that content
            return (*members, *(members[0] for _ in group.keepers))
        sums = [
            self._deployer.combine(
                keeper,
                {
                    blob: Term(factor, member.size_bytes, member.owners)
                    for blob, factor, member in zip(members, row, group.members, strict=True)
                },
                group.size_bytes,
            )
            for keeper, row in zip(group.keepers, group.rows, strict=True)
        ]
        return (*members, *(check.blob for check in await asyncio.gather(*sums)))

    async def _stand_by(
        self, program: Program, plan: Plan, nodes: frozenset[str], keys: list[tuple[str, PlanKey]]
    ) -> None:
        """Have the plans without each worker of this one on their devices, as far as there is room."""
        others: dict[str, Plan] = {}
        for dead in sorted(plan_messages.nodes(plan)):
            try:
                other = await self._planned(program.graph, program.strategy, nodes - {dead})
                used, key = sorted(plan_messages.nodes(other)), self._key()
                keys += [(node, key) for node in used]
                await asyncio.gather(*(self._deployer.deploy(other, node, key, program.bindings) for node in used))
                others[dead] = other
            except MeshError as error:
                self._tell("guarded", dead, f"no replica of what it has: {error}", 0)
        if program in self._guards:
            self._guards[program].standing = standing_by(plan, others.values())
            self._guards[program].standby = others

    async def _pin(self, shares: Mapping[Group, tuple[bytes, ...]], keys: list[tuple[str, PlanKey]]) -> None:
        """Have every keeper hold its checks."""
        wanted: dict[str, list[tuple[plan_messages.Content, frozenset[str]]]] = {}
        for group, blobs in shares.items():
            for keeper, blob in zip(group.keepers, blobs[len(group.members) :], strict=True):
                having = frozenset(self._deployer.holders(blob))
                wanted.setdefault(keeper, []).append(((blob, TensorType((group.size_bytes,), U8)), having))
        keys += [(node, self._key()) for node in wanted]
        await asyncio.gather(*(self._deployer.keep(node, key, wanted[node]) for node, key in keys))
        for node, held in wanted.items():
            if node in self._members:
                self._members[node].blobs.update(blob for (blob, _), _ in held)

    def _let_go(self, guard: _Guard, needed: Collection[tuple[str, bytes]]) -> None:
        """Have workers keep no more for each other than this."""
        self._drop(guard.keys)
        for node, blob in _kept_checks(guard.groups):
            if node in self._members and (node, blob) not in needed:
                self._members[node].blobs.difference_update([blob])

    def _drop(self, keys: Iterable[tuple[str, PlanKey]]) -> None:
        for node, key in keys:
            self._tasks.run("dropping a plan", self._deployer.drop(node, key), unheard)

    # -- making lost weights again

    async def _make(self, node: str, blob: bytes) -> Moved:
        """A share, or None where there are too few."""
        for guard in self._guards.values():
            for group, blobs in guard.groups.items():
                places = [place for place, member in enumerate(group.members) if blobs[place] == blob]
                if places and (moved := await self._rebuild_share(node, places[0], group, blobs)) is not None:
                    return moved
        return 0, 0

    async def _rebuild_share(self, node: str, place: int, group: Group, blobs: tuple[bytes, ...]) -> Moved | None:
        where = {share: self._deployer.holders(blob) for share, blob in enumerate(blobs)}
        near = {share for share, nodes in where.items() if node in nodes}
        factors = group.repair(place, (share for share, nodes in where.items() if nodes), near)
        if factors is None:
            return None
        terms = {blobs[share]: Term(factor, group.size_of(share), where[share]) for share, factor in factors.items()}
        size_bytes = group.members[place].size_bytes
        try:
            made = await self._deployer.combine(node, terms, size_bytes, blobs[place], keep=True)
        except MeshError as error:
            log.warning("weights could not be made again of others: %s", error)
            return None
        if node in self._members:
            self._members[node].blobs.update([made.blob])
        self._tell("restored", node, f"{size_text(size_bytes)} of weights, made again of what others keep", 0)
        return made.bytes_socket, made.bytes_shared


def _kept_checks(shares: Mapping[Group, tuple[bytes, ...]]) -> set[tuple[str, bytes]]:
    """The checks that are kept, as pairs of keeper and address."""
    pairs = (zip(group.keepers, blobs[len(group.members) :], strict=True) for group, blobs in shares.items())
    return {pair for pairs_of_group in pairs for pair in pairs_of_group}


def _kept_by(node: str, shares: Mapping[Group, tuple[bytes, ...]]) -> dict[bytes, int]:
    """The checks that one worker keeps, and their bytes."""
    sizes = {blob: group.size_bytes for group, blobs in shares.items() for blob in blobs[len(group.members) :]}
    return {blob: sizes[blob] for keeper, blob in _kept_checks(shares) if keeper == node}


def _owners(blob: bytes, owned: Mapping[str, Collection[bytes]]) -> frozenset[str]:
    return frozenset(node for node, blobs in owned.items() if blob in blobs)


def _address(held: HeldContent) -> bytes:
    assert isinstance(held.content, bytes)
    return held.content
