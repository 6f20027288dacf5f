"""The backend tests of the package `onnx` on the engines that compile: all whose tensors have dtypes of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from numpy.typing import NDArray
from support.adapter import needs_adapter

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from support.cases.compiling_engines import is_for, opened
from support.cases.onnx_cases import SUITES, Case, cases, graphs, judge, listed

from wire.ir.graph import WireGraph
from worker.engine.protocol import Engine

BATCHES = 16
SAMPLE = 4  # of the default run: every so many-th case of the suites that need not be generated first


@pytest.fixture(scope="module", params=["native", pytest.param("wgsl", marks=needs_adapter)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = opened(request.param, tmp_path_factory.mktemp("kernels"))
    yield engine
    engine.close()


def wrong(engine: Engine, case: Case) -> str | None:
    """What is wrong with a case; nothing if it passes, None if it is not for this engine."""
    if not all(is_for(engine, graph) for _, graph, _, _ in graphs(case)):
        return None

    def computed(graph: WireGraph, arguments: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        given = [arguments[graph.nodes[index].attrs["name"]] for index in (*graph.inputs, *graph.params)]
        return engine.run(engine.compile(graph), given)

    try:
        judge(case, computed)
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


def test_a_sample_of_the_cases(engine: Engine) -> None:
    assert check(engine, every(SUITES[1:])[::SAMPLE]) > 10


@pytest.mark.long
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_case_in_dtypes_of_the_engine(engine: Engine, batch: int) -> None:
    assert check(engine, every()[batch::BATCHES]) > 40
