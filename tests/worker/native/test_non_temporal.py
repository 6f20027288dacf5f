"""Results larger than the caches are stored past them, and have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.kept_kernels import native_engine

import mesh.numpy as mnp
from mesh import nn, trace
from wire.ir.graph import WireGraph
from worker.native.engine import NON_TEMPORAL_BYTES, NativeEngine

MARK = "!nontemporal"
LINED_UP = {  # their vectors of 64 bytes begin at multiples of that; the others are stored as usual
    "elements", "elements of two bytes", "elements of bfloat16", "elements of eight bytes", "conditions",
    "integers of one byte", "rows that a scalar is added to", "softmax", "a causal mask", "a reversal",
}  # fmt: skip
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], Any]] = {
    "elements": (lambda x: x * 2 + 1, (100_003,), np.float32),
    "elements of two bytes": (lambda x: x * 2 + 1, (100_003,), np.float16),
    "elements of bfloat16": (lambda x: x + x, (300, 128), ml_dtypes.bfloat16),
    "elements of eight bytes": (lambda x: mnp.exp(x), (50_001,), np.float64),
    "conditions": (lambda x: x > 0, (100_003,), np.float32),
    "integers of one byte": (lambda x: x + x, (100_003,), np.int8),
    "rows that a scalar is added to": (lambda x: x + mnp.sum(x[0, :3]), (130, 768), np.float32),
    "softmax": (lambda x: nn.softmax(x, -1), (130, 768), np.float32),
    "softmax of rows that end within a line": (lambda x: nn.softmax(x, -1), (130, 763), np.float32),
    "softmax of halves": (lambda x: nn.softmax(x, -1), (130, 776), np.float16),
    "softmax of columns": (lambda x: nn.softmax(x, 0), (130, 768), np.float32),
    "a mean over two axes": (lambda x: x - mnp.mean(x, axis=(1, 3), keepdims=True), (7, 12, 5, 96), np.float32),
    "a causal mask": (lambda x: nn.softmax(mnp.where(mnp.tril(mnp.ones((256, 256), "bool")), x, -1e9), -1), (256, 256),
                      np.float32),
    "a transpose": (lambda x: x.T + 1, (257, 321), np.float32),
    "parts that begin within a line": (lambda x: mnp.concat([x[:, 5:], x[:, :5] * 2], axis=1), (257, 321), np.float32),
    "padding": (lambda x: mnp.pad(x, ((0, 0), (3, 7))) * 2, (257, 321), np.float32),
    "a reversal": (lambda x: mnp.flip(x, axis=0) * 2, (100_003,), np.float32),
}  # fmt: skip


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    return (np.random.default_rng(5).standard_normal(shape) * 3).astype(dtype)


def computed(engine: NativeEngine, graph: WireGraph, x: Any) -> bytes:
    (result,) = engine.run(engine.compile(graph), [x])
    return np.asarray(result).tobytes()


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_usual_stores(name: str, threads: int, vector_bytes: int) -> None:
    function, shape, dtype = CASES[name]
    x = drawn(shape, dtype)
    graph = trace(function, x)
    usual = native_engine(threads=threads, vector_bytes=vector_bytes)
    past = native_engine(threads=threads, vector_bytes=vector_bytes, non_temporal_bytes=0)
    assert computed(past, graph, x) == computed(usual, graph, x)
    assert not any(MARK in text for text in texts(usual, function, x))
    if vector_bytes == 64:
        assert any(MARK in text for text in texts(past, function, x)) == (name in LINED_UP)
    usual.close()
    past.close()


def texts(engine: NativeEngine, function: Callable[..., Any], *arrays: Any) -> list[str]:
    return [row.text for row in engine.explain(engine.compile(trace(function, *arrays)), texts=True).rows]


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_stored_so_that_are_larger_than_what_the_threads_caches_hold(threads: int) -> None:
    engine = native_engine(threads=threads)
    elements = NON_TEMPORAL_BYTES // 4 * threads
    small, large = (np.zeros((count, 4), np.float32) for count in (elements // 4 - 1, elements // 4))
    assert [MARK in text for text in texts(engine, lambda x: x + 1, small)] == [False]
    for function in (lambda x: x + 1, lambda x: nn.softmax(x.reshape(-1, 256), -1)):
        stored = texts(engine, function, large)
        assert [MARK in text for text in stored] == [True]
        assert all("fence" in text for text in stored), "other threads read it next"
    engine.close()


def test_what_is_read_next_by_the_same_program_is_not() -> None:
    engine = native_engine()
    large = np.zeros((NON_TEMPORAL_BYTES // 4096, 1024), np.float32)
    weights = np.zeros((1024, 8), np.float32)
    stored = texts(engine, lambda x, w: nn.softmax(x, -1) @ w, large, weights)
    assert len(stored) == 2
    assert not any(MARK in text for text in stored)
    engine.close()
