"""Cost: what one rank of a partitioned program computes, sends and holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..ir.graph import WireGraph
from ..ir.ops import COLLECTIVES, GRAPH_ATTRS, WHILE_TRIPS, inner_graphs, sent_bytes
from ..ir.types import Attrs
from .op_cost import Rates


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one rank, the busiest: scalar operations, bytes sent, how often it meets others, and bytes of its
    shares of inputs and params.  What the graph computes outside of `spmd` nodes counts whole."""

    flops: int
    sent_bytes: int
    held_bytes: int
    collectives: Mapping[str, int] = field(default_factory=dict)

    def seconds(self, rates: Rates) -> float:
        """The seconds that it takes at these rates, one after the other."""
        meetings = sum(count for op, count in self.collectives.items() if op != "axis_index")
        moving_s = self.sent_bytes / rates.bytes_per_s + meetings * rates.collective_s
        return self.flops / rates.flops_per_s + moving_s


def cost_of(graph: WireGraph) -> Cost:
    """The cost of a graph, with or without `spmd` nodes."""
    flops, sent, held, collectives = 0, 0, 0, Counter[str]()
    again = {index for first, group in graph.siblings.items() for index in group if index != first}
    for index, (op, inputs, attrs) in enumerate(graph.nodes):
        if index in again:
            continue
        if op in COLLECTIVES:
            sent += sent_bytes(op, attrs, graph.types[inputs[0]] if inputs else None)
            collectives[op] += op != "axis_index"
        elif op == "spmd":
            inner = cost_of(attrs["body"])
            flops, sent, held = flops + inner.flops, sent + inner.sent_bytes, held + inner.held_bytes
            collectives.update(inner.collectives)
        else:
            flops += graph.flops_of(index)
            times = _turns(op, attrs)
            for body in inner_graphs(op, attrs) if op in GRAPH_ATTRS else ():
                inside = cost_of(body)
                sent += times * inside.sent_bytes
                collectives.update({name: times * count for name, count in inside.collectives.items()})
        if op in ("input", "param"):
            held += graph.types[index].size_bytes
    if any(node.op == "spmd" for node in graph.nodes):  # whose operands they are
        held -= sum(graph.types[index].size_bytes for index in (*graph.inputs, *graph.params))
    return Cost(flops, sent, held, {op: count for op, count in collectives.items() if count})


def _turns(op: str, attrs: Attrs) -> int:
    if op == "scan":
        turns: int = attrs["length"]
        return turns
    return WHILE_TRIPS if op == "while" else 1
