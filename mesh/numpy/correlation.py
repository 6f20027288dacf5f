"""Correlation: the op `conv` with padding that may be negative, and kernels turned around for the transposed map.

Users' convolutions (`mesh/nn/convolution.py`) and derivatives of them (`mesh/transforms/conv_rules.py`) both call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, apply

Pair = tuple[int, int]


def correlation(
    x: Array,
    w: Array,
    stride: Sequence[int],
    pairs: Sequence[Pair],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
) -> Array:
    """The op `conv` of x (n, c, *dims) by w (o, c / groups, *kernel); padding below 0 cuts the dilated x."""
    low, high, start, stop = [], [], [], []
    for dim, pair, spread in zip(x.shape[2:], pairs, lhs_dilation, strict=True):
        first, last = (max(0, -(side // spread)) if dim else 0 for side in pair)  # elements that fall off at either end
        if first + last >= dim > 0:  # only gaps and padding remain
            first, last = dim, 0
            low.append(max(0, (dim - 1) * spread + 1 + sum(pair)))
            high.append(0)
        else:
            low.append(pair[0] + first * spread)
            high.append(pair[1] + last * spread)
        start.append(first)
        stop.append(dim - last)
    if (start, stop) != ([0] * len(start), list(x.shape[2:])):
        x = apply("slice", x, start=(0, 0, *start), stop=(*x.shape[:2], *stop), step=(1,) * x.ndim)
    attrs = {"stride": tuple(stride), "low": tuple(low), "high": tuple(high)}
    return apply(
        "conv", x, w, **attrs, lhs_dilation=tuple(lhs_dilation), rhs_dilation=tuple(rhs_dilation), groups=groups
    )


def transposed_kernels(weight: Array, groups: int) -> Array:
    """Kernels (a, b / groups, *kernel) as those of the transposed map: (b, a / groups, *kernel), each turned around."""
    makers, share, *kernel = weight.shape
    if groups < 1 or makers % groups:
        raise ShapeError(f"weight {weight.shape} does not split into {groups} groups")
    split = mnp.swapaxes(weight.reshape(groups, makers // groups, share, *kernel), 1, 2)
    return mnp.flip(split.reshape(groups * share, makers // groups, *kernel), tuple(range(2, 2 + len(kernel))))
