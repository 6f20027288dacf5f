"""The functions of the Array API standard on the engines that compile, against numpy's own namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases import array_api_cases, array_api_matrices
from support.cases.array_api_cases import Call
from support.cases.array_api_judge import as_function, check_agreement, is_traced, judged_by_numpy
from support.cases.compiling_engines import is_for, opened

import mesh
from worker.cpu.engine import ordered
from worker.engine.protocol import Engine

CALLS = [call for call in (*array_api_cases.CASES, *array_api_matrices.CASES) if is_traced(call)]
BATCHES = 16
SAMPLE = 61  # of the default run: every so many-th call


@pytest.fixture(scope="module", params=["native", pytest.param("wgsl", marks=needs_adapter)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = opened(request.param, tmp_path_factory.mktemp("kernels"))
    yield engine
    engine.close()


def computed(engine: Engine, call: Call) -> Any:
    """The call's result by an engine, None if it is not for this engine."""
    function, *given = as_function(call)
    traced = mesh.trace_full(function, *given)
    if not is_for(engine, traced.graph):
        return None
    bound = traced.bind(*given)
    values = {**bound.inputs, **{name: np.asarray(handle) for name, handle in bound.params.items()}}
    return traced.unflatten(engine.run(engine.compile(traced.graph), ordered(traced.graph, values)))


def check(engine: Engine, calls: Sequence[Call]) -> int:
    """How many of the calls the engine computes; AssertionError naming those that it gets wrong."""
    faults, right = [], 0
    for call in calls:
        try:
            result = computed(engine, call)
            if result is not None:
                check_agreement(call, result, judged_by_numpy(call))
                right += 1
        except Exception as error:
            faults.append(f"{call.id}: {type(error).__name__}: {str(error).strip()[:300]}")
    assert not faults, f"{len(faults)} wrong:\n" + "\n".join(faults)
    return right


def test_a_sample_of_the_calls(engine: Engine) -> None:
    assert check(engine, CALLS[::SAMPLE]) > 20


@pytest.mark.long
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_call_in_dtypes_of_the_engine(engine: Engine, batch: int) -> None:
    assert check(engine, CALLS[batch::BATCHES]) > 40
