"""The evaluator of last resort: an engine in this very process.

A graph that takes long is compiled to machine code of this processor, which uses all cores (docs/native.md); a small
one is done by numpy before that would be compiled.  Which of them it is follows from the graph alone.

Part of the composition root: the one file besides `mesh/backends/local_workers.py`, `mesh/backends/embedded.py` and
`commands/` that reaches into `worker`.  It is imported when the first value is computed without a mesh.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray

from wire.errors import NoSuchDevice
from wire.ir.device_names import ANY, device_named
from wire.ir.graph import NODE_BYTES, WireGraph
from wire.lru_cache import Latest
from worker.config import WorkerConfig
from worker.cpu.engine import CpuEngine, CpuExecutable, compile_graph, ordered, run
from worker.cpu.process import one_thread
from worker.devices.registry import PROCESSOR, open_engine
from worker.engine.donation import Lent
from worker.engine.protocol import Stopped, never

from .backend import Work
from .handle import Handle

COMPILING_S = 0.02  # a graph that numpy is done with sooner is not compiled: a kernel takes some 10 ms
NUMPY_FLOPS_PER_S, NUMPY_BYTES_PER_S = 4e10, 2e9  # about: of a product on one thread, and of results elsewhere
LATEST_COUNT, LATEST_BYTES = 64, 32 << 20  # compiled graphs that nobody has any more, and what they take


class Executables:
    """What this process compiled, by the content of graphs: as long as somebody has the graph.  The latest are kept
    beyond that, since what `run` traces anew is often what it was, but for those with large constants."""

    def __init__(self) -> None:
        self.compiled = 0  # graphs so far
        self._alive: WeakKeyDictionary[WireGraph, CpuExecutable] = WeakKeyDictionary()
        self._latest: Latest[Hashable, CpuExecutable] = Latest(LATEST_COUNT, LATEST_BYTES)
        self._forced: WeakSet[Work] = WeakSet()  # those that asked for it, and were compiled anew
        self._lock = threading.RLock()  # what is freed within may compute something

    def __len__(self) -> int:
        """The number of graphs that are still in use."""
        return len(self._alive)

    def of(self, work: Work) -> CpuExecutable:
        """What the work's graph was compiled to, or is now.  NoSuchDevice if values are to be elsewhere than on the cpu
        of this process."""
        graph = work.graph
        key = graph.hash  # and not within the lock, as it takes time
        with self._lock:
            anew = work.force and work not in self._forced
            if anew:
                self._forced.add(work)
            executable = None if anew else self._alive.get(graph)
        executable = None if anew else executable or self._latest.get(key)
        if executable is None:
            _check_devices(graph)
            one_thread()
            executable = _engine().compile(graph) if _takes_long(graph) else compile_graph(graph)
            with self._lock:
                self.compiled += 1
        with self._lock:
            if anew:
                self._alive[graph] = executable
            executable = self._alive.setdefault(graph, executable)  # another thread's, if that was quicker
        if not graph.blobs:
            self._latest.keep(key, executable, graph.total_nodes * NODE_BYTES + executable.kept_bytes)
        return executable


EXECUTABLES = Executables()
_LOADED: WeakKeyDictionary[Handle, NDArray[Any]] = WeakKeyDictionary()
_LOADED_LOCK = threading.RLock()


def evaluate(work: Work, inputs: Mapping[str, NDArray[Any]], stopped: Stopped = never) -> Sequence[NDArray[Any]]:
    """The outputs of the work's graph on the cpu engine; InputError if a handle's tensor is not in this process.

    Cancelled between two ops once `stopped()`.
    """
    executable = EXECUTABLES.of(work)
    params = _params(work, executable)
    return run(executable, ordered(work.graph, {**inputs, **params}), stopped)


class Evaluating:
    """A work's graph, compiled once: `run` evaluates it with other params than its bindings where they are given."""

    def __init__(self, work: Work) -> None:
        self._executable = EXECUTABLES.of(work)
        self.params = _params(work, self._executable)
        self._names = [work.graph.nodes[index].attrs["name"] for index in (*work.graph.inputs, *work.graph.params)]

    def run(
        self, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, NDArray[Any]], spent: Collection[str] = ()
    ) -> Sequence[NDArray[Any]]:
        """The outputs, in graph order.  `spent` are params that nobody needs after this: outputs may take their memory.
        They are as they were if this raises."""
        values_by_name = {**self.params, **params, **inputs}
        return run(
            self._executable,
            [Lent(values_by_name[name]) if name in spent else values_by_name[name] for name in self._names],
        )


def _takes_long(graph: WireGraph) -> bool:
    """Whether numpy would take longer than it takes to compile; by fixed figures, so that bits follow the graph."""
    written_bytes = sum(kind.size_bytes for kind in graph.types)
    return graph.flops / NUMPY_FLOPS_PER_S + written_bytes / NUMPY_BYTES_PER_S >= COMPILING_S


@cache
def _engine() -> CpuEngine:
    """The best engine for this processor: the native one, or numpy's where no machine code can be made."""
    return cast(CpuEngine, open_engine(PROCESSOR, WorkerConfig().kernel_folder, memory_bytes=0))


def _check_devices(graph: WireGraph) -> None:
    """Raise NoSuchDevice if values are to be elsewhere than on the cpu of this process."""
    for op, _, attrs in graph.nodes:
        if op == "transfer" and attrs["device"] not in ("cpu", ANY):
            raise NoSuchDevice(
                f"there is no device {device_named(attrs['device']).text!r} in this process",
                next_step="Run it on a mesh: with mesh.Mesh.builder()...build() as m",
            )


def _params(work: Work, executable: CpuExecutable) -> dict[str, NDArray[Any]]:
    """The tensors of a work's bindings: those that an engine reads are loaded, since they never change."""
    local = {name: _local(handle) for name, handle in work.bindings.items()}
    if executable.source is None:
        return local
    with _LOADED_LOCK:
        for name, handle in work.bindings.items():
            if handle not in _LOADED:
                _LOADED[handle] = _engine().load(local[name])
        return {name: _LOADED[handle] for name, handle in work.bindings.items()}


def _local(handle: Handle) -> NDArray[Any]:
    """The handle's tensor; one mapped from a place that no kernel can work on is read now, and not again."""
    if handle.local is not None and not handle.local.flags.aligned:
        handle.local = handle.local.copy()
        handle.local.flags.writeable = False
    return np.asarray(handle)
