"""Groups -> shaders, each distinct group lowered once.

A group is cut out of its graph and its nodes numbered anew, so that the same work anywhere in any graph is the same
key and the same text: a model's layers, and the parts of the next plan, cost one lowering and one pipeline.  It does
not know what is in a shader.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from wire.ir.graph import WireGraph

from ..compiler.cut import Cut, cut
from ..compiler.fuse import Group
from .emit import Shader, emit
from .kernels import LOWERINGS, Frame
from .profile import Profile

SHADERS_MAX = 1_024  # groups remembered; one is a few kB of text


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
    kernels = LOWERINGS[part.kind](Frame(graph, group, profile))
    return tuple(emit(kernel, profile, part.types) for kernel in kernels)
