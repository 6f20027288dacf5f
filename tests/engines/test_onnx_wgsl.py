"""The backend tests of the package `onnx` on the wgsl engine: all whose computed tensors have dtypes that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.cases.onnx_cases import SUITES, Case, cases, graphs, judge, listed

from wire.ir.graph import WireGraph
from worker.engine.protocol import Engine

BATCHES = 16
SAMPLE = 4  # of the default run: every so many-th case of the suites that need not be generated first


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from worker.wgsl.engine import WgslEngine

    opened = WgslEngine(0, tmp_path_factory.mktemp("kernels"))
    yield opened
    opened.close()


def dtypes_of(graph: WireGraph) -> set[str]:
    """What the graph's tensors have, those of inner graphs too."""
    inner = {
        dtype
        for node in graph.nodes
        for value in node.attrs.values()
        if isinstance(value, WireGraph)
        for dtype in dtypes_of(value)
    }
    return inner | {kind.dtype.name for kind in graph.types}


def wrong(engine: Engine, case: Case) -> str | None:
    """What is wrong with a case; nothing if it passes, None if it is not for this engine."""
    allowed = set(engine.info.dtypes_by_op["add"])
    if not all(dtypes_of(graph) <= allowed for _, graph, _, _ in graphs(case)):
        return None

    def on_wgsl(graph: WireGraph, arguments: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        given = [arguments[graph.nodes[index].attrs["name"]] for index in (*graph.inputs, *graph.params)]
        return engine.run(engine.compile(graph), given)

    try:
        judge(case, on_wgsl)
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {str(error).strip()[:300]}"
    return ""


def check(engine: Engine, chosen: list[Case]) -> int:
    """How many of `chosen` are for this engine; AssertionError naming those of them that are wrong."""
    actual = [wrong(engine, case) for case in chosen]
    faults = [fault for fault in actual if fault]
    assert not faults, f"{len(faults)} wrong:\n" + "\n".join(faults)
    return sum(fault is not None for fault in actual)


def every(suites: Sequence[str] = SUITES) -> list[Case]:
    return [case for suite in suites for case in cases(suite) if case.name not in listed()]


@needs_adapter
def test_a_sample_of_the_cases(engine: Engine) -> None:
    assert check(engine, every(SUITES[1:])[::SAMPLE]) > 10


@pytest.mark.long
@needs_adapter
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_case_in_dtypes_of_the_engine(engine: Engine, batch: int) -> None:
    assert check(engine, every()[batch::BATCHES]) > 40
