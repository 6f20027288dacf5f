"""The kernel families, one file each: a fused group becomes kernels.  `LOWERINGS` is the table."""

from __future__ import annotations

from collections.abc import Callable

from ..kernel_ir import Kernel
from .frame import Frame
from .map import lower_map
from .matmul import lower_matmul
from .put import lower_put
from .row import lower_row
from .scatter import lower_scatter
from .scores import lower_scores
from .sort import lower_sort

LOWERINGS: dict[str, Callable[[Frame], list[Kernel]]] = {
    "map": lower_map,
    "put": lower_put,
    "row": lower_row,
    "matmul": lower_matmul,
    "scatter": lower_scatter,
    "scores": lower_scores,
    "sort": lower_sort,
}

__all__ = ["LOWERINGS", "Frame"]
