"""Groups -> shaders, each distinct group lowered once.

A group is cut out of its graph and its nodes numbered anew, so that the same work anywhere in any graph is the same
key and the same text: a model's layers, and the parts of the next plan, cost one lowering and one pipeline.  It does
not know what is in a shader.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from wire.ir.graph import Node, WireGraph
from wire.ir.types import NO_ATTRS, TensorType

from .emit import Shader, emit
from .fuse import Group
from .kernels import LOWERINGS, Frame
from .profile import Profile

SHADERS_MAX = 1_024  # groups remembered; one is a few kB of text


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


class Shaders:
    """The shaders of every group met so far, for one profile."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._known: OrderedDict[tuple[object, ...], tuple[Shader, ...]] = OrderedDict()

    def of(self, graph: WireGraph, group: Group) -> list[Shader]:
        """The group's shaders, in order; their buffers are numbers of `graph`'s nodes."""
        part = cut(graph, group)
        known = self._known.pop(part.key, None)
        self._known[part.key] = known or lower_cut(part, self.profile)
        if len(self._known) > SHADERS_MAX:
            self._known.popitem(last=False)
        return [
            replace(shader, buffers=tuple(part.numbers[buffer] for buffer in shader.buffers))
            for shader in self._known[part.key]
        ]


def lower_cut(part: Cut, profile: Profile) -> tuple[Shader, ...]:
    root = len(part.nodes) - 1
    graph = WireGraph(part.nodes, (root,), ("0",), part.types)
    reads = {number for number, node in enumerate(part.nodes) if node.op == "input"}
    group = Group(root, part.kind, list(part.anchors), set(), reads)
    return tuple(emit(kernel, profile) for kernel in LOWERINGS[part.kind](Frame(graph, group, profile)))


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
