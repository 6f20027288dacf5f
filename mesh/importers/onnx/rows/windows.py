"""Windows over spatial axes, as convolution and pooling slide them: sizes, padding, and which positions they read.

Everything here is plain integers: shapes are static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

from ....nn.windows import count, extents, pads
from ..evaluate import Call


@dataclass(frozen=True, slots=True)
class Window:
    """A window along one axis of `size` elements, with `low` and `high` padding, and how many places it takes."""

    size: int
    kernel: int
    stride: int
    dilation: int
    low: int
    high: int
    count: int

    def positions(self) -> NDArray[np.int64]:
        """(count, kernel): which element each place reads; outside of 0..size-1 is padding."""
        starts = np.arange(self.count) * self.stride - self.low
        return starts[:, None] + np.arange(self.kernel)[None, :] * self.dilation


def windows(call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """The node's windows over axes of `sizes`, by its strides, dilations, pads, auto_pad and ceil_mode."""
    rank = len(sizes)
    strides, dilations = (tuple(call.attr(name) or (1,) * rank) for name in ("strides", "dilations"))
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise InputError(f"windows of {tuple(kernel)}, every {strides}, with gaps of {dilations}, are none")
    widths = tuple(call.attr("pads") or (0,) * (2 * rank))
    pairs: Any = list(zip(widths[:rank], widths[rank:], strict=True))
    spans, ceil = extents(kernel, dilations), bool(call.attr("ceil_mode", 0))
    padding = pads(_AUTO.get(call.attr("auto_pad", "NOTSET"), pairs), sizes, spans, strides)
    rows = zip(sizes, kernel, strides, dilations, spans, padding, strict=True)
    return [
        Window(size, length, stride, dilation, low, high, count(size, span, stride, (low, high), ceil))
        for size, length, stride, dilation, span, (low, high) in rows
    ]


_AUTO = {"VALID": "valid", "SAME_UPPER": "same", "SAME_LOWER": "same_lower"}
