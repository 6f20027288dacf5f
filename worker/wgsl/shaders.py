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

    def of(self, graph: WireGraph, group: Group, textures: frozenset[int] = frozenset()) -> list[Shader]:
        """The group's shaders, in order; their buffers are numbers of `graph`'s nodes, of which some are textures."""
        part = cut(graph, group)
        own = frozenset(place for place, number in enumerate(part.numbers) if number in textures)
        key = (*part.key, own)
        known = self._known.pop(key, None)
        self._known[key] = known or lower_cut(part, self.profile, own)
        if len(self._known) > SHADERS_MAX:
            self._known.popitem(last=False)
        return [
            replace(
                shader,
                buffers=tuple(part.numbers[buffer] for buffer in shader.buffers),
                quads=frozenset(part.numbers[buffer] for buffer in shader.quads),
                from_textures=frozenset(part.numbers[buffer] for buffer in shader.from_textures),
                textures=frozenset(part.numbers[buffer] for buffer in shader.textures),
            )
            for shader in self._known[key]
        ]


def lower_cut(part: Cut, profile: Profile, textures: frozenset[int] = frozenset()) -> tuple[Shader, ...]:
    root = len(part.nodes) - 1
    graph = WireGraph(part.nodes, (root,), ("0",), part.types)
    reads = {number for number, node in enumerate(part.nodes) if node.op == "input"}
    group = Group(root, part.kind, list(part.anchors), set(), reads)
    kernels = LOWERINGS[part.kind](Frame(graph, group, profile))
    return tuple(emit(kernel, profile, part.types, textures) for kernel in kernels)
