"""Windows over spatial axes, as convolution and pooling slide them: sizes, padding, and which positions they read.

Everything here is plain integers: shapes are static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError

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

    @property
    def span(self) -> int:
        """How many elements it covers, gaps included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def reach(self) -> tuple[int, int]:
        """The padding that the places taken need; negative at the end where some elements are never read."""
        return self.low, (self.count - 1) * self.stride + self.span - self.size - self.low

    def positions(self) -> NDArray[np.int64]:
        """(count, kernel): which element each place reads; outside of 0..size-1 is padding."""
        starts = np.arange(self.count) * self.stride - self.low
        return starts[:, None] + np.arange(self.kernel)[None, :] * self.dilation


def windows(call: Call, sizes: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """The node's windows over axes of `sizes`, by its strides, dilations, pads, auto_pad and ceil_mode."""
    rank = len(sizes)
    strides, dilations = (tuple(call.attr(name) or (1,) * rank) for name in ("strides", "dilations"))
    pads = tuple(call.attr("pads") or (0,) * (2 * rank))
    auto, ceil = call.attr("auto_pad", "NOTSET"), bool(call.attr("ceil_mode", 0))
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise InputError(f"windows of {tuple(kernel)}, every {strides}, with gaps of {dilations}, are none")
    found = []
    for axis, size in enumerate(sizes):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        low, high = _padding(auto, size, span, strides[axis], (pads[axis], pads[rank + axis]))
        count = _count(size + low + high - span, strides[axis], ceil)
        if ceil and (count - 1) * strides[axis] >= size + low:  # no place begins in the padding at the end
            count -= 1
        found.append(Window(size, kernel[axis], strides[axis], dilations[axis], low, high, count))
    return found


def _count(room: int, stride: int, ceil: bool) -> int:
    return (-(-room // stride) if ceil else room // stride) + 1


def _padding(auto: str, size: int, span: int, stride: int, given: tuple[int, int]) -> tuple[int, int]:
    if auto == "NOTSET":
        return given
    if auto == "VALID":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    less, more = total // 2, total - total // 2
    return (less, more) if auto == "SAME_UPPER" else (more, less)
