"""Random programs of numpy calls, each traced to one graph, give on the wgsl engine what numpy gives, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.numpy_programs import ON_WGSL, agree, as_function, random_program, run_in_step

import mesh
from wire.errors import Unsupported
from worker.engine.protocol import Engine

pytestmark = needs_adapter


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from worker.wgsl.engine import WgslEngine

    opened = WgslEngine(0, tmp_path_factory.mktemp("kernels"))
    yield opened
    opened.close()


def ran(engine: Engine, seed: int) -> bool:
    """False if the program met a dtype that WGSL does not have; AssertionError if the engine gives something else."""
    program = random_program(seed, ON_WGSL, length=6)
    outcome = run_in_step(program)
    graph = mesh.trace(as_function(program, outcome), *program.arrays)
    given: dict[str, Any] = dict(
        zip([graph.nodes[at].attrs["name"] for at in graph.inputs], program.arrays, strict=True)
    )
    try:
        executable = engine.compile(graph)
    except Unsupported:
        return False
    actual = engine.run(executable, [np.ascontiguousarray(array).reshape(array.shape) for array in given.values()])
    agree(program, actual, outcome.theirs)
    return True


def test_random_programs_equal_numpy_on_wgsl(engine: Engine) -> None:
    assert sum(ran(engine, seed) for seed in range(20)) > 10


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 3100, 300))
def test_many_random_programs_equal_numpy_on_wgsl(engine: Engine, first: int) -> None:
    assert sum(ran(engine, seed) for seed in range(first, first + 300)) > 150
