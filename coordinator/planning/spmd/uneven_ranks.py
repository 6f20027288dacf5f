"""Uneven ranks: rows of a batch by the speed of workers, where ranks exchange nothing.  Pure.

All ranks have one graph, and so as many rows each.  But where they exchange nothing, none waits for another, and a
device may compute several of them in turn: of twelve ranks one worker takes seven, another four, a slow one a single
one.  A program whose ranks do exchange something has even shares (`split_strategies.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wire.errors import PlacementError
from wire.ir.graph import WireGraph
from wire.ir.ops import COLLECTIVES, inner_graphs
from wire.passes.simplify import simplify
from wire.policy.batch_shares import handed_out
from wire.policy.strategies import DataParallel

from ..model.plan import Plan
from ..model.profiles import CLIENT, Profiles
from ..model.timeline import timeline
from ..model.unit_work import graph_seconds
from .load_balance import fastest_sites
from .rank_planner import plan_ranks
from .split_strategies import RANKS_MAX, batch_of, split


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many of the ranks each worker computes, and when the last of them is done."""

    shares: tuple[int, ...]
    seconds: float

    @property
    def ranks(self) -> int:
        return sum(self.shares)


def sharing(graph: WireGraph, strategy: DataParallel, profiles: Profiles) -> Sharing:
    """The best there is, by what the whole program takes on each worker; PlacementError if that would be one worker."""
    rows = batch_of(graph, strategy)
    numbers = [strategy.ranks] if strategy.ranks else [k for k in range(2, RANKS_MAX + 1) if rows % k == 0]
    whole_s = list(_whole_s(graph, profiles))
    sharings = [_shared_out(whole_s, profiles, number) for number in numbers]
    several = [
        option for option in sharings if option.seconds < math.inf and sum(share > 0 for share in option.shares) > 1
    ]
    if not several:
        raise PlacementError(f"{rows} rows are not to be shared out by speed among {len(profiles.workers)} workers")
    return min(several, key=lambda option: (option.seconds, option.ranks))


def plan_shares(graph: WireGraph, strategy: DataParallel, profiles: Profiles) -> Plan:
    """The plan; PlacementError where ranks would exchange something, or it does not fit."""
    best = sharing(graph, strategy, profiles)
    made = simplify(split(graph, strategy, best.ranks, profiles))
    if any(_exchanging(node.attrs["body"]) for node in made.nodes if node.op == "spmd"):
        raise PlacementError(
            "the ranks of this program exchange something, so each has as many rows",
            next_step="Choose DataParallel() without by_speed",
        )
    fastest = {site.worker.node_id: site for site in fastest_sites([graph], profiles)}
    shares_by_worker = zip(profiles.workers, best.shares, strict=True)
    sites = [fastest[worker.node_id] for worker, share in shares_by_worker for _ in range(share)]
    plan = plan_ranks(made, profiles, strategy.text, sites)
    shares = ", ".join(f"{w.name} {n}" for w, n in zip(profiles.workers, best.shares, strict=True) if n)
    seconds = timeline(plan, profiles).seconds
    return replace(
        plan, seconds=seconds, reasons=(*plan.reasons, f"of {best.ranks} equal shares of the rows: {shares}")
    )


def _shared_out(whole_s: Sequence[float], profiles: Profiles, ranks: int) -> Sharing:
    each_s = [seconds / ranks for seconds in whole_s]
    begin_s = [profiles.link(CLIENT, worker.node_id).latency_s for worker in profiles.workers]
    shares = handed_out(begin_s, each_s, ranks)
    busy = (begin + share * piece_s for begin, share, piece_s in zip(begin_s, shares, each_s, strict=True) if share)
    return Sharing(shares, max(busy))


def _whole_s(graph: WireGraph, profiles: Profiles) -> Iterator[float]:
    """What computing and moving all rows would take on each worker, endless where it cannot."""
    fastest = {site.worker.node_id: site for site in fastest_sites([graph], profiles)}
    fed_bytes = sum(kind.size_bytes for kind in graph.input_types.values())
    back_bytes = sum(graph.types[index].size_bytes for index in graph.outputs)
    for worker in profiles.workers:
        to, back = profiles.link(CLIENT, worker.node_id), profiles.link(worker.node_id, CLIENT)
        moving_s = fed_bytes / to.bytes_per_s + back_bytes / back.bytes_per_s
        site = fastest.get(worker.node_id)
        yield math.inf if site is None else graph_seconds(graph, site.device) + moving_s


def _exchanging(body: WireGraph) -> bool:
    graphs: Sequence[WireGraph] = [g for node in body.nodes for g in inner_graphs(node.op, node.attrs)]
    return any(node.op in COLLECTIVES for node in body.nodes) or any(map(_exchanging, graphs))
