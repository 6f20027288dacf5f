"""What ways between layouts send at most."""

from __future__ import annotations

import math

from wire.ir.ops import SENT
from wire.sharding.layout import Axes, Layout, local_shape


def gather_all_bytes(shape: tuple[int, ...], item_bytes: int, axes: Axes, source: Layout) -> int:
    """What the busiest rank sends if everything is made complete and whole before it is cut: never less than `path`."""
    local = math.prod(local_shape(shape, source.dims, axes)) * item_bytes
    ranks, partial = axes.size([axis for split in source.dims for axis in split]), axes.size(source.partial)
    return SENT["all_reduce"](local, partial) + SENT["all_gather"](local, ranks)
