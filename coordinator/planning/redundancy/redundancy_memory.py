"""Redundancy memory: plans whose workers have room for what they keep for each other, too.  Pure.

What copies take of a worker's memory is counted beside what it computes with.  Where the best plan leaves too little of
it, plans are made for smaller budgets: those that leave what the copies of the one before would take, and those that
share out the weights more evenly.  The first that has room for all copies wins.

Where none has, the best plan says what is not kept, what every worker would need, and the smallest change that would do
(`Plan.unkept`).  The caller decides whether that is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wire.errors import PlacementError
from wire.ir.graph import WireGraph
from wire.policy.redundancy import Copies, copies_of
from wire.units import need_text, room_text, size_text

from ..model.memory_check import memory_by_worker
from ..model.plan import FromParam, FromState, Plan
from ..model.profiles import Profiles
from .parity_groups import HeldContent, grouped, kept_bytes, unkept

FreeBytes = Mapping[str, int]  # by worker, bytes
MARGINS = (0.02, 0.1, 0.25, 0.5, 1.0)  # more than the weights, for what is made of them and for uneven sizes
TURNS_MAX = 2  # of leaving what the copies of the plan before would take
HALVINGS_MAX = 24
RAISES_MAX = 6  # until a change is found that is enough


@dataclass(frozen=True, slots=True)
class KeptCopies:
    """What workers hold besides what they compute with, by worker, and what nobody has room to keep."""

    bytes: FreeBytes
    bare: tuple[HeldContent, ...] = ()


CopiesOfPlan = Callable[[Plan, FreeBytes | None], KeptCopies]  # the copies of a plan, in so much room; None: in any


def with_copies(
    make: Callable[[Profiles], Plan],
    profiles: Profiles,
    text: str,
    keeps: CopiesOfPlan,
    share: float,
    instead: str = "there is no copy on another worker",
) -> Plan:
    """A plan with room for its copies, or the best there is, which says that it has none (`unkept`).

    `make` gives a plan for workers with these budgets, `keeps` what its copies take, and about a `share` of a worker's
    memory is left for its own.  `instead` says what becomes of what has no copy.  PlacementError as `make` has it,
    where nothing fits even without copies.
    """
    first = make(profiles)
    result = _search(make, first, profiles, keeps, share)
    if isinstance(result, Plan):
        return result
    message, next_step = _lacking(text, *_enough(make, result, profiles, keeps, share), profiles)
    kept = keeps(first, room_of(first, profiles))
    bare = sum(content.size_bytes for content in kept.bare)
    reason = f"copies {text}: of {size_text(bare)} {instead}, since {message}"
    return replace(_charged(first, profiles, kept), unkept=(message, next_step), reasons=(*first.reasons, reason))


def _search(
    make: Callable[[Profiles], Plan], first: Plan, profiles: Profiles, keeps: CopiesOfPlan, share: float
) -> Plan | FreeBytes:
    """The first plan that has room, or the least more that one of them would need, by worker."""
    short: list[FreeBytes] = []
    for plan in _plans(make, first, profiles, keeps, share):
        kept = keeps(plan, room_of(plan, profiles))
        if not kept.bare:
            return _charged(plan, profiles, kept)
        short.append(_short(plan, profiles, keeps))
    return min(short, key=lambda lacking: sum(lacking.values()))


def _enough(
    make: Callable[[Profiles], Plan], short: FreeBytes, profiles: Profiles, keeps: CopiesOfPlan, share: float
) -> tuple[Plan | None, Profiles]:
    """Workers with as much more as it takes, which was tried, and their plan; with more memory the first plan is
    another one, which may need more again."""
    wanted, fitting = profiles, None
    for _ in range(RAISES_MAX):
        wanted = wanted.with_memory(worker.memory_bytes + short[worker.node_id] for worker in wanted.workers)
        plan = _search(make, make(wanted), wanted, keeps, share)
        if isinstance(plan, Plan):
            fitting = plan
            break
        short = plan
    for _ in range(RAISES_MAX if fitting is not None else 0):
        needs = {share.node: share.memory_bytes + share.kept_bytes for share in fitting.workers} if fitting else {}
        pairs = zip(wanted.workers, profiles.workers, strict=True)
        tight = wanted.with_memory(min(more.memory_bytes, max(needs[w.node_id], w.memory_bytes)) for more, w in pairs)
        if tight == wanted:
            break
        plan = _search(make, make(tight), tight, keeps, share)
        if not isinstance(plan, Plan):
            break
        wanted, fitting = tight, plan
    return fitting, wanted


def refused(plan: Plan) -> PlacementError | None:
    """The error that refuses a plan whose copies were asked for and have no room; None for another."""
    return None if plan.unkept is None else PlacementError(plan.unkept[0], next_step=plan.unkept[1])


def weights_kept(profiles: Profiles, text: str) -> CopiesOfPlan:
    """What workers keep of each other's weights."""
    copies, nodes = copies_of(text), [worker.node_id for worker in profiles.workers]

    def keeps(plan: Plan, room: FreeBytes | None) -> KeptCopies:
        held = contents_of(plan)
        groups = grouped(held, nodes, copies, room)
        too_few = len(nodes) <= copies.extra  # the plan says that elsewhere, and no memory would help
        return KeptCopies(kept_bytes(groups), () if too_few else tuple(unkept(held, nodes, copies, groups)))

    return keeps


