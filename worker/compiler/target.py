"""What a target is to the passes: what it computes, and a few figures by which they decide.

A target is what kernels are printed for: WGSL on one adapter (`worker/wgsl/profile.py`), or this processor
(`worker/native/target.py`).  The passes ask nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wire.ir.graph import Node, WireGraph
from wire.ir.types import TensorType

from .scores import MOVES

UNPACKING = MOVES | {"and", "cast", "mul", "add", "sub"}


def everything(graph: WireGraph, index: int) -> bool:
    """A target that computes every node, since others were refused before."""
    return True


def one(type_: TensorType) -> int:
    """A target for which a tensor of any size is one."""
    return 1


@dataclass(frozen=True, slots=True)
class Target:
    """`bindings_max` bounds what a kernel reads and writes, where a tensor of this type counts as `bindings(type)`.
    `kinds` names the families of ops that have one of their own.

    `prologue` are ops on operands of a product that its kernel computes while it loads, each element many times.
    `unpacking` are those by which it makes the right operand of a `dot` from what takes less memory than that operand:
    weights of fewer bits, with their scales.  `picking` are those by which it reads one that lies in several places.
    `costly` are ops that are not worth computing twice, and `looping` those, by dtype, that must stay out of the loops
    of a reduction.  `takes(graph, index)` says whether a kernel computes a node; another node's result is in memory,
    and so are its operands.  Scores of at most `scores_max` rows and columns are computed where they are summed
    (`scores.py`).  A `concat` of more than `joined_max` parts is a family of its own.
    """

    bindings_max: int
    kinds: Mapping[str, str]
    prologue: frozenset[str]
    costly: frozenset[str]
    looping: frozenset[tuple[str, str]] = frozenset()
    takes: Callable[[WireGraph, int], bool] = everything
    scores_max: int = 0
    unpacking: frozenset[str] = frozenset()
    picking: frozenset[str] = frozenset()
    bindings: Callable[[TensorType], int] = one
    joined_max: int | None = None

    def kind_of(self, node: Node) -> str | None:
        """The family of a node, if it has one of its own."""
        if node.op == "concat" and self.joined_max is not None and len(node.inputs) > self.joined_max:
            return "join"
        return self.kinds.get(node.op)
