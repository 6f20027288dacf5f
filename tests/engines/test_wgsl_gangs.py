"""A rank on an adapter among ranks on the cpu: the same collectives in the same order, and values within tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.spmd_cases import CASES
from support.cases.unlike_ranks import X, Y, drawn, program
from support.part_costs import part_costs
from support.rank_parts import by_ranks

from wire.errors import ExecuteFailed
from wire.ir.dtypes import F32, I32
from wire.passes.specialise_ranks import specialise
from worker.cpu import evaluate
from worker.wgsl.device import _APART_BYTES_MIN

pytestmark = needs_adapter


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
def test_a_rank_on_an_adapter_meets_those_on_the_cpu(engine: Any, name: str) -> None:
    dtype = I32 if name == "axis_index" else F32
    for label, graph, given in CASES[name](dtype):
        if any(graph.nodes[index].op != "spmd" for index in graph.outputs):
            continue  # within a loop: not a part of its own
        for actual, expected in zip(by_ranks(graph, given, engine), evaluate(graph, given), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=label)


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_on_an_adapter_meets_those_that_compute_something_else(engine: Any, seed: int) -> None:
    graph, given = program(drawn(seed, 2), 2), {"x": X, "y": Y}
    attrs = next(node for node in graph.nodes if node.op == "spmd").attrs
    bodies = specialise(attrs["body"], attrs["axes"], attrs["sizes"])
    for actual, expected in zip(by_ranks(graph, given, engine, bodies), evaluate(graph, given), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_what_a_collective_takes_back_from_the_adapter_is_told(engine: Any) -> None:
    _, graph, given = next(iter(CASES["all_reduce"](F32)))
    before_s = engine.readback_s
    by_ranks(graph, given, engine)
    assert engine.readback_s > before_s


@pytest.mark.parametrize("size_bytes", [1 << 20, 2 * _APART_BYTES_MIN])
def test_a_part_tells_what_of_its_time_was_reading_back(engine: Any, tmp_path: Path, size_bytes: int) -> None:
    x = np.arange(size_bytes // 4, dtype=np.float32)
    told, output = part_costs(engine, tmp_path, x)
    assert 0 < told.readback_s < told.compute_s and told.encode_s > 0
    assert np.array_equal(output, -x)


def test_a_collective_outside_of_a_gang_is_an_error(engine: Any) -> None:
    _, graph, _ = next(iter(CASES["all_reduce"](F32)))
    body = graph.nodes[graph.outputs[0]].attrs["body"]
    arrays = [np.zeros(kind.shape, kind.dtype.numpy) for kind in body.input_types.values()]
    with pytest.raises(ExecuteFailed, match="outside of a gang"):
        engine.run(engine.compile(body), arrays)