def share_of(copies: Copies, workers: int) -> float:
    """The approximate part of all that workers hold which is their own, where these copies are kept."""
    members = min(copies.members or workers, max(workers - copies.extra, 1))
    return members / (members + copies.extra)


def room_of(plan: Plan, profiles: Profiles) -> dict[str, int]:
    """The memory that every worker has left beside its parts."""
    own = memory_by_worker(plan)
    return {worker.node_id: worker.memory_bytes - own.get(worker.node_id, 0) for worker in profiles.workers}


def contents_of(plan: Plan, state: bool = False) -> list[HeldContent]:
    """The weights of a plan, large constants among them, or its state, and windows of them, and who has them."""
    sizes: dict[Hashable, int] = {}
    owners: dict[Hashable, set[str]] = {}
    for part in plan.parts:
        sources = part.sizes(FromState).items() if state else part.sizes(FromParam).items()
        sizes_here: dict[Hashable, int] = dict(sources)
        sizes_here |= {} if state else _constants(part.graph)
        sizes |= sizes_here
        for content in sizes_here:
            owners.setdefault(content, set()).add(part.node)
    return [HeldContent(source, size, frozenset(owners[source])) for source, size in sizes.items()]


def _constants(graph: WireGraph) -> dict[Hashable, int]:
    """The constants that are sent apart from the graph, by address."""
    rows = zip(graph.nodes, graph.types, strict=True)
    return {node.attrs["blob"]: kind.size_bytes for node, kind in rows if node.op == "const" and "blob" in node.attrs}


# -- replicas


def replicas_kept(standby: Mapping[str, Plan]) -> CopiesOfPlan:
    """What workers hold for the plans without each of them."""

    def keeps(plan: Plan, room: FreeBytes | None) -> KeptCopies:
        kept, mine = standing_by(plan, standby.values()), _made_bytes(plan)
        made = [_made_bytes(other) for other in standby.values()]
        for node in set().union(*made):  # what that plan makes of them, beyond what this one does
            beyond = max(needed.get(node, 0) for needed in made) - mine.get(node, 0)
            kept[node] = kept.get(node, 0) + max(beyond, 0)
        short = room is not None and any(size > room[node] for node, size in kept.items())
        return KeptCopies(kept, tuple(contents_of(plan)) if short else ())

    return keeps


def standing_by(plan: Plan, others: Collection[Plan]) -> dict[str, int]:
    """The weights that workers hold beside their own so that another plan can take over."""
    more: dict[tuple[Hashable, str], int] = {}
    for other in others:
        more |= {
            (content.content, node): content.size_bytes for content in contents_of(other) for node in content.owners
        }
    for content in contents_of(plan):
        for node in content.owners:
            more.pop((content.content, node), None)
    totals: dict[str, int] = {}
    for (_, node), size in more.items():
        totals[node] = totals.get(node, 0) + size
    return totals


def _made_bytes(plan: Plan) -> dict[str, int]:
    """What every worker needs besides weights."""
    made = memory_by_worker(plan)
    for content in contents_of(plan):
        for node in content.owners:
            made[node] -= content.size_bytes
    return made


