"""The evaluator of last resort: the cpu engine in this very process.

Part of the composition root: the one file besides `local.py`, `embedded.py` and `commands/` that reaches into `worker`.
It is imported when the first value is computed without a mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.graph import WireGraph
from worker.cpu import evaluate as evaluate_on_cpu
from worker.engine import Stopped, never

from .realise import Param


def evaluate(
    graph: WireGraph, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, Param], stopped: Stopped = never
) -> Sequence[NDArray[Any]]:
    """The outputs of `graph` on the cpu engine; InputError if a handle's tensor is not in this process.

    Cancelled between two ops once `stopped()`.
    """
    return evaluate_on_cpu(graph, inputs, {name: np.asarray(param) for name, param in params.items()}, stopped)
