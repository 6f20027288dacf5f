"""CpuEngine: a part compiled to a list of numpy calls with every tensor freed after its last use.

Any cut of a graph gives the same bits: every kernel computes from C-contiguous operands, so that numpy's choice of
inner loop and order of summation follows from shapes alone, and BLAS runs on one thread.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.dtypes import DTYPES
from wire.errors import ExecuteFailed, InputError, MeshError, OutOfMemory, Unsupported
from wire.graph import Node, WireGraph, const_value
from wire.ops import OPS
from wire.types import TensorType

from ..engine import EngineInfo, Measured
from .elementwise import ELEMENTWISE, Kernel
from .process import keep_memory, one_thread
from .structural import STRUCTURAL

KERNELS: dict[str, Kernel] = {**ELEMENTWISE, **STRUCTURAL}
HANDLED = frozenset({"input", "param", "const", "composite"})  # by the engine itself


@dataclass(frozen=True, slots=True)
class _Call:
    """One numpy call: `frees` are the values no later call needs."""

    kernel: Kernel
    node: Node
    result: TensorType
    index: int
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CpuExecutable:
    """A compiled part."""

    arguments: tuple[int, ...]
    constants: tuple[tuple[int, NDArray[Any]], ...]
    calls: tuple[_Call, ...]
    outputs: tuple[int, ...]
    types: tuple[TensorType, ...]
    memory_bytes: int
    from_cache: bool = True  # there are no kernels to generate


class CpuEngine:
    """The engine (worker/engine.py) over numpy."""

    def __init__(self, memory_bytes: int | None = None) -> None:
        one_thread()
        keep_memory()
        names = tuple(dtype.name for dtype in DTYPES)
        self.info = EngineInfo(
            engine="cpu",
            adapter=cpu_model(),
            backend="cpu",
            driver=f"numpy {np.__version__}",
            software=True,
            memory_bytes=memory_bytes or available_bytes(),
            limits={},
            dtypes_by_op=dict.fromkeys(OPS, names),
        )

    def measure(self) -> Measured:
        """Single-thread f32 GFLOP/s at 512^3, GB/s of a scaled copy of 16 MiB, seconds per call of a trivial graph."""
        square = np.ones((512, 512), np.float32)
        line = np.ones(1 << 22, np.float32)
        into = np.empty_like(line)
        gflops = 2 * 512**3 / _fastest(lambda: np.matmul(square, square)) / 1e9
        gbytes_per_s = 2 * line.nbytes / _fastest(lambda: np.multiply(line, 2.0, out=into)) / 1e9
        return Measured(gflops, gbytes_per_s, 2e-5)

    def compile(self, graph: WireGraph, force: bool = False) -> CpuExecutable:
        return compile_graph(graph)

    def load(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def unload(self, handle: Any) -> None:
        return

    def run(self, executable: CpuExecutable, inputs: Sequence[Any]) -> list[NDArray[Any]]:
        return run(executable, inputs)

    def close(self) -> None:
        return


def evaluate(
    graph: WireGraph, inputs: Mapping[str, NDArray[Any]], params: Mapping[str, NDArray[Any]] | None = None
) -> list[NDArray[Any]]:
    """The outputs of `graph` in this process; InputError names a missing or ill-typed value."""
    one_thread()
    given = {**inputs, **(params or {})}
    values = []
    for index in (*graph.inputs, *graph.params):
        name, kind = graph.nodes[index].attrs["name"], graph.types[index]
        if name not in given:
            raise InputError(f"the input {name!r} ({kind}) is missing")
        array = np.asarray(given[name])
        if array.shape != kind.shape or array.dtype != kind.dtype.numpy:
            raise InputError(f"the input {name!r} is {array.dtype}{list(array.shape)}, expected {kind}")
        values.append(array)
    return run(compile_graph(graph), values)


def compile_graph(graph: WireGraph) -> CpuExecutable:
    """The schedule of a graph; BlobMissing if a large constant is not here."""
    flat = inline(graph)
    last_use = {source: index for index, node in enumerate(flat.nodes) for source in node.inputs}
    kept = {*flat.outputs, *flat.inputs, *flat.params}
    calls, constants = [], []
    for index, node in enumerate(flat.nodes):
        if node.op == "const":
            constants.append((index, const_value(node, flat.blobs)))
        elif node.op not in ("input", "param"):
            kernel = KERNELS.get(node.op)
            if kernel is None:
                raise Unsupported(f"the cpu engine has no op {node.op!r}", op=node.op)
            frees = tuple({source for source in node.inputs if last_use[source] == index and source not in kept})
            calls.append(_Call(kernel, node, flat.types[index], index, frees))
    arguments = (*flat.inputs, *flat.params)
    peak = sum(flat.types[call.index].size_bytes for call in calls)
    return CpuExecutable(arguments, tuple(constants), tuple(calls), flat.outputs, flat.types, peak)


def run(executable: CpuExecutable, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Perform a schedule."""
    values: dict[int, NDArray[Any]] = dict(executable.constants)
    for index, array in zip(executable.arguments, inputs, strict=True):
        values[index] = array
    with np.errstate(all="ignore"):
        for call in executable.calls:
            operands = [values[source] for source in call.node.inputs]
            try:
                result = call.kernel(call.node.attrs, operands, call.result)
            except MeshError:
                raise
            except MemoryError as error:
                raise OutOfMemory(f"no memory for {call.result}", op=call.node.op, cause=str(error)) from None
            except Exception as error:
                raise ExecuteFailed(
                    "a numpy kernel failed", op=call.node.op, cause=f"{type(error).__name__}: {error}"
                ) from error
            values[call.index] = np.ascontiguousarray(result).reshape(call.result.shape)
            for source in call.frees:
                values.pop(source, None)
    return [_own(values[index], executable) for index in executable.outputs]


def inline(graph: WireGraph) -> WireGraph:
    """The graph with every composite replaced by its body."""
    from .inline import inline_composites

    return inline_composites(graph)


def _own(array: NDArray[Any], executable: CpuExecutable) -> NDArray[Any]:
    """An output never shares memory with an input or a constant."""
    return array.copy() if not array.flags.owndata or not array.flags.writeable else array


def _fastest(work: Any) -> float:
    work()
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return min(times)


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_bytes() -> int:
    """Half of the machine's memory: the other half is the owner's."""
    import psutil

    return int(psutil.virtual_memory().total // 2)
