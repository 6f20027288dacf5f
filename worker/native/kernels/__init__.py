"""The kernel families, one file each: a fused group becomes machine code.  `FAMILIES` is the table."""

from __future__ import annotations

from collections.abc import Callable

from .frame import Frame, Kernel
from .join import lower_join
from .map import lower_map
from .product import lower_product
from .row import lower_row
from .scatter import lower_scatter

FAMILIES: dict[str, Callable[[Frame], Kernel]] = {
    "map": lower_map,
    "row": lower_row,
    "matmul": lower_product,
    "scatter": lower_scatter,
    "join": lower_join,
}

__all__ = ["FAMILIES", "Frame", "Kernel"]
