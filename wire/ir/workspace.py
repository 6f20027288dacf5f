"""Workspace: what an op needs at most while it is computed, besides its operands and its results.

Plans count it, and the engines keep to it (`worker/cpu/convolution.py`).  Only ops that need much have a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from .dtypes import BF16, F16
from .graph import WireGraph
from .types import Attrs, TensorType

BLOCK_BYTES = 1 << 22  # of windows copied at once: a few times what caches hold, so that a product is worth its call
Rule = Callable[[Attrs, Sequence[TensorType], TensorType], int]


def scratch_bytes(graph: WireGraph, index: int) -> int:
    """The workspace of a node."""
    op, inputs, attrs = graph.nodes[index]
    rule = SCRATCH.get(op)
    return 0 if rule is None else rule(attrs, [graph.types[source] for source in inputs], graph.types[index])


def _conv(attrs: Attrs, operands: Sequence[TensorType], out: TensorType) -> int:
    """A block of windows and their product; what is read of x, where it has padding; results and weights that belong to
    phases of a dilated x; and everything again where f16 and bf16 are summed in f32."""
    x, w = operands
    if 0 in (out.size, x.size, w.size):
        return 0
    sides = zip(x.shape[2:], attrs["low"], attrs["high"], strict=True)
    padded: int = x.shape[0] * x.shape[1] * math.prod(dim + low + high for dim, low, high in sides)
    gaps: int = math.prod(map(max, attrs["stride"], attrs["rhs_dilation"]))
    windows: int = attrs["groups"] * (out.size // w.shape[0]) * math.prod(w.shape[1:])
    narrow, dilated = out.dtype in (F16, BF16), any(spread > 1 for spread in attrs["lhs_dilation"])
    wider = (out.size + w.size if dilated else 0) + (out.size + w.size + x.size if narrow else 0)
    item_bytes = 4 if narrow else out.dtype.itemsize
    block = 2 * min(BLOCK_BYTES, windows * item_bytes) + min(BLOCK_BYTES * gaps, padded * item_bytes)
    return block + wider * item_bytes


SCRATCH: Mapping[str, Rule] = {"conv": _conv}
