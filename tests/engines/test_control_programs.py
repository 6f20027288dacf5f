"""Random programs of nested branches and loops on both engines, against Python's own statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.adapter import needs_adapter
from support.cases.control_programs import VARIABLES, Plain, Traced, program

import mesh
from wire.ir.codec import decode_graph
from wire.ir.graph import WireGraph
from wire.ir.ops import inner_graphs
from wire.ir.text import from_text, to_text
from wire.ir.verify import verify
from wire.passes.simplify import simplify
from worker.cpu import CpuEngine


@pytest.fixture(scope="module")
def wgsl() -> Iterator[Any]:
    from worker.wgsl.engine import WgslEngine

    made = WgslEngine(0)
    yield made
    made.close()


def arguments(seed: int, dtype: Any) -> list[Any]:
    return list(np.random.default_rng([seed, 1]).uniform(-1, 1, (VARIABLES, 3, 3)).astype(dtype))


def graph_of(seed: int, dtype: Any) -> WireGraph:
    made = program(seed)
    return mesh.trace(lambda *state: made(Traced(), state), *arguments(seed, dtype))


def depth_of(graph: WireGraph) -> int:
    return max((1 + depth_of(each) for node in graph for each in inner_graphs(node.op, node.attrs)), default=0)


def check(engine: Any, seeds: range, dtype: Any, tolerance: float) -> int:
    """How many programs were nested at least two deep."""
    deep = 0
    for seed in seeds:
        given = arguments(seed, dtype)
        graph = graph_of(seed, dtype)
        expected = program(seed)(Plain(), tuple(given))
        actual = engine.run(engine.compile(graph), [given[int(name)] for name in _places(graph)])
        for place, (left, right) in enumerate(zip(actual, expected, strict=True)):
            np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance, err_msg=f"seed {seed}, {place}")
        deep += depth_of(graph) > 1
    return deep


def _places(graph: WireGraph) -> list[str]:
    return [name.rpartition("/")[2] for name in graph.input_types]


def test_programs_on_the_cpu_are_what_python_makes_of_them() -> None:
    assert check(CpuEngine(), range(60), np.float64, 1e-9) > 30


@needs_adapter
def test_programs_on_the_device_are_what_python_makes_of_them(wgsl: Any) -> None:
    assert check(wgsl, range(8), np.float32, 2e-3) > 3


@pytest.mark.long
@needs_adapter
def test_many_programs_on_both(wgsl: Any) -> None:
    assert check(CpuEngine(), range(1000, 3000), np.float64, 1e-9) > 500
    assert check(wgsl, range(1000, 1200), np.float32, 2e-3) > 50


def test_programs_survive_bytes_text_and_simplifying() -> None:
    for seed in range(40):
        graph = graph_of(seed, np.float64)
        verify(graph)
        decoded = decode_graph(graph.encoded)
        assert decoded.encoded == graph.encoded
        assert from_text(to_text(decoded)) == graph
        simple = simplify(decoded)
        verify(simple)
        given = dict(zip(graph.input_types, [arguments(seed, np.float64)[int(p)] for p in _places(graph)], strict=True))
        engine = CpuEngine()
        for left, right in zip(engine.run(engine.compile(graph), list(given.values())),
                               engine.run(engine.compile(simple), list(given.values())), strict=True):  # fmt: skip
            assert left.tobytes() == right.tobytes(), seed
