"""Blocks: kernels that need much memory on the way to their result compute it part by part.

What they make of a part is small, and stays in the cache.  The parts follow from shapes alone, and no element's bits
from its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wire.ir.types import HostArray, TensorType
from wire.ir.workspace import LINES_ELEMENTS

BLOCK = 1 << 15  # elements


def by_blocks(function: Callable[..., Any], out: TensorType, *operands: HostArray) -> HostArray:
    """An elementwise function of operands that broadcast to the shape of `out`, whose values are cast to its dtype."""
    shape = out.shape
    if out.size <= BLOCK:
        return np.asarray(function(*operands)).astype(out.dtype.numpy, copy=False)
    if all(operand.size in (1, out.size) for operand in operands):
        operands, shape = tuple([operand.reshape(-1) for operand in operands]), (out.size,)
    result = np.empty(shape, out.dtype.numpy)
    rows = max(1, BLOCK // math.prod(shape[1:]))
    cut = [operand.ndim == len(shape) and operand.shape[0] > 1 for operand in operands]
    for first in range(0, shape[0], rows):
        part = slice(first, first + rows)
        result[part] = function(
            *[operand[part] if own else operand for operand, own in zip(operands, cut, strict=True)]
        )
    return result.reshape(out.shape)


def by_lines(function: Callable[[HostArray], HostArray], out: TensorType, array: HostArray, axis: int) -> HostArray:
    """A function along an axis: it is given lines as axis 1 of three, and returns as many elements of each, or one."""
    shape = math.prod(array.shape[:axis]), array.shape[axis], math.prod(array.shape[axis + 1 :])
    (outer, length, inner), lines = shape, array.reshape(shape)
    if array.size <= LINES_ELEMENTS:
        return function(lines).astype(out.dtype.numpy, copy=False).reshape(out.shape)
    result = np.empty((outer, out.size // (outer * inner), inner), out.dtype.numpy)
    across = min(inner, max(1, LINES_ELEMENTS // length))
    together = max(1, LINES_ELEMENTS // (length * across))
    for first in range(0, outer, together):
        for column in range(0, inner, across):
            part = np.s_[first : first + together, :, column : column + across]
            result[part] = function(lines[part])
    return result.reshape(out.shape)
