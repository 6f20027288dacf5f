"""How far a node of a graph is from its inputs, counted in branches, loops and collectives.  Pure.

Engines compute level by level, so that a collective is started as soon as its operand is there and everything that does
not need its result comes before what does; and all engines start the collectives of a graph in the same order, which
the ranks of a gang must, whatever device each of them has.
"""

from __future__ import annotations

from wire.graph import WireGraph
from wire.ops import COLLECTIVES, CONTROL

BETWEEN = CONTROL | COLLECTIVES


def levels(graph: WireGraph) -> list[int]:
    """Of every node: how many of them lie before it, at the most."""
    found: list[int] = []
    for node in graph.nodes:
        found.append(max((found[i] + (graph.nodes[i].op in BETWEEN) for i in node.inputs), default=0))
    return found
