"""Grid sites: which devices the ranks of a grid are given.  Pure.

A rank needs a device of its own, since it waits there for the others.  Candidates are the fastest devices, and for each
of them those that are nearest to it; of these the set is taken whose slowest rank, with all collectives, is done first.
Within it, ranks along the innermost axis are near each other, then those along the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from wire.errors import PlacementError
from wire.graph import WireGraph
from wire.grids import Axes, Sizes
from wire.ops import COLLECTIVES, LEAVES

from .collectives import exchange_s
from .cost import graph_seconds, needs
from .profile import DeviceProfile, Profiles, WorkerProfile

SEEDS_MAX = 16  # devices around which the others are looked for
PROBE_BYTES = 1 << 20  # by how long this takes, near and far are told


@dataclass(frozen=True, slots=True)
class Site:
    """A device of a worker."""

    worker: WorkerProfile
    device: DeviceProfile

    def seconds(self, graph: WireGraph) -> float:
        """What it takes for a graph, dispatch included."""
        return self.device.dispatch_s + graph_seconds(graph, self.device)


def sites_for(
    graphs: Sequence[WireGraph], axes: Axes, sizes: Sizes, profiles: Profiles, need_bytes: int
) -> tuple[Site, ...]:
    """A device for each rank, in order, for all graphs that this grid computes; PlacementError with need and have."""
    ranks = math.prod(sizes)
    fit = [site for site in able(graphs, profiles) if need_bytes <= site.device.memory_bytes]
    fit = [site for site in fit if need_bytes <= site.worker.memory_bytes]
    if len(fit) < ranks:
        raise _too_few(graphs, axes, sizes, profiles, need_bytes)
    seconds = {site: sum(site.seconds(graph) for graph in graphs) for site in fit}
    fit.sort(key=lambda site: seconds[site])

    def far(one: Site, other: Site) -> float:
        return profiles.link(one.worker.node_id, other.worker.node_id).seconds(PROBE_BYTES)

    proposals: dict[float, tuple[Site, ...]] = {}
    for seed in (None, *fit[:SEEDS_MAX]):
        order = fit if seed is None else [seed, *sorted(fit, key=partial(far, seed))]
        chosen = _reaching(order, ranks, profiles)
        if len(chosen) < ranks:
            continue
        arranged = _arranged(sorted(chosen, key=fit.index), sizes, far)
        nodes = [site.worker.node_id for site in arranged]
        shared_s = sum(exchange_s(graph, axes, sizes, nodes, profiles) for graph in graphs)
        proposals.setdefault(shared_s + max(seconds[site] for site in arranged), arranged)
    if not proposals:
        raise PlacementError(
            f"no {ranks} workers with a device for each rank of a grid all reach each other",
            next_step="mesh-coord nodes -v says who does not reach whom, and mesh-coord doctor why",
        )
    return proposals[min(proposals)]


def able(graphs: Iterable[WireGraph], profiles: Profiles) -> Iterable[Site]:
    """Every device that supports all that a rank computes; collectives are carried out beside it, by its host."""
    computing = ((graph, index) for graph in graphs for index in range(len(graph)))
    wanted = [needs(graph, index) for graph, index in computing if graph.nodes[index].op not in LEAVES]
    kinds = frozenset[tuple[str, tuple[str, ...]]]().union(*wanted)
    ops = {op for op, _ in kinds}
    for worker in profiles.workers:
        for device in worker.devices if ops <= worker.ops else ():
            if all(device.supports(*need) for need in kinds if need[0] not in COLLECTIVES):
                yield Site(worker, device)


def _reaching(order: Iterable[Site], count: int, profiles: Profiles) -> list[Site]:
    """The first of these that all reach each other: what ranks exchange is not relayed."""
    chosen: dict[Site, None] = {}
    for site in order:
        ways = ((site.worker.node_id, other.worker.node_id) for other in chosen)
        if len(chosen) < count and not any(profiles.link(*way).relayed for way in ways):
            chosen[site] = None
    return list(chosen)


def _arranged(sites: Sequence[Site], sizes: Sizes, far: Callable[[Site, Site], float]) -> tuple[Site, ...]:
    """By rank: blocks of the innermost axis are filled with what is near their first, then blocks of these."""
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
    graphs: Sequence[WireGraph], axes: Axes, sizes: Sizes, profiles: Profiles, need_bytes: int
) -> PlacementError:
    grid = " x ".join(f"{axis} {size}" for axis, size in zip(axes, sizes, strict=True))
    fit = list(able(graphs, profiles))
    rows = "; ".join(
        f"{site.worker.name} has {min(site.device.memory_bytes, site.worker.memory_bytes)} bytes" for site in fit
    )
    devices = sum(len(worker.devices) for worker in profiles.workers)
    return PlacementError(
        f"a grid of {grid} needs {math.prod(sizes)} devices, one per rank, with {need_bytes} bytes each, and of "
        f"{devices} there are {len(fit)} that compute it: {rows or 'none'}",
        next_step='Add workers, make the grid smaller, or have one worker compute all ranks: strategy="single"',
    )
