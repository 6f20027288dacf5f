"""What the parts of a plan hold while they run, counted from the parts themselves.

The cost model counts the same of an assignment, in the order of the whole graph.  A part's own graph may have another
order (its canonical one), in which other results are alive at once; so a plan is counted again before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wire.errors import PlacementError
from wire.protocol.engine_names import CPU
from wire.units import need_text, room_text

from .liveness import DUPLICATED, working_set
from .plan import FromPart, FromState, Part, Plan
from .profiles import Profiles


def memory_by_site(parts: Iterable[Part], in_turn: bool = False) -> dict[tuple[str, int], int]:
    """The most bytes that one call holds at once, by (worker, device).

    All that its parts read stays, each tensor once, and of a state as many values as steps may need; of what they make,
    the largest working set of a part is added.  Of parts that run `in_turn`, as they stand here, what one made for
    others stays until the last of them has read it.
    """
    if in_turn:
        return _in_turn(list(parts))
    held: dict[tuple[str, int], dict[object, int]] = {}
    made: dict[tuple[str, int], int] = {}
    parts = list(parts)
    working = _working(parts)
    for part in parts:
        site = (part.node, part.device)
        held.setdefault(site, {}).update(_read(part))
        made[site] = max(made.get(site, 0), working[id(part.graph), part.engine])
    return {site: most + sum(held[site].values()) for site, most in made.items()}


def _read(part: Part) -> Iterator[tuple[object, int]]:
    """The sources of a part and its constants, with their bytes."""
    for index, node in enumerate(part.graph.nodes):
        if node.op == "input":
            source = part.sources[int(node.attrs["name"])]
            times = source.values if isinstance(source, FromState) else 1
            yield source, times * part.graph.types[index].size_bytes
        elif node.op in DUPLICATED:
            yield node, part.graph.types[index].size_bytes


def _working(parts: Sequence[Part]) -> dict[tuple[int, str], int]:
    """The working set of each graph, by the graph's id and the engine: many parts share a graph."""
    graphs = {(id(part.graph), part.engine): part.graph for part in parts}
    return {key: working_set(graph, key[1] == CPU) for key, graph in graphs.items()}


def _in_turn(parts: Sequence[Part]) -> dict[tuple[str, int], int]:
    last: dict[tuple[tuple[str, int], object], int] = {}
    comes: dict[int, list[tuple[tuple[str, int], object, int]]] = {}  # by the part that makes it
    held: dict[tuple[str, int], int] = {}
    for at, part in enumerate(parts):
        site = (part.node, part.device)
        held.setdefault(site, 0)
        for source, size_bytes in _read(part):
            if (site, source) not in last:
                if isinstance(source, FromPart):
                    comes.setdefault(source.part, []).append((site, source, size_bytes))
                else:
                    held[site] += size_bytes
            last[site, source] = at
    goes: dict[int, list[tuple[tuple[str, int], int]]] = {}
    most = dict(held)
    made = _working(parts)
    for at, part in enumerate(parts):
        site = (part.node, part.device)
        most[site] = max(most[site], held[site] + made[id(part.graph), part.engine])
        for there, source, size_bytes in comes.get(part.index, ()):
            held[there] += size_bytes
            most[there] = max(most[there], held[there])
            goes.setdefault(last[there, source], []).append((there, size_bytes))
        for there, size_bytes in goes.get(at, ()):
            held[there] -= size_bytes
    return most


def memory_by_worker(plan: Plan) -> dict[str, int]:
    """The bytes that every worker of a plan needs for its parts."""
    totals: dict[str, int] = {}
    for (node, _), size in _memory(plan).items():
        totals[node] = totals.get(node, 0) + size
    return totals


def _memory(plan: Plan) -> dict[tuple[str, int], int]:
    return memory_by_site(plan.parts, in_turn=plan.ordered and not plan.gangs)


def missing(plan: Plan, profiles: Profiles) -> list[int]:
    """The bytes that each worker lacks: what its parts need beyond its budget, or beyond those of its devices."""
    memory = _memory(plan)
    short = []
    for worker in profiles.workers:
        sizes = [memory.get((worker.node_id, device.index), 0) for device in worker.devices]
        pairs = zip(sizes, worker.devices, strict=True)
        on_devices = sum(max(size - device.memory_bytes, 0) for size, device in pairs)
        short.append(max(on_devices, sum(sizes) - worker.memory_bytes, 0))
    return short


def tightened(budgets: Profiles, short: Sequence[int], needed: Sequence[int] | None = None) -> Profiles:
    """Budgets under which what was planned no longer fits: less by what workers lacked.

    `needed` is what was predicted that they need, where that is known; a budget begins no higher than that.
    """
    sizes = []
    for place, (worker, lacking) in enumerate(zip(budgets.workers, short, strict=True)):
        size = worker.memory_bytes
        if lacking and needed is not None:
            size = min(size, needed[place])
        sizes.append(size - lacking)
    return budgets.with_memory(sizes)


def does_not_fit(plan: Plan, short: Sequence[int]) -> PlacementError:
    """The error for a plan that exceeds budgets, with need and have of every worker."""
    rows = [
        f"{share.name} needs {need_text(share.memory_bytes)} and has "
        f"{room_text(share.memory_bytes - lacking if lacking else share.budget_bytes)}"
        for share, lacking in zip(plan.workers, short, strict=True)
    ]
    return PlacementError(
        f"no plan fits the workers' memory: {'; '.join(rows)}",
        next_step=f"Raise --max-memory by {need_text(sum(short))} in all, or add a worker with at least that much",
    )
