"""The engines that compile, by name, and which graphs are for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from wire.ir.graph import WireGraph
from worker.engine.protocol import Engine
from worker.native.engine import NativeEngine


def _wgsl(folder: Path) -> Engine:
    from worker.wgsl.engine import WgslEngine

    return WgslEngine(0, folder)


_OPENED: dict[str, Callable[[Path], Engine]] = {
    "native": lambda folder: NativeEngine(threads=2, folder=folder),
    "wgsl": _wgsl,
}


def opened(name: str, folder: Path) -> Engine:
    """An engine that keeps its kernels in `folder`."""
    return _OPENED[name](folder)


def is_for(engine: Engine, graph: WireGraph) -> bool:
    """Whether the engine has the graph's ops and all dtypes of its tensors, those of inner graphs too."""
    dtypes_by_op = engine.info.dtypes_by_op
    return all(
        {node.op for node in inner.nodes} <= dtypes_by_op.keys() | _WITHOUT_KERNEL
        and {kind.dtype.name for kind in inner.types} <= set(dtypes_by_op["add"])
        for inner in _inner(graph)
    )


_WITHOUT_KERNEL = {"input", "param", "const"}


def _inner(graph: WireGraph) -> Iterator[WireGraph]:
    yield graph
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, WireGraph):
                yield from _inner(value)
