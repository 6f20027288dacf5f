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
    """Convolution over any number of axes, as neural networks know it: the kernel is not turned around.

    Parameters
    ----------
    x : array_like, (..., in, *dims)
        The inputs.
    weight : array_like, (out, in / groups, *kernel)
        The kernels; they say how many axes there are.
    bias : array_like, (out,), optional
        What is added to each output channel.
    stride : int or sequence of int, optional
        The distance of neighbouring windows, for all axes or for each.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        Zeros around x: one int, an int or a pair (before, after) per axis, or a rule.
    dilation : int or sequence of int, optional
        The distance of a kernel's neighbouring elements.
    groups : int, optional
        In how many groups channels are; outputs see the inputs of their own group.

    Returns
    -------
    Array
        The outputs, (..., out, *windows).

    Raises
    ------
    ShapeError
        If the shapes do not fit, or a window is larger than the padded x.
    InputError
        If the padding is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.conv(np.array([[1.0, 2.0, 4.0]]), np.array([[[1.0, -1.0]]]))
    Array([[-1., -2.]], dtype=float64)
    >>> nn.conv(np.zeros((8, 3, 32, 32)), np.zeros((16, 3, 5, 5)), stride=2, padding="same").shape
    (8, 16, 16, 16)
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
    """The transpose of `conv` as a linear map, which makes arrays larger where `conv` makes them smaller.

    Parameters
    ----------
    x : array_like, (..., in, *dims)
        The inputs.
    weight : array_like, (in, out / groups, *kernel)
        The kernels.
    bias : array_like, (out,), optional
        What is added to each output channel.
    stride : int or sequence of int, optional
        The stride of the conv that is transposed, for all axes or for each.
    padding : int, sequence or {"same", "same_lower", "valid"}, optional
        The padding of the conv that is transposed.
    output_padding : int or sequence of int, optional
        How much longer the outputs are at their ends.
    dilation : int or sequence of int, optional
        The distance of a kernel's neighbouring elements.
    groups : int, optional
        In how many groups channels are.

    Returns
    -------
    Array
        The outputs, (..., out, *lengths).

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    InputError
        If the padding is not known.

    Notes
    -----
    A length is `(dim - 1) * stride + dilation * (kernel - 1) + 1 - before - after + output_padding`.

    Examples
    --------
    >>> import numpy as np
    >>> from mesh import nn
    >>> nn.conv_transpose(np.array([[1.0, 2.0]]), np.array([[[1.0, 10.0]]]), stride=2)
    Array([[ 1., 10.,  2., 20.]], dtype=float64)
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
    """The windows of a correlation, per axis, and the number of groups of channels."""

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
