"""Products whose right operand lies in pages: their kernel reads it there, with the bits of a product of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.kept_kernels import native_engine

import mesh
import mesh.numpy as mnp
from mesh.core.array import apply
from worker.cpu import evaluate
from worker.cpu.engine import ordered
from worker.native.engine import NativeEngine

TEXTS, HEADS, PAGES, PAGE, SIZE, WIDTH = 2, 3, 40, 16, 24, 19
LENGTH = WIDTH * PAGE  # more than one run of a sum


@pytest.fixture(scope="module")
def native() -> Iterator[NativeEngine]:
    engine = native_engine(threads=2)
    yield engine
    engine.close()


def of_pages(pool: Any, table: Any) -> Any:
    """(texts, heads, LENGTH, SIZE)"""
    heads = mnp.astype(mnp.arange(HEADS), mnp.int32)[None, :, None]
    found = apply(
        "gather", mnp.reshape(pool, (PAGES * HEADS, PAGE, SIZE)), table[:, None] * HEADS + heads, axis=0, batch_dims=0
    )
    return mnp.reshape(found, (TEXTS, HEADS, LENGTH, SIZE))


def to_keys(x: Any, pool: Any, table: Any) -> Any:
    return x @ of_pages(pool, table).mT


def to_values(x: Any, pool: Any, table: Any) -> Any:
    return x @ of_pages(pool, table)


def with_a_copy(product: Any) -> Any:
    """The same, and the operand itself, which is in memory then."""
    return lambda x, pool, table: (product(x, pool, table), of_pages(pool, table))


def given(product: Any, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    table = rng.permutation(PAGES)[: TEXTS * WIDTH].reshape(TEXTS, WIDTH).astype(np.int32)
    table[1, 5] = table[0, 2]  # a page that both have
    x = rng.standard_normal((TEXTS, HEADS, rows, SIZE if product is to_keys else LENGTH)).astype(np.float32)
    return [x, rng.standard_normal((PAGES, HEADS, PAGE, SIZE)).astype(np.float32), table]


def run(engine: NativeEngine, graph: Any, arguments: list[np.ndarray]) -> tuple[list[np.ndarray], set[str]]:
    """What it gives, and the names of kernels."""
    executable = engine.compile(graph)
    values = dict(zip((*graph.input_types, *graph.param_types), arguments, strict=True))
    outputs = engine.run(executable, ordered(graph, values))
    nodes = [{graph.nodes[index].op for index in row.nodes} for row in engine.explain(executable).rows]
    return outputs, {"picked" for ops in nodes if {"gather", "dot"} <= ops}


@pytest.mark.parametrize("rows", [1, 3, 8, 16, 65])
@pytest.mark.parametrize("product", [to_keys, to_values])
def test_a_product_of_pages_has_the_bits_of_a_product_of_a_copy(native: NativeEngine, product: Any, rows: int) -> None:
    arguments = given(product, rows)
    graph = mesh.trace(product, *arguments)
    (found,), kernels = run(native, graph, arguments)
    (copied, _), others = run(native, mesh.trace(with_a_copy(product), *arguments), arguments)
    assert (bool(kernels), bool(others)) == (rows <= 64, False)
    assert found.tobytes() == copied.tobytes()
    (wanted,) = evaluate(graph, dict(zip((*graph.input_types, *graph.param_types), arguments, strict=True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
