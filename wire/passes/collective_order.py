"""The order in which engines compute a graph in which ranks meet: by stages.  Pure.

A node's level is how far it is from the inputs, counted in branches, loops and collectives.  Within a level the ranks'
meetings, collectives and loops that have some inside, come by how far they are from the inputs in operations, each
behind what it needs and no sooner behind anything else; what none of them needs comes last.  So gradients of the last
layers leave while those of the first are computed.

All engines start the meetings of a graph in this order, which the ranks of a gang must, whatever device each of them
has.  Views do not count, so a graph that is given less and need not cut it has the same order.  Ranks with graphs of
their own are given such as have one order (`specialise_ranks.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..ir.graph import Node
from ..ir.ops import COLLECTIVES, CONTROL, LEAVES, VIEWS, inner_graphs
from ..ir.types import Attrs

BETWEEN = CONTROL | COLLECTIVES


def meets(op: str, attrs: Attrs) -> bool:
    """Whether ranks meet in a node: it is a collective that moves something, or has one inside."""
    if op in COLLECTIVES:
        return op != "axis_index"
    return any(
        meets(node.op, node.attrs)
        for inner in inner_graphs(op, attrs)
        if op != "spmd" and inner.free_axes
        for node in inner.nodes
    )


def levels(nodes: Sequence[Node], apart: Collection[int] = ()) -> list[int]:
    """Count for every node how many branches, loops, collectives and nodes `apart` lie before it, at the most."""
    by_node: list[int] = []
    for node in nodes:
        by_node.append(max((by_node[i] + (nodes[i].op in BETWEEN or i in apart) for i in node.inputs), default=0))
    return by_node


def depths(nodes: Sequence[Node]) -> list[int]:
    """Count for every node how many operations lead to it, at the most, itself included."""
    by_node: list[int] = []
    for node in nodes:
        counts = node.op not in VIEWS and node.op not in LEAVES
        by_node.append(max((by_node[i] for i in node.inputs), default=0) + counts)
    return by_node


def stages(nodes: Sequence[Node], apart: Collection[int] = ()) -> list[int]:
    """The stage in which each node is computed; in one stage there is a meeting at most, at its end.  Where ranks do
    not meet, its level; there, an engine may have nodes `apart`, as if they were branches."""
    level, depth = levels(nodes, apart), depths(nodes)
    meetings = [index for index, node in enumerate(nodes) if meets(node.op, node.attrs)]
    if not meetings:
        return level
    by_node = [-1] * len(nodes)
    meetings.sort(key=lambda index: (level[index], depth[index], index))
    stage = 0
    for here in range(max(level) + 1):
        while meetings and level[meetings[0]] == here:
            _take(nodes, meetings.pop(0), by_node, stage)
            stage += 1
        for index, its in enumerate(level):
            if its == here and by_node[index] < 0:
                by_node[index] = stage
        stage += 1
    return by_node


def _take(nodes: Sequence[Node], meeting: int, by_node: list[int], stage: int) -> None:
    """Put a meeting, and what it needs that is in no stage yet, into one."""
    waiting = [meeting]
    while waiting:
        index = waiting.pop()
        if by_node[index] < 0:
            by_node[index] = stage
            waiting += nodes[index].inputs
