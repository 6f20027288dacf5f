"""conv on numpy arrays: a view of every window, copied block by block into a matrix that BLAS multiplies.

Blocks are of bounded memory and follow from shapes alone, as does everything else here, so the same conv gives the same
bits in any part of any graph.  A group of one channel has no matrix worth the name: its windows are summed position by
position of the kernel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wire.dtypes import BF16, F16
from wire.types import Attrs, TensorType

from .elementwise import Array

BLOCK_BYTES = 1 << 23  # of windows copied at once: a few times what caches hold, so that a product is worth its call


def conv(attrs: Attrs, operands: list[Array], out: TensorType) -> Array:
    """x (n, c, *dims) by w (o, c / groups, *kernel); the row of wire/ops.py says what it means."""
    x, w = (array.astype(np.float32) for array in operands) if out.dtype in (F16, BF16) else operands
    groups = attrs["groups"]
    if out.size == 0 or w.size == 0:
        return np.zeros(out.shape, out.dtype.numpy)
    windows = _windows(_padded(x, attrs), w.shape[2:], out.shape[2:], attrs)
    kernels = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    found = _by_position(windows, kernels) if w.shape[1] == 1 else _by_product(windows, kernels)
    return found.reshape(out.shape).astype(out.dtype.numpy, copy=False)


def _padded(x: Array, attrs: Attrs) -> Array:
    """x with zeros around it and between its elements."""
    rows = list(zip(x.shape[2:], attrs["low"], attrs["high"], attrs["lhs_dilation"], strict=True))
    if all(low == high == 0 and (spread == 1 or dim == 1) for dim, low, high, spread in rows):
        return x
    lengths = [low + max((dim - 1) * spread + 1, 0) + high for dim, low, high, spread in rows]
    wide = np.zeros((*x.shape[:2], *lengths), x.dtype)
    inside: list[Any] = [
        slice(low, low + (dim - 1) * spread + 1 if dim else low, spread) for dim, low, _, spread in rows
    ]
    wide[:, :, *inside] = x
    return wide


def _windows(x: Array, kernel: tuple[int, ...], places: tuple[int, ...], attrs: Attrs) -> Array:
    """A view (n, groups, c / groups, *kernel, *places) of what every position of the kernel reads at every place."""
    groups, steps = attrs["groups"], x.strides[2:]
    shape = (x.shape[0], groups, x.shape[1] // groups, *kernel, *places)
    factors = zip((*steps, *steps), (*attrs["rhs_dilation"], *attrs["stride"]), (*kernel, *places), strict=True)
    strides = (
        x.strides[0],
        x.strides[1] * (x.shape[1] // groups),
        x.strides[1],
        *(step * factor if dim > 1 else 0 for step, factor, dim in factors),  # of one there may be any factor
    )
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def _by_product(windows: Array, kernels: Array) -> Array:
    """(n, groups, o / groups, places): per group, its kernels as a matrix times its windows as one."""
    count, groups = windows.shape[:2]
    spatial = (windows.ndim - 3) // 2
    every: list[Any] = [slice(None)] * spatial
    rows = math.prod(windows.shape[2 : 3 + spatial])
    places = windows.shape[3 + spatial :]
    matrices = kernels.reshape(groups, kernels.shape[1], rows)
    result = np.empty((count, groups, kernels.shape[1], *places), windows.dtype)
    lines = max(1, BLOCK_BYTES // (rows * math.prod(places[1:]) * windows.itemsize))  # of the first spatial axis
    for sample in range(count):
        for group in range(groups):
            for first in range(0, places[0], lines):
                part: Array = windows[sample, group, :, *every, first : first + lines]
                product = matrices[group] @ part.reshape(rows, -1)
                into = result[sample, group, :, first : first + lines]
                into[...] = product.reshape(into.shape)
    return result


def _by_position(windows: Array, kernels: Array) -> Array:
    """(n, groups, o / groups, places) where a group has one channel; positions are added in their order."""
    count, groups = windows.shape[:2]
    spatial = (windows.ndim - 3) // 2
    kernel, places = windows.shape[3 : 3 + spatial], windows.shape[3 + spatial :]
    result = np.zeros((count, groups, kernels.shape[1], *places), windows.dtype)
    some = max(1, BLOCK_BYTES // (8 * kernels.shape[1] * math.prod(places) * windows.itemsize))
    for sample in range(count):
        for first in range(0, groups, some):
            total = result[sample, first : first + some]
            for position in np.ndindex(*kernel):
                weights = kernels[first : first + some, :, 0, *position]
                part = windows[sample, first : first + some, :, *position]
                total += weights.reshape(*weights.shape, *[1] * spatial) * part
    return result
