"""Branches that stand in a graph several times, as those of layers that are alike, are compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases.control_cases import graph_of, siblings

from wire.ir.dtypes import BOOL, F32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.ir.types import TensorType
from worker.cpu import CpuEngine, engine
from worker.cpu.engine import CpuExecutable
from worker.engine.kernel_rows import Key, Span
from worker.native.engine import NativeEngine

KINDS = [TensorType((), BOOL), TensorType((64,), F32)]
LAYERS = 4
X = np.linspace(-1, 1, 64, dtype=np.float32)


def layers() -> WireGraph:
    """What LAYERS conds make of x, one behind the other, each with the same branches; one of them has a cond inside."""

    def wide(builder: GraphBuilder, _: int, x: int) -> list[int]:
        return [builder.add("sin", builder.add("add", x, x))]

    def narrow(builder: GraphBuilder, _: int, x: int) -> list[int]:
        return [builder.add("cos", builder.add("mul", x, x))]

    both = {"then": graph_of(KINDS, wide), "otherwise": graph_of(KINDS, narrow)}

    def within(builder: GraphBuilder, chosen: int, x: int) -> list[int]:
        return siblings(builder, "cond", chosen, chosen, x, count=1, **both)

    outer = {"then": graph_of(KINDS, within), "otherwise": both["otherwise"]}

    def every(builder: GraphBuilder, chosen: int, x: int) -> list[int]:
        for _ in range(LAYERS):
            (x,) = siblings(builder, "cond", chosen, chosen, x, count=1, **outer)
        return [x]

    return graph_of(KINDS, every)


def inside(executable: CpuExecutable) -> list[CpuExecutable]:
    """The schedules inside, at all depths."""
    found = list(executable._inner)
    return found + [deeper for each in found for deeper in inside(each)]


@pytest.mark.parametrize("make", [CpuEngine, lambda: NativeEngine(threads=1)], ids=["cpu", "native"])
def test_they_are_compiled_once_and_measured_apart(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, spans = list[WireGraph](), list[Span]()
    once = engine._compiled

    def noting(graph: WireGraph, *others: Any) -> CpuExecutable:
        compiled.append(graph)
        return once(graph, *others)

    monkeypatch.setattr(engine, "_compiled", noting)
    own, graph = make(), layers()
    try:
        executable = own.compile(graph)
        assert len(compiled) == 4, "the graph, its branches, and two branches in one of them, one of which is the same"
        assert len({each.number for each in inside(executable)}) == len(inside(executable)) == 4 * LAYERS
        own.watch(spans.append)
        for chosen, right in ((True, lambda x: np.sin(x + x)), (False, lambda x: np.cos(x * x))):
            spans.clear()
            (found,) = own.run(executable, [np.array(chosen), X], keep=())
            wanted = X
            for _ in range(LAYERS):
                wanted = right(wanted)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
            keys: list[Key] = [span.key for span in spans]
            assert len(set(keys)) == len(keys), "kernels of layers are told apart"
            assert {number for number, _ in keys} <= {each.number for each in (executable, *inside(executable))}
            assert len(keys) >= LAYERS
    finally:
        own.close()
