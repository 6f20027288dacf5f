"""Shared outputs: which results of a schedule are made where other ranks can read them, so that nobody copies them.

That is memory for one run: an output that is made there is copied.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wire.ir.dtypes import F32, F64
from wire.ir.graph import WireGraph
from wire.ir.types import Attrs, HostArray, TensorType

from ..collectives.shared_arena import ARENA_OP, fits_arena
from .elementwise import IN_PLACE
from .structural import concat, dot

IntoKernel = Callable[[Attrs, list[HostArray], TensorType, HostArray], HostArray]


def _performed(ufunc: np.ufunc) -> IntoKernel:
    return lambda _attrs, operands, _out, into: np.asarray(ufunc(*operands, out=into))


INTO: dict[str, IntoKernel] = {
    "dot": dot, "concat": concat, **{op: _performed(ufunc) for op, ufunc in IN_PLACE.items()},
}  # fmt: skip
"""Kernels that can put their result into given memory; the bits are the same."""


def in_rooms(graph: WireGraph) -> frozenset[int]:
    """The nodes whose results are made in such memory, if there is any: what collectives take as it is, and no output
    is."""
    given = {_made_by(graph, node.inputs[0]) for node in graph.nodes if node.op == ARENA_OP}
    kept = {_made_by(graph, output) for output in graph.outputs}
    return frozenset(index for index in given - kept if _fits(graph, index))


def _made_by(graph: WireGraph, index: int) -> int:
    while graph.nodes[index].op in ("reshape", "after"):
        index = graph.nodes[index].inputs[0]
    return index


def _fits(graph: WireGraph, index: int) -> bool:
    kind = graph.types[index]
    return graph.nodes[index].op in INTO and kind.dtype in (F32, F64) and fits_arena(kind)
