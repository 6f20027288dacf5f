"""Convolution and its transpose, over any number of axes; arrays are (..., channels, *dims), as torch has them.

They are ways to call the op (`correlation.py`), and so are its derivatives (`mesh/transforms`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from wire.errors import ShapeError

from ..core.array import Array, Operand
from ..numpy.correlation import correlation, transposed_kernels
from ..numpy.promotion import asarray, operands
from ..util.annotation_checks import checked
from .windows import Pair, extents, pads, per_axis

Ints = int | Sequence[int]


@checked
def conv(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    stride: Ints = 1,
    padding: Any = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """x (..., in, *dims) by weight (out, in / groups, *kernel), plus bias (out,): (..., out, *windows).

    `padding` is an int, an int or a (before, after) per axis, "same" or "valid"; every int may be one per axis.
    """
    source, kernels = operands(x, weight)
    rank = _rank(source, kernels, "weight (out, in / groups, *kernel)")
    steps, reaches = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
    pairs = pads(padding, source.shape[-rank:], extents(kernels.shape[2:], reaches), steps)
    return _over_samples(source, kernels, bias, _Windows(steps, pairs, (1,) * rank, reaches, groups))


@checked
def conv_transpose(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    stride: Ints = 1,
    padding: Any = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Array:
    """The transpose of `conv` as a map: x (..., in, *dims) by weight (in, out / groups, *kernel), plus bias (out,).

    An axis becomes (dim - 1) * stride + dilation * (kernel - 1) + 1 - before - after + output_padding long, where
    `padding` is what the conv that is transposed was padded with.
    """
    source, kernels = operands(x, weight)
    rank = _rank(source, kernels, "weight (in, out / groups, *kernel)")
    steps, reaches = per_axis(stride, rank, "stride", 1), per_axis(dilation, rank, "dilation")
    more, spans = per_axis(output_padding, rank, "output_padding"), extents(kernels.shape[2:], reaches)
    taken = pads(padding, source.shape[-rank:], spans, steps)
    pairs = [
        (span - 1 - low, span - 1 - high + extra) for (low, high), span, extra in zip(taken, spans, more, strict=True)
    ]
    turned = transposed_kernels(kernels, groups)
    return _over_samples(source, turned, bias, _Windows((1,) * rank, pairs, steps, reaches, groups))


def _rank(x: Array, weight: Array, wanted: str) -> int:
    rank = weight.ndim - 2
    if rank < 1 or x.ndim < rank + 1:
        raise ShapeError(f"conv needs x (..., in, *dims) and {wanted}, got {x.shape} and {weight.shape}")
    return rank


class _Windows(NamedTuple):
    """Where the windows of a correlation lie, per axis, and in how many groups channels are."""

    stride: Sequence[int]
    pads: Sequence[Pair]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]
    groups: int


def _over_samples(x: Array, weight: Array, bias: Operand | None, windows: _Windows) -> Array:
    """A correlation with all axes in front of the channels as one, and these axes back."""
    rank = len(windows.stride)
    front = x.shape[: -rank - 1]
    samples = x.reshape(math.prod(front), *x.shape[-rank - 1 :])
    result = correlation(samples, weight, *windows)
    if bias is not None:
        result = result + asarray(bias).reshape(-1, *[1] * rank)
    return result.reshape(*front, *result.shape[1:])
