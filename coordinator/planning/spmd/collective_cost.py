"""Collective cost: what they are predicted to cost, from how two ranks reach each other.  Pure.

Ranks begin together, which takes each of them a while.  With n ranks, m bytes, a latency a and b bytes/s of the slowest
pair, and c bytes/s that a rank combines, a collective takes the time of the better of two algorithms: one that sends
everything at once, and one that sends in pieces that are combined or gathered.  After Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005.  Groups over the same axes are at it side by side.
How they are carried out is the workers' business
(worker/collectives/).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wire.ir.graph import WireGraph
from wire.ir.grids import Axes, Sizes, groups
from wire.ir.ops import COLLECTIVES, CONTROL, inner_graphs, sent_bytes
from wire.ir.types import Attrs, TensorType

from ..model.profiles import Link, Profiles
from ..model.unit_work import turns

ALIKE = 1.25  # links that differ by no more than that share a reduction evenly
MAILBOX = Link(2e-4, 1.5e9)  # between processes of one host, beside what else they do: bench/collectives.py
COMBINED_BYTES_PER_S = 8e9
BEGIN_S = 3e-4  # that another rank adds until all have begun: messages, and a process that has to wake up


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a graph: what each rank gives, and how often in one run."""

    op: str
    attrs: Attrs
    operand: TensorType | None
    times: int


def exchanges(graph: WireGraph, times: int = 1) -> Iterator[Exchange]:
    """The collectives of a graph, also of branches, of which all count, and of loops, each of whose turns counts."""
    for node in graph.nodes:
        if node.op in COLLECTIVES:
            yield Exchange(node.op, node.attrs, graph.types[node.inputs[0]] if node.inputs else None, times)
        again = max(turns(node), 1) if node.op in CONTROL else 1
        for inner in inner_graphs(node.op, node.attrs):
            yield from exchanges(inner, times * again)


def exchange_s(graph: WireGraph, axes: Axes, sizes: Sizes, nodes: Sequence[str], profiles: Profiles) -> float:
    """Seconds that the ranks of a grid, which are on `nodes`, spend on beginning and on the collectives of a graph."""
    worst: dict[Axes, tuple[Link, int]] = {}
    seconds = BEGIN_S * len(nodes)
    for exchange in exchanges(graph):
        over = exchange.attrs["axes"]
        if over not in worst:
            among = groups(axes, sizes, over)
            pairs = (pair for group in among for pair in itertools.permutations(group, 2))
            slowest = _slowest([_way(nodes[one], nodes[other], profiles) for one, other in pairs])
            worst[over] = slowest, len(among[0])
        seconds += exchange.times * _seconds(exchange, *worst[over])
    return seconds * exchange_factor(graph, nodes, profiles)


def exchange_factor(graph: WireGraph, nodes: Sequence[str], profiles: Profiles) -> float:
    """The factor by which these workers' collectives take longer than priced; 1 for ranks that exchange nothing."""
    return profiles.exchange_factor(nodes) if exchanged_bytes(graph, len(nodes)) else 1.0


def sending_rates(nodes: Sequence[str], profiles: Profiles) -> tuple[float, ...]:
    """Bytes/s that each of the ranks on `nodes` can send, as its best link has it; () where all are about alike."""
    rates = []
    for rank, node in enumerate(nodes):
        ways = [_way(node, other, profiles) for place, other in enumerate(nodes) if place != rank]
        rates.append(max((way.bytes_per_s for way in ways), default=MAILBOX.bytes_per_s))
    return tuple(rates) if max(rates) > ALIKE * min(rates) else ()


def exchanged_bytes(graph: WireGraph, ranks: int) -> int:
    """Bytes that all ranks together send each other in one run."""
    return ranks * sum(
        exchange.times * sent_bytes(exchange.op, exchange.attrs, exchange.operand) for exchange in exchanges(graph)
    )


def _way(one: str, other: str, profiles: Profiles) -> Link:
    return MAILBOX if one == other or {one, other} <= profiles.near else profiles.link(one, other)


def _slowest(links: Sequence[Link]) -> Link:
    if not links:
        return MAILBOX
    return Link(max(link.latency_s for link in links), min(link.bytes_per_s for link in links))


def _seconds(exchange: Exchange, link: Link, ranks: int) -> float:
    if ranks < 2 or exchange.operand is None:
        return 0.0
    size_bytes = exchange.operand.size_bytes
    return min(
        link.latency_s * rounds + sent / link.bytes_per_s + combined / COMBINED_BYTES_PER_S
        for rounds, sent, combined in WAYS[exchange.op](size_bytes, ranks)
    )


# Rounds of messages, bytes that one rank sends in all of them, and bytes that it combines: at once, or in pieces.
WAYS: dict[str, Callable[[float, int], tuple[tuple[int, float, float], ...]]] = {
    "all_reduce": lambda m, n: ((1, (n - 1) * m, (n - 1) * m), (2, 2 * (n - 1) / n * m, (n - 1) / n * m)),
    "all_gather": lambda m, n: ((1, (n - 1) * m, 0),),
    "reduce_scatter": lambda m, n: ((1, (n - 1) / n * m, (n - 1) / n * m),),
    "all_to_all": lambda m, n: ((1, (n - 1) / n * m, 0),),
    "permute": lambda m, n: ((1, m, 0),),
    "broadcast_from": lambda m, n: ((1, (n - 1) * m, 0), (2, 2 * (n - 1) / n * m, 0)),
}
