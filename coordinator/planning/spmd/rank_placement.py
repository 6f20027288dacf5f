"""Rank placement: which devices the ranks of a grid are given.  Pure.

A rank needs a device of its own, since it waits there for the others.  Candidates are the fastest devices, and for each
of them those that are nearest to it; of these the set is taken whose slowest rank, with all collectives, is done first.
Within it, ranks along the innermost axis are near each other, then those along the next.

Where ranks do not compute the same, the set is also taken as it is best shared out: whoever has most to do on the
fastest device, so that the slowest rank is done as soon as it can be.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from wire.errors import PlacementError
from wire.ir.graph import WireGraph
from wire.ir.grids import Axes, Sizes
from wire.ir.ops import COLLECTIVES, LEAVES
from wire.units import need_text, room_text

from ..model.profiles import DeviceProfile, Profiles, WorkerProfile
from ..model.unit_work import Need, graph_seconds, needs
from .collective_cost import exchange_s

SEEDS_MAX = 16  # devices around which the others are looked for
PROBE_BYTES = 1 << 20  # how long this takes separates near from far


@dataclass(frozen=True, slots=True)
class Site:
    """A device of a worker."""

    worker: WorkerProfile
    device: DeviceProfile

    def __hash__(self) -> int:
        return hash((self.worker.node_id, self.device.index))  # a thousand are looked up; figures are left to ==

    def seconds(self, graph: WireGraph) -> float:
        """What it takes for a graph, dispatch included."""
        return self.device.dispatch_s + graph_seconds(graph, self.device)


def sites_for(
    graphs: Sequence[Sequence[WireGraph]], axes: Axes, sizes: Sizes, profiles: Profiles, need_bytes: Sequence[int]
) -> tuple[Site, ...]:
    """A device for each rank, in order, for all graphs that it computes in this grid and what it holds for that, both
    by rank; PlacementError with need and have."""
    took = _SiteSeconds([tuple(mine) for mine in graphs], need_bytes, profiles)
    if not took.pairs(took.sites).complete:
        raise _too_few(graphs, axes, sizes, profiles, max(need_bytes))

    def far(one: Site, other: Site) -> float:
        return profiles.link(one.worker.node_id, other.worker.node_id).seconds(PROBE_BYTES)

    proposals: dict[float, tuple[Site, ...]] = {}
    tried: set[tuple[Site, ...]] = set()
    cut = frozenset(way for way, link in profiles.links.items() if link.relayed)
    place = {site: number for number, site in enumerate(took.sites)}
    for seed in (None, *took.sites[:SEEDS_MAX]):
        order = took.sites if seed is None else [seed, *sorted(took.sites, key=partial(far, seed))]
        reaching = _reaching(order, took, cut, min(need_bytes))
        if len(reaching) < len(graphs):
            reaching = _reaching(order, took, cut)  # whether it fits is for the whole plan to see
        chosen = tuple(sorted(reaching, key=place.__getitem__))
        if len(chosen) < len(graphs) or chosen in tried:
            continue
        tried.add(chosen)
        for arranged in dict.fromkeys((_arranged(chosen, sizes, far), *took.shared_out(chosen))):
            nodes = [site.worker.node_id for site in arranged]
            shared_s = sum(exchange_s(graph, axes, sizes, nodes, profiles) for graph in graphs[0])
            slowest_s = max(map(took.seconds, range(len(graphs)), arranged))
            if slowest_s < math.inf:
                proposals.setdefault(shared_s + slowest_s, arranged)
    if not proposals:
        raise PlacementError(
            f"no {len(graphs)} workers with a device for each rank of a grid all reach each other",
            next_step="mesh-coord nodes -v shows which nodes do not reach each other, and mesh-coord doctor why",
        )
    return proposals[min(proposals)]


class _SiteSeconds:
    """The seconds of each rank on each device, infinite where it cannot be.

    `sites` are those where some rank can be, the fastest first.
    """

    def __init__(self, graphs: Sequence[tuple[WireGraph, ...]], need_bytes: Sequence[int], profiles: Profiles) -> None:
        self._kinds = list(zip(graphs, need_bytes, strict=True))
        by_kind: dict[tuple[tuple[WireGraph, ...], int], dict[Site, float]] = {}
        for kind in dict.fromkeys(self._kinds):
            mine, need = kind
            fit = [
                site for site in able(mine, profiles) if need <= min(site.device.memory_bytes, site.worker.memory_bytes)
            ]
            by_kind[kind] = {site: sum(site.seconds(graph) for graph in mine) for site in fit}
        self._seconds = by_kind
        self._least_s = {kind: min(seconds.values(), default=0.0) for kind, seconds in by_kind.items()}
        able_sites = dict.fromkeys(site for seconds in by_kind.values() for site in seconds)
        self.sites = sorted(able_sites, key=self._slowness)
        self._heaviest = sorted(range(len(graphs)), key=lambda rank: -self._least_s[self._kinds[rank]])

    def seconds(self, rank: int, site: Site) -> float:
        return self._seconds[self._kinds[rank]].get(site, math.inf)

    def pairs(self, sites: Iterable[Site], within_s: float = math.inf) -> _Pairs:
        """Ranks and as many of these sites as can be had, the first for whom has most to do, none of whom takes
        longer."""

        def allowed(rank: int, site: Site) -> bool:
            seconds = self.seconds(rank, site)
            return seconds <= within_s and seconds < math.inf

        pairs = _Pairs(self._heaviest, allowed)
        for site in sites:
            pairs.take(site)
        return pairs

    def shared_out(self, sites: Sequence[Site]) -> Iterator[tuple[Site, ...]]:
        """The sites by rank, so that the slowest is done first; nothing where all ranks compute the same."""
        if len(self._seconds) > 1:
            times = sorted({self.seconds(rank, site) for rank in self._heaviest for site in sites} - {math.inf})
            least = bisect_left(times, True, key=lambda within_s: self.pairs(sites, within_s).complete)
            yield self.pairs(sites, times[least]).by_rank

    def _slowness(self, site: Site) -> tuple[float, float]:
        """How many times as long as the fastest a site takes for what it can do, on average; and how long in all."""
        times = [(by_site[site], self._least_s[kind]) for kind, by_site in self._seconds.items() if site in by_site]
        return sum(mine / max(best, 1e-12) for mine, best in times) / len(times), sum(mine for mine, _ in times)


class _Pairs:
    """Ranks and sites, one for one: augmenting paths, after Kuhn."""

    def __init__(self, ranks: Sequence[int], allowed: Callable[[int, Site], bool]) -> None:
        self._ranks, self._allowed = ranks, allowed
        self._site_of: dict[int, Site] = {}
        self._free = dict.fromkeys(ranks)
        self._hopeless: set[int] = set()  # ranks from which no change of places leads to a free one

    @property
    def complete(self) -> bool:
        return len(self._site_of) == len(self._ranks)

    @property
    def by_rank(self) -> tuple[Site, ...]:
        return tuple(self._site_of[rank] for rank in sorted(self._ranks))

    def take(self, site: Site) -> bool:
        """Whether there is a rank for it, too: a free one, or one that becomes free as others change places."""
        return not self.complete and self._place(site)

    def _place(self, site: Site) -> bool:
        seen, asked, path = self._hopeless, list[int](), list[tuple[Site, Iterator[int]]]()
        while True:  # `path` are the sites that would have the rank of the next one each, `asked` those ranks
            free = next((rank for rank in self._free if self._allowed(rank, site)), None)
            if free is not None:
                del self._free[free]
                self._site_of[free] = site
                self._site_of.update((rank, before) for rank, (before, _) in zip(asked, path, strict=True))
                self._hopeless = set()
                return True
            mine = [rank for rank in self._ranks if rank not in seen and self._allowed(rank, site)]
            path.append((site, iter(mine)))
            while (rank := next((each for each in path[-1][1] if each not in seen), None)) is None:
                path.pop()
                if not path:
                    return False
                asked.pop()
            seen.add(rank)
            asked.append(rank)
            site = self._site_of[rank]


def able(graphs: Iterable[WireGraph], profiles: Profiles) -> Iterable[Site]:
    """Every device that supports all that a rank computes; collectives are carried out beside it, by its host."""
    computing = ((graph, index) for graph in dict.fromkeys(graphs) for index in range(len(graph)))
    needed = [needs(graph, index) for graph, index in computing if graph.nodes[index].op not in LEAVES]
    wanted: dict[str, Need] = {}  # by op, all that is asked of it together: a thousand devices are asked
    for need in frozenset[Need]().union(*needed):
        so_far = wanted.get(need.op, need)
        dtypes = tuple(dict.fromkeys((*so_far.dtypes, *need.dtypes)))
        wanted[need.op] = Need(need.op, dtypes, max(so_far.tensor_bytes, need.tensor_bytes))
    asked = [need for op, need in wanted.items() if op not in COLLECTIVES]
    largest = max((need.tensor_bytes for need in asked), default=0)
    verdicts: dict[int, bool] = {}  # devices of one kind have one table of what they compute
    for worker in profiles.workers:
        for device in worker.devices if wanted.keys() <= worker.ops else ():
            table = id(device.dtypes_by_op)
            if table not in verdicts:
                verdicts[table] = all(device.supports(need.op, need.dtypes) for need in asked)
            if verdicts[table] and largest <= device.tensor_bytes_max:
                yield Site(worker, device)


def _reaching(
    order: Iterable[Site], took: _SiteSeconds, cut: Collection[tuple[str, str]], need_bytes: int = 0
) -> list[Site]:
    """The first of these that all reach each other, and can be the ranks: what ranks exchange is not relayed.  Workers
    have room for as much as each of theirs needs."""
    chosen: dict[Site, None] = {}
    room: dict[str, int] = {}
    pairs = took.pairs(())
    for site in order:
        if pairs.complete:
            break
        ways = ((site.worker.node_id, other.worker.node_id) for other in chosen)
        left = room.get(site.worker.node_id, site.worker.memory_bytes) - need_bytes
        if site in chosen or left < 0 or (cut and any(way in cut for way in ways)):
            continue
        if pairs.take(site):
            chosen[site] = None
            room[site.worker.node_id] = left
    return list(chosen)


def _arranged(sites: Sequence[Site], sizes: Sizes, far: Callable[[Site, Site], float]) -> tuple[Site, ...]:
    """Arrange sites by rank: blocks of the innermost axis are filled with what is near their first, then blocks of
    these."""
    blocks: list[tuple[Site, ...]] = [(site,) for site in sites]
    for size in reversed(sizes):
        rest, blocks = blocks, []
        while rest:
            first, *others = rest
            near = sorted(others, key=lambda block: far(first[0], block[0]))[: size - 1]
            blocks.append(tuple(site for block in (first, *near) for site in block))
            rest = [block for block in others if block not in near]
    return blocks[0]


def _too_few(
    graphs: Sequence[Sequence[WireGraph]], axes: Axes, sizes: Sizes, profiles: Profiles, need_bytes: int
) -> PlacementError:
    grid = " x ".join(f"{axis} {size}" for axis, size in zip(axes, sizes, strict=True))
    fit = list(able({graph for mine in graphs for graph in mine}, profiles))
    rows = "; ".join(
        f"{site.worker.name} has {room_text(min(site.device.memory_bytes, site.worker.memory_bytes))}" for site in fit
    )
    devices = sum(len(worker.devices) for worker in profiles.workers)
    return PlacementError(
        f"a grid of {grid} needs {math.prod(sizes)} devices, one per rank, with {need_text(need_bytes)} each, and of "
        f"{devices} there are {len(fit)} that compute it: {rows or 'none'}",
        next_step='Add workers, make the grid smaller, or have one worker compute all ranks: strategy="single"',
    )
