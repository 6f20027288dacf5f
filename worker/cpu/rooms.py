"""Rooms: which results of a schedule are made where other ranks can read them, so that nobody copies them.

That is memory for one run: what a collective takes, and no output is in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wire.dtypes import F32, F64
from wire.graph import WireGraph
from wire.types import Attrs, TensorType

from ..collectives.shelf import LAID, TENSOR_BYTES_MIN
from .elementwise import IN_PLACE, Array
from .spare import reach
from .structural import concat, dot

IntoKernel = Callable[[Attrs, list[Array], TensorType, Array], Array]


def _performed(ufunc: np.ufunc) -> IntoKernel:
    return lambda _attrs, operands, _out, into: np.asarray(ufunc(*operands, out=into))


INTO: dict[str, IntoKernel] = {
    "dot": dot, "concat": concat, **{op: _performed(ufunc) for op, ufunc in IN_PLACE.items()},
}  # fmt: skip
"""Kernels that can put their result into given memory; the bits are the same."""


def in_rooms(graph: WireGraph) -> frozenset[int]:
    """The nodes whose results are made in such memory, if there is any."""
    given = [source for node in graph.nodes if node.op == LAID for source in node.inputs]
    if not given:
        return frozenset()
    reached = reach(graph)
    kept = frozenset[object]().union(*(reached[output] for output in graph.outputs))
    wanted = frozenset[object]().union(*(reached[source] for source in given)) - kept
    return frozenset(index for index in wanted if isinstance(index, int) and _fits(graph, index))


def _fits(graph: WireGraph, index: int) -> bool:
    kind = graph.types[index]
    return graph.nodes[index].op in INTO and kind.dtype in (F32, F64) and kind.size_bytes >= TENSOR_BYTES_MIN
