"""Workspace: what an op needs at most while it is computed, besides its operands and its results.

Plans count it, and the engines keep to it (`worker/cpu/convolution.py`).  Only ops that need much have a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from .dtypes import BF16, F16, F32
from .graph import WireGraph
from .types import Attrs, TensorType

BLOCK_BYTES = 1 << 22  # of windows copied at once: a few times what caches hold, so that a product is worth its call
LINES_ELEMENTS = 1 << 17  # of lines that are sorted or added up at once, if one line is not more
FEW_ROWS, LARGE_SIZE = 48, 1 << 17  # of a product: numpy takes up to so many rows by so large a matrix turned round
Rule = Callable[[Attrs, Sequence[TensorType], TensorType], int]


def scratch_bytes(graph: WireGraph, index: int, by_numpy: bool = False) -> int:
    """The workspace of a node; `by_numpy` on the engine of that name, whose copies no other one makes."""
    op, inputs, attrs = graph.nodes[index]
    rule = (BY_NUMPY if by_numpy and op in BY_NUMPY else SCRATCH).get(op)
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


def _dot(attrs: Attrs, operands: Sequence[TensorType], out: TensorType) -> int:
    """Operands and result in f32 for f16 and bf16, copies of operands of which BLAS cannot read the matrices, and of
    few rows the result turned round."""
    narrow = out.dtype in (F16, BF16)
    item_bytes = 4 if narrow else out.dtype.itemsize
    copies = sum(
        operand.size
        for operand, side in zip(operands, ("lhs", "rhs"), strict=True)
        if not _is_stack(operand.shape, attrs[f"{side}_batch"], attrs[f"{side}_contract"])
    )
    x, w = operands
    summed = math.prod(x.shape[axis] for axis in attrs["lhs_contract"])
    rows = x.size // max(summed * math.prod(x.shape[axis] for axis in attrs["lhs_batch"]), 1)
    turned = out.size if out.dtype is F32 and rows <= FEW_ROWS and w.size >= LARGE_SIZE else 0
    return item_bytes * (copies + turned + (x.size + w.size + out.size if narrow else 0))


def _is_stack(shape: Sequence[int], batch: Sequence[int], contract: Sequence[int]) -> bool:
    """Whether a tensor is a stack of matrices where it lies: the axes of each group follow each other, and the last one
    is no batch."""
    axes = [axis for axis, dim in enumerate(shape) if dim > 1]
    place = {axis: number for number, axis in enumerate(axes)}
    free = [axis for axis in axes if axis not in (*batch, *contract)]
    groups = [[place[axis] for axis in group if axis in place] for group in (batch, free, contract)]
    runs = all(after == before + 1 for group in groups for before, after in pairwise(group))
    return runs and (not groups[0] or groups[0][-1] != len(axes) - 1)


def _lines(each_bytes: int) -> Rule:
    """Some lines at once, so many bytes for each of their elements: wider sums, or places of 64 bits."""

    def rule(attrs: Attrs, operands: Sequence[TensorType], out: TensorType) -> int:
        (x,) = operands
        length: int = x.shape[attrs["axis"]]
        return each_bytes * min(x.size, max(LINES_ELEMENTS, length))

    return rule


def _matrix(times: int) -> Rule:
    """Copies of operands and results for LAPACK, in double precision, and what it works with.  As measured, of one
    matrix and of a batch."""

    def rule(attrs: Attrs, operands: Sequence[TensorType], out: TensorType) -> int:
        *ahead, m, n = operands[0].shape
        squares = math.prod(ahead) * (m * m + n * n) if attrs.get("full") else 0
        wide_bytes = 16 if operands[0].dtype.kind == "c" else 8
        return times * wide_bytes * (squares + sum(operand.size for operand in operands))

    return rule


BY_NUMPY: Mapping[str, Rule] = {"dot": _dot}
SCRATCH: Mapping[str, Rule] = {
    "conv": _conv,
    "argmax": _lines(12),
    "argsort": _lines(12),
    "cumsum": _lines(16),
    "cumprod": _lines(16),
    "cholesky": _matrix(3),
    "solve": _matrix(3),
    "lu": _matrix(2),
    "qr": _matrix(4),
    "eigh": _matrix(4),
    "svd": _matrix(6),
}