# -- plans for smaller budgets


def _plans(
    make: Callable[[Profiles], Plan], first: Plan, profiles: Profiles, keeps: CopiesOfPlan, share: float
) -> Iterator[Plan]:
    yield first
    plan: Plan | None = first
    for _ in range(TURNS_MAX):
        if plan is not None:
            kept = keeps(plan, None).bytes
            budgets = [worker.memory_bytes - kept.get(worker.node_id, 0) for worker in profiles.workers]
            plan = _plan_within(make, profiles, budgets)
            yield from () if plan is None else (plan,)
    wanted = sum(memory_by_worker(first).values())
    for budgets in _levels([worker.memory_bytes for worker in profiles.workers], wanted, share):
        plan = _plan_within(make, profiles, budgets)
        yield from () if plan is None else (plan,)


def _plan_within(make: Callable[[Profiles], Plan], profiles: Profiles, budgets: Sequence[int]) -> Plan | None:
    try:
        return make(profiles.with_memory(max(size, 0) for size in budgets))
    except PlacementError:
        return None


def _levels(budgets: Sequence[int], wanted: int, share: float) -> Iterator[list[int]]:
    """Budgets up to a level that is the same for all, and a share of what there is, with room for `wanted` bytes."""
    most = [int(size * share) for size in budgets]

    def there_is(size: float) -> Callable[[int], bool]:
        return lambda level: sum(min(size_max, level) for size_max in most) >= size

    for margin in MARGINS:
        level = least(max(most), there_is(wanted * (1 + margin)))
        if level is not None:
            yield [min(size, level) for size in most]
    yield most


def least(most: int, enough: Callable[[int], bool]) -> int | None:
    """The approximate least number up to `most` that is enough, if one is."""
    if not enough(most):
        return None
    low, high = 0, most
    for _ in range(HALVINGS_MAX):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# -- what is lacking


def _short(plan: Plan, profiles: Profiles, keeps: CopiesOfPlan) -> FreeBytes:
    """The room that workers lack for all copies, where these are spread evenly, or by what is left, whichever needs
    less more."""
    room = room_of(plan, profiles)
    ways = [keeps(plan, None)]
    more = least(sum(ways[0].bytes.values()), lambda size: not keeps(plan, _raised(room, size)).bare)
    ways += [] if more is None else [keeps(plan, _raised(room, more))]
    tries = [{node: max(kept.bytes.get(node, 0) - left, 0) for node, left in room.items()} for kept in ways]
    return min(tries, key=lambda lacking: sum(lacking.values()))


def _raised(room: FreeBytes, size: int) -> FreeBytes:
    return {node: left + size for node, left in room.items()}


def _lacking(text: str, plan: Plan | None, wanted: Profiles, profiles: Profiles) -> tuple[str, str]:
    """The message for copies that do not fit, and what to do."""
    own = memory_by_worker(plan) if plan is not None else {}
    rows, total = [], 0
    for more, worker in zip(wanted.workers, profiles.workers, strict=True):
        mine = own.get(worker.node_id, 0)
        kept = next((share.kept_bytes for share in plan.workers if share.node == worker.node_id), 0) if plan else 0
        lacking = more.memory_bytes - worker.memory_bytes
        kept = more.memory_bytes - mine if lacking else kept
        needs = f"{worker.name} needs {need_text(mine)} and {need_text(kept)} for copies"
        rows.append(f"{needs}, and has {room_text(worker.memory_bytes)}")
        total += lacking
    other = "coded" if text == "buddy" else "other"
    raised = f"Raise --max-memory by {need_text(total)} in all, add a worker with at least that much"
    message = f"copies {text} do not fit the workers' memory: {'; '.join(rows)}"
    return message, f"{raised}, or choose {other} copies, or none"


def _charged(plan: Plan, profiles: Profiles, kept: KeptCopies) -> Plan:
    """The plan with what the workers keep for others, and the budgets that they have."""
    rows = {worker.node_id: worker.memory_bytes for worker in profiles.workers}
    shares = (
        replace(share, kept_bytes=kept.bytes.get(share.node, 0), budget_bytes=rows[share.node])
        for share in plan.workers
    )
    return replace(plan, workers=tuple(shares))
