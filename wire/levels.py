"""How far a node of a graph is from its inputs, counted in branches, loops and collectives.  Pure.

Engines compute level by level, so that a collective is started as soon as its operand is there and everything that does
not need its result comes before what does; and all engines start the collectives of a graph in the same order, which
the ranks of a gang must, whatever device each of them has.  Ranks with graphs of their own are given such as have them
in one order (`specialise.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Node
from .ops import COLLECTIVES, CONTROL

BETWEEN = CONTROL | COLLECTIVES


def levels(nodes: Sequence[Node]) -> list[int]:
    """Of every node: how many of them lie before it, at the most."""
    found: list[int] = []
    for node in nodes:
        found.append(max((found[i] + (nodes[i].op in BETWEEN) for i in node.inputs), default=0))
    return found
