"""The evaluator of last resort: the cpu engine in this very process.

Part of the composition root: the one file besides `local.py`, `embedded.py` and `commands/` that reaches into `worker`.
It is imported when the first value is computed without a mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.device_names import device_named
from wire.errors import NoSuchDevice
from wire.graph import WireGraph
from worker.cpu import evaluate as evaluate_on_cpu
from worker.cpu.engine import compile_graph, run
from worker.cpu.process import one_thread
from worker.engine import Stopped, never
from worker.lending import Lent

from .backend import Work
from .handle import Handle


def evaluate(work: Work, inputs: Mapping[str, NDArray[Any]], stopped: Stopped = never) -> Sequence[NDArray[Any]]:
    """The outputs of the work's graph on the cpu engine; InputError if a handle's tensor is not in this process.

    Cancelled between two ops once `stopped()`.
    """
    _check_devices(work.graph)
    params = {name: _local(handle) for name, handle in work.bindings.items()}
    return evaluate_on_cpu(work.graph, inputs, params, stopped)


class Evaluating:
    """A work's graph, compiled once: `run` evaluates it with other params than its bindings where they are given."""

    def __init__(self, work: Work) -> None:
        _check_devices(work.graph)
        self.params = {name: _local(handle) for name, handle in work.bindings.items()}
        self._names = [work.graph.nodes[index].attrs["name"] for index in (*work.graph.inputs, *work.graph.params)]
        one_thread()
        self._executable = compile_graph(work.graph)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, NDArray[Any]], spent: Collection[str] = ()
    ) -> Sequence[NDArray[Any]]:
        """The outputs, in graph order.  `spent` are params that nobody needs after this: outputs may take their memory.
        They are as they were if this raises."""
        given = {**self.params, **params, **inputs}
        return run(self._executable, [Lent(given[name]) if name in spent else given[name] for name in self._names])


def _check_devices(graph: WireGraph) -> None:
    """NoSuchDevice if values are to be elsewhere than on the cpu of this process."""
    for op, _, attrs in graph.nodes:
        if op == "transfer" and attrs["device"] != "cpu":
            raise NoSuchDevice(
                f"there is no device {device_named(attrs['device']).said!r} in this process",
                next_step="Run it on a mesh: with mesh.Mesh.builder()...build() as m",
            )


def _local(handle: Handle) -> NDArray[Any]:
    """The handle's tensor; one mapped from a place that no kernel can work on is read now, and not again."""
    if handle.local is not None and not handle.local.flags.aligned:
        handle.local = handle.local.copy()
        handle.local.flags.writeable = False
    return np.asarray(handle)
