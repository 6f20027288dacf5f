"""What workers with `engine="cpu"` compute, in this process.  Without a mesh, large graphs go to the native engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mesh import trace
from worker.cpu import evaluate


def by_numpy(fn: Callable[[Any], Any], x: NDArray[Any]) -> NDArray[Any]:
    """The result of a function of one array."""
    graph = trace(fn, x)
    (result,) = evaluate(graph, dict.fromkeys(graph.input_types, x))
    return np.asarray(result)
