"""A group cut out of its graph, its nodes numbered anew: the same work anywhere is then equal, and lowered once."""

from __future__ import annotations

from dataclasses import dataclass

from wire.ir.graph import Node, WireGraph
from wire.ir.types import NO_ATTRS, TensorType

from .fuse import Group


@dataclass(frozen=True, slots=True)
class Cut:
    """A group on its own: `nodes` in topological order, what it reads being "input"; `numbers` are the old ones."""

    kind: str
    nodes: tuple[Node, ...]
    types: tuple[TensorType, ...]
    anchors: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return self.kind, self.nodes, self.types, self.anchors


def cut(graph: WireGraph, group: Group) -> Cut:
    """The group's nodes, numbered from 0 as a depth-first walk from its root leaves them; the root is the last."""
    numbers = _walk(graph, group)
    place = {number: position for position, number in enumerate(numbers)}
    nodes = [
        Node("input", (), NO_ATTRS) if number in group.reads else _renumbered(graph.nodes[number], place)
        for number in numbers
    ]
    types = tuple(graph.types[number] for number in numbers)
    anchors = tuple(sorted(place[anchor] for anchor in group.anchors))
    return Cut(group.kind, tuple(nodes), types, anchors, tuple(numbers))


def _walk(graph: WireGraph, group: Group) -> list[int]:
    left: dict[int, None] = {}
    stack = [(group.root, False)]
    while stack:
        number, done = stack.pop()
        if number in left:
            continue
        if done or number in group.reads:
            left[number] = None
            continue
        stack.append((number, True))
        stack.extend((operand, False) for operand in reversed(graph.nodes[number].inputs))
    return list(left)


def _renumbered(node: Node, place: dict[int, int]) -> Node:
    return Node(node.op, tuple(place[operand] for operand in node.inputs), node.attrs)
